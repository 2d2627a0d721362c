"""Write the golden files of a release, once, before it is out: `PYTHONPATH=tests python -m golden.write`.

Everything comes from the code as it stands: agents and orchestrators run, fail, wait and die on a store
of each kind, a desk looks at what they left, and the stores are copied. Needs Postgres with `pg_dump`.
A folder that is there is left alone: what was written once is never written again.

Clocks, ids, tokens and chance are given, so the journals come out the same each time. How many events share
a row of SQLite or Postgres, and what a desk calls its commits, is up to the machine.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
from store_kinds import POSTGRES

import triage
from golden.runs import NOON, Clock, World
from triage import TriageError, TriageSuspendedError
from triage.core import RunFinished, dumps
from triage.incidents import FileSink, Hooks, IncidentDesk, Recovery, Status, Watch
from triage.plan import Orchestrator
from triage.stores import PostgresStore, SQLiteStore, Store, sqlite
from triage.testing import Crash, FaultPlan, faults

NAME = "schema_of_the_golden_files"
"""The schema in Postgres."""
LATER = NOON + 600
"""The time of stores that have a clock of their own, behind everything that happened."""


def dies(tool: str, count: int, *, after: bool = False) -> FaultPlan:
    """The process dies in this call of this tool, before or after what it does."""
    return FaultPlan({(tool, count): faults.crash(after=after)})


class Writer:
    """Makes runs in a store. tokens: of those that wait, by their ids."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tokens: dict[str, str] = {}

    def world(self, run_id: str, **options: Any) -> World:
        """The agents, with a clock of their own."""
        return World(self.store, environment=Clock(run_id), **options)

    async def ends(self, run_id: str, work: Awaitable[Any]) -> None:
        """Wait for the end of a run, whatever it is."""
        try:
            await work
        except TriageSuspendedError as error:
            self.tokens[run_id] = error.token
        except (TriageError, Crash):
            pass

    async def run(
        self, run_id: str, agent: str, task: Any, given: Any = None, **options: Any
    ) -> World:
        """Run an agent. given: its arguments beside the task."""
        made = self.world(run_id, **options)
        await self.ends(run_id, made.agents[agent].run(task, run_id=run_id, **(given or {})))
        return made

    async def write(self) -> None:
        """Every kind of run."""
        await self.write_ended()
        await self.write_waiting()
        await self.write_died()
        await self.write_stopped()
        await self.write_plans()

    async def write_ended(self) -> None:
        await self.run("done", "traveller", {"city": "Lisboa"})
        await self.run("rolled-back", "returner", "go")
        await self.run("aborted", "aborter", "x")
        await self.run("aborted-in-part", "aborter", "x", refunds=False)
        await self.run("escalated", "escalator", "x")
        await self.run("fatal", "faller", "x")
        asked = await self.run("resumed", "asker", "map")
        await asked.agents["asker"].resume(self.tokens.pop("resumed"), triage.approve())
        doubted = await self.run("told", "sender", "money", bank_answers=False)
        answer = triage.happened("transferred 500")
        await doubted.agents["sender"].resume(self.tokens.pop("told"), answer)
        await self.run("recovered", "buyer", "Lisboa", faults=dies("quote", 1))
        await self.world("recovered-again").agents["buyer"].recover("recovered")
        await self.run("office-done", "office", ["copy", "file"])

    async def write_waiting(self) -> None:
        await self.run("asks", "asker", "map")
        await self.run("asks-with-price", "asker", "map", {"price": 4})
        await self.run("doubt", "sender", "money", bank_answers=False)
        await self.run("office-asks", "office", ["copy", "sign"])

    async def write_died(self) -> None:
        await self.run("died-between", "buyer", "Lisboa", faults=dies("quote", 1))
        await self.run("died-in-effect", "buyer", "Lisboa", faults=dies("pay", 2, after=True))
        await self.run("died-in-keyed", "buyer", "Lisboa", faults=dies("mail", 1, after=True))
        client = {"client": object()}
        await self.run("died-without-client", "buyer", "Rome", client, faults=dies("quote", 1))
        await self.run("died-by-hand", "by_hand", "Lisboa", faults=dies("look", 1))
        await self.run("office-died", "office", ["copy", "file"], faults=dies("pay", 2))
        await self.run("dead", "buyer", "Lisboa", faults=dies("quote", 1))
        for _ in range(3):
            await self.store.claim("dead", lease_s=30, force=True)
        await self.ends("dead", self.world("dead-again").agents["buyer"].recover("dead"))

    async def write_stopped(self) -> None:
        waiting = self.world("stopped", gate=anyio.Event())
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: waiting.agents["waiter"].run("x", run_id="stopped"))
            await waiting.waits.wait()
            group.cancel_scope.cancel()
        await self.run("cancelled", "asker", "map")
        self.tokens.pop("cancelled")
        events = await self.store.read("cancelled")
        claim = await self.store.claim("cancelled", lease_s=30)
        end = RunFinished("cancelled", len(events), events[-1].time + 1, "cancelled")
        await self.store.append("cancelled", [end], at=len(events), epoch=claim.epoch)

    async def write_plans(self) -> None:
        once = self.world("plan-done", faults=FaultPlan({("read", 1): ConnectionError("gone")}))
        await self.plan("plan-done", once.planner)
        await self.answer("plan-done", once.planner, triage.reject("again"))
        await self.answer("plan-done", once.planner, triage.approve())
        lost = FaultPlan({("charge", 1): faults.timeout(after=True)})
        fails = self.world("plan-fails", faults=lost).planner
        await self.plan("plan-fails", fails)
        await self.answer("plan-fails", fails, triage.approve())
        await self.plan("plan-step-asks", self.world("plan-step-asks").careful)
        await self.plan("plan-asks", self.world("plan-asks").planner)
        died = self.world("plan-died", faults=dies("charge", 1)).planner
        await self.plan("plan-died", died)
        await self.answer("plan-died", died, triage.approve())

    async def plan(self, run_id: str, planner: Orchestrator) -> None:
        await self.ends(run_id, planner.run("measure", run_id=run_id))

    async def answer(self, run_id: str, planner: Orchestrator, answer: Any) -> None:
        await self.ends(run_id, planner.resume(self.tokens.pop(run_id), answer, by="ann"))


