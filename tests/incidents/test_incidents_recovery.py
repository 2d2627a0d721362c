"""Recovery: hooks whatever they do, retries, thresholds, leases, and two desks that want the same."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from incident_desks import DIED, Restarts, World, refuses

from triage.incidents import Hooks, IncidentBusy, IncidentClosed, Recovery, Status, Threshold

pytestmark = pytest.mark.anyio


async def test_two_desks_never_recover_one_incident_twice(world: World) -> None:
    inside, go_on = anyio.Event(), anyio.Event()
    calls: list[str] = []

    async def slow(recovery: Recovery) -> str:
        calls.append(recovery.key)
        inside.set()
        await go_on.wait()
        return "agent-2"

    first = world.desk("one", hooks=Hooks(restart=slow))
    second = world.desk("two", hooks=Hooks(restart=slow))
    await first.report(DIED, task_id="T-1", agent_id="agent-1")
    async with anyio.create_task_group() as group:
        group.start_soon(first.handle, await world.nth(1))
        await inside.wait()
        for again in (
            second.handle(await world.nth(1)),
            second.recover("T-1", "restart"),
            second.escalate(await world.nth(1), "architect"),
            second.resolve(await world.nth(1), by="ann"),
            first.handle(await world.nth(1)),
        ):
            with pytest.raises(IncidentBusy, match="is being recovered by one") as busy:
                await again
            assert busy.value.wait_s is not None
            assert 50 < busy.value.wait_s <= 60
        assert (await second.tick())["handled"] == 0
        go_on.set()
    assert len(calls) == 1
    assert (await second.incident(await world.nth(1))).status is Status.RECOVERED
    with pytest.raises(IncidentClosed):
        await second.handle(await world.nth(1))
    await world.close()


async def test_many_ticks_at_once_carry_each_recovery_out_once(world: World) -> None:
    restarts = Restarts()
    desks = [world.desk(f"desk-{n}", hooks=restarts.hooks) for n in range(3)]
    for number in range(8):
        await desks[0].report(DIED, task_id=f"T-{number}")
    async with anyio.create_task_group() as group:
        for desk in desks:
            group.start_soon(desk.tick)
    tasks = sorted(recovery.incident.task_id or "" for recovery in restarts.seen)
    assert tasks == [f"T-{number}" for number in range(8)]
    await world.close()


@pytest.mark.parametrize("answer", [refuses, lambda _r: False, lambda _r: 7, lambda _r: ""])
async def test_a_hook_that_fails_is_tried_again_later_then_a_person_is_asked(
    answer: Any, small: World
) -> None:
    desk = small.desk(hooks=Restarts(answer).hooks)
    await desk.report(DIED, task_id="T-1")
    first = await desk.handle(await small.nth(1))
    assert (first["success"], first["details"]["retry_attempt"]) == (False, 1)
    assert "sk-abc" not in first["error"]
    one = await desk.incident(await small.nth(1))
    if answer is refuses or one.status is Status.WAITING:
        for delay in (2.0, 4.0):  # doubling
            one = await desk.incident(await small.nth(1))
            assert one.next_attempt_at == pytest.approx(small.env.now + delay, abs=0.01)
            small.later(delay - 0.5)
            with pytest.raises(IncidentBusy, match=r"tried again in 0\.5 s"):
                await desk.handle(await small.nth(1))
            small.later(0.5)
            await desk.tick()
        log = [entry.verb for entry in await desk.log(await small.nth(1))]
        assert log.count("postponed") == 2
    one = await desk.incident(await small.nth(1))
    assert (one.status, one.escalation_level) == (Status.ESCALATED, "architect")
    assert not any("sk-abc" in entry.text for entry in await small.log())
    await small.close()


@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_a_hook_that_hangs_is_in_doubt_and_never_repeated(
    small: World, *, in_a_thread: bool
) -> None:
    free = threading.Event()

    def hangs(_recovery: Recovery) -> None:
        free.wait(20)

    async def sleeps(_recovery: Recovery) -> None:
        await anyio.sleep_forever()

    desk = small.desk(hooks=Hooks(restart=hangs if in_a_thread else sleeps, deadline_s=0.05))
    await desk.report(DIED, task_id="T-1")
    done = await desk.handle(await small.nth(1))
    free.set()
    assert done["error"] == "the hook hung for 0.05 s"
    one = await desk.incident(await small.nth(1))
    assert one.status is Status.ESCALATED
    assert "whether it has happened is not known" in (await small.messages())[-1].text
    await small.close()


async def test_what_a_dead_desk_was_doing_is_in_doubt(world: World) -> None:
    restarts = Restarts()
    async with left_in_the_hook(world):
        desk = world.desk("living", hooks=restarts.hooks)
        assert (await desk.tick())["handled"] == 0  # its lease lives
        world.later(61)
        assert (await desk.tick())["handled"] == 1
        one = await desk.incident(await world.nth(1))
        assert (one.status, restarts.seen) == (Status.ESCALATED, [])
        log = [
            entry.text for entry in await desk.log(await world.nth(1)) if entry.verb == "escalated"
        ]
        assert "dead went silent while recovering it" in log[0]
    await world.close()


async def test_hooks_that_may_be_repeated_are_and_under_the_same_key(small: World) -> None:
    restarts = Restarts()
    again = Hooks(restart=restarts, on_in_doubt="rerun")
    async with left_in_the_hook(small) as keys:
        desk = small.desk("living", hooks=again)
        small.later(61)
        await desk.tick()
        (seen,) = restarts.seen
        assert (seen.key, seen.attempt) == (keys[0], 2)
        assert (await desk.incident(await small.nth(1))).status is Status.RECOVERED
    await small.close()


@asynccontextmanager
async def left_in_the_hook(world: World) -> AsyncGenerator[list[str]]:
    """A desk that is never heard of again, in the middle of its hook; the keys it was given."""
    keys: list[str] = []
    inside = anyio.Event()

    async def never(recovery: Recovery) -> None:
        keys.append(recovery.key)
        inside.set()
        await anyio.sleep_forever()

    dead = world.desk("dead", hooks=Hooks(restart=never))
    await dead.report(DIED, task_id="T-1")
    async with anyio.create_task_group() as group:
        group.start_soon(dead.handle, await world.nth(1))
        await inside.wait()
        yield keys
        group.cancel_scope.cancel()


async def test_an_outcome_that_comes_too_late_changes_nothing(small: World) -> None:
    inside, go_on = anyio.Event(), anyio.Event()

    async def slow(_recovery: Recovery) -> str:
        inside.set()
        await go_on.wait()
        return "agent-2"

    one, other = small.desk("one", hooks=Hooks(restart=slow)), small.desk("other")
    await one.report(DIED, task_id="T-1")
    async with anyio.create_task_group() as group:
        group.start_soon(one.handle, await small.nth(1))
        await inside.wait()
        small.later(61)
        await other.resolve(await small.nth(1), by="ann", outcome="failed")
        go_on.set()
    assert (await other.incident(await small.nth(1))).status is Status.FAILED
    assert (await other.log(await small.nth(1)))[-1].verb == "came too late"
    await small.close()


async def test_only_who_has_the_lease_writes_down_how_it_went(small: World) -> None:
    """A desk that was slow finds that another has begun anew: its outcome is not the outcome."""
    inside = [anyio.Event(), anyio.Event()]
    go_on = [anyio.Event(), anyio.Event()]

    def hooks(number: int) -> Hooks:
        async def slow(_recovery: Recovery) -> str:
            inside[number].set()
            await go_on[number].wait()
            return f"agent-of-{number}"

        return Hooks(restart=slow, on_in_doubt="rerun")

    slow, fast = small.desk("slow", hooks=hooks(0)), small.desk("fast", hooks=hooks(1))
    await slow.report(DIED, task_id="T-1", agent_id="agent-1", agent_type="coder")
    async with anyio.create_task_group() as group:
        group.start_soon(slow.handle, await small.nth(1))
        await inside[0].wait()
        small.later(61)
        group.start_soon(fast.handle, await small.nth(1))
        await inside[1].wait()
        go_on[0].set()
        with anyio.fail_after(60):
            while (await fast.log(await small.nth(1)))[-1].verb != "came too late":
                await anyio.lowlevel.checkpoint()
        assert (await fast.incident(await small.nth(1))).status is Status.RECOVERING
        go_on[1].set()
    assert (await fast.incident(await small.nth(1))).status is Status.RECOVERED
    assert (await fast.incident(await small.nth(1))).new_agent_id == "agent-of-1"
    await small.close()


# Thresholds and retries -----------------------------------------------------------------------------


async def test_more_errors_than_the_threshold_ask_a_person_although_they_could_be_retried(
    world: World,
) -> None:
    restarts = Restarts()
    desk = world.desk(hooks=restarts.hooks, threshold=Threshold(errors=2, window_s=600))
    for text in (DIED, "Task timeout after 60 seconds", "Out of memory"):
        await desk.report(text, task_id="T-1")
    await desk.report(DIED, task_id="T-2")  # another scope
    await desk.handle(await world.nth(1))
    one = await desk.incident(await world.nth(1))
    assert (one.status, restarts.seen) == (Status.ESCALATED, [])
    assert "3 errors within 600 s are more than 2" in (await desk.log(await world.nth(1)))[-1].text
    await desk.handle(await world.nth(4))
    world.later(601)  # the window has moved on
    await desk.handle(await world.nth(2))
    assert [recovery.incident.task_id for recovery in restarts.seen] == ["T-2", "T-1"]
    await world.close()


@pytest.mark.parametrize(
    ("scope", "escalated"), [("task", False), ("agent_type", True), ("all", True)]
)
async def test_what_is_counted_together_is_a_choice(
    scope: Any, *, escalated: bool, small: World
) -> None:
    desk = small.desk(hooks=Restarts().hooks, threshold=Threshold(errors=1, scope=scope))
    await desk.report(DIED, task_id="T-1", agent_type="coder")
    await desk.report(DIED, task_id="T-2", agent_type="coder")
    await desk.handle(await small.nth(1))
    assert ((await desk.incident(await small.nth(1))).status is Status.ESCALATED) is escalated
    await small.close()


async def test_an_error_that_comes_back_keeps_its_attempts(world: World) -> None:
    """Each restart works, and the agent dies again: that must end."""
    restarts = Restarts()
    desk = world.desk(hooks=restarts.hooks, threshold=Threshold(errors=99))
    for _ in range(4):
        await desk.report(DIED, task_id="T-1")
        await desk.tick()
        world.later(130)
        await desk.tick()
    one = await desk.incident(await world.nth(1))
    assert (one.status, one.attempt, one.occurrences) == (Status.ESCALATED, 3, 4)
    assert [recovery.attempt for recovery in restarts.seen] == [1, 2, 3]
    world.later(4000)
    await desk.resolve(await world.nth(1), by="ann")
    world.later(4000)
    assert (await desk.report(DIED, task_id="T-1")).occurrence == 2  # long after: another trouble
    await world.close()
