"""Interrupts at every suspension, beside cancellations from outside, and those that are not heeded."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from durable_runs import PAYMENTS, RUN, Kept, payments
from test_cancellation import Stopwatch
from test_interrupts import MODES, asked_of_the_task, interrupt
from watched import ONCE_MORE, call

import triage
import triage._interrupt
from triage import Agent, Limits, Run, Step
from triage.errors import AttemptInterrupted, AttemptOver
from triage.events import AttemptStarted, Event, RunFinished, WatchNoticed
from triage.stores import SQLiteStore

pytestmark = pytest.mark.anyio
TOOK_TOO_LONG = 10.0


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODES[request.param]([])


# At every suspension ------------------------------------------------------------------------------


async def paying(world: Kept, runs: list[Run], options: dict[str, Any]) -> Agent[Any]:
    """An agent that suspends wherever one can: in tools, in a task of its own, between steps, cleaning up."""

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
            await store.close()  # type: ignore[union-attr] # the one of SQLite
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


# Not heeded ---------------------------------------------------------------------------------------


class Told(logging.Handler):
    """Hears that an attempt has not stopped."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard = threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "not stopped" in record.getMessage():
            self.messages.append(record.getMessage())
            self.heard.set()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(triage._interrupt, "GRACE", 0.02)
    handler = Told()
    logging.getLogger("triage").addHandler(handler)
    yield handler
    logging.getLogger("triage").removeHandler(handler)


def blocks(told: Told) -> None:
    while not told.heard.is_set():
        pass


async def never_awaits(run: Run, told: Told) -> None:
    with pytest.raises(AttemptInterrupted):
        interrupt_here(run)
    blocks(told)


async def swallows_every_cancellation(run: Run, told: Told) -> None:
    with pytest.raises(AttemptInterrupted):
        interrupt_here(run)
    while not told.heard.is_set():
        try:
            await anyio.sleep(0.001)
        except BaseException:  # noqa: BLE001 - on purpose
            continue


def interrupt_here(run: Run) -> None:
    for _ in range(20):
        run.record_step(call())


@pytest.mark.parametrize("deaf", [never_awaits, swallows_every_cancellation])
async def test_what_does_not_stop_is_reported_once_and_awaited(
    deaf: Any, told: Told, mode: dict[str, Any]
) -> None:
    ended: list[int] = []

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            await deaf(run, told)
            ended.append(1)
            return "at last"
        assert ended == [1], "the next attempt began beside it"
        return "done"

    agent = Agent(works, ONCE_MORE, **mode)
    assert await agent.run("t", run_id=RUN) == "done"
    assert len(told.messages) == 1
    noticed = [one for one in await agent.store.read(RUN) if isinstance(one, WatchNoticed)]
    [unstopped] = [one for one in noticed if one.response == "unstopped"]
    assert (unstopped.attempt, unstopped.rule, unstopped.step) == (1, "watch.interrupt", None)
    assert unstopped.text == "not stopped 0.02 seconds after its interrupt"


async def test_a_sync_agent_that_does_not_stop_is_reported_and_awaited(told: Told) -> None:
    def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            interrupt(run)
            assert told.heard.wait(TOOK_TOO_LONG)
        return "done"

    assert await Agent(works, ONCE_MORE).run("t") == "done"
    assert len(told.messages) == 1


async def test_a_slow_payment_is_named_as_the_reason(told: Told) -> None:
    @triage.tool(effect="once")
    async def pay() -> str:
        run = triage.current_run()
        if run.attempt == 1:
            Context().run(interrupt, run)
            while not told.heard.is_set():
                await anyio.sleep(0.001)
        return "paid"

    async def works(task: str, *, run: Run) -> str:
        return await pay()

    assert await Agent(works, ONCE_MORE).run("t") == "paid"
    assert told.messages[0].endswith("a call with an effect is finished first; it is waited for")


async def test_one_that_swallows_its_cancellation_and_sleeps_again_is_cancelled_again(
    told: Told, anyio_backend_name: str
) -> None:
    async def works(task: str, *, run: Run) -> str:
        for _ in range(3):
            try:
                if run.attempt == 1:
                    interrupt(run)
                    await anyio.sleep_forever()
            except BaseException:  # noqa: BLE001 - on purpose
                continue
        return "done"

    with anyio.fail_after(TOOK_TOO_LONG):
        assert await Agent(works, ONCE_MORE).run("t") == "done"
    assert asked_of_the_task() == 0


async def test_one_that_stops_in_time_is_not_reported(told: Told, mode: dict[str, Any]) -> None:
    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            interrupt(run)
        return "done"

    agent = Agent(works, ONCE_MORE, **mode)
    assert await agent.run("t") == "done"
    timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)
    assert told.messages == []


async def test_a_deadline_that_is_not_heeded_is_reported_when_it_records(told: Told) -> None:
    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            try:
                await anyio.sleep_forever()
            except BaseException:  # noqa: BLE001 - on purpose
                with pytest.raises(AttemptInterrupted):
                    run.record_step(call())
                blocks(told)
        return "done"

    agent = Agent(works, ONCE_MORE, limits=Limits(attempt_seconds=0.01))
    assert await agent.run("t") == "done"
    assert len(told.messages) == 1


def test_what_was_left_behind_records_nothing() -> None:
    late: list[Any] = []
    events: list[Event] = []

    async def works(task: str, *, run: Run) -> str:
        late.append(run)
        if run.attempt == 1:
            interrupt(run)
        return "done"

    assert Agent(works, ONCE_MORE, observers=[events.append]).run_sync("t") == "done"
    count = len(events)
    for run in late:
        with pytest.raises(AttemptOver):
            run.record_step(call())
    assert len(events) == count
