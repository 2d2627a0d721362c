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
    IncidentDesk,
    NotificationPolicy,
    OutcomeLost,
    Recovery,
    Status,
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
            group.start_soon(desk.handle, "err-001")
            await inside.wait()
            first = (await desk.incident("err-001")).lease_until
            assert first is not None
            world.env.now += 1
            lease = first
            while lease <= first:
                await anyio.lowlevel.checkpoint()
                lease = (await desk.incident("err-001")).lease_until or 0.0
            go_on.set()
    assert (await desk.incident("err-001")).status is Status.RECOVERED
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
            group.start_soon(slept.handle, "err-001")
            await inside.wait()
            # Another has found the lease over, has begun anew, and is done.
            small.execute("UPDATE incidents SET stamp = 'of another'")
    assert ended == ["stopped"]
    assert (await slept.log("err-001"))[-1].verb == "came too late"
    assert (await slept.incident("err-001")).status is Status.RECOVERING
    await small.close()


async def test_stopped_before_its_hook_has_begun_it_gives_back_for_sure(world: World) -> None:
    restarts = Restarts()
    desk = world.desk(hooks=restarts.hooks)
    await desk.report(DIED, task_id="T-1")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await desk.handle("err-001")
    one = await desk.incident("err-001")
    assert (one.status, one.attempt, one.owner) == (Status.WAITING, 0, None)
    assert restarts.seen == []
    assert (await desk.handle("err-001"))["success"]  # at once
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
    assert await small.desk("next", sinks={"*": inbox}).deliver() == 6  # ten were under way
    assert {message.attempts for message in inbox.got} == {1}
    await small.close()


async def test_a_role_that_has_enough_keeps_no_other_from_hearing(small: World) -> None:
    inbox = Inbox()
    policy = NotificationPolicy(rate=2, roles={"high": ("architect",)})
    desk = small.desk(sinks={"*": inbox}, notifications=policy)
    for number in range(6):
        await desk.report("Merge conflict in a.py", task_id=f"T-{number}")
    await desk.report("Merge conflict in a.py", task_id="T-9")
    await desk.escalate("err-007", "project_manager")
    assert await desk.deliver(limit=3) == 3
    assert sorted(inbox.told) == [
        ("architect", "detected"), ("architect", "detected"), ("project_manager", "escalated"),
    ]  # fmt: skip
    small.later(61)
    assert await desk.deliver(limit=3) == 2
    await small.close()


async def test_an_outcome_that_cannot_be_written_down_is_said(small: World) -> None:
    def breaks(_recovery: Recovery) -> None:
        small.execute("ALTER TABLE incident_log RENAME TO gone")

    desk = small.desk(hooks=Hooks(restart=breaks))
    await desk.report(DIED, task_id="T-1")
    with pytest.raises(OutcomeLost, match="err-001: restart has run, how it ended is not kept"):
        await desk.handle("err-001")
    small.execute("ALTER TABLE gone RENAME TO incident_log")
    assert (await desk.incident("err-001")).status is Status.RECOVERING
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
        one = await desk.incident("err-001")
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
    answer = await desk.handle("err-001")
    assert answer["success"] is recovered
    one = await desk.incident("err-001")
    assert one.status is (Status.RECOVERED if recovered else Status.ESCALATED)
    assert (one.attempt, called) == (1, [])
    await small.close()


async def test_a_run_that_has_found_an_owner_is_left_to_it(small: World) -> None:
    agent = Agent(works, name="works", store=small.store)
    begun = RunStarted("r1", 0, 1.0, "works", "task")
    await small.store.append("r1", [begun], at=0, epoch=0, lease_s=1000.0)
    desk = small.desk(hooks=Hooks(restart=recovers(agent)))
    await desk.report(DIED, run_id="r1", agent_type="works")
    assert (await desk.handle("err-001"))["success"]
    info = await small.store.info("r1")
    assert info is not None
    assert (info.status, info.epoch) == ("running", 0)
    await small.close()


# Commits whose reply is lost ------------------------------------------------------------------------


async def test_a_commit_whose_reply_was_lost_is_made_once(tmp_path: Path) -> None:
    with Opened("postgres", tmp_path) as opened:
        opened.new()
        async with lossy_desk(opened, hooks=Restarts().hooks) as (desk, lose):
            await desk.report("Merge conflict in a.py", task_id="T-1")
            await desk.report(DIED, task_id="T-2")
            for act in (
                lambda: desk.escalate("err-001", "architect"),
                lambda: desk.acknowledge("err-001", by="ann"),
                lambda: desk.resolve("err-001", by="ann", outcome="failed"),
                lambda: desk.handle("err-002"),
                lambda: desk.report(DIED, task_id="T-3"),
            ):
                lose()
                await act()
            verbs = [entry.verb for entry in await desk.log("err-001")]
            assert verbs == ["detected", "escalated", "acknowledged", "resolved"]
            assert len(await desk.messages(of="err-001")) == 3
            assert (await desk.incident("err-002")).attempt == 1
            assert (await desk.incident("err-003")).occurrences == 1


# Pruning --------------------------------------------------------------------------------------------


async def test_what_was_over_for_long_goes_with_all_that_is_its(world: World) -> None:
    inbox = Inbox()
    desk = world.desk(hooks=Restarts().hooks, sinks={"*": inbox})
    await desk.agent_started("agent-0", "coder", task_id="T-1")
    await desk.agent_ended("agent-0", "killed")
    await desk.tick()
    await desk.report("Merge conflict in a.py", task_id="T-2")
    await desk.agent_ended("agent-2")  # what the restart has started
    world.later(1000)
    await desk.report(DIED, task_id="T-3")
    await desk.resolve("err-003", by="ann")
    assert (await desk.prune(older_than=900, dry_run=True))["incidents"] == 1
    gone = await desk.prune(older_than=900)
    assert (gone["incidents"], gone["messages"], gone["agents"]) == (1, 2, 2)
    assert gone["log"] >= 5
    assert [one.id for one in await desk.incidents()] == [2]
    assert {entry.incident for entry in await desk.log()} >= {2, 3}
    assert 1 not in {entry.incident for entry in await desk.log()}
    assert await desk.agent("agent-0") is None
    assert await desk.prune(older_than=900) == dict.fromkeys(gone, 0)
    await desk.resolve("err-002", by="ann")
    world.later(1)
    assert (await desk.prune(older_than=0))["incidents"] == 1  # err-002 is not told of yet
    await desk.deliver()
    assert (await desk.prune(older_than=0))["incidents"] == 1
    await world.close()


async def test_what_a_source_still_shows_is_not_found_anew_after_pruning(small: World) -> None:
    desk: IncidentDesk = small.desk()
    for number, status in enumerate(("aborted", "aborted")):
        events: list[Event] = [
            RunStarted(f"r{number}", 0, 1.0, "works", "task"),
            RunFinished(f"r{number}", 1, 2.0, status),
        ]
        await small.store.append(f"r{number}", events, at=0, epoch=0)
    assert await desk.look() == 2
    for error_id in ("err-001", "err-002"):
        await desk.resolve(error_id, by="ann", outcome="ignored")
    small.execute("DELETE FROM runs WHERE run_id = 'r1'")
    await desk.deliver()
    small.later(10)
    await desk.prune(older_than=1)
    assert await desk.look(full=True) == 0
    with pytest.raises(UsageError, match=r"prune\.older_than"):
        await desk.prune(older_than=-1)
    await small.close()
