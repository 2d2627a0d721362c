"""OpenTelemetry spans with GenAI conventions, as OTLP JSON: each trace is one attempt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from triage.core.failures import ErrorInfo
from triage.core.messages import neutral, reading
from triage.core.messages.chat import CHAT
from triage.core.steps import Trajectory

from .trajectories import Conversation, Problem, Problems, Trace, error_named

FORMAT = "otlp"
_MODEL = ("chat", "text_completion", "generate_content")
_TOOL = "execute_tool"
_NANO = 1e9
_DEEPEST = 32
_ERROR, _OK = 2, 1
_STATUS = {"STATUS_CODE_ERROR": _ERROR, "STATUS_CODE_OK": _OK}


class OtlpReader:
    """Collects spans by trace over all exports of a file, and returns the traces at its end."""

    def __init__(self) -> None:
        self._traces: dict[str, list[Span]] = {}

    def feed(self, line: int, value: Any) -> Iterator[Trace | Problem]:
        problems = Problems(line)
        for span in _spans_of(value, line, problems.tell):
            self._traces.setdefault(span.trace, []).append(span)
        yield from problems

    def close(self) -> Iterator[Trace | Problem]:
        """Return a trajectory for each trace, in the order of their first spans."""
        for trace, spans in self._traces.items():
            line = spans[0].line
            spans.sort(key=lambda span: span.start)
            if not any(_operation(span) for span in spans):
                told = f"trace {trace[:32] or 'without an id'} has no GenAI spans"
                yield Problem(line, told, "its spans need gen_ai.* attributes")
                continue
            trajectory = _Assembly(spans).trajectory()
            yield Trace(trajectory, FORMAT, line, trace)


def _operation(span: Span) -> str:
    """Return a span's operation, `other` for a GenAI span without one, empty for any other span."""
    given = span.attributes
    name = given.get("gen_ai.operation.name")
    if isinstance(name, str) and name:
        return name
    if "gen_ai.tool.name" in given:
        return _TOOL
    if any(
        key.startswith(("gen_ai.request.", "gen_ai.completion", "gen_ai.output")) for key in given
    ):
        return "chat"
    return "other" if any(key.startswith("gen_ai.") for key in given) else ""


class _Assembly:
    """Builds the trajectory of one trace."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans
        self._conversation = Conversation()
        # A call with a span of its own is not read from the messages too.
        self._own_ids: set[str] = set()
        self._own_names: set[str] = set()
        for span in spans:
            if _operation(span) == _TOOL:
                call = reading.text_or_none(span.attributes.get("gen_ai.tool.call.id"))
                name = reading.text_or_none(span.attributes.get("gen_ai.tool.name"))
                if call is not None:
                    self._own_ids.add(call)
                elif name is not None:
                    self._own_names.add(name)

    def trajectory(self) -> Trajectory:
        for span in self._spans:
            operation = _operation(span)
            if operation:
                self._conversation.tools.update(
                    reading.tools_of(
                        reading.arguments(span.attributes.get("gen_ai.tool.definitions"))
                    )
                )
            if operation == _TOOL:
                self._tool(span)
            elif operation in _MODEL:
                self._model(span)
            elif operation:
                self._hear(_said(span, "input"))
        made = self._conversation.trajectory()
        root = self._root()
        if root.succeeded:
            return Trajectory(made.steps, task=made.task, tools=made.tools)
        error = root.fault
        if error is None or (made.error is not None and error.type_name == "Exception"):
            error = made.error  # that of the last step says more
        return Trajectory(made.steps, error=error, task=made.task, tools=made.tools)

    def _root(self) -> Span:
        """Return the last span without a parent in the trace."""
        ids = {span.id for span in self._spans}
        tops = [span for span in self._spans if span.parent not in ids or span.parent == span.id]
        return tops[-1] if tops else self._spans[0]

    def _tool(self, span: Span) -> None:
        given, fault = span.attributes, span.fault
        result = given.get("gen_ai.tool.call.result", given.get("gen_ai.tool.message"))
        self._conversation.add(
            action="call",
            tool_called=reading.text_or_none(given.get("gen_ai.tool.name")) or span.name or "?",
            tool_input=reading.arguments(given.get("gen_ai.tool.call.arguments")),
            tool_output=result,
            **_ending(span, fault),
        )

    def _model(self, span: Span) -> None:
        given, fault = span.attributes, span.fault
        self._hear(_said(span, "input"))
        said = _said(span, "output")
        endings = [one.ended for one in said if one.ended]
        endings += reading.listed(given.get("gen_ai.response.finish_reasons"))
        counts = {
            key.removeprefix("gen_ai.usage."): value
            for key, value in given.items()
            if key.startswith("gen_ai.usage.")
        }
        model = given.get("gen_ai.response.model", given.get("gen_ai.request.model"))
        answer = neutral.Message(
            "model",
            "\n".join(one.text for one in said if one.text),
            tuple(call for one in said for call in one.calls if not self._has_span(call)),
            usage=reading.usage_of(counts, model),
            ended=reading.text_or_none(endings[0]) if endings else None,
        )
        steps = self._conversation.steps
        before = len(steps)
        self._conversation.take(answer, neutral.tell_nobody)
        if len(steps) == before:
            self._conversation.add(action="model", usage=answer.usage)
        ending = _ending(span, fault)
        if fault is None:
            ending = {name: ending[name] for name in ("timestamp", "duration_s")}
        steps[-1].update(ending)

    def _has_span(self, call: neutral.Asked) -> bool:
        return call.name in self._own_names or call.id in self._own_ids

    def _hear(self, said: list[neutral.Message]) -> None:
        """Take the task, and results of calls without a span, from a model's input."""
        for one in said:
            if one.role == "user" and self._conversation.task is None:
                self._conversation.task = one.text or None
            for result in one.results:
                if self._conversation.awaits(result.call):
                    self._conversation.result(result, neutral.tell_nobody)


