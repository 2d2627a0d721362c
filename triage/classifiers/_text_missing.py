"""Rules on the words of any message: what is not installed, and what is not where it was looked for."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType, Severity

from ._rule import Rule
from ._rule import word_rule as _rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_MISSING = FailureType.HALLUCINATED_STATE
_UNKNOWN = FailureType.UNKNOWN

MISSING_TEXTS: tuple[Rule, ...] = (
    _rule(
        "deployment",
        _UNKNOWN,
        Cause.DEPLOYMENT,
        r"""
        please install
        pip install
        executable doesn'?t exist
        command not found
        no module named
        is not installed
        playwright install
        executable needs to be in path
        """,
        on=r"""
        Please install 'mlx-lm' extra
        /bin/sh: foo: command not found
        """,
        not_on=r"""
        the kitchen was installed
        """,
        severity=Severity.CRITICAL,
    ),
    _rule(
        "mailbox_later",
        _EXTERNAL,
        Cause.UNAVAILABLE,
        r"""
        \(4\d\d, b'[^']{1,200}
        """,
        on=r"""
        {'bob@lab': (450, b'4.2.0 try later')}
        """,
        not_on=r"""
        (450, 12)
        """,
    ),
    _rule(
        "mailbox",
        _MISSING,
        Cause.MISSING_RESOURCE,
        r"""
        \(55[013], b'[^']{1,200}
        mailbox (?:unavailable|not found|does not exist)
        """,
        on=r"""
        {'bob@lab': (550, b'5.1.1 no such account')}
        """,
        not_on=r"""
        (550, 12)
        """,
    ),
    _rule(
        "missing",
        _MISSING,
        Cause.MISSING_RESOURCE,
        r"""
        \[(?:errno (?:2|20|21)|winerror (?:2|3|267))\]
        no such (?:table|column|index|view|function|collection|bucket|key|container|element|
            file or directory|command|container|image|index|object|database|queue|topic|channel|
            resource|document)
        (?:collection|index|table|queue|bucket|channel|document|dataset|container|repository|
            branch|element|topic|resource|database|schema|relation|column|worksheet|namespace|
            secret|object|file|folder|directory|view):? ['\"`]?[\w./:@#-]{1,120}['\"`]? (?:(?:was |could |
            is |can)?not (?:be )?found|(?:does not|doesn'?t) exist|is unknown)
        (?:resource|file|page|element|document|object|key|index|collection) (?:was |
            is )?not found
        unknown (?:resource|column|table|database|collection|index|topic)
        (?:relation|column|function|table|type|database|schema|role) .{1,120} does(?: not|
            n'?t) exist
        invalid (?:object|column|table) name
        (?:table|view) or view does not exist
        referenced column .{1,80} not found
        datei oder (?:verzeichnis|ordner) nicht gefunden
        (?:fichier|dossier) introuvable
        aucun fichier ou dossier
        no existe el (?:fichero|archivo)
        arquivo ou diretório (?:inexistente|não encontrado)
        file o directory non esistente
        stale element
        unable to locate element
        (?:could not|couldn'?t|cannot|can'?t|unable to) find (?:the |a |any )?(?:class|collection|table|
            index|column|field|file|document|element|bucket|key|sheet|worksheet|dataset|topic|queue|
            database|schema|resource|page|object)(?!\w)
        no (?:files|rows|documents) (?:were )?found (?:that match|matching)
        no (?:\w{1,20} )?(?:repository|directory|file|document|record|index) (?:was |
            were )?found (?:at|in|for|with)
        (?:page|entity|user|chat|channel) id .{1,80} does not match any
        invalid session id
        element click intercepted
        """,
        on=r"""
        no such table: sales_q9
        Collection papers not found
        Unknown resource: lab://nothing
        relation "x" does not exist
        """,
        not_on=r"""
        user 500 not found
        tool hammer not found in aisle 4
        the parrot does not exist anymore
        """,
    ),
)
