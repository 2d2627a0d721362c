"""An attempt that is interrupted has failed, stops, and leaves nothing of its cancellation behind."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextvars import Context
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tables import table

import triage
import triage.engine.run
from engine.durable_runs import PAYMENTS, RUN, Kept, payments
from engine.test_cancellation import Stopwatch
from engine.watched import ONCE_MORE, call
from triage import (
    Agent,
    FailurePolicy,
    FailureType,
    Limits,
    Run,
    Step,
    TriageEscalationError,
    Usage,
)
from triage.core import AttemptInterrupted, AttemptStarted, Cause, Event, RunFinished, WatchNoticed
from triage.stores import SQLiteStore
from triage.testing import VirtualTime

pytestmark = pytest.mark.anyio


MODES: dict[str, Callable[[list[Event]], dict[str, Any]]] = {
    "plain": lambda _events: {},
    "observed": lambda events: {"observers": [events.append]},
    "limited": lambda _events: {"limits": Limits(tokens=10**9, attempt_seconds=10**6)},
    "watched for stalls": lambda _events: {"limits": Limits(stall_seconds=10**6)},
}


Unruly = Callable[[Run], Any]


def interrupt(run: Run) -> None:
    """Go round in a loop until it is stopped, wherever this is called."""
    try:
        for _ in range(20):
            run.record_step(call())
    except AttemptInterrupted:
        return
    pytest.fail("it was not interrupted")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODES[request.param]([])


def asked_of_the_task() -> int:
    """Cancellations that are asked of the running task, 0 under trio."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return 0
    return 0 if task is None else task.cancelling()


# Agents that do not let go ------------------------------------------------------------------------
async def raises_it(run: Run) -> str:
    while True:
        run.record_step(call())


async def catches_exceptions(run: Run) -> str:
    while True:
        try:
            run.record_step(call())
            await anyio.lowlevel.checkpoint()
        except Exception:
            continue


async def swallows_all_and_never_awaits(run: Run) -> str:
    for _ in range(50):
        try:
            run.record_step(call())
        except BaseException:
            continue
    return "in vain"


async def swallows_it_once_and_sleeps(run: Run) -> str:
    try:
        await raises_it(run)
    except BaseException:
        await anyio.sleep_forever()
    return "never"


async def fails_otherwise(run: Run) -> str:
    try:
        await raises_it(run)
    finally:
        raise ValueError("while cleaning up")


async def returns_in_finally(run: Run) -> str:
    try:
        await raises_it(run)
    finally:
        return "nearly"  # noqa: B012 - on purpose


async def sleeps_while_its_child_loops(run: Run) -> str:
    async def child() -> None:
        while True:
            run.record_step(call())
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(child)
        await anyio.sleep_forever()
    return "never"


async def sleeps_while_its_thread_loops(run: Run) -> str:
    thread = threading.Thread(target=interrupt, args=(run,))
    thread.start()
    await anyio.sleep_forever()
    return "never"


async def cancels_its_own_task_behind_it(run: Run) -> str:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        try:
            await raises_it(run)
        finally:
            group.cancel_scope.cancel()
    return "never"


async def has_a_shielded_cleanup(run: Run) -> str:
    try:
        await raises_it(run)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
    return "never"


UNRULY = [
    raises_it, catches_exceptions, swallows_all_and_never_awaits, swallows_it_once_and_sleeps,
    fails_otherwise, returns_in_finally, sleeps_while_its_child_loops, sleeps_while_its_thread_loops,
    cancels_its_own_task_behind_it, has_a_shielded_cleanup,
]  # fmt: skip


async def test_whatever_it_does_the_attempt_has_failed_and_the_next_one_is_free(
    mode: dict[str, Any],
) -> None:
    for unruly in UNRULY:
        await _is_interrupted_and_recovers(unruly, mode)


async def _is_interrupted_and_recovers(unruly: Unruly, mode: dict[str, Any]) -> None:
    failed: list[Any] = []
    after: list[int] = []

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            result: str = await unruly(run)
            return result
        failed.extend(run.history)
        await anyio.lowlevel.checkpoint()  # nothing is left of the cancellation
        after.append(asked_of_the_task())
        return "done"

    assert await Agent(works, ONCE_MORE, **mode).run("t") == "done", unruly
    [past] = failed
    assert past.diagnosis.failure_type is FailureType.LOOP_DETECTED
    assert past.diagnosis.cause is Cause.REPETITION
    assert after == [0], unruly
    assert asked_of_the_task() == 0
    await anyio.lowlevel.checkpoint()