def _ending(span: Span, fault: ErrorInfo | None) -> dict[str, Any]:
    return {
        "error": None if fault is None else fault.message,
        "exception_type": None if fault is None else fault.type_name,
        "timestamp": (span.end or span.start) / _NANO or None,
        "duration_s": (span.end - span.start) / _NANO if span.end > span.start > 0 else None,
    }


# Spans ----------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """A span. start, end: nanoseconds since the epoch, 0 if not given. events: names and attributes."""

    line: int
    trace: str
    id: str
    parent: str
    name: str
    start: float
    end: float
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    status: int
    message: str

    @property
    def succeeded(self) -> bool:
        """Whether the span states that it succeeded."""
        return self.status == _OK

    @property
    def fault(self) -> ErrorInfo | None:
        """The error that the span failed with, None if it did not fail."""
        raised = [given for name, given in self.events if name == "exception"]
        kind = self.attributes.get("error.type")
        if self.status != _ERROR and not (kind and self.status != _OK):
            return None
        status = reading.number(self.attributes.get("http.response.status_code"))
        if isinstance(kind, str) and kind.isdecimal():
            status, kind = reading.number(kind), None
        code = None if status is None else int(status)
        given = raised[-1] if raised else {}
        name = reading.as_text(given.get("exception.type")) or reading.as_text(kind)
        text = reading.as_text(given.get("exception.message")) or self.message
        return error_named(
            name or "Exception", text or ("" if raised else "it failed"), status_code=code
        )


def _spans_of(value: Any, line: int, tell: neutral.Tell) -> Iterator[Span]:
    found = False
    for resource in reading.listed(_field(value, "resourceSpans")):
        scopes = _field(resource, "scopeSpans") or _field(resource, "instrumentationLibrarySpans")
        for scope in reading.listed(scopes):
            for entry in reading.listed(reading.mapping(scope).get("spans")):
                found = True
                if isinstance(entry, dict):
                    yield _span(entry, line)
                else:
                    tell(f"a span must be an object, not {type(entry).__name__}", "")
    if not found:
        tell("the export has no spans", "")


def _span(entry: dict[str, Any], line: int) -> Span:
    status = reading.mapping(entry.get("status"))
    code = status.get("code")
    events = [reading.mapping(event) for event in reading.listed(entry.get("events"))]
    return Span(
        line,
        reading.as_text(_field(entry, "traceId")),
        reading.as_text(_field(entry, "spanId")),
        reading.as_text(_field(entry, "parentSpanId")),
        reading.as_text(entry.get("name")),
        reading.number(_field(entry, "startTimeUnixNano")) or 0.0,
        reading.number(_field(entry, "endTimeUnixNano")) or 0.0,
        _attributes_of(entry.get("attributes")),
        [
            (reading.as_text(event.get("name")), _attributes_of(event.get("attributes")))
            for event in events
        ],
        _STATUS.get(code, 0) if isinstance(code, str) else int(reading.number(code) or 0),
        reading.text_or_none(status.get("message")) or "",
    )


def _attributes_of(value: object, depth: int = _DEEPEST) -> dict[str, Any]:
    """Read attributes: a list of keys and typed values as in OTLP, or a plain object."""
    if isinstance(value, dict):
        return value
    return {
        entry["key"]: _value_of(entry.get("value"), depth)
        for entry in map(reading.mapping, reading.listed(value))
        if isinstance(entry.get("key"), str)
    }


