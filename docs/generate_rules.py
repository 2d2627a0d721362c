"""Writes `rules.md` from the tables of rules: `python docs/generate_rules.py`; `--check` only compares.

What is said of each rule on that page is what the tests check of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from triage.classifiers import RULES, Rule
from triage.classifiers.detectors import _finding
from triage.taxonomy import DEFAULT_LEVEL, severity_of

PAGE = Path(__file__).with_name("rules.md")
INTRODUCTION = Path(__file__).with_name("rules.md.head")
_MAX_SHOWN = 60
_SECTIONS = {
    "status": ("HTTP statuses", "Compared with the status of the answer."),
    "code": ("Codes", "Compared with the code the exception or its answer carries, exactly."),
    "name": (
        "Names",
        "Compared with the end of a class name, most special class first, and of a provider's code.",
    ),
    "answer": (
        "Words of an answer",
        "Looked for in the message and the body of an error that carries an answer.",
    ),
    "text": (
        "Words of any error",
        "Looked for last, in the message of the error that ended the attempt.",
    ),
}


def page() -> str:
    """The whole page, as it should be in the repository."""
    parts = [INTRODUCTION.read_text(encoding="utf-8").rstrip()]
    for kind, (title, about) in _SECTIONS.items():
        rows = [_row(rule) for rule in RULES if rule.looks_at == kind]
        columns = "rule | failure type | cause | severity | level | fires on | not on | source"
        parts.append(f"## {title}\n\n{about}\n\n{_table(columns, rows)}")
    seen = sorted(
        (value for value in vars(_finding).values() if isinstance(value, Rule)),
        key=lambda rule: rule.name,
    )
    rows = [(*_verdict(rule), _cell(rule.source)) for rule in dict.fromkeys(seen)]
    columns = "rule | failure type | cause | severity | level | what the steps show"
    parts.append(
        "## Steps\n\nFound in the steps of the attempt, where no text is compared.\n\n"
        + _table(columns, rows)
    )
    return "\n\n".join(parts) + "\n"


def _row(rule: Rule) -> tuple[str, ...]:
    return (*_verdict(rule), _code(rule.examples), _code(rule.near_misses), _cell(rule.source))


def _verdict(rule: Rule) -> tuple[str, ...]:
    severity = rule.severity or severity_of(rule.failure_type, rule.cause)
    level = rule.level or DEFAULT_LEVEL[severity]
    cause = "" if rule.cause is None else f"`{rule.cause}`"
    return f"`{rule.name}`", f"`{rule.failure_type}`", cause, f"`{severity}`", f"`{level}`"


def _code(examples: Iterable[str]) -> str:
    """The first example, as it stands in the table of rules; the tests try them all."""
    text = " ".join(next(iter(examples)).split()).replace("|", "/").replace("`", "'")
    return f"`{text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + '…'}`"


def _cell(text: str) -> str:
    return text.replace("|", "/")


def _table(columns: str, rows: Iterable[Iterable[str]]) -> str:
    head = f"| {columns} |\n|{'---|' * len(columns.split(' | '))}"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in rows)])


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it is what would be written: 0 if so, else 1."""
    wanted = page()
    if arguments == ["--check"]:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted
        if not same:
            sys.stderr.write("docs/rules.md is not up to date: run python docs/generate_rules.py\n")
        return 0 if same else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
