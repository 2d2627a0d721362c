"""The four operations answer key for key as their document has them, on every kind of store."""

from __future__ import annotations

import json
import re
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from incident_desks import OWNER, Inbox, Restarts, World

import triage.incidents
from triage import UsageError
from triage.incidents import IncidentDesk, Status, lifecycle

pytestmark = pytest.mark.anyio
SEED = Path(__file__).parents[3] / "shared" / "seeds"
SEEDS = sorted(SEED.glob("004_*")) if SEED.is_dir() else []

EXAMPLES = (
    (
        "code-developer-20251026-001", "code_developer", "TASK-31-1", "failed",
        "Process died unexpectedly", "2025-10-26T10:30:00Z",
    ),
    (
        "code-developer-20251026-002", "code_developer", "TASK-31-2", "failed",
        "Merge conflict in coffee_maker/models/database.py", "2025-10-26T10:32:00Z",
    ),
    (
        "architect-20251026-001", "architect", "TASK-32-1", "failed",
        "Task timeout after 3600 seconds", "2025-10-26T10:34:00Z",
    ),
)  # fmt: skip
DETECTED = {
    "success": True,
    "action": "detect",
    "errors_found": 3,
    "errors": [
        {
            "error_id": "an id",
            "agent_id": agent,
            "task_id": task,
            "error_message": message,
            "severity": severity,
            "retryable": retryable,
            "timestamp": when,
        }
        for (agent, _, task, _, message, when), severity, retryable in zip(
            EXAMPLES, ("medium", "high", "medium"), (True, False, True), strict=True
        )
    ],
}


