"""Failures are found wherever they are: runs, agents that died, silence, circles, tables of others."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from incident_desks import NOON, Restarts, World
from psycopg import sql
from store_kinds import POSTGRES
from tables import table

from triage import Agent, FailurePolicy, FailureType, Suspend, TriageError, UsageError
from triage.core import RunStarted
from triage.incidents import Incident, IncidentDesk, Lifecycle, Status, UnknownIncident, Watch

pytestmark = pytest.mark.anyio
DURABLE = ("sqlite", "postgres")


async def found(desk: IncidentDesk) -> list[Incident]:
    await desk.detect()
    return sorted(await desk.incidents(), key=lambda one: one.id)


# Runs ---------------------------------------------------------------------------------------------


async def test_a_run_that_fails_appears_by_itself_with_its_own_diagnosis(world: World) -> None:
    async def works(task: str) -> str:
        if task == "well":
            return "done"
        raise ValueError("Expecting value: line 1 column 1 (char 0)")

    agent = Agent(works, name="works", store=world.store, policy=FailurePolicy())
    desk = world.desk()
    with pytest.raises(TriageError):
        await agent.run("badly", run_id="r-bad")
    await agent.run("well", run_id="r-well")
    (one,) = await found(desk)
    assert (one.source, one.run_id, one.agent_type) == ("runs", "r-bad", "works")
    assert one.failure_type is not FailureType.UNKNOWN
    assert "Expecting value" in one.message
    assert [again.id for again in await found(desk)] == [one.id]
    assert (await desk.incident(one.error_id)).occurrences == 1
    await world.close()


@table("kind", DURABLE)
async def test_a_run_whose_process_is_gone_is_a_process_that_died(
    kind: str, tmp_path: Path
) -> None:
    with World(kind, tmp_path) as world:
        await begin(world, "r1", 30.0)
        desk = world.desk()
        expire(world, "r1", 50)
        assert await found(desk) == []  # somebody may still take it over
        expire(world, "r1", 20)
        (one,) = await found(desk)
        assert (one.cause, one.level, one.retryable) == ("process_died", "medium", True)
        assert len(await found(desk)) == 1
        await world.close()


async def begin(world: World, run_id: str, lease_s: float) -> None:
    event = RunStarted(run_id, 0, time.time(), "works", "task")
    await world.store.append(run_id, [event], at=0, epoch=0, lease_s=lease_s)


def expire(world: World, run_id: str, ago: float) -> None:
    """The lease of a run ended so many seconds before now, or before it had already."""
    if world.kind == "postgres":
        clock = "extract(epoch FROM clock_timestamp())"
        border = f"least(lease_until, {clock}) - {ago}"
        world.execute(f"UPDATE runs SET lease_until = {border} WHERE run_id = '{run_id}'")
    else:
        world.execute(
            f"UPDATE runs SET lease_until = min(lease_until, {world.env.now}) - {ago} "
            f"WHERE run_id = '{run_id}'"
        )


@table("kind", DURABLE)
async def test_a_dead_letter_is_for_a_person(kind: str, tmp_path: Path) -> None:
    with World(kind, tmp_path) as world:
        await begin(world, "r1", 30.0)
        world.execute("UPDATE runs SET status = 'dead_letter', lease_until = NULL")
        (one,) = await found(world.desk())
        assert (one.cause, one.level, one.retryable) == ("dead_letter", "high", False)
        await world.close()


async def test_a_run_that_waits_too_long_for_an_answer_is_found(world: World) -> None:
    async def works(task: str) -> str:
        raise RuntimeError(task)

    asks = FailurePolicy(default=lambda _context: Suspend("May I?"))
    with pytest.raises(TriageError):
        await Agent(works, store=world.store, policy=asks).run("x", run_id="r1")
    world.env.now = time.time() + (0 if world.kind == "postgres" else 7200)
    desk = world.desk(watch=Watch(suspended_s=3600))
    if world.kind == "postgres":
        assert await found(desk) == []
        world.later(7200)
    (one,) = await found(desk)
    assert (one.cause, one.action) == ("waits_for_answer", "answer_it")
    assert "May I?" in one.message
    assert await found(world.desk("other", watch=Watch(suspended_s=None))) == [one]
    await world.close()


async def test_runs_can_be_left_out(world: World) -> None:
    async def works(task: str) -> str:
        raise RuntimeError(task)

    with pytest.raises(TriageError):
        await Agent(works, store=world.store, policy=FailurePolicy()).run("x")
    assert await found(world.desk(watch=Watch(runs=False))) == []
    await world.close()


# Agents -------------------------------------------------------------------------------------------


async def test_an_agent_that_ends_badly_is_found_also_without_a_message(world: World) -> None:
    desk = world.desk()
    for agent, status, text in (
        ("a-1", "failed", "Network timeout"), ("a-2", "killed", ""), ("a-3", "timeout", ""),
        ("a-4", "done", ""),
    ):  # fmt: skip
        await desk.agent_started(agent, "coder", task_id=f"T-{agent}")
        await desk.agent_ended(agent, status, text)
    seen = [(one.agent_id, one.cause, one.level, one.retryable) for one in await found(desk)]
    assert seen == [
        ("a-1", "timeout", "low", True),
        ("a-2", "process_died", "medium", True),
        ("a-3", "task_timeout", "medium", True),
    ]
    await world.close()


async def test_an_agent_that_falls_silent_is_dead_until_it_says_otherwise(world: World) -> None:
    desk = world.desk()
    await desk.agent_started("a-1", "coder", task_id="T-1", heartbeat_s=30)
    await desk.agent_started("a-2", "coder")  # promised nothing
    world.later(25)
    await desk.heartbeat("a-1")
    world.later(25)
    assert await found(desk) == []
    world.later(10)
    (one,) = await found(desk)
    assert (one.agent_id, one.cause) == ("a-1", "process_died")
    # The database's own clock goes on between two looks.
    assert re.match(r"Process died: agent a-1 sent no heartbeat for (3[5-9]|[45]\d) s", one.message)
    assert (await desk.heartbeat("a-1")).status == "running"
    world.later(60)
    (again,) = await found(desk)  # silent once more: the same trouble, once more
    assert (again.id, again.occurrences) == (one.id, 2)
    with pytest.raises(UnknownIncident, match="knows no agent a-9"):
        await desk.heartbeat("a-9")
    await world.close()


async def test_a_restarted_agent_is_a_new_one_in_the_same_line(world: World) -> None:
    desk = world.desk(hooks=Restarts().hooks)
    await desk.agent_started("agent-1", "coder", task_id="T-1", heartbeat_s=30)
    await desk.agent_ended("agent-1", "killed")
    await desk.detect()
    await desk.handle("err-001")
    old, new = await desk.agent("agent-1"), await desk.agent("agent-2")
    assert old is not None
    assert new is not None
    assert (old.status, old.replaces) == ("replaced", None)
    assert (new.replaces, new.root, new.attempt, new.status) == ("agent-1", "agent-1", 2, "running")
    assert (new.heartbeat_s, new.task_id) == (30, "T-1")
    with pytest.raises(UsageError, match="agent_id agent-1 is taken"):
        await desk.agent_started("agent-1", "writer")
    await world.close()


async def test_tasks_that_wait_for_each_other_are_a_deadlock(world: World) -> None:
    desk = world.desk()
    await desk.put_task("T-1", waits_for=["T-2"])
    await desk.put_task("T-2", waits_for=["T-3"])
    assert await found(desk) == []
    await desk.put_task("T-3", waits_for=["T-1"])
    (one,) = await found(desk)
    assert one.message == "Deadlock detected: T-1 waits for T-2 waits for T-3 waits for T-1"
    assert (one.cause, one.level, one.action) == ("deadlock", "high", "resolve_dependencies")
    await desk.resolve(one.error_id, by="ann", outcome="ignored")
    (again,) = await found(desk)  # said to be solved, and still there
    assert again.id != one.id
    await desk.resolve(again.error_id, by="ann")
    await desk.put_task("T-2", status="done")
    assert await found(desk) == []
    await world.close()


# Tables of others ---------------------------------------------------------------------------------

_TABLE = "CREATE TABLE agent_lifecycle ({id} {kind}, agent_type TEXT, task_id TEXT, status TEXT, \
error_message TEXT, completed_at {time}, beat {time})"


class Theirs:
    """Another system's table, in a file beside the store or a schema of its database."""

    def __init__(self, world: World, folder: Path, form: str) -> None:
        self.world, self.form = world, form
        self.path = str(folder / "theirs.db")
        number = {"epoch": "float8", "iso": "text", "stamp": "timestamptz"}[form]
        self.run(_TABLE.format(id="agent_id", kind="INTEGER", time=number))

    def run(self, statement: str, *values: Any) -> None:
        if self.world.kind == "postgres":
            with psycopg.connect(POSTGRES, autocommit=True) as db:
                db.execute(
                    sql.SQL("SET search_path = {}").format(sql.Identifier(self.world.opened.name))
                )
                db.execute(statement.replace("?", "%s").encode(), values)
            return
        file = sqlite3.connect(self.path)
        file.execute(statement, values)
        file.commit()
        file.close()

    def put(
        self, number: int, status: str, text: str | None, ended: float | None, **more: Any
    ) -> None:
        values = (number, "coder", more.get("task"), status, text, self.time(ended))
        beat = self.time(more.get("beat"))
        self.run("INSERT INTO agent_lifecycle VALUES (?, ?, ?, ?, ?, ?, ?)", *values, beat)

    def time(self, seconds: float | None) -> Any:
        if seconds is None or self.form == "epoch":
            return seconds
        return time.strftime("%Y-%m-%d %H:%M:%S+00:00", time.gmtime(seconds))

    def source(self, **options: Any) -> Lifecycle:
        database = None if self.world.kind == "postgres" else self.path
        return Lifecycle(database=database, task_table=None, **options)


