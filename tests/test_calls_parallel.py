"""Calls side by side: matched by key and occurrence under every schedule, never by luck of timing."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from typing import Any, NamedTuple

import anyio
import pytest
from calls import recovers
from event_values import steady
from hypothesis import given
from hypothesis import strategies as st

import triage
from triage import Agent, Retry, Run

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


class Task(NamedTuple):
    """A task of the agent. waits: checkpoints before each call. calls: their arguments, in order."""

    waits: int
    calls: tuple[str, ...]


tasks = st.builds(
    Task,
    st.integers(0, 3),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(tuple),
)


async def checkpoints(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


class Agency:
    """An agent of several tasks, which are in another order and wait otherwise in each attempt."""

    def __init__(self, effect: str, schedules: list[list[Task]], body_waits: list[int]) -> None:
        self.schedules = schedules
        self.body_waits = body_waits
        self.ran: list[str] = []
        self.seen: list[list[tuple[str, str]]] = []
        self.act: Any = triage.tool(effect=effect, name="act")(self._act)

    async def _act(self, what: str) -> str:
        self.ran.append(what)
        result = f"{what}{self.ran.count(what)}"
        await checkpoints(self.body_waits[len(self.ran) % len(self.body_waits)])
        return result

    async def works(self, task: str, *, run: Run) -> None:
        seen: list[tuple[str, str]] = []
        self.seen.append(seen)

        async def one(mine: Task) -> None:
            for what in mine.calls:
                await checkpoints(mine.waits)
                seen.append((what, await self.act(what)))

        async with anyio.create_task_group() as group:
            for mine in self.schedules[run.attempt - 1]:
                group.start_soon(one, mine)
        if run.attempt < len(self.schedules):
            raise ConnectionError("late")


@st.composite
def agencies(draw: st.DrawFn) -> tuple[str, list[list[Task]], list[int]]:
    first = draw(st.lists(tasks, min_size=1, max_size=5))
    schedules = [first]
    for _ in range(draw(st.integers(1, 2))):
        order = draw(st.permutations(first))
        schedules.append([task._replace(waits=draw(st.integers(0, 3))) for task in order])
    effect = draw(st.sampled_from(["read", "idempotent", "once", "unknown"]))
    return effect, schedules, draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))


@BACKENDS
@steady
@given(agency=agencies())
def test_every_call_is_made_once_and_each_result_belongs_to_its_arguments(
    backend: str, agency: tuple[str, list[list[Task]], list[int]]
) -> None:
    world = Agency(*agency)
    anyio.run(functools.partial(Agent(world.works, **recovers(Retry())).run, "t"), backend=backend)
    wanted = Counter(what for task in world.schedules[0] for what in task.calls)
    assert Counter(world.ran) == wanted
    for seen in world.seen:
        assert all(result.startswith(what) for what, result in seen)
        # Equal calls may change places; nothing is given twice, and nothing is left out.
        assert Counter(seen) == Counter(world.seen[0])
        assert len(set(seen)) == sum(wanted.values())


@BACKENDS
@steady
@given(agency=agencies(), cut=st.integers(1, 12))
def test_what_a_cancelled_group_had_finished_is_not_made_again(
    backend: str, agency: tuple[str, list[list[Task]], list[int]], cut: int
) -> None:
    _, schedules, waits = agency
    world = Agency("idempotent", [schedules[0], schedules[-1]], waits)
    finished: list[str] = []

    async def works(task: str, *, run: Run) -> None:
        with anyio.CancelScope() as scope:
            ending = world.act

            async def act(what: str) -> str:
                result: str = await ending(what)
                if run.attempt == 1:
                    finished.append(result)
                    if len(finished) == cut:
                        scope.cancel()
                return result

            world.act = act
            try:
                await world.works(task, run=run)
            finally:
                world.act = ending
        raise ConnectionError("cancelled")

    async def first_cut(task: str, *, run: Run) -> None:
        await (works(task, run=run) if run.attempt == 1 else world.works(task, run=run))

    anyio.run(functools.partial(Agent(first_cut, **recovers(Retry())).run, "t"), backend=backend)
    assert set(finished) <= {result for _, result in world.seen[1]}


@BACKENDS
def test_calls_of_many_threads_are_told_apart(backend: str) -> None:
    made: list[str] = []
    lock = threading.Lock()

    @triage.tool(effect="once")
    def act(what: str) -> str:
        with lock:
            made.append(what)
            return f"{what}{made.count(what)}"

    seen: list[list[str]] = []

    def works(task: str, *, run: Run) -> None:
        import contextvars

        results: list[str] = []
        threads = [
            threading.Thread(
                target=contextvars.copy_context().run,
                args=(lambda what=what: results.append(act(what)),),
            )
            for what in "aabbccaabbcc"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen.append(sorted(results))
        if run.attempt == 1:
            raise ConnectionError("late")

    anyio.run(functools.partial(Agent(works, **recovers(Retry())).run, "t"), backend=backend)
    assert seen[0] == seen[1] == sorted(f"{what}{n}" for what in "abc" for n in range(1, 5))
    assert len(made) == 12
