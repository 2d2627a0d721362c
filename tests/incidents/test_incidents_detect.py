"""Failures are found wherever they are: runs, agents that died, silence, circles, tables of others."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from incident_desks import DIED, NOON, Restarts, World
from store_kinds import POSTGRES
from tables import table

from triage import Agent, FailurePolicy, FailureType, Suspend, TriageError, UsageError
from triage.core import RunStarted
from triage.incidents import Incident, IncidentDesk, Status, Watch, lifecycle

pytestmark = pytest.mark.anyio
DURABLE = ("sqlite", "postgres")


async def found(desk: IncidentDesk) -> list[Incident]:
    await desk.detect()
    return sorted(await desk.incidents(), key=lambda one: one.log[0].at)


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
    assert [again.error_id for again in await found(desk)] == [one.error_id]
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
    clock, least = str(time.time()), "min"
    if world.kind == "postgres":
        clock, least = "extract(epoch FROM clock_timestamp())", "least"
    border = f"{least}(lease_until, {clock}) - {ago}"
    world.execute(f"UPDATE runs SET lease_until = {border} WHERE run_id = '{run_id}'")


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
    desk = world.desk(watch=Watch(suspended_s=3600))
    assert await found(desk) == []
    if world.kind == "memory":
        return
    world.execute("UPDATE runs SET updated = updated - 7200")
    (one,) = await found(world.desk("hours later", watch=Watch(suspended_s=3600)))
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


# Agents and tasks ---------------------------------------------------------------------------------


async def test_a_restarted_agent_has_a_new_id_and_the_old_one_stays_known(world: World) -> None:
    desk = world.desk(hooks=Restarts().hooks)
    one = await desk.report(DIED, agent_id="agent-1", agent_type="coder", task_id="T-1")
    await desk.handle(one.error_id)
    one = await desk.incident(one.error_id)
    assert (one.agent_id, one.new_agent_id) == ("agent-1", "agent-2")
    again = await desk.report(DIED, agent_id="agent-2", agent_type="coder", task_id="T-1")
    assert (again.error_id, again.agent_id, again.attempt) == (one.error_id, "agent-2", 1)
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
    assert again.error_id != one.error_id
    await desk.resolve(again.error_id, by="ann")
    await desk.put_task("T-2", status="done")
    assert await found(desk) == []
    await world.close()


# Tables of others ---------------------------------------------------------------------------------

_TABLE = """CREATE TABLE agent_lifecycle (agent_id INTEGER, agent_type TEXT, task_id TEXT, status TEXT,
error_message TEXT, completed_at {time})"""


class Theirs:
    """Another system's table, in a file beside the store or a schema of its database."""

    def __init__(self, world: World, folder: Path, form: str) -> None:
        self.world, self.form = world, form
        self.path = str(folder / "theirs.db")
        number = {"epoch": "float8", "iso": "text", "stamp": "timestamptz"}[form]
        self.run(_TABLE.format(time=number))

    def connect(self) -> Any:
        if self.world.kind == "postgres":
            return psycopg.connect(POSTGRES, options=f"-c search_path={self.world.opened.name}")
        return sqlite3.connect(self.path)

    def run(self, statement: str, *values: Any) -> None:
        with closing(self.connect()) as db:
            mark = "%s" if self.world.kind == "postgres" else "?"
            db.execute(statement.replace("?", mark), values)
            db.commit()

    def put(
        self, number: int, status: str, text: str | None, ended: float | None, task: str
    ) -> None:
        when: Any = ended
        if ended is not None and self.form != "epoch":
            when = time.strftime("%Y-%m-%d %H:%M:%S+00:00", time.gmtime(ended))
        values = (number, "coder", task, status, text, when)
        self.run("INSERT INTO agent_lifecycle VALUES (?, ?, ?, ?, ?, ?)", *values)


FOREIGN = (("sqlite", "epoch"), ("sqlite", "iso"), ("postgres", "stamp"), ("postgres", "epoch"))


@table(("kind", "form"), FOREIGN)
async def test_their_failures_are_found_once_each_and_late_ones_too(
    kind: str, form: str, tmp_path: Path
) -> None:
    with World(kind, tmp_path) as world:
        await world.store.runs()
        theirs = Theirs(world, tmp_path, form)
        desk = world.desk(sources=[lifecycle(theirs.connect, task_table=None)])
        theirs.put(1, "failed", "Process died unexpectedly", NOON - 600, "T-1")
        theirs.put(2, "killed", None, NOON - 500, "T-2")  # died without a word
        theirs.put(3, "failed", "Network timeout", None, "T-3")  # and nobody wrote when
        theirs.put(4, "done", None, NOON - 400, "T-4")
        assert {one.agent_id for one in await found(desk)} == {"1", "2", "3"}
        theirs.put(5, "failed", "Network timeout", NOON - 200, "T-5")  # committed late
        theirs.put(6, "failed", "Network timeout", NOON - 3600, "T-6")  # very late
        theirs.put(1, "failed", "Process died unexpectedly", NOON - 10, "T-1")  # failed again
        seen = {one.task_id: one.occurrences for one in await found(desk)}
        assert seen == {"T-1": 2, "T-2": 1, "T-3": 1, "T-5": 1}
        await desk.detect(full=True)
        again = {one.task_id: one.occurrences for one in await desk.incidents()}
        assert again == {**seen, "T-6": 1}
        await world.close()


@table("kind", DURABLE)
async def test_what_a_source_still_shows_is_not_found_anew(kind: str, tmp_path: Path) -> None:
    with World(kind, tmp_path) as world:
        await world.store.runs()
        theirs = Theirs(world, tmp_path, "epoch")
        source = lifecycle(theirs.connect, task_table=None)
        theirs.put(1, "failed", "Network timeout", NOON - 1, "T-1")
        (one,) = await found(world.desk("a", sources=[source]))
        await world.desk("a").resolve(one.error_id, by="ann", outcome="ignored")
        assert await found(world.desk("b", sources=[source])) == []
        with pytest.raises((sqlite3.Error, psycopg.Error), match="nowhere"):
            await world.desk("c", sources=[lifecycle(theirs.connect, table="nowhere")]).detect()
        with pytest.raises(UsageError, match=r"IncidentDesk\.sources"):
            await world.desk("d", sources=[lambda _since: ["a failure"]]).detect()
        await world.close()


@table("name", ['x"; DROP TABLE runs; --', "a.b.c", "", "1a", "naïve", "a b", "a" * 64])
def test_a_name_that_is_no_identifier_is_refused_at_once(name: Any) -> None:
    for options in ({"table": name}, {"task_table": name}):
        with pytest.raises(UsageError, match=r"lifecycle\.(task_)?table must be a name"):
            lifecycle(print, **options)


async def test_a_message_is_a_value_whatever_it_says(world: World) -> None:
    desk = world.desk()
    text = "'); DROP TABLE incidents; -- \0 \ud800 %s :now"
    one = await desk.report(text, task_id="T'; --", agent_id='"a"')
    assert (await desk.incident(one.error_id)).message.startswith("'); DROP TABLE incidents; --")
    assert one.status is Status.DETECTED
    await world.close()
