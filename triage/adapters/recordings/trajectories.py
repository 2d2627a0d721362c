"""The outcome of reading a recording: traces with their trajectories and errors, and problems."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from triage.classifiers.matching import answer_in, status_in
from triage.core.capture import captured_text
from triage.core.errors import StoreError
from triage.core.failures import Attempt, ErrorInfo
from triage.core.messages import neutral, reading
from triage.core.steps import Step, Trajectory
from triage.core.wire import from_json

LONGEST_USER = 200
"""Characters of a user's text that a step's action shows."""


class Problem(NamedTuple):
    """A part of a recording that could not be read, or not in full.

    line: from 1; 0 for the recording as a whole. text: what is wrong. remedy: what to do about it, or
    empty. column: from 1, None if not known.
    """

    line: int
    text: str
    remedy: str = ""
    column: int | None = None

    def __str__(self) -> str:
        where = "" if self.column is None else f", column {self.column}"
        tail = f"; {self.remedy}" if self.remedy else ""
        return f"line {self.line}{where}: {self.text}{tail}" if self.line else f"{self.text}{tail}"


class Trace(NamedTuple):
    """One recorded attempt.

    trajectory: its steps, task, tools and the error that ended it. format: the name of its format. line:
    where it starts, from 1. id: that of the record, conversation, trace or run, or empty. outcome:
    `"success"`, `"failure"`, or the record's own word; None if it has none. fields: other fields of the
    record, such as labels. attempt: for a journal, the attempt with its diagnosis of that time, else
    None. earlier: for a journal, the attempts before it.
    """

    trajectory: Trajectory
    format: str
    line: int
    id: str = ""
    outcome: str | None = None
    fields: Mapping[str, Any] = {}
    attempt: Attempt | None = None
    earlier: tuple[Attempt, ...] = ()


class Problems(list[Problem]):
    """Collects the problems of one line."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self._line = line

    def tell(self, text: str, remedy: str) -> None:
        """Note a problem: what is wrong and what to do about it."""
        self.append(Problem(self._line, text, remedy))


# Conversations --------------------------------------------------------------------------------------


class Conversation:
    """Builds the steps of a conversation. task: the user's first message, unless it is given."""

    def __init__(self, task: Any = None) -> None:
        self.task = task
        self.tools: dict[str, Any] = {}
        self.error: ErrorInfo | None = None
        self.steps: list[dict[str, Any]] = []
        self._waiting: dict[str, dict[str, Any]] = {}

    def awaits(self, call: str) -> bool:
        """Whether the call with this id has no result yet."""
        return call in self._waiting

    def add(self, **fields: Any) -> dict[str, Any]:
        """Add a step with these fields, which can be changed until the end."""
        self.steps.append(fields)
        return fields

    def take(self, message: neutral.Message, tell: neutral.Tell) -> None:
        for result in message.results:
            self.result(result, tell)
        if message.role == "model":
            self._turn(message, tell)
        elif message.role == "user" or (message.role == "tool" and message.text):
            self._user(message.text)
        for result in message.server_results:
            self.result(result, tell)

    def _user(self, text: str) -> None:
        """Add the user's text: the task if it is the first, a step after that."""
        if self.task is None and not self.steps:
            self.task = text or None
        elif text:
            said = " ".join(text[: 4 * LONGEST_USER].split())[:LONGEST_USER]
            self.add(action=f"user: {said}")

    def _turn(self, message: neutral.Message, tell: neutral.Tell) -> None:
        said: str | None = message.text or None
        ending = neutral.ending_of(message.ended)
        first = len(self.steps)
        calls = (*message.server_calls, *message.calls)
        for call in calls:
            if not call.name:
                tell("a tool call has no name", "it is left out")
                continue
            step = self.add(
                action="call", tool_called=call.name, tool_input=call.arguments, llm_output=said
            )
            said = None
            if call.id:
                self._waiting[call.id] = step
        if said is not None or (ending is not None and not calls):
            self.add(action="model", llm_output=said)
        if len(self.steps) > first:
            self.steps[first]["usage"] = message.usage
            if ending is not None:
                self.steps[-1] |= {"error": ending.message, "exception_type": ending.type_name}

    def result(self, result: neutral.Result, tell: neutral.Tell) -> None:
        """Add a tool's result to its call, or as a step if there is no such call."""
        step = self._waiting.pop(result.call, None)
        if step is None:
            tell(
                f"a result is for the call {result.call[:60]!r}, which is not there",
                "it is kept as a step",
            )
            step = self.add(action="call", tool_called=result.name or None)
        if result.failed:
            words = reading.as_text(result.output)
            kind, _ = named_in(words.strip())
            step["error"] = words or "the tool failed"
            step["exception_type"] = None if kind is None else kind.rpartition(".")[2]
        else:
            step["tool_output"] = result.output

    def trajectory(self) -> Trajectory:
        steps = [Step(index=at, **fields) for at, fields in enumerate(self.steps)]
        return trajectory_of(steps, self.error, task=self.task, tools=self.tools)


