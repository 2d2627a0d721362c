"""Every strategy, by its hook: restarting, falling back, going on with a recorded run."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from incident_desks import DIED, Inbox, Restarts, World, refuses

from triage import Agent, UsageError
from triage.core import Level
from triage.incidents import (
    Hooks,
    IncidentBusy,
    IncidentDesk,
    Recovery,
    RecoveryStrategy,
    Retries,
    Status,
    UnknownIncident,
    recovers,
)
from triage.plan import Capability, ExecutionPlan, Orchestrator, PlannedStep, Registry

pytestmark = pytest.mark.anyio


async def test_each_kind_of_trouble_waits_as_it_should(small: World) -> None:
    restarts = Restarts()
    desk = small.desk(hooks=restarts.hooks, retries=Retries(wait_s=45))
    await desk.report("Network timeout", task_id="T-1")
    await desk.report("Resource exhausted: memory", task_id="T-2")
    await desk.put_task("T-3", timeout_s=3600)
    await desk.report("Task timeout after 3600 seconds", task_id="T-3")
    answers = [await desk.handle(await small.nth(n)) for n in (1, 2, 3)]
    assert [a["recovery_action"] for a in answers] == [
        "auto_retry", "wait_and_retry", "increase_timeout",
    ]  # fmt: skip
    assert [a["details"]["retry_attempt"] for a in answers] == [1, 1, 1]
    assert [a["details"]["max_retries"] for a in answers] == [3, 2, 2]
    assert [a["details"]["message_sent"] for a in answers] == [False, True, True]
    due = [(await desk.incident(await small.nth(n))).next_attempt_at for n in (1, 2)]
    assert due == pytest.approx([small.env.now + 2, small.env.now + 45], abs=0.01)
    assert [recovery.timeout_s for recovery in restarts.seen] == [5400]
    task = await desk.task("T-3")
    assert task is not None
    assert task.timeout_s == 5400
    small.later(45)
    await desk.tick()
    assert sorted(str(recovery.strategy) for recovery in restarts.seen) == [
        "increase_timeout", "retry", "wait_and_retry",
    ]  # fmt: skip
    await small.close()


async def test_a_message_that_asks_to_wait_is_tried_again_then(small: World) -> None:
    desk = small.desk(hooks=Restarts().hooks)
    await desk.report("Error 429: rate limit exceeded, retry after 60 seconds", task_id="T-1")
    answer = await desk.handle(await small.nth(1))
    assert answer["recovery_action"] == "auto_retry"
    due = (await desk.incident(await small.nth(1))).next_attempt_at
    assert due is not None
    assert due == pytest.approx(small.env.now + 60, abs=0.01)
    when = datetime.fromisoformat(answer["details"]["next_attempt"])
    assert when.timestamp() == int(due)
    await small.close()


async def test_a_timeout_does_not_grow_beyond_its_cap() -> None:
    retries = Retries(timeout_factor=2, timeout_cap_s=5000)
    assert [retries.raised(seconds) for seconds in (None, 1000, 4000, 9000)] == [
        5000,
        2000,
        5000,
        9000,
    ]


async def test_every_strategy_is_carried_out_by_its_own_hook(small: World) -> None:
    done: list[str] = []

    def hook(recovery: Recovery) -> None:
        done.append(f"{recovery.strategy} of {recovery.incident.task_id}")

    own: dict[str, Any] = {
        str(s): hook for s in RecoveryStrategy if s is not RecoveryStrategy.MANUAL
    }
    desk = small.desk(hooks=Hooks(**own))
    for strategy in RecoveryStrategy:
        await desk.report(DIED, task_id=f"T-{strategy}")
        answer = await desk.recover(f"T-{strategy}", strategy, by="ann")
        assert answer["success"], answer
        assert answer["recovery_strategy"] == strategy
    assert done == [f"{s} of T-{s}" for s in RecoveryStrategy if s is not RecoveryStrategy.MANUAL]
    statuses = {(await desk.incident(await small.nth(n))).status for n in range(1, 6)}
    assert statuses == {Status.RECOVERED}
    with pytest.raises(UsageError, match=r"one that a hook carries out.*Hooks\(custom"):
        await small.desk("bare").recover("T-manual", "custom")
    await small.close()


async def test_another_way_is_suggested_and_not_to_try_the_same_again(small: World) -> None:
    desk = small.desk()
    for message, way in {
        "Task timeout after 3600 seconds": "Split the task",
        "Resource exhausted: memory": "Split the task, or run it where",
        "Network timeout": "Use another provider",
        "authentication failed": "Use another account",
        "The model `gpt-9` does not exist": "Check the configured model",
    }.items():
        one = await desk.report(message, task_id=f"T-{message}")
        assert one.alternative.startswith(way), message
    await small.close()


async def test_what_is_critical_falls_back_and_is_somebodys(world: World) -> None:
    inbox = Inbox()
    done: list[Recovery] = []
    desk = world.desk(hooks=Hooks(fallback=done.append), sinks={"*": inbox})
    await desk.put_task("T-1", title="Ship it")
    one = await desk.report("Data corruption in table orders", task_id="T-1")
    assert (one.level, one.retryable) == (Level.CRITICAL, False)
    await desk.deliver()
    assert sorted(inbox.told) == [("architect", "detected"), ("project_manager", "detected")]
    answer = await desk.handle(await world.nth(1))
    assert (answer["success"], answer["recovery_action"]) == (True, "fallback")
    one = await desk.incident(await world.nth(1))
    assert (one.status, one.escalation_level) == (Status.ESCALATED, "project_manager")
    assert "last good copy" in one.alternative
    assert answer["details"]["suggested_alternative"] == one.alternative
    task = await desk.task("T-1")
    assert task is not None
    assert task.status == "failed"
    assert len(done) == 1
    await desk.deliver()
    assert inbox.told[-1] == ("project_manager", "escalated")
    assert inbox.got[-1].body["suggested_alternative"] == one.alternative
    await world.close()


async def test_what_a_person_has_is_left_alone_until_they_order(world: World) -> None:
    restarts = Restarts()
    desk = world.desk(hooks=restarts.hooks)
    await desk.report("Merge conflict in a.py", task_id="T-1")
    await desk.tick()
    with pytest.raises(IncidentBusy, match="architect has it"):
        await desk.handle(await world.nth(1))
    await desk.acknowledge(await world.nth(1), by="ann", note="password=hunter2secret")
    await desk.tick()
    assert restarts.seen == []
    assert (await desk.recover("T-1", "restart", by="ann"))["success"]
    assert (await desk.incident(await world.nth(1))).status is Status.RECOVERED
    by = [(entry.verb, entry.by) for entry in await desk.log(await world.nth(1))]
    assert ("acknowledged", "ann") in by
    assert ("recovering", "ann") in by
    assert not any("hunter2" in entry.text for entry in await world.log())
    with pytest.raises(UnknownIncident, match="no incident of T-1 is open"):
        await desk.recover("T-1", "restart")
    await world.close()


async def test_a_recovery_that_was_ordered_and_fails_goes_back_to_a_person(small: World) -> None:
    desk = small.desk(hooks=Restarts(refuses).hooks)
    await desk.report("Merge conflict in a.py", task_id="T-1")
    answer = await desk.recover("T-1", "restart")
    assert (answer["success"], answer["new_agent_id"]) == (False, None)
    assert "no spawner" in answer["message"]
    assert (await desk.incident(await small.nth(1))).status is Status.ESCALATED
    await small.close()


async def test_a_recorded_run_is_gone_on_with_by_the_ready_hook(tmp_path: Path) -> None:
    for kind in ("sqlite", "postgres"):
        with World(kind, tmp_path) as world:
            agent = Agent(works, name="works", store=world.store)
            await left_alone(world)
            desk = world.desk(hooks=Hooks(restart=recovers(agent)))
            assert (await desk.tick())["handled"] == 1
            one = await desk.incident(await world.nth(1))
            assert (one.status, one.run_id) == (Status.RECOVERED, "r1")
            info = await world.store.info("r1")
            assert info is not None
            assert info.status == "done"
            log = [entry.text for entry in await desk.log(await world.nth(1))]
            assert "Run resumed (retry 1 of 3)" in log
            await world.close()


async def works(task: str) -> str:
    return task


async def left_alone(world: World) -> None:
    """A run whose process is gone for some minutes."""
    from triage.core import RunStarted

    begun = RunStarted("r1", 0, 1.0, "works", "task")
    await world.store.append("r1", [begun], at=0, epoch=0, lease_s=30.0)
    world.execute("UPDATE runs SET lease_until = lease_until - 2e9")


async def test_the_ready_hook_goes_on_with_the_runs_of_an_orchestrator(small: World) -> None:
    planned = ExecutionPlan((PlannedStep("done", "respond"),))
    respond = Capability("respond", "answers", lambda: "done", effect="read")
    made = Orchestrator(Registry([respond]), lambda _: planned, name="works", store=small.store)
    await left_alone(small)
    desk = small.desk(hooks=Hooks(restart=recovers(made)))
    assert (await desk.tick())["handled"] == 1
    assert (await desk.incident(await small.nth(1))).status is Status.RECOVERED
    info = await small.store.info("r1")
    assert info is not None
    assert info.status == "done"
    await small.close()


async def test_the_ready_hook_refuses_what_is_not_its_own(small: World) -> None:
    agent: Agent[str] = Agent(works, name="works", store=small.store)
    wrongs: list[Any] = [(), (agent, agent), ("works",)]
    for wrong in wrongs:
        with pytest.raises(UsageError, match=r"recovers\(\) takes"):
            recovers(*wrong)
    desk: IncidentDesk = small.desk(hooks=Hooks(restart=recovers(agent)))
    await desk.report(DIED, task_id="T-1", agent_type="other")
    answer = await desk.handle(await small.nth(1))
    assert "is of no run of works, but of other" in answer["error"]
    await small.close()