async def write_incidents(store: Store, messages: Path | None) -> dict[str, str]:
    """Incidents in every status, with agents, tasks and messages; each with its status."""

    async def restart(recovery: Recovery) -> str | None:
        if recovery.incident.task_id == "T-fails":
            raise ConnectionError("no spawner")
        return "agent-9"

    sinks = {} if messages is None else {"*": FileSink(messages)}
    desk = IncidentDesk(
        store,
        owner="desk-1",
        environment=Clock("desk"),
        hooks=Hooks(restart=restart),
        watch=Watch(suspended_s=None),
        sinks=sinks or None,
    )
    try:
        await desk.agent_started("agent-1", "travel", task_id="T-1", heartbeat_s=3600)
        await desk.agent_started("agent-2", "travel", task_id="T-2")
        await desk.heartbeat("agent-1")
        await desk.agent_ended("agent-2", "failed", "Process died unexpectedly")
        for task in ("T-works", "T-fails"):
            await desk.report(
                "Process died unexpectedly", task_id=task, agent_type="travel", key=task
            )
        await desk.handle("err-001")
        await desk.handle("err-002")
        await desk.report("invalid api key", task_id="T-person", key="a")
        await desk.escalate("err-003", "architect", by="ann")
        await desk.report("No space left on device: /tmp/a.txt", task_id="T-seen", key="b")
        await desk.escalate("err-004", "architect")
        await desk.acknowledge("err-004", by="ann", note="on it")
        await desk.report("schema mismatch", task_id="T-over", key="c")
        await desk.resolve("err-005", by="ann", outcome="ignored", note="known")
        await desk.report("Process died unexpectedly", task_id="T-new", key="d")
        await desk.tick()
        await desk.report("Process died unexpectedly", task_id="T-newest", key="e")
        found = [one for status in Status for one in await desk.incidents(status)]
        return {one.error_id: str(one.status) for one in found}
    finally:
        await desk.close()