def _value_of(value: object, depth: int) -> Any:
    """Unwrap a typed value; integers come as text."""
    if not isinstance(value, dict) or len(value) != 1 or depth == 0:
        return value
    ((kind, held),) = value.items()
    match str(kind).replace("_", "").lower():
        case "intvalue":
            try:
                return int(held)
            except (TypeError, ValueError, OverflowError):
                return held
        case "arrayvalue":
            items = reading.listed(reading.mapping(held).get("values"))
            return [_value_of(item, depth - 1) for item in items]
        case "kvlistvalue":
            return _attributes_of(reading.mapping(held).get("values"), depth - 1)
        case _:
            return held


_CAPITAL = re.compile("[A-Z]")


def _field(value: object, name: str) -> Any:
    """Return a field under its name in camel case, or in snake case as some exporters write it."""
    found = reading.mapping(value)
    if name in found:
        return found[name]
    return found.get(_CAPITAL.sub(lambda capital: f"_{capital[0].lower()}", name))


# A model's input and output, in each version of the conventions ---------------------------------------

_INDEXED = re.compile(r"gen_ai\.(prompt|completion)\.(\d{1,4})\.(.+)", re.DOTALL)
_INDEXED_CALL = re.compile(r"tool_calls\.(\d{1,4})\.(id|name|arguments)")
_MOST = 1_000
_EVENTS = {
    "input": {"gen_ai.user.message": "user", "gen_ai.tool.message": "tool"},
    "output": {"gen_ai.choice": "assistant"},
}
"""Events that are a message of a model's input or output, and the roles that speak."""
_DETAILS = "gen_ai.client.inference.operation.details"


def _said(span: Span, kind: Literal["input", "output"]) -> list[neutral.Message]:
    """Return a model's input or output, from attributes, else events, else indexed attributes."""
    newest, older = f"gen_ai.{kind}.messages", "prompt" if kind == "input" else "completion"
    holders = [span.attributes, *(given for name, given in span.events if name == _DETAILS)]
    found = _entries(next((held[newest] for held in holders if held.get(newest) is not None), None))
    if not found:
        for name, given in span.events:
            if name == f"gen_ai.content.{older}":
                found += _entries(given.get(f"gen_ai.{older}"))
            elif name in _EVENTS[kind]:
                # The fields may be in one JSON text, and the message one of them.
                fields = reading.mapping(reading.arguments(given.get("gen_ai.event.content")))
                body = {"role": _EVENTS[kind][name], **given, **fields}
                found.append({**body, **reading.mapping(reading.arguments(body.get("message")))})
    if not found:
        found = _indexed(span.attributes, older)
    speaker = {"role": "assistant"} if kind == "output" else {}
    return [_message({**entry, **speaker}) for entry in found[:_MOST]]


def _entries(value: object) -> list[dict[str, Any]]:
    found = reading.arguments(value)
    return [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]


def _message(entry: Mapping[str, Any]) -> neutral.Message:
    """Read a chat message, or one with parts as in the newest conventions."""
    content = reading.arguments(entry.get("content"))
    if not isinstance(content, list) and entry.get("role") != "tool":
        content = entry.get("content")
    calls = reading.listed(reading.arguments(entry.get("tool_calls")))
    parts = [reading.mapping(part) for part in reading.listed(entry.get("parts"))[:_MOST]]
    if parts:
        texts = (part.get("content") for part in parts if part.get("type") == "text")
        content = "\n".join(map(reading.as_text, texts))
        calls = [*calls, *(part for part in parts if part.get("type") == "tool_call")]
    named = [
        {"id": call.get("id"), "function": function}
        for call in map(reading.mapping, calls)
        if (function := reading.mapping(call.get("function")) or call).get("name")
    ]
    call_id = entry.get("id", entry.get("tool_call_id"))
    found = CHAT.read({**entry, "content": content, "tool_call_id": call_id, "tool_calls": named})
    results = tuple(
        neutral.Result(reading.as_text(part.get("id")), part.get("response", part.get("result")))
        for part in parts
        if part.get("type") == "tool_call_response"
    )
    return replace(found, results=results) if parts else found


def _indexed(attributes: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """Read messages whose index is in the attribute's name: `gen_ai.completion.0.content`."""
    found: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[int, dict[str, Any]]] = {}
    for key, value in attributes.items():
        hit = _INDEXED.fullmatch(key)
        if hit is None or hit[1] != kind:
            continue
        place = int(hit[2])
        call = _INDEXED_CALL.fullmatch(hit[3])
        if call is None:
            found.setdefault(place, {})[hit[3]] = value
        else:
            found.setdefault(place, {})
            calls.setdefault(place, {}).setdefault(int(call[1]), {})[call[2]] = value
    for place, made in calls.items():
        found[place]["tool_calls"] = [made[at] for at in sorted(made)]
    return [found[place] for place in sorted(found)]
