"""What is wrong with one output, or with the call that raised.

Does an output break a constraint? What does an exception say of the last call: no such tool, arguments
that do not fit, an answer that cannot be read?
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple
from unicodedata import normalize

from triage.classifiers.matching import OWN
from triage.classifiers.tables.rule import Rule
from triage.core.answers import is_page
from triage.core.failures import ErrorInfo
from triage.core.json_values import only_json
from triage.core.observers import logger
from triage.core.patterns import Pattern
from triage.core.quoting import said_by
from triage.core.redaction import redact
from triage.core.steps import Constraint, Step
from triage.core.taxonomy import Cause

from .finding import ARGUMENTS, BAD_ANSWER, BROKEN_ARGUMENT, GENERATED, MISSING_NAME, Finding
from .results import denies_tool


def objection(verifier: object, verdict: object) -> str | None:
    """Why `verifier` finds the result bad, None if its verdict is good.

    True, None and an empty text are good. False is bad, a text is the reason. Any other verdict is
    bad too, and the reason says what was answered.
    """
    if verdict is None or verdict is True or verdict == "":
        return None
    if isinstance(verdict, str):
        return verdict
    name = getattr(verifier, "__name__", None) or type(verifier).__name__
    if verdict is False:
        return f"{name} answered False"
    answered = type(verdict).__name__
    return f"{name} answered with {answered}, not with True, False, None or a reason"


# --- constraints ---------------------------------------------------------------------------

MAX_SEARCHED = 100_000
"""A pattern or a function is given the first so many characters of an output. Texts are looked for
in all of it."""
WATCHED = 2**19
"""Texts are looked for in so many characters of the output of a step: an agent that is watched waits."""
_MAX_SHOWN = 80
_MAX_REASON = 300


class Broken(NamedTuple):
    """A constraint that an output breaks.

    text: what is wrong with the output, as `contains 'x'`. wish: what it must be instead, for a
    hint. Both are one line, quoted and cut, with nothing of the output that a constraint did not say.
    """

    text: str
    wish: str


class Checked(NamedTuple):
    """What the constraints say of one output.

    broken: the first that is broken, None if none is. failed: what functions raised instead of
    answering; those break nothing.
    """

    broken: Broken | None
    failed: tuple[str, ...]


def check_output(constraints: Iterable[Constraint], output: Any, most: float = math.inf) -> Checked:
    """Ask each constraint about an output, in their order, up to the first that is broken.

    output: any JSON value. Texts and patterns are looked for in its texts, keys and numbers, one a
    line; a function is given the output itself if that is text, and its JSON text otherwise. most:
    characters that are looked through. Never raises: what a function raises is logged.
    """
    lines = "\n".join(_leaves(output, most))
    failed: list[str] = []
    for constraint in constraints:
        broken: Broken | None = None
        if isinstance(constraint, str):
            if constraint and fold(constraint) in fold(lines):
                shown = _cited(constraint)
                broken = Broken(f"contains {shown}", f"not contain {shown}")
        elif isinstance(constraint, re.Pattern):
            wanted: str | bytes = constraint.pattern
            if isinstance(wanted, str) and constraint.search(lines[:MAX_SEARCHED]):
                shown = _cited(wanted)
                broken = Broken(f"matches {shown}", f"not match {shown}")
        else:
            name = str(getattr(constraint, "__name__", None) or type(constraint).__name__)
            name = name[:_MAX_SHOWN]
            try:
                reason = objection(constraint, constraint(_beginning(output)))
            except Exception as error:
                logger.exception("the constraint %s failed", name)
                failed.append(f"{name} raised {type(error).__name__} instead of answering")
                continue
            if reason is not None:
                shown = _cited(reason, _MAX_REASON)
                broken = Broken(f"is refused by {name}: {shown}", f"satisfy {shown}")
        if broken is not None:
            return Checked(broken, tuple(failed))
    return Checked(None, tuple(failed))


def _leaves(value: Any, most: float) -> Iterator[str]:
    """Every text and number in a JSON value, keys included, in order, up to so many characters."""
    left = most
    stack: list[Iterator[Any]] = [iter((value,))]
    while stack and left > 0:
        item = next(stack[-1], stack)
        if item is stack:  # there is no next one
            stack.pop()
        elif isinstance(item, Mapping):
            stack.append(chain.from_iterable(item.items()))
        elif isinstance(item, list | tuple):
            stack.append(iter(item))
        elif item is not None:
            text = item if isinstance(item, str) else str(item)
            yield text if len(text) <= left else text[: int(left)]
            left -= len(text) + 1


def _beginning(output: Any) -> str:
    """The beginning of an output's text, or of its JSON."""
    if isinstance(output, str):
        return output[:MAX_SEARCHED]
    text = ""
    for part in _json.iterencode(output):
        text += part
        if len(text) >= MAX_SEARCHED:
            break
    return text[:MAX_SEARCHED]


