"""What was done is undone: by a rollback, and before it is done again."""

from __future__ import annotations

import functools
from typing import Any

import anyio
import pytest
from calls import World, recovers
from support import RETRY, in_turn

import triage
from triage import (
    Agent,
    Replan,
    Resume,
    Retry,
    Rollback,
    Run,
    Step,
    TriageEscalationError,
    UsageError,
)

pytestmark = pytest.mark.anyio


async def test_a_rollback_undoes_newest_first_and_then_runs_again() -> None:
    log: list[str] = []

    async def refund(charge: str, what: str) -> None:
        log.append(f"refund {charge} of {what}")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return f"c-{what}"

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await charge("a")
        await charge("b")
        if run.attempt == 1:
            raise ConnectionError("late")

    agent = Agent(works, **recovers(Rollback(2)))
    await agent.run("t")
    assert log == [
        "charge a", "charge b", "refund c-b of b", "refund c-a of a", "charge a", "charge b",
    ]  # fmt: skip


async def test_a_rollback_undoes_nothing_of_what_it_keeps() -> None:
    log: list[str] = []

    @triage.tool(effect="once", compensate=lambda result: log.append(f"refund {result}"))
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return what

    async def works(task: str, *, run: Run) -> None:
        await charge("a")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Rollback())).run("t")
    assert log == ["charge a"]


async def test_a_rollback_over_an_effect_without_compensator_escalates() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await once("x")
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError, match="compensate="):
        await Agent(works, **recovers(Rollback(2))).run("t")


async def test_a_compensator_that_fails_ends_the_run_and_is_not_hidden(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refund(charge: str) -> None:
        raise LookupError("bank is closed")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        return what

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="begin"))
        await charge("a")
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError, match="refund failed") as caught:
        await Agent(works, **recovers(Rollback(2))).run("t")
    assert "bank is closed" in str(caught.value.__cause__.__notes__)  # type: ignore[union-attr] # set


async def test_every_compensator_of_a_step_runs_newest_first() -> None:
    log: list[str] = []

    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="book", effect="once"))
        run.compensator(log.append, "undo flight")
        run.compensator(log.append, "undo hotel")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Retry())).run("t")
    assert log == ["undo hotel", "undo flight"]


async def test_an_effect_of_an_earlier_attempt_is_not_forgotten() -> None:
    async def works(task: str, *, run: Run) -> None:
        if run.attempt == 1:
            run.subgoals(["rest"])
            run.record_step(Step(action="send mail", effect="once"))
        raise ConnectionError("late")

    options = recovers(in_turn(Resume(), Retry()))
    with pytest.raises(TriageEscalationError, match="send mail"):
        await Agent(works, **options).run("t")


async def test_a_rollback_does_not_pass_over_an_effect_of_an_earlier_attempt() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> None:
        if run.attempt == 1:
            run.record_step(Step(action="begin"))
            await once("a")
        if run.attempt == 3:
            await once("b")
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError, match="compensate="):
        await Agent(works, **recovers(in_turn(Retry(), Rollback(2), Retry()))).run("t")
    assert world.did == ["once(a)"]


async def test_a_compensator_needs_a_step_to_undo() -> None:
    async def works(task: str, *, run: Run) -> None:
        run.compensator(len_of, "x")

    with pytest.raises(UsageError, match="none is recorded"):
        await Agent(works, RETRY).run("t")


async def test_a_rollback_before_the_first_step_starts_over() -> None:
    kept: list[int] = []

    async def works(task: str, *, run: Run) -> None:
        kept.append(len(run.trajectory))
        if run.attempt == 1:
            run.record_step(Step(action="wrong from the start"))
            raise ConnectionError("late")

    await Agent(works, **recovers(Rollback(), critical_step=0)).run("t")
    assert kept == [0, 0]


@pytest.mark.parametrize("action", [Retry(), Replan()])
async def test_a_hand_written_effect_is_never_repeated(action: Any) -> None:
    async def works(task: str, *, run: Run) -> None:
        run.record_step(Step(action="send mail", effect="once"))
        raise ConnectionError("late")

    with pytest.raises(TriageEscalationError, match=r"send mail.*recorded by hand"):
        await Agent(works, **recovers(action)).run("t")


async def test_a_hand_written_effect_is_undone_before_it_is_repeated() -> None:
    log: list[str] = []

    async def works(task: str, *, run: Run) -> None:
        log.append("book")
        run.record_step(Step(action="book", effect="once"))
        run.compensator(log.append, "cancel")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Retry())).run("t")
    assert log == ["book", "cancel", "book"]


async def test_an_unsafe_call_left_running_is_waited_for() -> None:
    finished: list[str] = []
    begun = anyio.Event()

    @triage.tool(effect="once")
    async def slow() -> str:
        begun.set()
        await anyio.sleep(0.02)
        finished.append("slow")
        return "slow"

    async with anyio.create_task_group() as outside:

        async def works(task: str, *, run: Run) -> str:
            if run.attempt == 1:
                outside.start_soon(slow)  # left behind when the attempt fails
                await begun.wait()
                raise ConnectionError("late")
            return await slow()

        # The leaked task inherits no attempt unless it is started inside: call through the handle.
        async def works_inside(task: str, *, run: Run) -> str:
            if run.attempt == 1:
                outside.start_soon(functools.partial(run.call, slow))
                await begun.wait()
                raise ConnectionError("late")
            return await slow()

        del works
        assert await Agent(works_inside, **recovers(Retry())).run("t") == "slow"
    assert finished == ["slow"]


async def test_an_interrupt_lets_an_unsafe_call_finish_and_starts_no_other() -> None:
    log: list[str] = []

    @triage.tool(effect="once")
    async def charge(what: str) -> str:
        log.append(f"begin {what}")
        await anyio.sleep(0.05)
        log.append(f"end {what}")
        return what

    async def works(task: str, *, run: Run) -> str:
        first = await charge("a")
        await charge("b")
        return first

    agent = Agent(
        works, limits=triage.Limits(attempt_seconds=0.02, attempts=2), **recovers(Retry())
    )
    with pytest.raises(TriageEscalationError):
        await agent.run("t")
    assert log[:2] == ["begin a", "end a"]
    assert log.count("begin a") == 1


async def test_a_tool_is_refused_for_what_it_cannot_be() -> None:
    with pytest.raises(UsageError, match="generator"):

        @triage.tool
        def yields() -> Any:
            yield 1

    with pytest.raises(UsageError, match="already"):
        triage.tool(triage.tool(len_of))


def len_of(text: str) -> int:
    return len(text)