FOREIGN = (("sqlite", "epoch"), ("sqlite", "iso"), ("postgres", "stamp"), ("postgres", "epoch"))


@table(("kind", "form"), FOREIGN)
async def test_their_failures_are_found_once_each_and_late_ones_too(
    kind: str, form: str, tmp_path: Path
) -> None:
    with World(kind, tmp_path) as world:
        desk = world.desk()
        await desk.stats()
        theirs = Theirs(world, tmp_path, form)
        desk = world.desk(sources=[theirs.source()])
        theirs.put(1, "failed", "Process died unexpectedly", NOON - 600, task="T-1")
        theirs.put(2, "killed", None, NOON - 500, task="T-2")  # died without a word
        theirs.put(3, "failed", "Network timeout", None, task="T-3")  # and nobody wrote when
        theirs.put(4, "done", None, NOON - 400)
        assert {one.agent_id for one in await found(desk)} == {"1", "2", "3"}
        theirs.put(5, "failed", "Network timeout", NOON - 700, task="T-5")  # committed late
        theirs.put(1, "failed", "Process died unexpectedly", NOON - 10, task="T-1")  # failed again
        seen = {one.task_id: one.occurrences for one in await found(desk)}
        assert seen == {"T-1": 2, "T-2": 1, "T-3": 1, "T-5": 1}
        await desk.detect(full=True)
        assert {one.task_id: one.occurrences for one in await desk.incidents()} == seen
        await world.close()


