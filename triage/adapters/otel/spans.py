"""Spans, log events and measurements as plain values, and the ids that are derived from a journal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from triage.core import Event, RunStarted

from .names import Instrument

Kind: TypeAlias = Literal["internal", "client"]
Status: TypeAlias = Literal["unset", "ok", "error"]
_MOST_NS = 2**64 - 1


class SpanRef(NamedTuple):
    """A span's place. trace: 32 hexadecimal digits. span: 16, empty for none."""

    trace: str
    span: str = ""


class Link(msgspec.Struct, frozen=True):
    """From a span to an earlier one. kind: `takes_over`, `resumes`, `forks`, `goes_on` or `paid_by`."""

    trace: str
    span: str
    kind: str


class SpanData(msgspec.Struct, frozen=True):
    """A span that has ended. start, end: nanoseconds since the epoch. seq: of the event that began it."""

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


class LogData(msgspec.Struct, frozen=True):
    """A log event. trace, span: empty where no span is open. time: nanoseconds since the epoch.
    severity: `INFO`, `WARN` or `ERROR`.
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
    """A measurement of an instrument. call: the span of the model call it is of, empty for none."""

    instrument: Instrument
    value: float
    attributes: Mapping[str, Any]
    call: str = ""


Told: TypeAlias = SpanData | LogData | Measure


def trace_of(run_id: str) -> str:
    """The id of the trace of a run that nobody's span is around."""
    return sha256(f"triage.trace\0{run_id}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def span_of(run_id: str, seq: int, name: str) -> str:
    """The id of the span of this name that the event at this position of the journal begins."""
    told = f"triage.span\0{run_id}\0{seq}\0{name}"
    return sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:16]


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def read_traceparent(text: str) -> SpanRef | None:
    """The span that a W3C `traceparent` names; None for anything else."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None or not (int(found[1], 16) and int(found[2], 16)):
        return None
    return SpanRef(found[1], found[2])


def caller_of(started: Event) -> SpanRef | None:
    """The span that a run was started in; None for none. A fork is in no span of the run it came from."""
    if not isinstance(started, RunStarted) or started.origin is not None:
        return None
    return read_traceparent(started.trace)


def nanoseconds(time: float) -> int:
    """Seconds since the epoch in nanoseconds, within what OTLP can hold."""
    return min(max(0, int(time * 1e9)), _MOST_NS)