async def reported(world: World, **options: Any) -> IncidentDesk:
    """A desk that was told of the three examples."""
    desk = world.desk(**options)
    for agent, kind, task, _, message, _ in EXAMPLES:
        await desk.report(message, agent_id=agent, agent_type=kind, task_id=task)
    return desk


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer with each id as one word: it is a digest."""
    text = re.sub(r"err-[0-9a-f]{12}", "an id", json.dumps(answer))
    found: dict[str, Any] = json.loads(text)
    return found


def timeless(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer with its times as one word, too."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "a time", json.dumps(plain(answer)))
    found: dict[str, Any] = json.loads(text)
    return found


async def test_detect_answers_as_its_document(world: World) -> None:
    desk = await reported(world)
    assert timeless(await desk.detect()) == timeless(DETECTED)
    await world.close()


async def test_detect_reads_the_documents_own_tables_with_their_times(tmp_path: Path) -> None:
    other = tmp_path / "coffee.db"
    write_lifecycle(other)
    with World("sqlite", tmp_path) as world:
        desk = world.desk(sources=[lifecycle(partial(sqlite3.connect, other))])
        found = plain(await desk.detect())
        found["errors"].sort(key=lambda error: error["timestamp"])
        assert found == DETECTED
        assert (await desk.detect())["errors_found"] == 3  # the same errors, not the same again
        assert {one.occurrences for one in await desk.incidents()} == {1}
        task = await desk.task("TASK-31-1")
        assert task is not None
        assert (task.priority, task.estimated_hours) == (1, 2.5)
        await world.close()


def write_lifecycle(path: Path) -> None:
    """The tables of the document, with its three errors, and one task named twice."""
    db = sqlite3.connect(path)
    db.execute(
        "CREATE TABLE agent_lifecycle (agent_id TEXT, agent_type TEXT, task_id TEXT, status TEXT, "
        "error_message TEXT, completed_at TIMESTAMP)"
    )
    db.execute(
        "CREATE TABLE orchestrator_task (task_id TEXT, priority INTEGER, estimated_hours REAL)"
    )
    db.executemany("INSERT INTO agent_lifecycle VALUES (?, ?, ?, ?, ?, ?)", EXAMPLES)
    db.execute("INSERT INTO orchestrator_task VALUES ('TASK-31-1', 1, 2.5), ('TASK-31-1', 1, 2.5)")
    db.commit()
    db.close()


async def test_handle_answers_as_its_document(world: World) -> None:
    restarts = Restarts()
    desk = await reported(world, hooks=restarts.hooks)
    assert timeless(await desk.handle(await world.nth(1))) == {
        "success": True,
        "action": "handle",
        "error_id": "an id",
        "error_message": "Process died unexpectedly",
        "severity": "medium",
        "recovery_action": "auto_restart",
        "details": {
            "agent_id": "code-developer-20251026-001",
            "task_id": "TASK-31-1",
            "retry_attempt": 1,
            "max_retries": 3,
            "message_sent": True,
            "timestamp": "a time",
        },
    }
    log = [entry.text for entry in await desk.log(await world.nth(1))]
    assert log[-1] == "Task resumed (retry 1 of 3)"
    assert len(restarts.seen) == 1
    await world.close()


async def test_recover_answers_as_its_document(world: World) -> None:
    restarts = Restarts(lambda _recovery: "code-developer-20251026-003")
    desk = await reported(world, hooks=restarts.hooks)
    assert timeless(await desk.recover("TASK-31-1", "restart")) == {
        "success": True,
        "action": "recover",
        "task_id": "TASK-31-1",
        "recovery_strategy": "restart",
        "new_agent_id": "code-developer-20251026-003",
        "recovery_timestamp": "a time",
        "message": "Agent restarted to recover from error",
    }
    await world.close()


async def test_escalate_answers_as_its_document(world: World) -> None:
    desk = await reported(world)
    assert timeless(await desk.escalate(await world.nth(2), "architect")) == {
        "success": True,
        "action": "escalate",
        "error_id": "an id",
        "escalation_level": "architect",
        "escalation_message": "Merge conflict in TASK-31-2 requires manual resolution",
        "details": {
            "agent_id": "code-developer-20251026-002",
            "task_id": "TASK-31-2",
            "severity": "high",
            "files_affected": ["coffee_maker/models/database.py"],
            "message_sent": True,
            "timestamp": "a time",
        },
    }
    await world.close()


async def test_the_operations_are_reached_by_their_parameters_too(tmp_path: Path) -> None:
    with World("sqlite", tmp_path) as world:
        desk = await reported(world, hooks=Restarts().hooks)
        mine = {"ORCHESTRATOR_INSTANCE_ID": OWNER}
        found = await desk.invoke({"ACTION": "detect", **mine})
        assert found["errors_found"] == 3
        done = await desk.invoke({"ACTION": "handle", "ERROR_ID": await world.nth(1), **mine})
        assert done["details"]["timestamp"] == "2025-10-26T10:35:00Z"
        told = {
            "ACTION": "escalate",
            "ERROR_ID": await world.nth(2),
            "ESCALATION_LEVEL": "architect",
        }
        assert (await desk.invoke(told))["escalation_level"] == "architect"
        again = {"ACTION": "recover", "TASK_ID": "TASK-32-1", "RECOVERY_STRATEGY": "restart"}
        assert (await desk.invoke(again))["success"]
        for wrong, why in (
            ({"ACTION": "detekt"}, "did you mean 'detect'"),
            ({}, "ACTION must be one of"),
            ({"ACTION": "handle"}, "needs the parameter ERROR_ID"),
            ({"ACTION": "detect", "ERROR_IDS": "x"}, "knows no parameter 'ERROR_IDS'"),
            ({"ACTION": "detect", "ORCHESTRATOR_INSTANCE_ID": "orch-2"}, "the desk's owner"),
        ):
            with pytest.raises(UsageError, match=why):
                await desk.invoke(wrong)
        await world.close()


async def test_the_threshold_and_the_retries_of_the_document_hold_for_one_operation(
    tmp_path: Path,
) -> None:
    with World("sqlite", tmp_path) as world:
        restarts = Restarts()
        desk = await reported(world, hooks=restarts.hooks)
        handle = {"ACTION": "handle", "ERROR_ID": await world.nth(1)}
        found = await desk.invoke({"ACTION": "detect", "ERROR_THRESHOLD": 3, "RETRY_MAX": 3})
        assert found["errors_found"] == 3
        for name, wrong in (("ERROR_THRESHOLD", 0), ("RETRY_MAX", -1), ("RETRY_MAX", "3")):
            with pytest.raises(UsageError, match=name):
                await desk.invoke({**handle, name: wrong})
        done = await desk.invoke({**handle, "RETRY_MAX": 5})
        assert (done["details"]["retry_attempt"], done["details"]["max_retries"]) == (1, 5)
        assert (await desk.incident(await world.nth(1))).max_retries == 5
        never = await desk.invoke(
            {"ACTION": "handle", "ERROR_ID": await world.nth(3), "RETRY_MAX": 0}
        )
        assert never["recovery_action"] == "manual_intervention"
        assert (await desk.incident(await world.nth(3))).status is Status.ESCALATED
        for number in (1, 2):  # one more than the threshold
            await desk.report("Process died unexpectedly", task_id="TASK-9", key=f"k{number}")
        await desk.invoke(
            {"ACTION": "handle", "ERROR_ID": await world.nth(4), "ERROR_THRESHOLD": 1}
        )
        assert (await desk.incident(await world.nth(4))).status is Status.ESCALATED
        await world.close()


@pytest.mark.skipif(not SEEDS, reason="the document is not at hand")
async def test_the_keys_are_those_in_the_document_itself(tmp_path: Path) -> None:
    text = SEEDS[0].read_text(encoding="utf-8")
    shown = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    theirs = {answer["action"]: answer for answer in shown}
    with World("memory", tmp_path) as world:
        desk = await reported(world, hooks=Restarts().hooks)
        ours = {
            "detect": await desk.detect(),
            "handle": await desk.handle(await world.nth(1)),
            "recover": await desk.recover("TASK-32-1", "restart"),
            "escalate": await desk.escalate(await world.nth(2), "architect"),
        }
        await world.close()
    assert {name: shape(answer) for name, answer in ours.items()} == {
        name: shape(answer) for name, answer in theirs.items()
    }


def shape(value: Any) -> Any:
    """The keys of a JSON value in their order, and the kinds of its leaves."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