_json = json.JSONEncoder(ensure_ascii=False, default=str)


def fold(text: str) -> str:
    """`text` for comparing without regard to case, or to how an accent is written."""
    return normalize("NFC", text.casefold())


def _cited(text: str, limit: int = _MAX_SHOWN) -> str:
    line = " ".join(redact(text[: 4 * limit]).split())
    return repr(line if len(line) <= limit else f"{line[: limit - 1]}…")


# --- what an exception says of the last call -----------------------------------------------

_CALL = Pattern(
    r"^(?:[\w.<>]{1,120}\.)?(?P<name>\w{1,120})\(\) "
    r"(?:got an unexpected keyword argument|missing (?:\d{1,3}|a) required|too many positional|"
    r"takes (?:from )?\d{1,3}|(?:got )?multiple values for|got some positional)"
)
_ATTRIBUTE = Pattern(r"(?:object|module .{0,120}) has no attribute '(?P<name>\w{1,120})'")
_UNDEFINED = Pattern(r"^name '(?P<name>\w{1,120})' is not defined")
_IN_TEXT = Pattern(r"\(<[^<>\n]{1,80}>, line \d{1,9}\)")


def last_call(steps: Sequence[Step], error: ErrorInfo) -> Finding | None:
    """What a built-in exception says of a call: no such name, as the model asked for it or as it was
    recorded, or arguments that do not fit.
    """
    return _asked_for(steps, error) or _denied(steps, error) or _recorded(steps, error)


def _recorded(steps: Sequence[Step], error: ErrorInfo) -> Finding | None:
    """What a built-in exception says of the last step's tool: no such name, or wrong arguments."""
    position = next(
        (at for at in range(len(steps) - 1, max(-1, len(steps) - 4), -1) if steps[at].tool_called),
        None,
    )
    kind = error.type_name
    if kind in ("SyntaxError", "IndentationError", "TabError"):
        hit = _IN_TEXT.search(error.message[:4_000])
        return Finding(GENERATED, f"{kind} in code that came from text", position) if hit else None
    if position is None:
        return None
    step, message = steps[position], error.message[:1_000]
    tool = step.tool_called or ""
    if kind == "TypeError":
        hit = _CALL.match(message)
        if hit and hit["name"] == tool.rpartition(".")[2]:
            return Finding(ARGUMENTS, f"the arguments of {tool!r} do not fit", position, tool)
        return None
    if step.tool_output is not None:
        return None
    missing = {
        "KeyError": message.strip("'\""),
        "AttributeError": _named(_ATTRIBUTE, message),
        "NameError": _named(_UNDEFINED, message),
    }.get(kind)
    if missing and missing == tool:
        return Finding(
            MISSING_NAME, f"{kind} for {tool!r}, the tool of the last call", position, tool
        )
    return None


def _denied(steps: Sequence[Step], error: ErrorInfo) -> Finding | None:
    """An error of the agent's own code that says there is no such tool, and names the last one called."""
    tool = steps[-1].tool_called if steps else None
    message = error.message[:1_000]
    if not tool or steps[-1].tool_output is not None or not error.is_a(*OWN):
        return None
    if not denies_tool(message, tool) or not re.search(
        rf"(?<![\w.-]){re.escape(tool)}(?![\w-])", message
    ):
        return None
    text = f"{error.type_name} says that there is no {tool!r}"
    return Finding(MISSING_NAME, text, len(steps) - 1, tool)


