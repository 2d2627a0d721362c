"""Runs whose traces are looked at: live and from the journal, and drawn as text for the golden files.

`PYTHONPATH=tests python -m adapters.otel_trees` writes the files in `tests/traces` anew. Read the
difference: users build dashboards on these names.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from golden.runs import Clock, World
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import triage
from triage.adapters.otel import Link, LogData, SpanData, Telemetry, read_tree
from triage.core import TriageError, TriageSuspendedError
from triage.engine import fork
from triage.stores import MemoryStore, SQLiteStore, Store

TRACES = Path(__file__).parents[1] / "traces"


class Collector:
    """The providers of an OpenTelemetry SDK that keep what they are given."""

    def __init__(self, sampler: Any = None) -> None:
        self._spans = InMemorySpanExporter()
        self._logs = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call] # theirs
        self._reader = InMemoryMetricReader()
        # Looking for what the machine is takes longer than most tests.
        nobody = Resource.get_empty()
        self.tracers = TracerProvider(sampler=sampler, resource=nobody, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.loggers = LoggerProvider(nobody, shutdown_on_exit=False)
        self.loggers.add_log_record_processor(SimpleLogRecordProcessor(self._logs))
        self.meters = MeterProvider([self._reader], nobody, shutdown_on_exit=False)

    def telemetry(self, **options: Any) -> Telemetry:
        return Telemetry(
            tracer_provider=self.tracers,
            logger_provider=self.loggers,
            meter_provider=self.meters,
            **options,
        )

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def told(self) -> tuple[list[SpanData], list[LogData]]:
        """What came from a `Telemetry`, as values of ours."""
        ours = [span for span in self.spans if _scope(span) == "triage"]
        logs = [one.log_record for one in self._logs.get_finished_logs()]
        return [_span_of(span) for span in ours], [_log_of(log) for log in logs]

    def measured(self) -> dict[str, dict[tuple[tuple[str, Any], ...], float]]:
        """Sums by metric and attributes."""
        found: dict[str, dict[tuple[tuple[str, Any], ...], float]] = {}
        data = self._reader.get_metrics_data()
        for resource in [] if data is None else data.resource_metrics:
            for metric in [one for scope in resource.scope_metrics for one in scope.metrics]:
                for point in metric.data.data_points:
                    key = tuple(sorted((point.attributes or {}).items()))
                    value = getattr(point, "sum", None)
                    value = point.value if value is None else value  # type: ignore[union-attr]
                    found.setdefault(metric.name, {})[key] = value
        return found


def _scope(span: ReadableSpan) -> str:
    return "" if span.instrumentation_scope is None else span.instrumentation_scope.name


def _span_of(span: ReadableSpan) -> SpanData:
    assert span.context is not None
    given = dict(span.attributes or {})
    links = [
        Link(
            f"{link.context.trace_id:032x}",
            f"{link.context.span_id:016x}",
            str((link.attributes or {})["triage.link"]),
        )
        for link in span.links
    ]
    status: Any = span.status.status_code.name.lower()
    return SpanData(
        str(given["triage.run.id"]),
        int(str(given["triage.seq"])),
        f"{span.context.trace_id:032x}",
        f"{span.context.span_id:016x}",
        "" if span.parent is None else f"{span.parent.span_id:016x}",
        span.name,
        "client" if span.kind.name == "CLIENT" else "internal",
        span.start_time or 0,
        span.end_time or 0,
        listed(given),
        tuple(links),
        status,
        span.status.description or "",
    )


def _log_of(log: Any) -> LogData:
    given = dict(log.attributes)
    return LogData(
        given["triage.run.id"],
        given["triage.seq"],
        f"{log.trace_id:032x}" if log.trace_id else "",
        f"{log.span_id:016x}" if log.span_id else "",
        log.event_name,
        log.timestamp,
        log.severity_text,
        listed(given),
    )


def listed(given: dict[str, Any]) -> dict[str, Any]:
    """Attributes with lists for the tuples that an SDK makes of them."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in given.items()
    }


# Runs ---------------------------------------------------------------------------------------------


class Traced(NamedTuple):
    """A run that was traced. collector: of all its processes. run_id: the outermost."""

    collector: Collector
    telemetry: Telemetry
    store: Store
    clock: Clock
    run_id: str = "run"


Scenario = Callable[[Traced], Awaitable[object]]


def world(traced: Traced, **options: Any) -> World:
    return World(traced.store, environment=traced.clock, observers=[traced.telemetry], **options)


@contextlib.asynccontextmanager
async def _another_process(traced: Traced) -> AsyncGenerator[Traced]:
    """A minute later, with an observer that knows nothing yet."""
    traced.clock.now += 60
    other = traced._replace(telemetry=traced.collector.telemetry(content=True))
    yield other
    await anyio.to_thread.run_sync(other.telemetry.close)


async def plain(traced: Traced) -> None:
    await world(traced).agents["buyer"].run("Lisboa", run_id="run")


async def retries(traced: Traced) -> None:
    await world(traced).agents["traveller"].run({"city": "Lisboa"}, run_id="run")


async def rolled_back(traced: Traced) -> None:
    await world(traced).agents["returner"].run("Lisboa", run_id="run")


async def suspended(traced: Traced) -> None:
    asker = world(traced).agents["asker"]
    with contextlib.suppress(TriageSuspendedError):
        await asker.run("Lisboa", run_id="run")


