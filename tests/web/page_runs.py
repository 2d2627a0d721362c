"""Runs to look at on the page, made once for all tests of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from examples.page import fill
from triage.core import (
    AttemptStarted,
    CallFinished,
    CallStarted,
    Event,
    RunFinished,
    RunStarted,
    Step,
    StepRecorded,
    Usage,
)
from triage.stores import MemoryStore

T = TypeVar("T")


def _apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do something in a thread of its own: a browser keeps an event loop in the one of the tests."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result()


@cache
def journals() -> dict[str, list[Event]]:
    """The journals of `examples.page`, by run."""

    async def made() -> dict[str, list[Event]]:
        store = MemoryStore()
        await fill(store)
        return {info.run_id: await store.read(info.run_id) for info in await store.runs()}

    return _apart(made)


def copied(*more: list[Event]) -> MemoryStore:
    """A store with the runs of `examples.page`, the oldest first, and with more after them."""
    return stored(*reversed(journals().values()), *more)


def stored(*some: list[Event]) -> MemoryStore:
    """A store with some journals."""
    store = MemoryStore()

    async def put() -> None:
        for events in some:
            await store.append(events[0].run_id, events, at=0, epoch=0)

    _apart(put)
    return store


def long_run(
    steps: int, run_id: str = "long", *, ends: bool = True, began: float = 1.7e9
) -> list[Event]:
    """A run of one attempt with so many recorded calls, each with a result and its usage."""
    events: list[Event] = []

    def add(make: Callable[..., Event], **fields: Any) -> None:
        events.append(make(run_id=run_id, seq=len(events), time=began + len(events) / 10, **fields))

    add(RunStarted, agent="long", task="Do very much")
    add(AttemptStarted, attempt=1)
    for index in range(steps):
        key = f"look:{index:032x}:1"
        add(CallStarted, attempt=1, key=key, tool="look", effect="read", arguments={"page": index})
        step = Step(
            action="call",
            tool_called="look",
            tool_input={"page": index},
            tool_output=f"what stands on page {index}",
            usage=Usage(100, 10, cost_usd=0.001),
            metadata={"call": key},
        )
        add(StepRecorded, attempt=1, index=index, step=step)
        add(CallFinished, attempt=1, key=key, outcome="done", result=f"page {index}", step=index)
    if ends:
        add(RunFinished, status="done", result="all of it")
    return events
