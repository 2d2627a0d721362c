"""What tracing costs: an event in the path that records it, and how fast trees are built and sent.

    python -m bench.telemetry [--runs 300] [--strict]

The cost of an event is the processor's time of the recording thread, of all events of runs with ten
recorded calls and two attempts; the worker has a thread of its own. `--strict` exits with 1 where an event
costs more than is promised.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from triage import Agent, FailurePolicy, Retry, Run, tool
from triage.adapters.otel import SpanData, Telemetry, export, tree_of
from triage.core import Event

PROMISED_US = 5.0
CALLS = 10


class Cost(NamedTuple):
    """event_us: microseconds an event costs the recording thread. run_us: that of a run's events.

    spans_per_s: built from journals, emitted through the SDK by the worker, and written as OTLP to a file.
    """

    event_us: float
    run_us: float
    built_per_s: float
    emitted_per_s: float
    written_per_s: float


@tool(effect="read")
async def look(what: str) -> str:
    """Look something up."""
    return f"saw {what}"


async def agent(task: str, *, run: Run) -> str:
    """Look ten things up, and fail the first time."""
    for at in range(CALLS):
        await look(f"part {at}")
    if run.attempt == 1:
        raise ConnectionError("down")
    return task


async def journals(count: int) -> list[list[Event]]:
    """The journals of so many runs."""
    made = Agent(agent, FailurePolicy(EXTERNAL_FAULT=Retry()))
    for at in range(count):
        await made.run("x", run_id=f"run-{at}")
    return [await made.store.read(f"run-{at}") for at in range(count)]


def measured(runs: Sequence[Sequence[Event]]) -> Cost:
    """All figures."""
    events = sum(map(len, runs))
    costs = [_recorded(runs) for _ in range(3)]
    began = time.perf_counter()
    spans: list[SpanData] = tree_of(runs)[0]
    built = len(spans) / (time.perf_counter() - began)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        export(spans, [], str(Path(folder) / "trace.jsonl"))
        written = len(spans) / (time.perf_counter() - began)
    seconds = statistics.median(cost for cost, _ in costs)
    emitted = len(spans) / statistics.median(worked for _, worked in costs)
    return Cost(seconds / events * 1e6, seconds / len(runs) * 1e6, built, emitted, written)


def _recorded(runs: Sequence[Sequence[Event]]) -> tuple[float, float]:
    """Seconds of the recording thread for all events, and until all of them were emitted."""
    telemetry = Telemetry(
        tracer_provider=TracerProvider(resource=Resource.get_empty(), shutdown_on_exit=False),
        limit=10**7,
    )
    telemetry(runs[0][0])  # the first event starts the thread
    gc.collect()
    began, used = time.perf_counter(), time.thread_time()
    for run in runs:
        for event in run:
            around = telemetry(event)
            if around is not None:
                with around:
                    pass
    used = time.thread_time() - used
    telemetry.close(600)
    return used, time.perf_counter() - began


def main() -> int:
    """Print the figures; 1 if the promise is not kept and `--strict` is set, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry", description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="runs whose events are taken")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when it is too slow")
    options = parser.parse_args()
    found = measured(asyncio.run(journals(options.runs)))
    print(f"an event costs    {found.event_us:8.2f} µs (at most {PROMISED_US:g} µs)")
    print(f"a run's events    {found.run_us:8.0f} µs ({CALLS} calls, 2 attempts)")
    print(f"spans built       {found.built_per_s:8.0f} /s")
    print(f"spans emitted     {found.emitted_per_s:8.0f} /s, through the SDK")
    print(f"spans written     {found.written_per_s:8.0f} /s, as OTLP to a file")
    return int(options.strict and found.event_us > PROMISED_US)


if __name__ == "__main__":
    raise SystemExit(main())
