"""Metrics of the runs in a store, in the text format of Prometheus."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import anyio

from triage.core import Event
from triage.stores import RunInfo, Store

from . import names
from .names import Instrument
from .spans import Measure
from .tree import RunTrace

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type with which to answer a scrape."""

Labels: TypeAlias = tuple[tuple[str, str], ...]
_SHOWN = tuple(one for one in names.INSTRUMENTS if one.prometheus)
_SUFFIX = {"counter": "_total", "histogram": "", "updown": ""}
_TYPE = {"counter": "counter", "histogram": "histogram", "updown": "gauge"}


class Metrics:
    """Sums up the measurements that `RunTrace.feed` returns, by instrument and labels."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, Labels], float] = {}
        self._buckets: dict[tuple[str, Labels], list[int]] = {}

    def add(self, told: Iterable[object]) -> None:
        """Count the measurements among these values."""
        for one in told:
            if isinstance(one, Measure) and one.instrument.prometheus:
                self._count(one)

    def _count(self, measure: Measure) -> None:
        instrument = measure.instrument
        names_of = instrument.labels or {}
        labels = tuple(
            (label, str(measure.attributes.get(at, ""))) for at, label in names_of.items()
        )
        key = (instrument.name, labels)
        self._sums[key] = self._sums.get(key, 0.0) + measure.value
        if instrument.buckets:
            counts = self._buckets.setdefault(key, [0] * (len(instrument.buckets) + 1))
            counts[bisect_left(instrument.buckets, measure.value)] += 1

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text, in a stable order."""
        for instrument in _SHOWN:
            found = sorted(key for key in self._sums if key[0] == instrument.name)
            if found:
                yield from _head(instrument.prometheus, instrument)
            for key in found:
                yield from self._of(instrument, key)

    def _of(self, instrument: Instrument, key: tuple[str, Labels]) -> Iterator[str]:
        labels = key[1]
        name = instrument.prometheus + _SUFFIX[instrument.kind]
        if not instrument.buckets:
            yield sample(name, labels, self._sums[key])
            return
        total = 0
        bounds = (*instrument.buckets, math.inf)
        for bound, count in zip(bounds, self._buckets[key], strict=True):
            total += count
            yield sample(f"{name}_bucket", (*labels, ("le", _number(bound))), total)
        yield sample(f"{name}_sum", labels, self._sums[key])
        yield sample(f"{name}_count", labels, total)


def _head(name: str, instrument: Instrument) -> Iterator[str]:
    name += _SUFFIX[instrument.kind]
    yield f"# HELP {name} {instrument.help}"
    yield f"# TYPE {name} {_TYPE[instrument.kind]}"


def sample(name: str, labels: Labels, value: float) -> str:
    """Return one line of the text format."""
    told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{told}}} {_number(value)}" if told else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(value)


_MOST_RUNS = 10_000


class StoreMetrics:
    """The metrics of all runs in a store. Keep the object: each call reads only what is new since the last.

    Runs that were pruned in between stay in the counts, as Prometheus expects of a counter. Each call looks
    at the 10,000 newest runs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._metrics = Metrics()
        self._open: dict[str, RunTrace] = {}
        self._read: dict[str, int] = {}
        self._lock = anyio.Lock()

    async def text(self) -> str:
        """Return the text for one scrape. Raises StoreError if the store fails."""
        async with self._lock:
            found = await self._store.runs(limit=_MOST_RUNS)
            for info in found:
                if self._read.get(info.run_id, 0) < info.events:
                    await self._catch_up(info)
            lines = [*self._metrics.lines(), *_statuses(found)]
        return "\n".join(lines) + "\n"

    async def _catch_up(self, info: RunInfo) -> None:
        run_id = info.run_id
        events: list[Event] = await self._store.read(run_id, self._read.get(run_id, 0) - 1)
        trace = self._open.setdefault(run_id, RunTrace())
        for event in events:
            self._metrics.add(trace.feed(event))
        self._read[run_id] = trace.next_seq
        if info.status not in ("running", "suspended", "dead_letter"):
            self._open.pop(run_id, None)


def _statuses(found: Iterable[RunInfo]) -> Iterator[str]:
    """Yield the number of unfinished runs by status."""
    counts = dict.fromkeys(("running", "suspended", "dead_letter"), 0)
    for info in found:
        if info.status in counts:
            counts[info.status] += 1
    yield "# HELP triage_runs_open Runs that have not ended."
    yield "# TYPE triage_runs_open gauge"
    for status, count in counts.items():
        yield sample("triage_runs_open", (("status", status),), count)
