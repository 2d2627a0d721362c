"""Interrupts at every suspension, and at the moment of a cancellation from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from durable_runs import PAYMENTS, RUN, Kept, payments
from test_cancellation import Stopwatch
from test_interrupts import MODES, asked_of_the_task, interrupt
from watched import ONCE_MORE

import triage
import triage._interrupt
from triage import Agent, Run, Step
from triage.events import AttemptStarted, RunFinished
from triage.stores import SQLiteStore

pytestmark = pytest.mark.anyio
TOOK_TOO_LONG = 10.0


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODES[request.param]([])


# At every suspension ------------------------------------------------------------------------------


async def paying(world: Kept, runs: list[Run], options: dict[str, Any]) -> Agent[Any]:
    """An agent that suspends wherever one can: in tools, in a task of its own, cleaning up."""

    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        await anyio.lowlevel.checkpoint()
        world.do(f"pay {cents}")
        await anyio.lowlevel.checkpoint()
        return f"paid {cents}"

    async def think(run: Run) -> None:
        run.record_step(Step(action="think"))
        await anyio.lowlevel.checkpoint()

    async def works(task: str, *, run: Run) -> list[str]:
        runs.append(run)
        try:
            paid = [await pay(5)]
            async with anyio.create_task_group() as group:
                group.start_soon(think, run)
            with anyio.move_on_after(60):
                await anyio.lowlevel.checkpoint()
            paid.append(await pay(7))
        finally:
            await anyio.lowlevel.checkpoint()
        await run.flush()
        return paid

    return Agent(works, ONCE_MORE, **options)


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "SQLite"])
async def test_interrupted_at_any_suspension_all_is_paid_once_and_nothing_is_left(
    mode: dict[str, Any],
    durable: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Any,
) -> None:
    for at in range(1, 100):
        world, runs = Kept(), list[Run]()
        store = SQLiteStore(str(tmp_path / f"{at}.db")) if durable else triage.MemoryStore()
        agent = await paying(world, runs, {**mode, "store": store})

        def now() -> None:
            for run in runs[:1]:  # noqa: B023 - called in this round
                if not run.over:
                    Context().run(interrupt, run)

        watch = Stopwatch(agent.run("t", run_id=RUN), range(at, at + 1), now)
        assert await watch == ["paid 5", "paid 7"]
        assert payments(world) == PAYMENTS, at
        assert asked_of_the_task() == 0
        await anyio.lowlevel.checkpoint()
        if durable:
            await store.close()
        if watch.count < at:
            break
    else:
        pytest.fail("no end")
    assert at > 7


# Beside a cancellation from outside ---------------------------------------------------------------


async def polite(_run: Run) -> str:
    await anyio.sleep_forever()
    return "never"


async def swallows(_run: Run) -> str:
    try:
        await anyio.sleep_forever()
    except BaseException:  # noqa: BLE001 - on purpose
        return "swallowed"
    return "never"


async def records_while_it_is_cancelled(run: Run) -> str:
    try:
        await anyio.sleep_forever()
    finally:
        run.record_step(Step(action="clean up"))
    return "never"


async def fails_while_it_is_cancelled(_run: Run) -> str:
    try:
        await anyio.sleep_forever()
    finally:
        raise ValueError("while cleaning up")


class Cancelled:
    """A run in a task of its own, cancelled from outside in one of the ways there are."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.ended: str | None = None
        self.cancel: Callable[[], Any] = lambda: None
        self.ready = anyio.Event()
        self.asked = 0

    async def by_scope(self) -> None:
        with anyio.CancelScope() as scope:
            self.cancel = scope.cancel
            await self._goes()
        self.ended = "cancelled" if scope.cancelled_caught else self.ended
        self.asked = asked_of_the_task()

    async def by_task(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.cancel = task.cancel
        try:
            await self._goes()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            self.asked = task.uncancel()

    async def by_timeout(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as timeout:
                self.cancel = lambda: timeout.reschedule(loop.time() - 1)
                await self._goes()
        except TimeoutError:
            self.ended = "cancelled"
        self.asked = asked_of_the_task()

    async def _goes(self) -> None:
        try:
            self.ended = f"gave {await self._work}"
        except Exception as error:  # noqa: BLE001 - what it ended with is what is asked
            self.ended = f"raised {type(error).__name__}"


@pytest.mark.parametrize("order", ["interrupt first", "cancel first"])
@pytest.mark.parametrize("how", ["by_scope", "by_task", "by_timeout"])
@pytest.mark.parametrize(
    "agent", [polite, swallows, records_while_it_is_cancelled, fails_while_it_is_cancelled]
)
async def test_a_cancellation_from_outside_wins_at_the_same_moment(
    agent: Callable[[Run], Any],
    how: str,
    order: str,
    mode: dict[str, Any],
    anyio_backend_name: str,
) -> None:
    if anyio_backend_name == "trio" and how != "by_scope":
        pytest.skip("trio has scopes alone")
    runs: list[Run] = []
    ready = anyio.Event()

    async def works(task: str, *, run: Run) -> str:
        runs.append(run)
        ready.set()
        result: str = await agent(run)
        return result

    it = Agent(works, ONCE_MORE, **mode)
    cancelled = Cancelled(it.run("t", run_id=RUN))
    with anyio.fail_after(TOOK_TOO_LONG):
        async with anyio.create_task_group() as group:
            group.start_soon(getattr(cancelled, how))
            await ready.wait()
            await anyio.lowlevel.checkpoint()
            moves: list[Callable[[], Any]] = [lambda: interrupt(runs[0]), cancelled.cancel]
            if how == "by_timeout":  # it cancels in the next turn of the loop
                moves[0] = lambda: asyncio.get_running_loop().call_soon(interrupt, runs[0])
            for move in moves if order == "interrupt first" else reversed(moves):
                move()
    assert (cancelled.ended, cancelled.asked) == ("cancelled", 0)
    events = await it.store.read(RUN)
    assert sum(isinstance(event, AttemptStarted) for event in events) == 1
    assert isinstance(events[-1], RunFinished)
    assert events[-1].status == "cancelled"


async def test_a_task_that_was_cancelled_before_may_still_recover(anyio_backend_name: str) -> None:
    """As in a task that cleans up after its cancellation, or caught one and did not take it back."""
    if anyio_backend_name == "trio":
        pytest.skip("trio has scopes alone")
    task = asyncio.current_task()
    assert task is not None

    async def works(name: str, *, run: Run) -> str:
        if run.attempt == 1:
            interrupt_later(run)
            await anyio.sleep_forever()
        return "done"

    def interrupt_later(run: Run) -> None:
        asyncio.get_running_loop().call_soon(interrupt, run)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert task.cancelling() == 1
    try:
        assert await Agent(works, ONCE_MORE).run("t") == "done"
        assert task.cancelling() == 1
    finally:
        task.uncancel()


async def test_time_limits_of_the_agents_own_are_left_alone(
    mode: dict[str, Any], anyio_backend_name: str
) -> None:
    """One that fires at the moment of the interrupt is none of the run's."""
    if anyio_backend_name == "trio":
        pytest.skip("asyncio's own")
    ended: list[str] = []

    async def works(task: str, *, run: Run) -> str:
        loop = asyncio.get_running_loop()
        if run.attempt > 1:
            return "done"
        try:
            async with asyncio.timeout(None) as timeout:
                timeout.reschedule(loop.time() - 1)
                loop.call_soon(interrupt, run)
                await asyncio.sleep(60)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise
        return "never"

    assert await Agent(works, ONCE_MORE, **mode).run("t") == "done"
    assert ended[0] in ("TimeoutError", "CancelledError")
    assert asked_of_the_task() == 0
