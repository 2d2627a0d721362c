"""Build the tree of a run from a store, whether or not the run was traced."""

from __future__ import annotations

from collections.abc import Sequence

import anyio.to_thread

from triage.core import Event, RunStarted, UnknownRun
from triage.stores import Store

from .names import INVOKE_AGENT, NEWEST, Names
from .otlp import export
from .spans import LogData, SpanData, SpanRef, caller_of, span_of
from .tree import RunTrace

_DEEPEST = 100
"""Maximum depth of runs inside runs."""


def place_in(outer: RunTrace | None, started: Event) -> SpanRef | None:
    """Return the span around a run: the call that began it. None if the run's own start names its span."""
    if outer is None:
        return None
    call = outer.inside.get(started.run_id)
    if call is not None:
        return call
    if caller_of(started) is not None:
        return None
    # No call of the outer run recorded this run, since its task has no form to identify it by.
    outermost = started.parent if isinstance(started, RunStarted) else None
    return SpanRef(outer.trace, span_of(outermost or "", 0, INVOKE_AGENT))


def tree_of(
    journals: Sequence[Sequence[Event]], *, content: bool = False, names: Names = NEWEST
) -> tuple[list[SpanData], list[LogData]]:
    """Return the spans and log events of runs. Unfinished spans are marked `triage.incomplete`.

    journals: the events of each run, with an outer run before the runs inside it.
    """
    traces: dict[str, RunTrace] = {}
    spans: list[SpanData] = []
    logs: list[LogData] = []
    for events in journals:
        if not events:
            continue
        started = events[0]
        parent = started.parent if isinstance(started, RunStarted) else None
        outer = None if parent is None else traces.get(parent)
        trace = RunTrace(content=content, names=names, within=place_in(outer, started))
        traces[started.run_id] = trace
        told = [one for event in events for one in trace.feed(event)]
        told += trace.close()
        spans += [one for one in told if isinstance(one, SpanData)]
        logs += [one for one in told if isinstance(one, LogData)]
    return spans, logs


async def read_tree(
    store: Store, run_id: str, *, content: bool = False, names: Names = NEWEST
) -> tuple[list[SpanData], list[LogData]]:
    """Return the spans and log events of a run in a store and of the runs inside it.

    Raises UnknownRun if the store has no such run.
    """
    if await store.info(run_id) is None:
        raise UnknownRun(f"the store knows no run {run_id}")
    # The trace is the outermost run's, so the tree is built from there.
    top = run_id
    for _ in range(_DEEPEST):
        info = await store.info(top)
        if info is None or info.parent is None or await store.info(info.parent) is None:
            break
        top = info.parent
    journals: dict[str, list[Event]] = {}
    wanted: set[str] = set()
    waiting = [(top, top == run_id)]
    while waiting:
        one, is_wanted = waiting.pop()
        if one in journals:
            continue
        journals[one] = await store.read(one)
        if is_wanted:
            wanted.add(one)
        inner = await store.runs(parent=one)
        waiting += [(info.run_id, is_wanted or info.run_id == run_id) for info in inner]
    spans, logs = tree_of(list(journals.values()), content=content, names=names)
    return (
        [span for span in spans if span.run_id in wanted],
        [log for log in logs if log.run_id in wanted],
    )


async def export_run(
    store: Store, run_id: str, target: str, *, content: bool = False, names: Names = NEWEST
) -> tuple[int, int]:
    """Export a run of a store to a file or a collector; return the number of spans and of log events.

    target: as in `export`, which also says what is raised. Exporting again gives the same ids, which are
    those of live traces too.
    """
    spans, logs = await read_tree(store, run_id, content=content, names=names)
    await anyio.to_thread.run_sync(export, spans, logs, target, names)
    return len(spans), len(logs)
