"""Cancelled at any point, a run stops, writes down what it did, is given back, and can be gone on with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from store_kinds import Opened
from support import Says, question_of
from tables import covering, table

import triage
from engine.durable_runs import (
    PAYMENTS,
    RUN,
    Kept,
    brought_to_its_end,
    check_journal,
    payments,
    policy_of,
)
from triage import Agent
from triage.core import Event, RunFinished, TriageSuspendedError
from triage.stores import MemoryStore, Store

pytestmark = pytest.mark.anyio
EXPECTED = ["paid 5", "paid 7"]
HOW = ("scope", "native", "scope twice", "native twice")
WHAT = ("run", "resume", "recover")
SWEPT = [
    *(("sqlite", *row) for row in covering(WHAT, HOW)),
    *(("postgres", what, "scope") for what in WHAT),
]
"""A run is cancelled in each way on a file; the other store shows that it keeps as much."""


class Stopwatch:
    """Awaits a coroutine and calls `at_one` when it is suspended for the so-manieth time."""

    def __init__(
        self, work: Coroutine[Any, Any, Any], at: range, cancel: Callable[[], Any]
    ) -> None:
        self._work = work
        self._at = at
        self._cancel = cancel
        self.count = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        step: Callable[[], Any] = partial(next, inner)
        while True:
            try:
                waited = step()
            except StopIteration as ended:
                return ended.value
            self.count += 1
            if self.count in self._at:
                self._cancel()
            try:
                value = yield waited
            except BaseException as error:
                step = partial(inner.throw, error)
            else:
                step = partial(inner.send, value)


async def cancelled(work: Coroutine[Any, Any, Any], at: int, how: str) -> bool | None:
    """Whether a coroutine ended as cancelled at this suspension; None if it has no so many."""
    times = range(at, at + (2 if how.endswith("twice") else 1))
    if how.startswith("scope"):
        with anyio.CancelScope() as scope:
            watch = Stopwatch(work, times, scope.cancel)
            await watch
        return scope.cancelled_caught if watch.count >= at else None
    found: list[Stopwatch] = []

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        found.append(Stopwatch(work, times, task.cancel))
        await found[0]

    task = asyncio.create_task(main())
    await asyncio.wait((task,))
    if found[0].count < at:
        task.result()
        return None
    return task.cancelled()


def paying(store: Store, world: Kept, told: list[Event]) -> Agent[Any]:
    """An agent that suspends wherever one can: in tools, between steps, while it retries."""

    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        await anyio.lowlevel.checkpoint()
        world.do(f"pay {cents}")
        await anyio.lowlevel.checkpoint()
        return f"paid {cents}"

    async def works(task: str, *, run: triage.Run, record_step: Any) -> list[str]:
        paid = [await pay(5)]
        record_step(triage.Step(action="think"))
        await run.flush()
        if run.attempt == 1:
            await anyio.lowlevel.checkpoint()
            raise ConnectionError("gone")
        paid.append(await pay(7))
        return paid

    return Agent(
        works,
        policy_of("suspend"),
        classifier=Says(),
        store=store,
        observers=[told.append],
    )


async def prepared(what: str, store: Store, world: Kept) -> tuple[Agent[Any], list[Event], Any]:
    """An agent, what it tells its observers, and the coroutine to cancel."""
    told: list[Event] = []
    agent = paying(store, world, told)
    if what == "run":
        return agent, told, agent.run("task", run_id=RUN)
    raised = await question_of(agent.run("task", run_id=RUN))
    if what == "resume":
        return agent, told, agent.resume(raised.token, triage.approve())
    # As if its process had died in the attempt after the answer.
    events = await store.read(RUN)
    await store.claim(RUN, lease_s=30)
    event = triage.core.events.RunResumed(RUN, len(events), events[-1].time, 1, triage.Retry())
    await store.append(RUN, [event], at=len(events), epoch=1)
    await store.release(RUN, epoch=1)
    return agent, [*told, event], agent.recover(RUN)


async def goes_on(agent: Agent[Any], world: Kept, store: Store) -> None:
    """Whatever was cancelled, the run comes to its end."""
    info = await store.info(RUN)
    if info is None:
        assert not payments(world)
        first: Any = lambda: agent.run("task", run_id=RUN)  # noqa: E731
    else:
        assert info.lease_until is None, "it was not given back"
        waits = info.status == "suspended"
        first = lambda: agent.recover(RUN, force=waits)  # noqa: E731
    result, _ = await brought_to_its_end(agent, world, first)
    assert result == EXPECTED
    assert payments(world) == PAYMENTS
    check_journal(await store.read(RUN))


@pytest.mark.parametrize(("kind", "what", "how"), SWEPT)
async def test_cancelled_anywhere_a_durable_run_can_be_gone_on_with(
    kind: str, what: str, how: str, tmp_path: Path, anyio_backend_name: str
) -> None:
    if how.startswith("native") and anyio_backend_name == "trio":
        return  # trio has scopes alone
    before = set(threading.enumerate())
    with Opened(kind, tmp_path) as opened:
        await _swept(opened, what, how, anyio_backend_name)
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(("SQLite", "Postgres")):
            thread.join(30)  # it may be on its way out
            assert not thread.is_alive(), thread.name


async def _swept(opened: Opened, what: str, how: str, anyio_backend_name: str) -> None:
    """Cancel at the first suspension, at the second, and so on, each time a run of its own."""
    step = 2 if how.endswith("twice") else 1  # twice: also at the next one
    for at in range(1, 200, step):
        store, world = opened.new(), Kept()
        agent, told, work = await prepared(what, store, world)
        try:
            stopped = await cancelled(work, at, how)
        except TriageSuspendedError:
            stopped = None
        if anyio_backend_name == "asyncio":
            assert len(asyncio.all_tasks()) <= 2, asyncio.all_tasks()
        if stopped is None:
            await store.close()
            break
        assert stopped, f"cancelled at {at}, and it went on"
        events = await store.read(RUN)
        # The observers hear of an event as it is recorded: that is what is in memory.
        known = {event.seq: event for event in told}
        assert {event.seq for event in events} >= known.keys() or not events, at
        assert all(known.get(event.seq, event) == event for event in events)
        await goes_on(agent, world, store)
        await store.close()
    else:
        pytest.fail("no end")
    assert at > 5


@table("how", HOW)
async def test_cancelled_anywhere_a_run_in_memory_says_so(
    how: str, anyio_backend_name: str
) -> None:
    if how.startswith("native") and anyio_backend_name == "trio":
        return  # trio has scopes alone
    for at in range(1, 200):
        store, world = MemoryStore(), Kept()
        _, told, work = await prepared("run", store, world)
        try:
            stopped = await cancelled(work, at, how)
        except TriageSuspendedError:
            stopped = None
        if stopped is None:
            break
        assert stopped
        events = await store.read(RUN)
        check_journal(events)
        assert events == told
        assert isinstance(events[-1], RunFinished)
        assert events[-1].status == "cancelled"
    else:
        pytest.fail("no end")
    assert at > 3


async def test_a_run_that_was_resumed_in_memory_has_ended_when_it_is_cancelled() -> None:
    store = MemoryStore()
    goes_on = anyio.Event()

    async def waits(task: str, *, run: triage.Run) -> None:
        if run.attempt == 1:
            raise ConnectionError("down")
        goes_on.set()
        await anyio.sleep_forever()

    policy = triage.FailurePolicy(default=triage.Suspend("go on?"))
    agent = Agent(waits, policy, classifier=Says(), store=store)
    asked = await question_of(agent.run("t", run_id=RUN))
    async with anyio.create_task_group() as group:
        group.start_soon(agent.resume, asked.token, triage.approve())
        await goes_on.wait()
        group.cancel_scope.cancel()
    info = await store.info(RUN)
    assert info is not None
    assert info.status == "cancelled"  # nobody could take it over: the journal is in this process


@table("how", ["scope", "native", "stream", "without watching"])
async def test_an_agent_whose_clean_up_fails_while_it_is_cancelled_is_not_called_again(
    how: str, anyio_backend_name: str
) -> None:
    if how == "native" and anyio_backend_name == "trio":
        return  # trio has scopes alone
    store, waits, calls = MemoryStore(), anyio.Event(), 0

    async def closing(task: str) -> None:
        nonlocal calls
        calls += 1
        try:
            waits.set()
            await anyio.sleep_forever()
        finally:
            raise ConnectionError("the connection was closed already")

    async def streaming(task: str) -> AsyncIterator[int]:
        await closing(task)
        yield 1

    policy = triage.FailurePolicy(default=triage.Retry())
    checks = triage.Checks(watch=how != "without watching")
    function: Any = streaming if how == "stream" else closing
    agent = Agent(function, policy, store=store, checks=checks, observers=[lambda _event: None])

    async def streamed() -> None:
        _ = [item async for item in agent.stream("t")]

    async def run() -> None:
        # Whoever cancels waits for the end, and the agent's own error comes out as without us.
        with pytest.raises(ConnectionError, match="closed already"):
            await (streamed() if how == "stream" else agent.run("t"))

    if how == "native":
        task = asyncio.create_task(run())
        await waits.wait()
        task.cancel()
        await task
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await waits.wait()
            group.cancel_scope.cancel()
    assert calls == 1
    (info,) = await store.runs()
    assert info.status == "cancelled"
