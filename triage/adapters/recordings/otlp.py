"""OpenTelemetry spans with GenAI conventions, as OTLP JSON: each trace is one attempt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from triage.core.failures import ErrorInfo
from triage.core.messages import neutral, reading
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
        tools = [span.attributes for span in spans if _operation(span) == _TOOL]
        # A call with a span of its own is not read from the messages too.
        self._own_ids = {given.get("gen_ai.tool.call.id") for given in map(_hashable, tools)}
        self._own_names = {
            given.get("gen_ai.tool.name")
            for given in map(_hashable, tools)
            if given.get("gen_ai.tool.call.id") is None
        }

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
                self._hear(_inputs(span))
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
        self._hear(_inputs(span))
        said = _outputs(span)
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
        return call.name in self._own_names or (bool(call.id) and call.id in self._own_ids)

    def _hear(self, said: list[neutral.Message]) -> None:
        """Take the task, and results of calls without a span, from a model's input."""
        for one in said:
            if one.role == "user" and self._conversation.task is None:
                self._conversation.task = one.text or None
            for result in one.results:
                if self._conversation.awaits(result.call):
                    self._conversation.result(result, neutral.tell_nobody)


def _hashable(given: dict[str, Any]) -> dict[str, str | None]:
    return {
        name: reading.text_or_none(given.get(name))
        for name in ("gen_ai.tool.call.id", "gen_ai.tool.name")
    }


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
        if raised:
            given = raised[-1]
            name = (
                reading.as_text(given.get("exception.type")) or reading.as_text(kind) or "Exception"
            )
            text = reading.as_text(given.get("exception.message")) or self.message
            return error_named(name, text, status_code=code)
        return error_named(
            reading.as_text(kind) or "Exception", self.message or "it failed", status_code=code
        )


def _spans_of(value: Any, line: int, tell: neutral.Tell) -> Iterator[Span]:
    found = False
    for resource in reading.listed(_either(value, "resourceSpans", "resource_spans")):
        scopes = _either(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")
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
        reading.as_text(_either(entry, "traceId", "trace_id")),
        reading.as_text(_either(entry, "spanId", "span_id")),
        reading.as_text(_either(entry, "parentSpanId", "parent_span_id")),
        reading.as_text(entry.get("name")),
        reading.number(_either(entry, "startTimeUnixNano", "start_time_unix_nano")) or 0.0,
        reading.number(_either(entry, "endTimeUnixNano", "end_time_unix_nano")) or 0.0,
        _attributes_of(entry.get("attributes")),
        [
            (reading.as_text(event.get("name")), _attributes_of(event.get("attributes")))
            for event in events
        ],
        _STATUS.get(code, 0) if isinstance(code, str) else int(reading.number(code) or 0),
        reading.text_or_none(status.get("message")) or "",
    )


def _attributes_of(value: object) -> dict[str, Any]:
    """Read attributes: a list of keys and typed values as in OTLP, or a plain object."""
    if isinstance(value, dict):
        return value
    return {
        entry["key"]: _value_of(entry.get("value"), _DEEPEST)
        for entry in map(reading.mapping, reading.listed(value))
        if isinstance(entry.get("key"), str)
    }


def _value_of(value: object, depth: int) -> Any:
    """Unwrap a typed value; integers come as text."""
    if not isinstance(value, dict) or len(value) != 1 or depth == 0:
        return value
    ((kind, held),) = value.items()
    if kind in ("intValue", "int_value"):
        try:
            return int(held)
        except (TypeError, ValueError, OverflowError):
            return held
    if kind in ("arrayValue", "array_value"):
        return [
            _value_of(item, depth - 1)
            for item in reading.listed(reading.mapping(held).get("values"))
        ]
    if kind in ("kvlistValue", "kvlist_value"):
        return {
            reading.as_text(reading.mapping(item).get("key")): _value_of(
                reading.mapping(item).get("value"), depth - 1
            )
            for item in reading.listed(reading.mapping(held).get("values"))
        }
    return held


def _either(value: object, *names: str) -> Any:
    found = reading.mapping(value)
    return next((found[name] for name in names if name in found), None)


# A model's input and output, in each version of the conventions ---------------------------------------

