"""Leases and runs that are given back, commits whose reply is lost, and pruning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from incident_desks import DIED, Inbox, Restarts, World
from store_kinds import Opened
from stores.lost_replies import lossy_desk

from triage import Agent, UsageError
from triage.core import Event, RunFinished, RunStarted
from triage.incidents import (
    Hooks,
    NotificationPolicy,
    OutcomeLost,
    Recovery,
    Status,
    Watch,
    recovers,
)

pytestmark = pytest.mark.anyio


# Leases ---------------------------------------------------------------------------------------------


async def test_a_lease_is_renewed_while_its_hook_runs(world: World) -> None:
    inside, go_on = anyio.Event(), anyio.Event()

    async def slow(_recovery: Recovery) -> None:
        inside.set()
        await go_on.wait()

    desk = world.desk(hooks=Hooks(restart=slow, lease_s=0.06))
    await desk.report(DIED, task_id="T-1")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(desk.handle, await world.nth(1))
            await inside.wait()
            first = (await desk.incident(await world.nth(1))).lease_until
            assert first is not None
            world.env.now += 1
            lease = first
            while lease <= first:
                await anyio.lowlevel.checkpoint()
                lease = (await desk.incident(await world.nth(1))).lease_until or 0.0
            go_on.set()
    assert (await desk.incident(await world.nth(1))).status is Status.RECOVERED
    await world.close()


async def test_a_desk_that_has_lost_its_lease_stops_its_hook(small: World) -> None:
    inside = anyio.Event()
    ended: list[str] = []

    async def slow(_recovery: Recovery) -> None:
        inside.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("stopped")

    slept = small.desk("slept", hooks=Hooks(restart=slow, lease_s=0.06, on_in_doubt="rerun"))
    await slept.report(DIED, task_id="T-1")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(slept.handle, await small.nth(1))
            await inside.wait()
            # Another has found the lease over, has begun anew, and is done.
            small.later(61)
            await small.store.claim(await small.nth(1), lease_s=60)
    assert ended == ["stopped"]
    assert (await slept.log(await small.nth(1)))[-1].verb == "came too late"
    assert (await slept.incident(await small.nth(1))).status is Status.RECOVERING
    await small.close()


async def test_stopped_before_its_hook_has_begun_it_gives_back_for_sure(world: World) -> None:
    restarts = Restarts()
    desk = world.desk(hooks=restarts.hooks)
    error_id = (await desk.report(DIED, task_id="T-1")).error_id
    with anyio.CancelScope() as scope:
        scope.cancel()
        await desk.handle(error_id)
    one = await desk.incident(error_id)
    assert (one.status, one.attempt, one.owner) == (Status.WAITING, 0, None)
    assert restarts.seen == []
    assert (await desk.handle(await world.nth(1)))["success"]  # at once
    assert restarts.seen[0].attempt == 1
    await world.close()


async def test_messages_that_no_sink_was_given_are_due_again_at_once(small: World) -> None:
    inside = anyio.Event()

    async def hangs(_message: Any) -> None:
        inside.set()
        await anyio.sleep_forever()

    desk = small.desk(sinks={"*": hangs})
    for number in range(8):
        await desk.report("Merge conflict in a.py", task_id=f"T-{number}")
    async with anyio.create_task_group() as group:
        group.start_soon(desk.deliver)
        await inside.wait()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    inbox = Inbox()
    assert await small.desk("next", sinks={"*": inbox}).deliver() == 16
    assert {message.attempts for message in inbox.got} == {0}
    await small.close()


async def test_a_role_that_has_enough_keeps_no_other_from_hearing(small: World) -> None:
    inbox = Inbox()
    policy = NotificationPolicy(rate=2, roles={"high": ("architect",)})
    desk = small.desk(sinks={"*": inbox}, notifications=policy)
    for number in range(6):
        await desk.report("Merge conflict in a.py", task_id=f"T-{number}")
    await desk.report("Merge conflict in a.py", task_id="T-9")
    await desk.escalate(await small.nth(7), "project_manager")
    assert await desk.deliver() == 3
    assert sorted(inbox.told) == [
        ("architect", "detected"), ("architect", "detected"), ("project_manager", "escalated"),
    ]  # fmt: skip
    small.later(61)
    assert await desk.deliver() == 2
    await small.close()


async def test_an_outcome_that_cannot_be_written_down_is_said(small: World) -> None:
    def breaks(_recovery: Recovery) -> None:
        small.execute("ALTER TABLE events RENAME TO gone")

    desk = small.desk(hooks=Hooks(restart=breaks))
    await desk.report(DIED, task_id="T-1")
    with pytest.raises(OutcomeLost, match="restart has run, how it ended is not kept"):
        await desk.handle(await small.nth(1))
    small.execute("ALTER TABLE gone RENAME TO events")
    assert (await desk.incident(await small.nth(1))).status is Status.RECOVERING
    await small.close()


# Runs -----------------------------------------------------------------------------------------------


async def works(task: str) -> str:
    return task


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_run_that_was_given_back_is_found_if_nobody_takes_it(
    kind: str, tmp_path: Path
) -> None:
    with World(kind, tmp_path) as world:
        now = await world.store.now()
        await world.store.append(
            "r1", [RunStarted("r1", 0, now, "works", "task")], at=0, epoch=0, lease_s=30.0
        )
        await world.store.release("r1", epoch=0)
        agent = Agent(works, name="works", store=world.store)
        desk = world.desk(hooks=Hooks(restart=recovers(agent)))
        world.execute("UPDATE runs SET updated = updated - 2e9")
        await desk.tick()
        one = await desk.incident(await world.nth(1))
        assert (one.cause, one.level, one.status) == ("process_died", "medium", Status.RECOVERED)
        assert "was given back" in one.message
        info = await world.store.info("r1")
        assert info is not None
        assert info.status == "done"
        assert await desk.look() == 0
        await world.close()


@pytest.mark.parametrize(("status", "recovered"), [("done", True), ("aborted", False)])
async def test_a_run_that_has_ended_meanwhile_is_not_begun_again(
    status: str, small: World, *, recovered: bool
) -> None:
    called: list[str] = []

    async def noted(task: str) -> str:
        called.append(task)
        return task

    events: list[Event] = [
        RunStarted("r1", 0, 1.0, "noted", "task"),
        RunFinished("r1", 1, 2.0, status),
    ]
    await small.store.append("r1", events, at=0, epoch=0)
    agent = Agent(noted, name="noted", store=small.store)
    desk = small.desk(hooks=Hooks(restart=recovers(agent)))
    await desk.report(DIED, run_id="r1", agent_type="noted")
    answer = await desk.handle(await small.nth(1))
    assert answer["success"] is recovered
    one = await desk.incident(await small.nth(1))
    assert one.status is (Status.RECOVERED if recovered else Status.ESCALATED)
    assert (one.attempt, called) == (1, [])
    await small.close()


async def test_a_run_that_has_found_an_owner_is_left_to_it(small: World) -> None:
    agent = Agent(works, name="works", store=small.store)
    begun = RunStarted("r1", 0, 1.0, "works", "task")
    await small.store.append("r1", [begun], at=0, epoch=0, lease_s=1000.0)
    desk = small.desk(hooks=Hooks(restart=recovers(agent)))
    await desk.report(DIED, run_id="r1", agent_type="works")
    assert (await desk.handle(await small.nth(1)))["success"]
    info = await small.store.info("r1")
    assert info is not None
    assert (info.status, info.epoch) == ("running", 0)
    await small.close()


# Commits whose reply is lost ------------------------------------------------------------------------


async def test_a_commit_whose_reply_was_lost_is_made_once(tmp_path: Path) -> None:
    with Opened("postgres", tmp_path) as opened:
        opened.new()
        async with lossy_desk(opened, hooks=Restarts().hooks) as (desk, lose):
            first = (await desk.report("Merge conflict in a.py", task_id="T-1")).error_id
            second = (await desk.report(DIED, task_id="T-2")).error_id
            for act in (
                lambda: desk.escalate(first, "architect"),
                lambda: desk.acknowledge(first, by="ann"),
                lambda: desk.resolve(first, by="ann", outcome="failed"),
                lambda: desk.handle(second),
                lambda: desk.report(DIED, task_id="T-3"),
            ):
                lose()
                await act()
            verbs = [entry.verb for entry in await desk.log(first)]
            assert verbs == ["detected", "escalated", "acknowledged", "resolved as failed"]
            assert len(await desk.messages(first)) == 3
            assert (await desk.incident(second)).attempt == 1
            (third,) = await desk.incidents()
            assert third.occurrences == 1


# Pruning --------------------------------------------------------------------------------------------

NOT_BACK = Watch(look_back_s=0)


async def test_incidents_that_ended_long_ago_are_removed(world: World) -> None:
    desk = world.desk(hooks=Restarts().hooks, sinks={"*": Inbox()}, watch=NOT_BACK)
    await desk.report(DIED, task_id="T-1")
    await desk.report("Merge conflict in a.py", task_id="T-2")
    await desk.tick()
    world.later(1000)
    await desk.report(DIED, task_id="T-3")
    await desk.resolve(await world.nth(3), by="ann")
    assert await world.desk("careful").prune(older_than=900) == 0  # a look could find it again
    assert await desk.prune(older_than=900) == 1
    assert [one.task_id for one in await world.all()] == ["T-2", "T-3"]
    assert await desk.prune(older_than=900) == 0
    await desk.report("Merge conflict in b.py", task_id="T-4")
    await desk.resolve(await world.nth(3), by="ann", outcome="failed")
    world.later(1)
    assert await desk.prune(older_than=0) == 1  # the messages of the other are not delivered yet
    await desk.deliver()
    world.later(1)
    assert await desk.prune(older_than=0) == 1
    with pytest.raises(UsageError, match=r"prune\.older_than"):
        await desk.prune(older_than=-1)
    await world.close()


async def test_runs_are_listed_recovered_and_pruned_without_seeing_incidents(world: World) -> None:
    """Journals of other kinds are no runs to anybody who asks for runs."""
    desk = world.desk()
    one = await desk.report(DIED, task_id="T-1")
    await desk.put_task("T-1", waits_for=["T-2"])
    await desk.resolve(one.error_id, by="ann")
    world.later(1)
    assert await world.store.runs() == await world.store.runs("recovered") == []
    assert await world.store.info(one.error_id) is None
    assert await world.store.prune(older_than=0) == 0
    agent = Agent(works, name="works", store=world.store)
    with pytest.raises(UsageError, match="does not begin with its start"):
        await agent.recover(one.error_id)
    assert (await desk.incident(one.error_id)).closed
    await world.close()