@table(("kind", "form"), FOREIGN)
async def test_their_silent_agents_are_found(kind: str, form: str, tmp_path: Path) -> None:
    with World(kind, tmp_path) as world:
        await world.desk().stats()
        theirs = Theirs(world, tmp_path, form)
        now = time.time() if kind == "postgres" else NOON
        theirs.put(1, "running", None, None, beat=now - 300, task="T-1")
        theirs.put(2, "running", None, None, beat=now - 60, task="T-2")
        theirs.put(3, "done", None, now - 1000, beat=now - 1000)
        desk = world.desk(sources=[theirs.source(heartbeat="beat")])
        (one,) = await found(desk)
        assert (one.agent_id, one.cause) == ("1", "process_died")
        assert len(await found(desk)) == 1
        await world.close()


@table("kind", DURABLE)
async def test_their_columns_may_have_other_names_and_wrong_ones_are_named(
    kind: str, tmp_path: Path
) -> None:
    with World(kind, tmp_path) as world:
        await world.desk().stats()
        theirs = Theirs(world, tmp_path, "epoch")
        theirs.run("ALTER TABLE agent_lifecycle RENAME COLUMN error_message TO oops")
        theirs.put(1, "failed", "Network timeout", NOON - 1)
        with pytest.raises(UsageError, match="agent_lifecycle has no column error_message"):
            await world.desk("a", sources=[theirs.source()]).detect()
        columns = {"error_message": "oops", "task_id": None}
        (one,) = await found(world.desk("b", sources=[theirs.source(columns=columns)]))
        assert (one.message, one.task_id) == ("Network timeout", None)
        with pytest.raises(UsageError, match="there is no table nowhere"):
            await world.desk("c", sources=[theirs.source(table="nowhere")]).detect()
        await world.close()


@table("kind", DURABLE)
async def test_two_tasks_of_one_id_make_no_second_failure(kind: str, tmp_path: Path) -> None:
    with World(kind, tmp_path) as world:
        await world.desk().stats()
        theirs = Theirs(world, tmp_path, "epoch")
        theirs.run(
            "CREATE TABLE orchestrator_task (task_id TEXT, priority INTEGER, estimated_hours REAL)"
        )
        for _ in range(2):
            theirs.run("INSERT INTO orchestrator_task VALUES ('T-1', 1, 2.5)")
        theirs.put(1, "failed", "Network timeout", NOON - 1, task="T-1")
        joined = Lifecycle(database=theirs.source().database)
        (one,) = await found(world.desk("b", sources=[joined]))
        assert one.occurrences == 1
        task = await world.desk("b").task("T-1")
        assert task is not None
        assert (task.priority, task.estimated_hours) == (1, 2.5)
        await world.close()


@table("name", ['x"; DROP TABLE runs; --', "a.b.c", "", "1a", "naïve", "a b", None, "a" * 64])
def test_a_name_that_is_no_identifier_is_refused_at_once(name: Any) -> None:
    with pytest.raises(UsageError, match=r"Lifecycle\.table must be a name"):
        Lifecycle(table=name)
    with pytest.raises(UsageError, match=r"Lifecycle\.columns\['status'\]"):
        Lifecycle(columns={"status": name})


async def test_a_message_is_a_value_whatever_it_says(world: World) -> None:
    desk = world.desk()
    text = "'); DROP TABLE incidents; -- \0 \ud800 %s :now"
    one = await desk.report(text, task_id="T'; --", agent_id='"a"')
    assert (await desk.incident(one.error_id)).message.startswith("'); DROP TABLE incidents; --")
    assert one.status is Status.DETECTED
    await world.close()
