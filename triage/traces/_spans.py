"""Spans of OTLP as JSON: attributes as plain values, in order, by trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from triage.failures import ErrorInfo

from ._faults import info
from ._nouns import Tell
from ._values import as_text, listed, mapping, number, text_or_none

_DEEPEST = 32
_ERROR, _OK = 2, 1
_STATUS = {"STATUS_CODE_ERROR": _ERROR, "STATUS_CODE_OK": _OK}


class Span(NamedTuple):
    """start, end: nanoseconds since the epoch, 0 where not said. events: name and attributes of each."""

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
        """True where the span says so in so many words."""
        return self.status == _OK

    @property
    def fault(self) -> ErrorInfo | None:
        """What the span failed with, None if it did not."""
        raised = [given for name, given in self.events if name == "exception"]
        kind = self.attributes.get("error.type")
        if self.status != _ERROR and not (kind and self.status != _OK):
            return None
        status = number(self.attributes.get("http.response.status_code"))
        if isinstance(kind, str) and kind.isdecimal():
            status, kind = number(kind), None
        code = None if status is None else int(status)
        if raised:
            given = raised[-1]
            name = as_text(given.get("exception.type")) or as_text(kind) or "Exception"
            text = as_text(given.get("exception.message")) or self.message
            return info(name, text, status_code=code)
        return info(as_text(kind) or "Exception", self.message or "it failed", status_code=code)


def spans_of(value: Any, line: int, tell: Tell) -> Iterator[Span]:
    """The spans of an export, in the order they stand in."""
    found = False
    for resource in listed(_either(value, "resourceSpans", "resource_spans")):
        scopes = _either(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")
        for scope in listed(scopes):
            for entry in listed(mapping(scope).get("spans")):
                found = True
                if isinstance(entry, dict):
                    yield _span(entry, line)
                else:
                    tell(f"a span must be an object, not {type(entry).__name__}", "")
    if not found:
        tell("the export has no spans", "")


def _span(entry: dict[str, Any], line: int) -> Span:
    status = mapping(entry.get("status"))
    code = status.get("code")
    events = [mapping(event) for event in listed(entry.get("events"))]
    return Span(
        line,
        as_text(_either(entry, "traceId", "trace_id")),
        as_text(_either(entry, "spanId", "span_id")),
        as_text(_either(entry, "parentSpanId", "parent_span_id")),
        as_text(entry.get("name")),
        number(_either(entry, "startTimeUnixNano", "start_time_unix_nano")) or 0.0,
        number(_either(entry, "endTimeUnixNano", "end_time_unix_nano")) or 0.0,
        attributes_of(entry.get("attributes")),
        [(as_text(event.get("name")), attributes_of(event.get("attributes"))) for event in events],
        _STATUS.get(code, 0) if isinstance(code, str) else int(number(code) or 0),
        text_or_none(status.get("message")) or "",
    )


def attributes_of(value: object) -> dict[str, Any]:
    """Attributes as OTLP writes them (a list of keys and typed values), or as a plain object."""
    if isinstance(value, dict):
        return value
    return {
        entry["key"]: _plain(entry.get("value"), _DEEPEST)
        for entry in map(mapping, listed(value))
        if isinstance(entry.get("key"), str)
    }


def _plain(value: object, depth: int) -> Any:
    """A typed value without its type; integers come as text."""
    if not isinstance(value, dict) or len(value) != 1 or depth == 0:
        return value
    ((kind, held),) = value.items()
    if kind in ("intValue", "int_value"):
        try:
            return int(held)
        except (TypeError, ValueError, OverflowError):
            return held
    if kind in ("arrayValue", "array_value"):
        return [_plain(item, depth - 1) for item in listed(mapping(held).get("values"))]
    if kind in ("kvlistValue", "kvlist_value"):
        return {
            as_text(mapping(item).get("key")): _plain(mapping(item).get("value"), depth - 1)
            for item in listed(mapping(held).get("values"))
        }
    return held


def _either(value: object, *names: str) -> Any:
    found = mapping(value)
    return next((found[name] for name in names if name in found), None)
