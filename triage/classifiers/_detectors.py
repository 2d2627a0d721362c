"""What the steps show: a tool that does not exist, arguments that do not fit, a broken rule."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from triage.failures import ErrorInfo
from triage.steps import Step, Trajectory
from triage.taxonomy import Cause, FailureType, Severity

from ._loops import find_loop
from ._rule import Rule
from ._shown import said_by


class Finding(NamedTuple):
    """What a detector saw. step: position of the earliest decisive step. tool: the tool's name."""

    rule: Rule
    text: str
    step: int | None
    tool: str | None = None
    repeats: int = 0
    length: int = 0


LOOP = Rule(
    "steps.loop",
    FailureType.LOOP_DETECTED,
    Cause.REPETITION,
    "text",
    (),
    confidence=0.97,
    source="three identical steps, or three times the same cycle of up to six, at the end",
)
CYCLE = LOOP._replace(name="steps.cycle", cause=Cause.CYCLE)
UNKNOWN_TOOL = Rule(
    "steps.unknown_tool",
    FailureType.WRONG_TOOL_CALLED,
    Cause.UNKNOWN_TOOL,
    "text",
    (),
    confidence=0.97,
    source="the tool of the last call is not in the manifest",
)
MISSING_NAME = UNKNOWN_TOOL._replace(
    name="steps.missing_name",
    confidence=0.85,
    source="the name that is missing is the tool of the last call",
)
ARGUMENTS = Rule(
    "steps.arguments",
    FailureType.SCHEMA_MISMATCH,
    Cause.INVALID_ARGUMENTS,
    "text",
    (),
    confidence=0.9,
    source="the call of the last step's tool was refused by its signature",
)
GENERATED = ARGUMENTS._replace(
    name="steps.generated_code",
    cause=Cause.MALFORMED_OUTPUT,
    source="code that came from text does not parse",
)
FORBIDDEN = Rule(
    "steps.forbidden_output",
    FailureType.CONSTRAINT_IGNORED,
    Cause.FORBIDDEN_OUTPUT,
    "text",
    (),
    confidence=0.95,
    source="an output contains a string that none may contain",
)

BROKEN_ARGUMENT = ARGUMENTS._replace(
    name="steps.broken_argument",
    source="an argument of the last step's tool is JSON that does not parse",
)
BAD_ANSWER = Rule(
    "steps.bad_answer",
    FailureType.EXTERNAL_FAULT,
    Cause.BAD_RESPONSE,
    "text",
    (),
    Severity.RETRIABLE,
    confidence=0.85,
    source="the last step's tool raised that what it was answered does not parse",
)


def loop(trajectory: Trajectory) -> Finding | None:
    """The trajectory ends in an exact loop."""
    steps = trajectory.steps
    found = find_loop(steps)
    if found is None:
        return None
    step = steps[found.start]
    name = step.tool_called or step.action or "the same step"
    if found.length == 1:
        text = f"{name!r} {found.repeats} times with the same arguments and result"
    else:
        names = [
            steps[found.start + i].tool_called or steps[found.start + i].action
            for i in range(found.length)
        ]
        text = f"the cycle {' → '.join(names)} {found.repeats} times"
    rule = LOOP if found.length == 1 else CYCLE
    return Finding(rule, text, found.start, step.tool_called, found.repeats, found.length)


def unknown_tool(trajectory: Trajectory, tools: Mapping[str, Any]) -> Finding | None:
    """The last call was of a tool that the manifest does not have."""
    if not tools:
        return None
    steps = trajectory.steps
    first: int | None = None
    for position in range(len(steps) - 1, -1, -1):
        name = steps[position].tool_called
        if name is None:
            if first is not None:
                break
            continue
        if name in tools:
            break
        first = position
    if first is None:
        return None
    name = steps[first].tool_called
    return Finding(UNKNOWN_TOOL, f"{name!r} is not among the {len(tools)} tools", first, name)


def forbidden(steps: Sequence[Step], constraints: Sequence[str]) -> Finding | None:
    """The first output that contains a forbidden string, compared without regard to case."""
    wanted = [text.casefold() for text in constraints if text]
    if not wanted:
        return None
    for position, step in enumerate(steps):
        for output in (step.llm_output, step.tool_output):
            if output is None:
                continue
            text = _as_text(output).casefold()
            for constraint in wanted:
                if constraint in text:
                    return Finding(
                        FORBIDDEN,
                        f"output contains {constraint[:80]!r}",
                        position,
                        step.tool_called,
                    )
    return None


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except Exception:  # noqa: BLE001 - a value without a JSON form is not an output that can be searched
        return ""


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
