"""Calls that raised, and calls that would be made twice in other words."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest
from calls import LOST, World, recovers

import triage
from triage import (
    Abort,
    Agent,
    Durability,
    Escalate,
    Replan,
    Retry,
    Run,
    Step,
    TriageEscalationError,
    TriageSuspendedError,
    UsageError,
)

pytestmark = pytest.mark.anyio


async def works_with(tool: Any, run: Run) -> str:
    result: str = await tool("x")
    if run.attempt == 0:
        raise ConnectionError("late")
    return result


class Refused(Exception):
    status_code = 429


@pytest.mark.parametrize("error", [Refused("slow down"), ConnectionRefusedError("refused")])
async def test_a_call_that_was_not_attempted_may_run_again(error: Exception) -> None:
    world = World()
    world.raises = [error]
    once = world.tool("once")

    async def works(task: str) -> str:
        result: str = await once("x")
        return result

    assert await Agent(works, **recovers(Retry())).run("t") == "result of x"
    assert world.did == ["once(x)", "once(x)"]


async def test_a_tool_may_say_that_it_was_not_attempted() -> None:
    world = World()
    world.raises = [triage.not_attempted(ValueError("checked before sending"))]
    once = world.tool("once")

    async def works(task: str) -> str:
        result: str = await once("x")
        return result

    assert await Agent(works, **recovers(Retry())).run("t") == "result of x"


async def doubtful(**options: Any) -> tuple[World, Agent[str], list[str]]:
    world = World()
    world.raises = [LOST]
    once = world.tool("once")
    log: list[str] = []

    async def works(task: str, *, run: Run) -> str:
        try:
            result: str = await once("x")
        except ConnectionResetError:
            log.append("swallowed")
            result = "guessed"
        try:
            run.record_step(Step(action="next"))
            await once("y")
        except Exception:  # noqa: BLE001 - nothing may be done here, whatever is caught
            log.append("went on")
        return result

    return world, Agent(works, **recovers(Retry(), **options)), log


async def test_a_call_in_doubt_stops_the_run_whatever_the_agent_does() -> None:
    world, agent, log = await doubtful()
    with pytest.raises(TriageSuspendedError, match="did once with") as caught:
        await agent.run("t")
    assert world.did == ["once(x)"]
    assert log == ["swallowed"]
    assert caught.value.context is not None
    assert caught.value.context.diagnosis.cause is triage.Cause.IN_DOUBT


async def test_in_doubt_answered_happened_gives_the_result_and_runs_nothing_again() -> None:
    world, agent, _ = await doubtful()
    with pytest.raises(TriageSuspendedError) as caught:
        await agent.run("t")
    assert await agent.resume(caught.value.token, triage.happened("it did")) == "it did"
    assert world.did == ["once(x)", "once(y)"]


async def test_in_doubt_answered_rerun_runs_it_once_more() -> None:
    world, agent, _ = await doubtful()
    with pytest.raises(TriageSuspendedError) as caught:
        await agent.run("t")
    with pytest.raises(UsageError, match="happened"):
        await agent.resume(caught.value.token, Retry())
    assert await agent.resume(caught.value.token, triage.rerun()) == "result of x"
    assert world.did == ["once(x)", "once(x)", "once(y)"]


async def test_in_doubt_answered_rerun_is_asked_again_when_it_fails_again() -> None:
    world, agent, _ = await doubtful()
    world.raises = [LOST, LOST]
    with pytest.raises(TriageSuspendedError) as first:
        await agent.run("t")
    with pytest.raises(TriageSuspendedError) as second:
        await agent.resume(first.value.token, triage.rerun())
    assert second.value.token != first.value.token
    with pytest.raises(triage.TriageAbortError):
        await agent.resume(second.value.token, Abort())
    assert world.did == ["once(x)", "once(x)"]


@pytest.mark.parametrize(("choice", "kind"), [("fail", TriageEscalationError), ("rerun", None)])
async def test_in_doubt_follows_the_choice_made(choice: Any, kind: Any) -> None:
    world, agent, log = await doubtful(durability=Durability(on_in_doubt=choice))
    if kind is None:
        assert await agent.run("t") == "guessed"
        assert world.did == ["once(x)", "once(y)"]
        assert log == ["swallowed"]
    else:
        with pytest.raises(kind):
            await agent.run("t")
        assert world.did == ["once(x)"]


async def test_a_tool_that_took_its_idempotency_key_may_run_again() -> None:
    keys: list[str] = []

    @triage.tool(effect="once")
    async def act(what: str) -> str:
        keys.append(triage.current_call().idempotency_key)
        if len(keys) == 1:
            raise LOST
        return what

    async def works(task: str) -> str:
        return await act("x")

    assert await Agent(works, **recovers(Retry())).run("t") == "x"
    assert keys[0] == keys[1]


async def test_a_read_that_raised_is_a_plain_failure() -> None:
    world = World()
    world.raises = [LOST]
    read = world.tool("read")

    async def works(task: str) -> str:
        result: str = await read("x")
        return result

    assert await Agent(works, **recovers(Retry())).run("t") == "result of x"


async def test_a_timeout_of_an_unsafe_call_leaves_it_in_doubt() -> None:
    @triage.tool(effect="once", timeout=0.02)
    async def act() -> None:
        await anyio.sleep_forever()

    async def works(task: str) -> None:
        await act()

    with pytest.raises(TriageSuspendedError) as caught:
        await Agent(works, **recovers(Retry())).run("t")
    assert isinstance(caught.value.__cause__, TimeoutError)


async def test_a_sync_tool_times_out_too() -> None:
    release = threading.Event()

    @triage.tool(effect="read", timeout=0.02)
    def act() -> None:
        release.wait(30)

    def works(task: str) -> None:
        act()

    try:
        with pytest.raises(TriageEscalationError) as caught:
            await Agent(works, **recovers(Escalate())).run("t")
    finally:
        release.set()
    assert isinstance(caught.value.__cause__, TimeoutError)


async def test_a_timeout_that_the_tool_raised_itself_is_its_own() -> None:
    @triage.tool(effect="read", timeout=30)
    def act() -> None:
        raise TimeoutError("the bank did not answer")

    def works(task: str) -> None:
        act()

    with pytest.raises(TriageEscalationError) as caught:
        await Agent(works, **recovers(Escalate())).run("t")
    assert str(caught.value.__cause__) == "the bank did not answer"


async def test_arguments_that_do_not_fit_are_no_call() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str) -> None:
        await once("x", "y")

    with pytest.raises(TriageEscalationError) as caught:
        await Agent(works, **recovers(Escalate())).run("t")
    assert isinstance(caught.value.__cause__, TypeError)
    assert world.did == []


# The same tool with other arguments ---------------------------------------------------------------


async def changes_its_mind(tool: Any, run: Run) -> str:
    result: str = await tool(f"amount {run.attempt}")
    if run.attempt == 1:
        raise ConnectionError("late")
    return result


@pytest.mark.parametrize("action", [Retry(), Replan()])
async def test_an_unsafe_tool_with_other_arguments_is_asked_about(action: Any) -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> str:
        return await changes_its_mind(once, run)

    agent = Agent(works, **recovers(action))
    with pytest.raises(TriageSuspendedError, match="has completed in this run") as caught:
        await agent.run("t")
    assert world.did == ["once(amount 1)"]
    # Its answer allows exactly that call: in the next attempt the arguments are others again.
    with pytest.raises(TriageSuspendedError):
        await agent.resume(caught.value.token, triage.rerun())


async def test_an_unsafe_tool_with_other_arguments_runs_once_it_is_allowed() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> str:
        result: str = await once("first" if run.attempt == 1 else "second")
        if run.attempt == 1:
            raise ConnectionError("late")
        return result

    agent = Agent(works, **recovers(Replan()))
    with pytest.raises(TriageSuspendedError) as caught:
        await agent.run("t")
    assert await agent.resume(caught.value.token, triage.rerun()) == "result of second"
    assert world.did == ["once(first)", "once(second)"]


async def test_a_new_plan_undoes_the_call_it_replaces() -> None:
    log: list[str] = []

    async def refund(result: str) -> None:
        log.append(f"refund {result}")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return what

    async def works(task: str, *, run: Run) -> None:
        await charge("first" if run.attempt == 1 else "second")
        if run.attempt == 1:
            raise ConnectionError("late")

    await Agent(works, **recovers(Replan())).run("t")
    assert log == ["charge first", "refund first", "charge second"]


async def test_parallel_calls_of_a_new_plan_undo_what_they_replace_once() -> None:
    log: list[str] = []

    async def refund(result: str) -> None:
        log.append(f"refund {result}")
        await anyio.lowlevel.checkpoint()

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        log.append(f"charge {what}")
        return what

    async def works(task: str, *, run: Run) -> None:
        if run.attempt == 1:
            await charge("first")
            raise ConnectionError("late")
        async with anyio.create_task_group() as group:
            group.start_soon(charge, "second")
            group.start_soon(charge, "third")

    with pytest.raises(TriageSuspendedError):
        await Agent(works, **recovers(Replan())).run("t")
    assert log.count("refund first") == 1


async def test_a_compensator_that_failed_may_be_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []

    def refund(result: str) -> None:
        log.append("refund")
        if len(log) == 1:
            raise LookupError("bank is closed")

    @triage.tool(effect="once", compensate=refund)
    async def charge(what: str) -> str:
        return what

    async def works(task: str, *, run: Run) -> str:
        result: str = await charge("first" if run.attempt == 1 else "second")
        if run.attempt == 1:
            raise ConnectionError("late")
        return result

    assert await Agent(works, **recovers(Replan())).run("t") == "second"
    assert log == ["refund", "refund"]


async def test_a_sync_tool_is_asked_about_where_it_cannot_be_undone() -> None:
    log: list[str] = []

    @triage.tool(effect="once", compensate=log.append)
    def charge(what: str) -> str:
        log.append(what)
        return what

    async def works(task: str, *, run: Run) -> None:
        charge("first" if run.attempt == 1 else "second")
        if run.attempt == 1:
            raise ConnectionError("late")

    with pytest.raises(TriageSuspendedError):
        await Agent(works, **recovers(Replan())).run("t")
    assert log == ["first"]


async def test_a_loop_over_items_goes_on_where_it_stopped() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> int:
        for item in range(5):
            await once(str(item))
            if run.attempt == 1 and item == 2:
                raise ConnectionError("late")
        return len(world.did)

    assert await Agent(works, **recovers(Retry())).run("t") == 5


async def test_a_tool_never_called_before_runs_freely_after_a_new_plan() -> None:
    world = World()
    once = world.tool("once")

    async def works(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            raise ConnectionError("early")
        result: str = await once("x")
        return result

    assert await Agent(works, **recovers(Replan())).run("t") == "result of x"