# Copies of the stores -----------------------------------------------------------------------------


def settled(text: str, began: float) -> str:
    """A text in which what the machine's clock says, and nothing else, is another time."""

    def moved(found: re.Match[str]) -> str:
        value = float(found[0])
        # So long lasts no run: what is later by half a minute was meant to be.
        return str(LATER + (value - began) // 30 * 30) if value >= began else found[0]

    return re.sub(r"\b\d{10}\.\d+", moved, text)


def write_sqlite(file: Path) -> None:
    """The file, in which the store's own clock has stopped and owners have numbers."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE runs SET finished = ? WHERE finished IS NOT NULL", (LATER,))
        leased = "UPDATE runs SET lease_until = ? WHERE lease_until IS NOT NULL"
        db.execute(leased, (LATER + 30,))
        db.execute("UPDATE runs SET claimant = 'claimant-' || id WHERE claimant <> ''")
        sqlite.add_functions(db)
        db.execute(f"UPDATE runs SET crc = {sqlite.ROW_CRC}")
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("VACUUM")
    shutil.copy(file, TARGET / "runs.db")


def write_postgres(began: float) -> None:
    """The schema and its rows as `pg_dump` says them."""
    command = ["pg_dump", "--inserts", "--no-owner", "--no-privileges", "--schema", NAME, POSTGRES]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # What psql alone understands, and what is so by itself.
    lines = [line for line in said.splitlines() if not line.startswith(("--", "\\", "SET "))]
    text = "\n".join(line for line in lines if line and "set_config" not in line) + "\n"
    (TARGET / "postgres.sql").write_text(settled(text, began), encoding="utf-8")


def clear_services() -> None:
    """Remove what an earlier try left in Postgres."""
    drop = f"DROP SCHEMA IF EXISTS {NAME} CASCADE"
    subprocess.run(["psql", "--quiet", "--command", drop, POSTGRES], check=True)


async def fill(store: Store, messages: Path | None = None) -> tuple[dict[str, Any], list[str]]:
    """Everything in a store: what is expected of it, and its journals as lines."""
    writer = Writer(store)
    await writer.write()
    infos = sorted(await store.runs(), key=lambda info: info.run_id)
    lines = [dumps(event) for info in infos for event in await store.read(info.run_id)]
    names = ("agent", "status", "events", "epoch", "claims", "parent")
    runs = {info.run_id: {name: getattr(info, name) for name in names} for info in infos}
    expected: dict[str, Any] = {"tokens": writer.tokens, "runs": runs}
    kind = "sqlite" if isinstance(store, SQLiteStore) else "postgres"
    expected["incidents"] = {kind: await write_incidents(store, messages)}
    await store.close()
    return expected, lines


async def write(folder: Path) -> None:
    """All golden files, after it is seen that the stores say the same."""
    began = time.time()
    file = folder / "runs.db"
    expected, lines = await fill(SQLiteStore(file), folder / "messages.jsonl")
    again, same = await fill(PostgresStore(POSTGRES, schema=NAME))
    # By the clock of Postgres all this was long ago, so its desk finds a run that was left.
    expected["incidents"].update(again.pop("incidents", {}))
    assert again == {name: expected[name] for name in again}
    assert same == lines
    write_sqlite(file)
    write_postgres(began)
    journals = "".join(f"{line}\n" for line in lines)
    (TARGET / "journals.jsonl").write_text(journals, encoding="ascii")
    shutil.copy(folder / "messages.jsonl", TARGET)
    said = json.dumps(expected, indent=1, sort_keys=True)
    (TARGET / "expected.json").write_text(said + "\n", encoding="ascii")


TARGET = Path(__file__).parent / f"v{triage.__version__}"

if __name__ == "__main__":
    TARGET.mkdir()
    clear_services()
    try:
        with tempfile.TemporaryDirectory() as made:
            anyio.run(write, Path(made))
    finally:
        clear_services()
