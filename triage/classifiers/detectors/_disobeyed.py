"""What a task forbids in plain words, and was called all the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from triage.classifiers._claims import is_quoted
from triage.classifiers._shown import said_by
from triage.steps import Step

from ._failure import failure_of, text_of
from ._finding import DISOBEYED, Finding

_MAX_TASK = 8_000
_MAX_RULES = 20


@cache
def _rules() -> re.Pattern[str]:
    """A prohibition that ends with the name: what follows would make an exception of something."""
    return re.compile(
        r"\b(?i:do not|don't|never|must not|mustn't|may not|not allowed to|forbidden to)"
        r"(?i: ever)? (?i:use|call|invoke|run|execute)(?i: the| any| a)?"
        r" [`'\"]?(?P<name>[A-Za-z_][\w-]{2,60}(?:\.\w{1,40})?)[`'\"]?(?P<kind>(?i: tools?| functions?|"
        r" commands?| statements?"
        r"| queries)?)(?= ?(?:[.;!)\n]|$))"
    )


_STATEMENTS = frozenset({"DELETE", "DROP", "UPDATE", "INSERT", "TRUNCATE", "ALTER"})


def disobeyed(steps: Sequence[Step], task: Any, start: int = 0) -> Finding | None:
    """The first call that worked of what the task says must not be called.

    A name counts that is the name of a tool, or of an SQL statement in capitals that an argument begins
    with. start: position of the first of these steps in the attempt.
    """
    if not isinstance(task, str):
        return None
    text = task[:_MAX_TASK].replace("\u2019", "'")
    names: dict[str, str] = {}
    for hit in _rules().finditer(text):
        if len(names) < _MAX_RULES and not is_quoted(text[: hit.start()]):
            names[hit["name"]] = hit[0]
    if not names:
        return None
    statements = names.keys() & _STATEMENTS
    for at, step in enumerate(steps, start):
        tool = step.tool_called
        if tool is None:
            continue
        told = names.get(tool)
        if told is None and statements:
            told = names.get(_statement(step.tool_input))
        if told is not None and failure_of(step) is None:
            return Finding(
                DISOBEYED, f"the task says {said_by(told)}, and {tool!r} did it", at, tool
            )
    return None


def _statement(given: Any) -> str:
    """The first word of the text in an argument, in capitals."""
    return (text_of(given) or "").lstrip()[:10].upper().partition(" ")[0]
