"""Children that fail in groups: their leaves decide, and no group is a cancellation from outside."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
from support import FakeEnvironment, question_of
from tables import table

import triage
from triage import Agent, Checks, FailurePolicy, FailureType, Limits, Retry, Run, UsageError
from triage.core import AttemptFailed, AttemptStarted, Event, RunFinished
from triage.stores import MemoryStore

pytestmark = pytest.mark.anyio
TOOK_TOO_LONG = 60.0
RUN = "run"
Child = Callable[[], Coroutine[Any, Any, Any]]


class Down(Exception):
    """A service that says when it may be asked again."""

    def __init__(self, status: int, seconds: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status
        self.headers = {"retry-after": str(seconds)}


# The ways to run children ---------------------------------------------------------------------------


async def wait_for_ever() -> None:
    await anyio.sleep_forever()


async def nothing() -> None:
    """The body of the group ends at once: what fails, fails while the group waits for it."""


async def task_group(body: Child, *children: Child) -> None:
    async with asyncio.TaskGroup() as group:
        for child in children:
            group.create_task(child())
        await body()


async def anyio_group(body: Child, *children: Child) -> None:
    async with anyio.create_task_group() as group:
        for child in children:
            group.start_soon(child)
        await body()


async def nursery(body: Child, *children: Child) -> None:
    async with trio.open_nursery() as group:
        for child in children:
            group.start_soon(child)
        await body()


async def gathered(body: Child, *children: Child) -> None:
    await asyncio.gather(*(child() for child in children))


WAYS = {
    "asyncio.TaskGroup": ("asyncio", task_group),
    "anyio on asyncio": ("asyncio", anyio_group),
    "anyio on trio": ("trio", anyio_group),
    "trio": ("trio", nursery),
    "gather": ("asyncio", gathered),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return WAYS[request.param]


@pytest.fixture
def anyio_backend(way: tuple[str, Any]) -> str:
    return way[0]


@pytest.fixture
def group(way: tuple[str, Any]) -> Any:
    return way[1]


IN_THE_BODY_AND_AT_THE_EXIT = (wait_for_ever, nothing)
WATCHED = [False, True]


def agent(function: Any, policy: Any, *, watched: bool, **options: Any) -> Agent[Any]:
    return Agent(function, policy, checks=Checks(watch=watched), **options)


# Failures -------------------------------------------------------------------------------------------


@table("body", IN_THE_BODY_AND_AT_THE_EXIT)
async def test_a_mistake_of_the_caller_in_a_child_is_not_recovered_from(
    group: Any, body: Child
) -> None:
    events: list[Event] = []
    store = MemoryStore()

    async def fails() -> None:
        await anyio.lowlevel.checkpoint()
        Limits(attempts=0)

    async def works(task: str) -> None:
        await group(body, *([fails] if group is gathered else [wait_for_ever, fails]))

    it = Agent(works, FailurePolicy(default=Retry()), store=store, observers=[events.append])
    with pytest.raises((ExceptionGroup, UsageError)) as raised:
        await it.run("t", run_id=RUN)
    assert isinstance(raised.value, UsageError) or raised.group_contains(UsageError)
    assert sum(isinstance(event, AttemptStarted) for event in events) == 1
    finished = (await store.read(RUN))[-1]
    assert isinstance(finished, RunFinished)
    assert finished.status == "error"


@table("body", IN_THE_BODY_AND_AT_THE_EXIT)
@table("watched", WATCHED)
async def test_the_leaves_decide_and_the_longest_wait_counts(
    group: Any, body: Child, *, watched: bool
) -> None:
    events: list[Event] = []
    env = FakeEnvironment()

    async def fails() -> None:
        await anyio.lowlevel.checkpoint()
        raise Down(429, 3)

    async def fails_later() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise Down(503, 7)

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            await group(body, *([fails] if group is gathered else [fails, fails_later]))
        return "done"

    it = agent(works, None, watched=watched, environment=env, observers=[events.append])
    assert await it.run("t") == "done"
    (failed,) = [event for event in events if isinstance(event, AttemptFailed)]
    assert failed.diagnosis.failure_type is FailureType.EXTERNAL_FAULT
    longest = 3 if group is gathered else 7
    assert longest <= sum(env.slept) < longest + 5


@table("body", IN_THE_BODY_AND_AT_THE_EXIT)
@table("watched", WATCHED)
@table("then", ["fails", "answers", "waits and fails"])
async def test_a_group_that_the_function_handles_is_no_cancellation(
    group: Any, body: Child, then: str, *, watched: bool
) -> None:
    async def fails() -> None:
        await anyio.lowlevel.checkpoint()
        raise ValueError("a child")

    async def works(task: str, *, run: Run) -> str:
        try:
            await group(body, fails)
        except* ValueError:
            pass
        if then == "waits and fails":
            await anyio.lowlevel.checkpoint()
        if then != "answers" and run.attempt < 3:
            raise ConnectionError("after the group")
        return f"done at {run.attempt}"

    it = agent(works, FailurePolicy(default=Retry()), watched=watched)
    assert await it.run("t") == ("done at 1" if then == "answers" else "done at 3")


@table("body", IN_THE_BODY_AND_AT_THE_EXIT)
@table("where", ["function", "stream", "generator", "inner run"])
async def test_an_agent_recovers_from_a_group_wherever_it_is(
    group: Any, body: Child, where: str
) -> None:
    policy = FailurePolicy(default=Retry())

    async def fails() -> None:
        await anyio.lowlevel.checkpoint()
        raise ConnectionError("a child")

    async def numbers(attempt: int) -> AsyncIterator[int]:
        yield attempt
        if attempt < 3:
            await group(body, fails)
        yield 10

    async def streams(task: str, *, run: Run) -> AsyncIterator[int]:
        async for number in numbers(run.attempt):
            yield number

    async def returns(task: str, *, run: Run) -> list[int]:
        if where == "function" and run.attempt < 3:
            await group(body, fails)
        return [number async for number in numbers(run.attempt)]

    async def outer(task: str, *, run: Run) -> list[int]:
        found = await Agent(returns, policy).run(task)
        if run.attempt < 3:
            raise ConnectionError("outer")
        return found

    function: Any = {"stream": streams, "inner run": outer}.get(where, returns)
    found = [item async for item in Agent(function, policy).stream("t")]
    kept = [item for item in found if not isinstance(item, triage.Restarted)]
    assert kept == ([1, 2, 3, 10] if where == "stream" else [[3, 10]])


# Calls with an effect in flight ---------------------------------------------------------------------


@table("body", IN_THE_BODY_AND_AT_THE_EXIT)
@table("watched", WATCHED)
async def test_a_call_that_a_failing_sibling_cut_off_is_asked_about(
    group: Any, body: Child, *, watched: bool
) -> None:
    charges = 0
    begun = anyio.Event()

    @triage.tool(effect="once")
    async def charge() -> str:
        nonlocal charges
        charges += 1
        begun.set()
        if group is gathered:
            await anyio.lowlevel.checkpoint()  # nobody cuts it off: it is waited for
            return "receipt"
        await anyio.sleep_forever()
        return "never"

    async def fails() -> None:
        await begun.wait()
        raise ConnectionError("a child")

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            await group(body, charge, fails)
        return await charge()

    it = agent(works, FailurePolicy(default=Retry()), watched=watched)
    if group is gathered:
        assert await it.run("t") == "receipt"
    else:
        asked = await question_of(it.run("t"), match="did charge with")
        assert await it.resume(asked.token, triage.happened("receipt")) == "receipt"
    assert charges == 1


# Cancellations from outside -------------------------------------------------------------------------


async def status(store: MemoryStore) -> tuple[str, int]:
    events = await store.read(RUN)
    assert isinstance(events[-1], RunFinished)
    return events[-1].status, sum(isinstance(event, AttemptStarted) for event in events)


class Outside:
    """Somebody who runs a function in a task or a scope of their own, and cancels it."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.cancel: Callable[[], object] = lambda: None

    async def runs(self, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            if self.how == "by its task":
                task = asyncio.current_task()
                assert task is not None
                self.cancel = task.cancel
                try:
                    await work()
                except asyncio.CancelledError:
                    task.uncancel()
            else:
                with anyio.CancelScope() as scope:
                    self.cancel = scope.cancel
                    await work()
        except Exception:
            pass


@table("body", IN_THE_BODY_AND_AT_THE_EXIT)
@table("how", ["by a scope", "by its task"])
async def test_a_cancellation_from_outside_wins_beside_a_failing_child(
    group: Any, body: Child, how: str, anyio_backend_name: str
) -> None:
    if anyio_backend_name == "trio" and how == "by its task":
        return  # trio has scopes alone
    for handles, watched in itertools.product([False, True], repeat=2):
        for turns in (-1, 0, 1, 3, 5):
            ended, attempts = await _cancelled_beside_a_failing_child(
                group, body, how, turns, handles=handles, watched=watched
            )
            case = f"turns={turns}, handles={handles}, watched={watched}"
            assert ended == "cancelled", case
            assert attempts == 1 or turns > 0, case


async def _cancelled_beside_a_failing_child(
    group: Any, body: Child, how: str, turns: int, *, handles: bool, watched: bool
) -> tuple[str, int]:
    """How the run ended, and its attempts. turns: of the event loop between the child's failure and the
    cancellation; -1: the cancellation comes first.
    """
    ready, go = anyio.Event(), anyio.Event()
    store = MemoryStore()

    async def fails() -> None:
        ready.set()
        await go.wait()
        raise ConnectionError("a child")

    async def cleans_up() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(2):
                    await anyio.lowlevel.checkpoint()

    async def works(task: str, *, run: Run) -> str:
        if run.attempt > 1:
            await anyio.sleep_forever()
        try:
            await group(body, fails, cleans_up)
        except* ConnectionError:
            if not handles:
                raise
        raise ConnectionError("after the group")

    it = agent(works, FailurePolicy(default=Retry()), watched=watched, store=store)
    outside = Outside(how)
    with anyio.fail_after(TOOK_TOO_LONG):
        async with anyio.create_task_group() as tests:
            tests.start_soon(outside.runs, lambda: it.run("t", run_id=RUN))
            await ready.wait()
            if turns < 0:
                outside.cancel()
                go.set()
            else:
                go.set()
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                outside.cancel()
    return await status(store)


@table("body", IN_THE_BODY_AND_AT_THE_EXIT)
@table("watched", WATCHED)
async def test_a_clean_up_that_fails_after_a_handled_group_is_not_tried_again(
    group: Any, body: Child, *, watched: bool
) -> None:
    waits = anyio.Event()
    store = MemoryStore()

    async def fails() -> None:
        await anyio.lowlevel.checkpoint()
        raise ValueError("a child")

    async def works(task: str, *, run: Run) -> str:
        try:
            await group(body, fails)
        except* ValueError:
            pass
        try:
            waits.set()
            await anyio.sleep_forever()
        finally:
            raise ConnectionError("the connection was closed already")

    it = agent(works, FailurePolicy(default=Retry()), watched=watched, store=store)

    async def runs() -> None:
        with pytest.raises(ConnectionError, match="closed already"):
            await it.run("t", run_id=RUN)

    with anyio.fail_after(TOOK_TOO_LONG):
        async with anyio.create_task_group() as tests:
            tests.start_soon(runs)
            await waits.wait()
            tests.cancel_scope.cancel()
    assert await status(store) == ("cancelled", 1)