_INDEXED = re.compile(r"gen_ai\.(prompt|completion)\.(\d{1,4})\.(.+)", re.DOTALL)
_INDEXED_CALL = re.compile(r"tool_calls\.(\d{1,4})\.(id|name|arguments)")
_MOST = 1_000
_ROLES: Mapping[str, neutral.Role] = {"user": "user", "assistant": "model", "tool": "tool"}


def _inputs(span: Span) -> list[neutral.Message]:
    """Return the model's input, from attributes, else events, else indexed attributes."""
    found = _messages(span, "gen_ai.input.messages")
    if found:
        return found
    said: list[neutral.Message] = []
    for name, given in span.events:
        body = _body(given)
        if name in ("gen_ai.user.message", "gen_ai.tool.message"):
            said.append(_message({"role": name.split(".")[1], **body}))
        elif name == "gen_ai.content.prompt":
            said += _all(reading.arguments(given.get("gen_ai.prompt")))
    return said or _indexed(span.attributes, "prompt")


def _outputs(span: Span) -> list[neutral.Message]:
    """Return the model's output, from attributes, else events, else indexed attributes."""
    found = _messages(span, "gen_ai.output.messages")
    if found:
        return found
    said: list[neutral.Message] = []
    for name, given in span.events:
        if name == "gen_ai.choice":
            body = _body(given)
            message = {**body, **reading.mapping(reading.arguments(body.get("message")))}
            said.append(_message({"role": "assistant", **message}))
        elif name == "gen_ai.content.completion":
            said += _all(reading.arguments(given.get("gen_ai.completion")))
    return said or _indexed(span.attributes, "completion")


def _messages(span: Span, name: str) -> list[neutral.Message]:
    value = span.attributes.get(name)
    for event, given in span.events:
        if value is None and event == "gen_ai.client.inference.operation.details":
            value = given.get(name)
    return _all(reading.arguments(value))


def _all(value: object) -> list[neutral.Message]:
    entries = value if isinstance(value, list) else [value]
    return [_message(entry) for entry in entries[:_MOST] if isinstance(entry, dict)]


def _body(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of an event, which may be one JSON text."""
    return {**given, **reading.mapping(reading.arguments(given.get("gen_ai.event.content")))}


def _message(entry: Mapping[str, Any]) -> neutral.Message:
    said = reading.as_text(entry.get("role"))
    role = _ROLES.get(said, "system")
    ended = reading.text_or_none(entry.get("finish_reason"))
    parts = entry.get("parts")
    calls = _calls(reading.listed(reading.arguments(entry.get("tool_calls"))))
    if not isinstance(parts, list):
        content = reading.arguments(entry.get("content"))
        if role == "tool":
            call = reading.as_text(entry.get("id", entry.get("tool_call_id")))
            return neutral.Message(
                role, results=(neutral.Result(call, reading.result_value(content)),)
            )
        words = reading.content_text(content if isinstance(content, list) else entry.get("content"))
        return neutral.Message(role, words, calls, ended=ended)
    found = [reading.mapping(part) for part in parts[:_MOST]]
    words = "\n".join(
        reading.as_text(part.get("content")) for part in found if part.get("type") == "text"
    )
    results = tuple(
        neutral.Result(reading.as_text(part.get("id")), part.get("response", part.get("result")))
        for part in found
        if part.get("type") == "tool_call_response"
    )
    calls += _calls(part for part in found if part.get("type") == "tool_call")
    return neutral.Message(role, words, calls, results, ended=ended)


def _calls(entries: Iterable[object]) -> tuple[neutral.Asked, ...]:
    made: list[neutral.Asked] = []
    for entry in entries:
        call = reading.mapping(entry)
        inner = reading.mapping(call.get("function")) or call
        name = reading.text_or_none(inner.get("name"))
        if name is not None:
            made.append(
                neutral.Asked(
                    reading.as_text(call.get("id")), name, reading.arguments(inner.get("arguments"))
                )
            )
    return tuple(made)


def _indexed(attributes: Mapping[str, Any], kind: str) -> list[neutral.Message]:
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
    return [_message(found[place]) for place in sorted(found)]
