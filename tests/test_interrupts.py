"""An attempt that is interrupted has failed, stops, and leaves nothing of its cancellation behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from watched import ONCE_MORE, call

import triage
import triage._interrupt
from triage import Agent, Cause, FailureType, Limits, Run, Usage
from triage.errors import AttemptInterrupted
from triage.events import Event

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
        except Exception:  # noqa: BLE001 - as agents do
            continue


async def swallows_all_and_never_awaits(run: Run) -> str:
    for _ in range(50):
        try:
            run.record_step(call())
        except BaseException:  # noqa: BLE001 - on purpose
            continue
    return "in vain"


async def swallows_it_once_and_sleeps(run: Run) -> str:
    try:
        await raises_it(run)
    except BaseException:  # noqa: BLE001 - on purpose
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


@pytest.mark.parametrize("unruly", UNRULY, ids=lambda function: function.__name__)
async def test_whatever_it_does_the_attempt_has_failed_and_the_next_one_is_free(
    unruly: Unruly, mode: dict[str, Any]
) -> None:
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

    assert await Agent(works, ONCE_MORE, **mode).run("t") == "done"
    [past] = failed
    assert past.diagnosis.failure_type is FailureType.LOOP_DETECTED
    assert past.diagnosis.cause is Cause.REPETITION
    assert after == [0]
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


def test_a_sync_agent_in_its_thread_ends_with_its_next_recording() -> None:
    def works(task: str, *, run: Run) -> str:
        if run.attempt > 1:
            return "done"
        for _ in range(50):
            run.record_step(call())
        return "never"

    assert Agent(works, ONCE_MORE).run_sync("t") == "done"


async def test_a_sync_agent_that_swallows_it_has_failed_all_the_same(mode: dict[str, Any]) -> None:
    def works(task: str, *, run: Run) -> str:
        return "done" if run.attempt > 1 else anyio.run(swallows_all_and_never_awaits, run)

    assert await Agent(works, ONCE_MORE, **mode).run("t") == "done"


@pytest.mark.parametrize("between", [True, False], ids=["between items", "within a step"])
async def test_a_stream_is_interrupted_wherever_it_is(
    between: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    runs: list[Run] = []

    async def items(task: str, *, run: Run) -> Any:
        runs.append(run)
        yield run.attempt
        if run.attempt == 1:
            if not between:
                interrupt(run)
            await anyio.sleep_forever()

    found: list[Any] = []
    with anyio.fail_after(triage._interrupt.GRACE / 2):
        async for item in Agent(items, ONCE_MORE).stream("t"):
            found.append(item if isinstance(item, int) else type(item).__name__)
            if between and found == [1]:
                interrupt(runs[0])
    assert found == [1, "Restarted", 2]
    assert asked_of_the_task() == 0


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
