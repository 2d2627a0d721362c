"""Writes `rules.md` from the tables of rules: `python docs/generate_rules.py`; `--check` only compares.

What is said of each rule on that page is what the tests check of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from triage.classifiers import RULES, Rule
from triage.classifiers.tables.steps import STEP_RULES
from triage.core import DEFAULT_LEVEL, severity_of

PAGE = Path(__file__).with_name("rules.md")
INTRODUCTION = Path(__file__).with_name("rules.md.head")
_MAX_SHOWN = 60
_MAX_STEPS = 4
_STEPS = (
    "Found in the steps of an attempt. A call is shown as `tool(arguments) → result`, a failed one with "
    "`✗`, words in quotation marks; `×3` is three times the same. The `tools`, `constraints`, `subgoals` "  # noqa: RUF001 - times
    "and `grounding` before it are what the classifier was told, `error` is what ended the attempt."
)
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
    rows = [
        (*_verdict(rule), _run(rule.examples), _run(rule.near_misses), _cell(rule.source))
        for rule in STEP_RULES
    ]
    columns = "rule | failure type | cause | severity | level | fires on | not on | what it means"
    parts.append(f"## Steps\n\n{_STEPS}\n\n{_table(columns, rows)}")
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


def _run(examples: Iterable[str]) -> str:
    """The first run of a rule, in one line; the tests try it as it is."""
    run = json.loads(next(iter(examples)))
    steps = [
        text if count == 1 else f"{text} ×{count}"  # noqa: RUF001 - times
        for text, same in groupby(map(_step, run.pop("steps")))
        for count in (len(list(same)),)
    ]
    if len(steps) > _MAX_STEPS:
        steps[2:-1] = ["…"]
    error = run.pop("error", None)
    told = [
        f"{name}: {_short(list(value) if name == 'tools' else value)}"
        for name, value in run.items()
    ]
    ended = (
        [] if error is None else [f"error: {_short(error['type_name'] + ': ' + error['message'])}"]
    )
    return f"`{'; '.join([*told, *steps, *ended])}`".replace("|", "/")


def _step(step: dict[str, Any]) -> str:
    tool = step.get("tool_called")
    if tool is None:
        return _short(step["llm_output"])
    given = step["tool_input"]
    named = given.items() if isinstance(given, dict) else ()
    arguments = [f"{name}={_short(value)}" for name, value in named]
    if given is not None and not isinstance(given, dict):
        arguments.append(_short(given))
    called = f"{tool}({', '.join(arguments)})"
    if step.get("error"):
        return f"{called} ✗ {_short(step['error'])}"
    return called if step["tool_output"] is None else f"{called} → {_short(step['tool_output'])}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False).replace("`", "'")
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


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