async def test_every_success_criterion_holds_for_the_three_examples(world: World) -> None:
    """All detected, severity right, action apt, escalated rightly, the right ones told, history kept."""
    inbox = Inbox()
    desk = await reported(world, hooks=Restarts().hooks, sinks={"*": inbox})
    found = await desk.detect()
    assert [error["severity"] for error in found["errors"]] == ["medium", "high", "medium"]
    actions = [(await desk.handle(await world.nth(n)))["recovery_action"] for n in (1, 2, 3)]
    assert actions == ["auto_restart", "manual_intervention", "increase_timeout"]
    statuses = [(await desk.incident(await world.nth(n))).status for n in (1, 2, 3)]
    assert statuses == [Status.RECOVERED, Status.ESCALATED, Status.RECOVERED]
    await desk.deliver()
    assert sorted(inbox.told) == [
        ("architect", "detected"),
        ("architect", "escalated"),
        ("code_developer", "detected"),
        ("code_developer", "handling"),
        ("code_developer", "handling"),
        ("code_developer", "recovered"),
        ("code_developer", "recovered"),
    ]
    told = len(inbox.told)
    for _ in range(3):  # what was told is not told again
        assert (await desk.tick())["handled"] == 0
    assert len(inbox.told) == told
    for number in (1, 2, 3):
        verbs = [entry.verb for entry in await desk.log(await world.nth(number))]
        assert verbs[0] == "detected"
        assert len(verbs) > 2
    await world.close()


async def test_a_new_desk_reads_what_another_has_left(tmp_path: Path) -> None:
    for kind in ("sqlite", "postgres"):
        with World(kind, tmp_path / kind if kind == "postgres" else tmp_path) as world:
            desk = await reported(world, hooks=Restarts().hooks)
            await desk.report(error=ValueError("no rows"), agent_id="a-4", task_id="TASK-4")
            first, last = await world.nth(1), await world.nth(4)
            await desk.handle(first)
            await world.close()
            again = IncidentDesk(world.opened.another(), environment=world.env)
            tasks = {one.task_id for one in await again.incidents()}
            assert tasks == {"TASK-4", "TASK-32-1", "TASK-31-2"}
            one = await again.incident(first)
            assert (one.agent_id, one.task_id) == (EXAMPLES[0][0], EXAMPLES[0][2])
            assert (one.message, one.level) == (EXAMPLES[0][4], "medium")
            assert (one.recovery_action, one.status) == ("auto_restart", Status.RECOVERED)
            assert one.new_agent_id == "agent-2"
            assert one.resolved_at is not None
            assert one.first_seen <= one.resolved_at
            other = await again.incident(last)
            assert "ValueError: no rows" in (other.stack_trace or "")
            assert other.resolved_at is None
            await again.close()


ERROR_EVENTS = (
    "error_id", "agent_id", "task_id", "error_message", "severity", "stack_trace", "recovery_action",
    "recovered", "created_at", "resolved_at",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_the_error_table_is_a_view_of_the_journals(kind: str, tmp_path: Path) -> None:
    with World(kind, tmp_path) as world:
        desk = await reported(world, hooks=Restarts().hooks)
        first = await world.nth(1)
        await desk.handle(first)
        await world.close()
        rows = {row["error_id"]: row for row in world.select("SELECT * FROM error_events")}
        assert len(rows) == 3
        assert tuple(rows[first]) == ERROR_EVENTS
        told = {name: rows[first][name] for name in ERROR_EVENTS[1:8]}
        assert told == {
            "agent_id": EXAMPLES[0][0],
            "task_id": EXAMPLES[0][2],
            "error_message": EXAMPLES[0][4],
            "severity": "medium",
            "stack_trace": None,
            "recovery_action": "auto_restart",
            "recovered": True,
        }
        assert rows[first]["resolved_at"] > 0


def test_every_public_name_is_there_and_described() -> None:
    page = Path(__file__).parents[2] / "docs" / "incidents.md"
    words = set(re.findall(r"\w+", page.read_text(encoding="utf-8")))
    assert triage.incidents.__all__ == sorted(set(triage.incidents.__all__))
    for name in triage.incidents.__all__:
        assert getattr(triage.incidents, name) is not None
        assert name in words, name