def trajectory_of(
    steps: list[Step], error: ErrorInfo | None, *, task: Any, tools: Mapping[str, Any]
) -> Trajectory:
    """Build a trajectory; without an error of its own, it gets that of its last step."""
    if error is None and steps and steps[-1].error:
        error = error_of(steps[-1].error, steps[-1].exception_type)
    return Trajectory(steps, error=error, task=task, tools=tools)


# Errors ---------------------------------------------------------------------------------------------

_LONGEST = 16_000
_SMALL = 2_000
"""Characters of the largest error object that is kept beside its text."""
_NAMED = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,100}?"
    r"(?:Error|Exception|Timeout|Exit|Interrupt|Warning|Failure|Refused|Denied|NotFound|Expired))"
    r"(?:: (?P<message>.*)|\s*)\Z",
    re.DOTALL,
)
_STATUS_KEYS = ("status_code", "status", "http_status")


def error_of(value: object, kind: object = None) -> ErrorInfo | None:
    """Read a recorded error; None if there is none.

    value: its text, or an object with type, message, code and status. kind: its class, if recorded
    separately. A class is read from a text only if that starts with one (`ValueError: …`) or is a
    traceback.
    """
    if isinstance(value, dict):
        return _from_object(value, kind) if value else None
    text = reading.as_text(value)[:_LONGEST].strip()
    name = reading.text_or_none(kind)
    if not text and name is None:
        return None
    if name is None:
        name, text = named_in(text)
    return error_named(name or "Exception", text or name or "")


def error_named(name: str, message: str, **more: Any) -> ErrorInfo:
    """Make the error that `capture` would return for a class, named with or without its module."""
    module, _, plain = name.strip()[:300].rpartition(".")
    plain = plain or "Exception"
    if module in ("", "builtins") and plain in _built_in():
        module, mro = "builtins", _built_in()[plain]
    else:
        whole = f"{module}.{plain}" if module else plain
        mro = (whole, "builtins.Exception", "builtins.BaseException")
    text = message[:_LONGEST] or plain
    return replace(captured_text(text, plain, mro), module=module, **more)


def named_in(text: str) -> tuple[str | None, str]:
    """Return the class that a text starts with, or None, and the text after it."""
    told = text[:_LONGEST]
    if text.startswith("Traceback (most recent call last)"):
        told = text.rstrip().rpartition("\n")[2].strip()
    found = _NAMED.match(told)
    return (None, text) if found is None else (found["name"], (found["message"] or "").strip())


_MARGIN = re.compile(r"[\s|+-]*")
_IN_GROUP = ("ExceptionGroup", "BaseExceptionGroup")


def error_in(text: str) -> ErrorInfo | None:
    """Read the error that a whole text is about: a traceback, or what one program printed; else None."""
    whole = text[-_LONGEST:].strip()
    if "Traceback (most recent call last)" in text:
        for line in reversed(whole.splitlines()):
            name, message = named_in(_MARGIN.sub("", line, count=1))
            if name is not None and name.rpartition(".")[2] not in _IN_GROUP:
                return error_named(name, message)
        return None
    first = whole.partition("\n")[0]
    name, _ = named_in(first)
    if name is None and answer_in(whole) is None and status_in(first) is None:
        return None
    return error_of(whole)


def _from_object(value: dict[str, Any], kind: object) -> ErrorInfo | None:
    if "type_name" in value:
        try:
            found = from_json(ErrorInfo, value, "error")
        except (StoreError, RecursionError):
            pass
        else:
            assert isinstance(found, ErrorInfo)
            return found
    inner = value.get("error")
    if isinstance(inner, dict) and inner and "message" not in value:
        return _from_object({**value, **inner, "error": None}, kind)
    words = next((value[key] for key in ("message", "text", "detail") if value.get(key)), None)
    message = reading.as_text(value if words is None else words)[:_LONGEST]
    name = reading.text_or_none(kind)
    for key in ("type_name", "exception_type", "type", "class", "name"):
        name = name or reading.text_or_none(value.get(key))
    statuses = (reading.number(value.get(key)) for key in _STATUS_KEYS)
    status = next((found for found in statuses if found is not None), None)
    code = value.get("code")
    if type(code) is int and status is None and code in range(400, 600):
        status, code = float(code), None
    # A provider's name for the error (`invalid_request_error`) is a code, not a class.
    is_class = name is not None and _NAMED.match(name) is not None
    if name is not None and not is_class and reading.text_or_none(code) is None:
        code = name
    found = error_named(
        name if name is not None and is_class else "Exception",
        message,
        status_code=None if status is None else int(status),
        code=reading.text_or_none(code),
        body={"error": dict(reading.mapping(value))} if len(message) < _SMALL and code else None,
    )
    asked = reading.number(value.get("retry_after_s", value.get("retry_after")))
    return found if asked is None else replace(found, retry_after_s=asked)


@cache
def _built_in() -> dict[str, tuple[str, ...]]:
    """Return the built-in exceptions by name, each with the names of its bases."""
    return {
        name: tuple(f"builtins.{base.__name__}" for base in kind.__mro__[:-1])
        for name, kind in vars(builtins).items()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    }
