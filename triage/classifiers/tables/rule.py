"""What a rule is: one line of a table, with what makes it fire and what must not."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from triage.core.taxonomy import Cause, FailureType, Level, Severity

LooksAt = Literal["status", "code", "name", "answer", "text"]


class Rule(NamedTuple):
    """One rule of `RulesClassifier`.

    name: as it appears in evidence. failure_type, cause, severity, level: of the diagnosis;
    severity and level None take the defaults of cause and type. looks_at: what `keys` are compared
    with:

    - `"status"`: the HTTP status, as digits (`"429"`, or `"5xx"` for what is not listed).
    - `"code"`: SQLSTATE (five characters, or the two of its class), errno, gRPC and protocol codes,
    exact.
    - `"name"`: the end of a class name or of a provider's code, in words without `error` or
    `exception`:
      `"rate limit"` fits RateLimitError, LMRateLimitError and `rate_limit_error`, not
      RateLimitSettings; `"invalid *"` fits a name of an error or a code that has these words and
      more after them. A key with a dot is a full class name and fits only that class.
    - `"answer"`: regular expressions on what the other side answered; tried only on errors that
    carry an
      answer (a status, a code, a body), in lower case with `_` and `-` as spaces.
    - `"text"`: regular expressions on the message of any error, the same way, after all else was
    silent.

    weak: what the error was raised from may say more. unquoted: the text is read without its quoted
    names. source: where the rule comes from. examples, near_misses: messages (or statuses, codes,
    class names) on which it must and must not fire; both are tested. Those of the rules on steps,
    `steps.…`, are runs as lines of JSON.
    """

    name: str
    failure_type: FailureType
    cause: Cause | str | None
    looks_at: LooksAt
    keys: tuple[str, ...]
    severity: Severity | None = None
    level: Level | None = None
    weak: bool = False
    unquoted: bool = False
    confidence: float = 0.9
    source: str = ""
    examples: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()


WORDS = 0.85
"""The confidence of rules on the words of a message."""
_DENIED = r"(?<!no )(?<![^an]n[o']t )"
"""What is denied did not happen: "no timeout occurred" is none. After "cannot" and "can't" it did."""

_END = (
    r"(?! (?!(?:by|for|from|on|at|while|when|because|due|with|after|until|and|or|but|please|try|"
    r"retry|now|again|during|via|is|was|were|has|have|error|if|in (?:the|an?|this|your|\d)|"
    r"\w+(?:ing|ly))(?!\w))[a-z])"
)
"""No noun follows: "too many requests in clue 12" and "connection refused paint" are no faults."""


def word_rule(
    looks_at: LooksAt,
    name: str,
    failure_type: FailureType,
    cause: Cause | None,
    table: str,
    *,
    severity: Severity | None = None,
    unquoted: bool = False,
    source: str = "wording that clients, tools and agent frameworks share",
) -> Rule:
    """A rule on words. table: expressions, and messages marked with `+` and `-`, one a line."""
    keys, examples, near_misses = _sorted(lines(table.replace("<end>", _END)))
    is_text = looks_at == "text"
    return Rule(
        f"{looks_at}.{name}",
        failure_type,
        cause,
        looks_at,
        tuple(f"{_DENIED}(?:{key})" for key in keys) if is_text else keys,
        severity,
        unquoted=unquoted,
        confidence=WORDS if is_text else 0.9,
        source=source,
        examples=examples,
        near_misses=near_misses,
    )


def name_rule(
    name: str,
    failure_type: FailureType,
    cause: Cause | None,
    table: str,
    *,
    severity: Severity | None = None,
    weak: bool = False,
) -> Rule:
    """A rule on names. table: keys with commas between them, and names marked with `+` and `-`."""
    keys, examples, near_misses = _sorted(lines(table))
    return Rule(
        f"name.{name}",
        failure_type,
        cause,
        "name",
        tuple(key.strip() for line in keys for key in line.split(",") if key.strip()),
        severity,
        weak=weak,
        source="class names and codes that clients and providers of many makes share",
        examples=tuple(" ".join(examples).split()),
        near_misses=tuple(" ".join(near_misses).split()),
    )


def _sorted(table: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The lines of a table: keys, then examples and near misses without their marks."""
    return (
        tuple(line for line in table if not line.startswith(("+ ", "- "))),
        tuple(line[2:] for line in table if line.startswith("+ ")),
        tuple(line[2:] for line in table if line.startswith("- ")),
    )


def lines(block: str) -> tuple[str, ...]:
    """The lines of a block without their indent; one indented further goes on the line before."""
    found: list[str] = []
    indent = 0
    for line in block.splitlines():
        text = line.strip()
        if not text:
            continue
        depth = len(line) - len(line.lstrip())
        if not found:
            indent = depth
        if depth > indent:
            found[-1] += text
        else:
            found.append(text)
    return tuple(found)


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_EMPTY_WORDS = frozenset({"error", "errors", "exception", "err", "exc", "fault"})


def words_of(name: str) -> tuple[str, ...]:
    """A class name or code in lower-case words, without those at the end that say only "error"."""
    words = [word.lower() for word in _WORD.findall(name[:120])]
    while len(words) > 1 and words[-1] in _EMPTY_WORDS:
        words.pop()
    return tuple(words)


_AS_READ = str.maketrans("_-\n\t\r\u2019", "     '")


def normal(text: str) -> str:
    """Lower case, with `_`, `-` and line ends as spaces."""
    return text.lower().translate(_AS_READ)


_QUOTED = re.compile(
    r"(?<!\w)'[^']{1,80}'(?!\w)|\"[^\"]{1,80}\"|`[^`]{1,80}`|\u201c[^\u201d]{1,80}\u201d"
)


def unquoted(text: str) -> str:
    """The text without its short quoted parts: names are data, not statements.

    A text of which nothing but a quotation is left is a statement after all, and is kept.
    """
    bare = _QUOTED.sub(" ", text)
    return bare if re.search(r"[a-z]{2}", bare) else text
