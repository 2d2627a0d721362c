"""Spans, log events and measurements as plain values, and the ids derived from a journal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias

from triage.core.constructors import Struct
from triage.core.events import Event, RunStarted

from .names import Instrument

Kind: TypeAlias = Literal["internal", "client"]
Status: TypeAlias = Literal["unset", "ok", "error"]
_MOST_NS = 2**64 - 1


class SpanRef(NamedTuple):
    """The ids of a span. trace: 32 hexadecimal digits. span: 16 hexadecimal digits, empty for no span."""

    trace: str
    span: str = ""


class Link(Struct, frozen=True):
    """A link to an earlier span. kind: `takes_over`, `resumes`, `forks`, `goes_on` or `paid_by`."""

    trace: str
    span: str
    kind: str


class SpanData(Struct, frozen=True):
    """A span that has ended.

    seq: position in the journal of the event that began it. start, end: nanoseconds since the epoch.
    """

    run_id: str
    seq: int
    trace: str
    span: str
    parent: str
    name: str
    kind: Kind
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[Link, ...] = ()
    status: Status = "unset"
    message: str = ""


class LogData(Struct, frozen=True):
    """A log event.

    trace, span: the ids of the span that it belongs to; `span` is empty if none is open. time: nanoseconds
    since the epoch. severity: `INFO`, `WARN` or `ERROR`.
    """

    run_id: str
    seq: int
    trace: str
    span: str
    name: str
    time: int
    severity: str
    attributes: dict[str, Any]


class Measure(NamedTuple):
    """A measurement by an instrument. call: the id of the measured model call's span, empty for none."""

    instrument: Instrument
    value: float
    attributes: Mapping[str, Any]
    call: str = ""


Told: TypeAlias = SpanData | LogData | Measure


def trace_of(run_id: str) -> str:
    """Return the trace id of a run that is in no other span."""
    return sha256(f"triage.trace\0{run_id}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def span_of(run_id: str, seq: int, name: str) -> str:
    """Return the id of the span with this name that begins with the event at position `seq`."""
    told = f"triage.span\0{run_id}\0{seq}\0{name}"
    return sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:16]


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def read_traceparent(text: str) -> SpanRef | None:
    """Return the span that a W3C `traceparent` names; None for any other text."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None or not (int(found[1], 16) and int(found[2], 16)):
        return None
    return SpanRef(found[1], found[2])


def caller_of(started: Event) -> SpanRef | None:
    """Return the span in which a run was started, or None. A fork is not in a span of its original run."""
    if not isinstance(started, RunStarted) or started.origin is not None:
        return None
    return read_traceparent(started.trace)


def nanoseconds(time: float) -> int:
    """Convert seconds since the epoch to nanoseconds, within the range of OTLP."""
    return min(max(0, int(time * 1e9)), _MOST_NS)