def _asked_for(steps: Sequence[Step], error: ErrorInfo) -> Finding | None:
    """A call that the model has asked for, and whose tool does not exist or takes other arguments."""
    message = error.message[:1_000]
    name = {
        "KeyError": message.strip("'\""),
        "AttributeError": _named(_ATTRIBUTE, message),
        "TypeError": _named(_CALL, message),
    }.get(error.type_name)
    position = next((at for at in range(len(steps) - 1, -1, -1) if _is_answer(steps[at])), None)
    if not name or position is None or not _asks_for(steps[position], name):
        return None
    if error.type_name == "TypeError":
        text = f"the arguments of {name!r} that the model asked for do not fit: {said_by(message)}"
        return Finding(ARGUMENTS, text, position, name)
    if any(step.tool_called == name and step.error is None for step in steps[position + 1 :]):
        return None
    text = f"{error.type_name} for {name!r}, which the model asked for as a tool"
    return Finding(MISSING_NAME, text, position, name)


def _is_answer(step: Step) -> bool:
    said = step.llm_output is not None or step.tool_output is not None
    return step.tool_called is None and step.error is None and said


def _asks_for(step: Step, name: str) -> bool:
    """Whether a model's answer asks for a tool of this name: as a call, in JSON, or as an `Action:`."""
    for said in (step.tool_output, step.llm_output):
        if isinstance(said, str):
            text = said[:_MAX_ANSWER]
            if re.search(_ASKED.replace("NAME", re.escape(name)), text, re.MULTILINE):
                return True
            found = only_json(text)
            if found is not None and _calls(json.loads(found), name, _MAX_NESTING):
                return True
        elif said is not None and _calls(said, name, _MAX_NESTING):
            return True
    return False


_ASKED = (
    r'"(?:tool|tool_name|function|function_name|action)"\s*:\s*"NAME"'
    r"|^\s*Action\s*:\s*NAME\s*$"
)
_TOOL_KEYS = ("tool", "tool_name", "function", "function_name", "action")
_ARGUMENT_KEYS = frozenset(
    {"arguments", "args", "input", "parameters", "action_input", "tool_input"}
)
_MAX_ANSWER = 100_000
_MAX_NESTING = 12


def _calls(said: Any, name: str, depth: int) -> bool:
    if depth == 0:
        return False
    if isinstance(said, Mapping):
        if said.get("name") == name and not _ARGUMENT_KEYS.isdisjoint(said):
            return True
        if any(said.get(key) == name for key in _TOOL_KEYS):
            return True
        return any(_calls(value, name, depth - 1) for value in list(said.values())[:200])
    if isinstance(said, list | tuple):
        return any(_calls(value, name, depth - 1) for value in said[:200])
    return False


def _named(pattern: Pattern, message: str) -> str | None:
    hit = pattern.search(message)
    return hit["name"] if hit else None


def bad_answer(steps: Sequence[Step], rule: Rule, path: Sequence[ErrorInfo]) -> Finding | None:
    """What a service answered could not be read: nothing the model has written.

    rule: the one that fired. path: from the outermost exception to the one it fired on. None unless
    that exception is about parsing, and is the one the last step ended with or is about a page of HTML
    that no step's output begins with.
    """
    step, error = (steps[-1] if steps else None), path[-1]
    if rule.cause != Cause.MALFORMED_OUTPUT and not error.is_a(*_XML_ERRORS):
        return None
    if step is None or not (step.tool_called and step.error and _ended_by(step, path)):
        return _page(steps, error)
    position, tool = len(steps) - 1, step.tool_called
    said = f"{error.type_name}: {said_by(error.message)}"
    if _broken_argument(step.tool_input, error.message):
        return Finding(BROKEN_ARGUMENT, f"an argument of {tool!r}, {said}", position, tool)
    return Finding(BAD_ANSWER, f"{said}, raised by {tool!r}, the last tool called", position, tool)


def _ended_by(step: Step, path: Sequence[ErrorInfo]) -> bool:
    return any(_ended_with(step, info) for info in path)


def _page(steps: Sequence[Step], error: ErrorInfo) -> Finding | None:
    page = error.body
    if not isinstance(page, str) or not is_page(page):
        return None
    if any((step.llm_output or "").lstrip().startswith(page) for step in steps):
        return None
    return Finding(BAD_ANSWER, f"{error.type_name}: a page of HTML in place of data", None)


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