async def answered(traced: Traced) -> None:
    """Asked in one process, answered in another."""
    asker = world(traced).agents["asker"]
    token = ""
    try:
        await asker.run("Lisboa", run_id="run")
    except TriageSuspendedError as error:
        token = error.token
    async with _another_process(traced) as other:
        await world(other).agents["asker"].resume(token, triage.approve())


async def _cut(traced: Traced) -> None:
    """Cancel a run while it waits."""
    made = world(traced, gate=anyio.Event())
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: made.agents["waiter"].run("Lisboa", run_id="run"))
        await made.waits.wait()
        group.cancel_scope.cancel()


async def taken_over(traced: Traced) -> None:
    """Cut off in one process, gone on with in another."""
    await _cut(traced)
    async with _another_process(traced) as other:
        await world(other).agents["waiter"].recover("run")


async def cancelled(traced: Traced) -> None:
    await _cut(traced)


async def nested(traced: Traced) -> None:
    office = world(traced).agents["office"]
    await office.run(["write", "file"], run_id="run")


async def forked(traced: Traced) -> None:
    """What was bought is not bought again by a run that goes on from a step of the one that bought it."""
    await world(traced).agents["buyer"].run("Lisboa", run_id="run")
    traced.clock.now += 60
    await fork(traced.store, "run", at=7, now=traced.clock.time(), by="ann", new_id="fork")
    async with _another_process(traced) as other:
        await world(other).agents["buyer"].recover("fork")


async def planned(traced: Traced) -> None:
    """The first plan is refused, the second one approved by a person."""
    planner = world(traced).planner
    try:
        await planner.run("the beam", run_id="run")
    except TriageSuspendedError as error:
        await planner.resume(error.token, triage.approve())


async def escalated(traced: Traced) -> None:
    with contextlib.suppress(TriageError):
        await world(traced).agents["escalator"].run("Lisboa", run_id="run")


async def aborted(traced: Traced) -> None:
    with contextlib.suppress(TriageError):
        await world(traced).agents["aborter"].run("Lisboa", run_id="run")


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        plain, retries, rolled_back, suspended, answered, taken_over, cancelled, nested, forked,
        planned, escalated, aborted,
    )
}  # fmt: skip
LOOKED_AT = {"forked": "fork"}
"""The run whose tree is looked at, where it is another than `run`."""
IN_MEMORY = ("cancelled",)
"""Scenarios of runs that end with their process."""


async def traced_run(name: str, folder: Path, *, content: bool = True) -> Traced:
    """Make the runs of a scenario, traced live."""
    store: Store = MemoryStore() if name in IN_MEMORY else SQLiteStore(folder / "runs.db")
    collector = Collector()
    traced = Traced(
        collector, collector.telemetry(content=content), store, Clock(), LOOKED_AT.get(name, "run")
    )
    await SCENARIOS[name](traced)
    assert await anyio.to_thread.run_sync(traced.telemetry.flush)
    return traced


# Trees as text ------------------------------------------------------------------------------------


def drawn(spans: Sequence[SpanData], logs: Sequence[LogData]) -> str:
    """A tree as text: each span below the one it is in, with its attributes, links and log events."""
    ids = {span.span for span in spans}
    names = {span.span: f"{span.name} @{span.run_id}:{span.seq}" for span in spans}
    start = min((span.start for span in spans), default=0)
    lines: list[str] = []

    def show(span: SpanData, depth: int) -> None:
        pad = "  " * depth
        since, until = ((at - start) / 1e9 for at in (span.start, span.end))
        status = "" if span.status == "unset" else f" {span.status}"
        lines.append(f"{pad}{span.name} [{span.kind}] {since:.2f}-{until:.2f} s{status}")
        lines.extend(
            f"{pad}    {link.kind} -> {names.get(link.span, link.span)}" for link in span.links
        )
        lines.extend(
            f"{pad}    {name} = {repr(value)[:300]}"
            for name, value in span.attributes.items()
            if name != "triage.run.id"
        )
        for log in logs:
            if log.span == span.span:
                lines.append(f"{pad}    * {log.name} {log.severity}")
                lines.extend(
                    f"{pad}        {name} = {repr(value)[:300]}"
                    for name, value in log.attributes.items()
                    if name not in ("triage.run.id", "triage.seq")
                )
        for inner in sorted(spans, key=lambda one: (one.start, one.run_id != span.run_id, one.seq)):
            if inner.parent == span.span:
                show(inner, depth + 1)

    for span in sorted(spans, key=lambda one: (one.start, one.seq)):
        if span.parent not in ids:
            show(span, 0)
    return "\n".join(lines) + "\n"


async def draw(name: str) -> str:
    """The golden text of a scenario."""
    with tempfile.TemporaryDirectory() as folder:
        traced = await traced_run(name, Path(folder))
        spans, logs = await read_tree(traced.store, traced.run_id, content=True)
        await traced.store.close()
    return drawn(spans, logs)


def main() -> None:
    """Write the golden files."""
    TRACES.mkdir(exist_ok=True)
    for name in SCENARIOS:
        (TRACES / f"{name}.txt").write_text(asyncio.run(draw(name)), encoding="utf-8")
        print(name, file=sys.stderr)  # noqa: T201 - a program


if __name__ == "__main__":
    main()