async def test_a_classifier_and_a_strategy_are_free_of_the_cancellation(
    mode: dict[str, Any],
) -> None:
    """Of a loop the diagnosis is known, so the strategy is what runs behind an interrupt."""
    seen: list[int] = []

    async def strategy(context: triage.FailureContext) -> triage.Retry:
        await anyio.lowlevel.checkpoint()
        seen.append(asked_of_the_task())
        return triage.Retry()

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            await swallows_it_once_and_sleeps(run)
        raise_now = run.attempt == 2
        if raise_now:
            raise ConnectionError("gone")
        return "done"

    class Asks:
        async def classify(self, trajectory: Any, task: Any) -> FailureType:
            await anyio.lowlevel.checkpoint()
            return FailureType.EXTERNAL_FAULT

    policy = triage.FailurePolicy(default=strategy)
    assert await Agent(works, policy, classifier=Asks(), **mode).run("t") == "done"
    assert seen == [0, 0]


async def test_a_sync_agent_that_swallows_it_has_failed_all_the_same(mode: dict[str, Any]) -> None:
    def works(task: str, *, run: Run) -> str:
        return "done" if run.attempt > 1 else anyio.run(swallows_all_and_never_awaits, run)

    assert await Agent(works, ONCE_MORE, **mode).run("t") == "done"


@table("between", [True, False])
async def test_a_stream_is_interrupted_wherever_it_is(
    between: bool,  # noqa: FBT001 - a parameter of the test
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triage.engine.run, "GRACE", 2 * TOOK_TOO_LONG)
    runs: list[Run] = []

    async def items(task: str, *, run: Run) -> Any:
        runs.append(run)
        yield run.attempt
        if run.attempt == 1:
            if not between:
                interrupt(run)
            await anyio.sleep_forever()

    found: list[Any] = []
    with anyio.fail_after(TOOK_TOO_LONG):
        async for item in Agent(items, ONCE_MORE).stream("t"):
            found.append(item if isinstance(item, int) else type(item).__name__)
            if between and found == [1]:
                interrupt(runs[0])
    assert found == [1, "Restarted", 2]
    assert asked_of_the_task() == 0


@table("called", ["run", "stream", "events"])
async def test_a_generator_that_is_stopped_fails_with_no_error_of_its_own(called: str) -> None:
    async def items(task: str, *, run: Run) -> Any:
        while True:
            run.record_step(call())
            yield run.attempt

    agent = Agent(items, FailurePolicy())

    async def runs() -> None:
        if called == "run":
            await agent.run("t")
        async for _ in getattr(agent, called)("t"):
            pass

    with pytest.raises(TriageEscalationError) as caught:
        await runs()
    context = caught.value.context
    assert context is not None
    assert (caught.value.__cause__, context.error) == (None, None)
    assert context.failure_type == FailureType.LOOP_DETECTED


async def test_the_interrupt_of_an_outer_run_is_no_failure_of_the_inner_one() -> None:
    attempts: list[int] = []

    async def works(task: str, *, run: Run) -> str:
        if run.attempt > 1:
            return "done"

        async def inner(task: str, *, run: Run) -> None:
            attempts.append(run.attempt)
            await raises_it(outer)

        outer = run
        await Agent(inner, ONCE_MORE).run("part")
        return "never"

    assert await Agent(works, ONCE_MORE).run("t") == "done"
    assert attempts == [1]


