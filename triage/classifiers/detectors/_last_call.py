"""What a built-in exception says of the last call: no such name, arguments that do not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from triage.classifiers._rule import Rule
from triage.classifiers._shown import said_by
from triage.failures import ErrorInfo
from triage.steps import Step
from triage.taxonomy import Cause

from ._finding import ARGUMENTS, BAD_ANSWER, BROKEN_ARGUMENT, GENERATED, MISSING_NAME, Finding


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    return {
        "call": re.compile(
            r"^(?:[\w.<>]{1,120}\.)?(?P<name>\w{1,120})\(\) "
            r"(?:got an unexpected keyword argument|missing \d{1,3} required|"
            r"takes (?:from )?\d{1,3}|got multiple values for|got some positional)"
        ),
        "attribute": re.compile(
            r"(?:object|module .{0,120}) has no attribute '(?P<name>\w{1,120})'"
        ),
        "name": re.compile(r"^name '(?P<name>\w{1,120})' is not defined"),
        "code": re.compile(r"\(<[^<>\n]{1,80}>, line \d{1,9}\)"),
    }


def last_call(steps: Sequence[Step], error: ErrorInfo) -> Finding | None:
    """What a built-in exception says of the last step's tool: no such name, or wrong arguments."""
    position = next(
        (at for at in range(len(steps) - 1, max(-1, len(steps) - 4), -1) if steps[at].tool_called),
        None,
    )
    kind = error.type_name
    found = _patterns()
    if kind in ("SyntaxError", "IndentationError", "TabError"):
        hit = found["code"].search(error.message[:4_000])
        return Finding(GENERATED, f"{kind} in code that came from text", position) if hit else None
    if position is None:
        return None
    step, message = steps[position], error.message[:1_000]
    tool = step.tool_called or ""
    if kind == "TypeError":
        hit = found["call"].match(message)
        if hit and hit["name"] == tool.rpartition(".")[2]:
            return Finding(ARGUMENTS, f"the arguments of {tool!r} do not fit", position, tool)
        return None
    if step.tool_output is not None:
        return None
    missing = {
        "KeyError": message.strip("'\""),
        "AttributeError": _named(found["attribute"], message),
        "NameError": _named(found["name"], message),
    }.get(kind)
    if missing and missing == tool:
        return Finding(
            MISSING_NAME, f"{kind} for {tool!r}, the tool of the last call", position, tool
        )
    return None


def _named(pattern: re.Pattern[str], message: str) -> str | None:
    hit = pattern.search(message)
    return hit["name"] if hit else None


def bad_answer(steps: Sequence[Step], rule: Rule, path: Sequence[ErrorInfo]) -> Finding | None:
    """The last step's tool could not read what it was answered: nothing the model has written.

    rule: the one that fired. path: from the outermost exception to the one it fired on. None unless
    that exception is about parsing and is the one the last step ended with.
    """
    step, error = (steps[-1] if steps else None), path[-1]
    if step is None or step.tool_called is None or not step.error:
        return None
    if rule.cause != Cause.MALFORMED_OUTPUT and not error.is_a(*_XML_ERRORS):
        return None
    if not any(_ended_with(step, info) for info in path):
        return None
    position, tool = len(steps) - 1, step.tool_called
    said = f"{error.type_name}: {said_by(error.message)}"
    if _broken_argument(step.tool_input, error.message):
        return Finding(BROKEN_ARGUMENT, f"an argument of {tool!r}, {said}", position, tool)
    return Finding(BAD_ANSWER, f"{said}, raised by {tool!r}, the last tool called", position, tool)


_XML_ERRORS = ("xml.etree.ElementTree.ParseError", "xml.parsers.expat.ExpatError")
_MAX_ARGUMENT = 16_000


def _ended_with(step: Step, error: ErrorInfo) -> bool:
    """Whether this is the exception a step ended with, by its class or its words."""
    if step.exception_type is not None and step.exception_type == error.type_name:
        return True
    recorded, message = (step.error or "").strip()[:4_000], error.message.strip()[:4_000]
    if not recorded or not message:
        return False
    return error.type_name in recorded or message[:200] in recorded or recorded[:200] in message


def _broken_argument(arguments: Any, message: str) -> bool:
    """Whether an argument that looks like JSON fails to parse with just this message."""
    values = list(arguments.values())[:20] if isinstance(arguments, Mapping) else [arguments]
    for value in values:
        if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
            continue
        try:
            json.loads(value[:_MAX_ARGUMENT])
        except ValueError as problem:
            if str(problem) == message:
                return True
        except RecursionError:
            continue
    return False