# Calls with an effect -----------------------------------------------------------------------------
class Till:
    """A payment that takes a while, and notes what came of it."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.during: Callable[[], Any] = lambda: None

        @triage.tool(effect="once")
        async def pay() -> str:
            self.begun += 1
            self.during()
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            triage.current_run().record_usage(Usage(1, 1))
            self.ended += 1
            return "paid"

        self.pay = pay


async def test_a_payment_is_finished_before_anything_is_cancelled(mode: dict[str, Any]) -> None:
    till = Till()

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            # As another task would: within the call itself recordings go on.
            till.during = lambda: Context().run(interrupt, run)
        paid = await till.pay()
        if run.attempt == 1:
            await anyio.sleep_forever()
        return paid

    assert await Agent(works, ONCE_MORE, **mode).run("t") == "paid"
    assert (till.begun, till.ended) == (1, 1)


async def test_no_call_begins_after_an_interrupt_not_even_within_a_payment() -> None:
    looked: list[int] = []
    refused: list[BaseException] = []

    @triage.tool(effect="read")
    async def look() -> str:
        looked.append(1)
        return "seen"

    @triage.tool(effect="once")
    async def pay() -> str:
        run = triage.current_run()
        if run.attempt == 1 and not refused:
            for _ in range(12):
                run.record_step(call())
            try:
                await look()
            except AttemptInterrupted as error:
                refused.append(error)
        return "paid"

    async def works(task: str, *, run: Run) -> str:
        return await pay()

    assert await Agent(works, ONCE_MORE).run("t") == "paid"
    assert len(refused) == 1
    assert looked == []


async def test_a_payment_left_behind_is_awaited_before_the_next_attempt(
    anyio_backend_name: str,
) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("no task of trio outlives its function")
    till = Till()
    begun = asyncio.Event()

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            till.during = partial(goes_wrong, run)
            tasks.append(asyncio.create_task(till.pay()))
            await begun.wait()
            return "left behind"
        assert till.ended == 1
        return await till.pay()

    def goes_wrong(run: Run) -> None:
        begun.set()
        Context().run(interrupt, run)

    tasks: list[Any] = []
    assert await Agent(works, ONCE_MORE).run("t") == "paid"
    assert (till.begun, till.ended) == (1, 1)
    assert asked_of_the_task() == 0


TOOK_TOO_LONG = 60.0


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
        store = SQLiteStore(str(tmp_path / f"{at}.db")) if durable else triage.stores.MemoryStore()
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
    except BaseException:
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
        except Exception as error:
            self.ended = f"raised {type(error).__name__}"


@pytest.mark.parametrize("how", ["by_scope", "by_task", "by_timeout"])
async def test_a_cancellation_from_outside_wins_at_the_same_moment(
    how: str, mode: dict[str, Any], anyio_backend_name: str
) -> None:
    if anyio_backend_name == "trio" and how != "by_scope":
        pytest.skip("trio has scopes alone")
    agents = (polite, swallows, records_while_it_is_cancelled, fails_while_it_is_cancelled)
    for agent, interrupts_first in itertools.product(agents, (True, False)):
        ended = await _cancelled_while_it_is_interrupted(agent, how, mode, interrupts_first)
        assert ended == ("cancelled", 0, 1, "cancelled"), (agent, interrupts_first)


async def _cancelled_while_it_is_interrupted(
    agent: Callable[[Run], Any],
    how: str,
    mode: dict[str, Any],
    interrupts_first: bool,  # noqa: FBT001 - which of the two moves is the first
) -> tuple[str | None, int, int, str]:
    """How it ended for the caller, what still asks for a cancellation, the attempts, and the status."""
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
            for move in moves if interrupts_first else reversed(moves):
                move()
    events = await it.store.read(RUN)
    attempts = sum(isinstance(event, AttemptStarted) for event in events)
    assert isinstance(events[-1], RunFinished)
    return cancelled.ended, cancelled.asked, attempts, events[-1].status


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
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setattr(triage.engine.run, "GRACE", 0.02)
    handler = Told()
    logging.getLogger("triage").addHandler(handler)
    yield handler
    logging.getLogger("triage").removeHandler(handler)


def blocks(told: Told) -> None:
    while not told.heard.is_set():
        pass


async def never_awaits(run: Run, told: Told) -> None:
    interrupt(run)
    blocks(told)


async def swallows_every_cancellation(run: Run, told: Told) -> None:
    interrupt(run)
    while not told.heard.is_set():
        try:
            await anyio.sleep(0.001)
        except BaseException:
            continue


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
            await anyio.to_thread.run_sync(told.heard.wait, TOOK_TOO_LONG)
        return "paid"

    async def works(task: str, *, run: Run) -> str:
        return await pay()

    assert await Agent(works, ONCE_MORE).run("t") == "paid"
    assert told.messages[0].endswith("a call with an effect is finished first; it is waited for")


async def test_one_that_swallows_its_cancellation_and_sleeps_again_is_cancelled_again(
    told: Told, anyio_backend_name: str
) -> None:
    async def works(task: str, *, run: Run) -> str:
        if run.attempt > 1:
            return "done"
        interrupt(run)
        for _ in range(3):
            try:
                await anyio.sleep_forever()
            except BaseException:
                continue
        return "in vain"

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
    env = VirtualTime()

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            try:
                await env.sleep(100)
            except BaseException:
                with pytest.raises(AttemptInterrupted):
                    run.record_step(call())
                blocks(told)
        return "done"

    agent = Agent(works, ONCE_MORE, limits=Limits(attempt_seconds=5), environment=env)
    assert await agent.run("t") == "done"
    assert len(told.messages) == 1


async def test_a_call_that_ends_in_a_thread_leaves_the_deadline_to_the_next() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    @triage.tool(effect="once")
    def slow() -> None:
        begun.set()
        may_end.wait()

    @triage.tool(effect="once")
    async def beside() -> None:
        await anyio.to_thread.run_sync(begun.wait)

    @triage.tool(effect="once")
    def quick() -> None:
        pass

    def in_thread() -> None:
        slow()
        ended.set()

    async def agent(task: str) -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, in_thread)
            await beside()
            may_end.set()
            while not ended.is_set():  # the event loop has not heard of it yet
                pass
            quick()
        await anyio.lowlevel.checkpoint()
        return "done"

    assert await Agent(agent).run("t") == "done"
