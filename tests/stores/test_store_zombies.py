"""Processes that stand still while they own a run, and connections that are cut under one."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest
from engine.durable_runs import check_journal
from store_kinds import POSTGRES, Opened, opening
from support import ENVIRONMENT, RETRY, program
from tables import covering

import triage
from stores.store_runs import created
from stores.store_worker import RUN, SHAPES, STOPPED_IN, worker
from triage import Agent, Step, TriageSuspendedError
from triage.core import CallFinished, Event, StaleWriter, StepRecorded
from triage.stores import PostgresStore, Store
from triage.stores.base import Owned, renewed

opened = opening("sqlite", "postgres")


class Stopped:
    """A worker of another process that stands still at a place of its run."""

    def __init__(self, opened: Opened, where: str, effects: Path, backend: str, shape: str) -> None:
        words = (opened.kind, opened.name, where, str(effects), backend, shape)
        self._process = subprocess.Popen(
            program("stores.store_worker", *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "here\n"
        self._stop()
        # What a process that stands still has locked is locked for all.
        while not (writable if opened.kind == "sqlite" else unlocked)(opened.name):
            self._process.send_signal(signal.SIGCONT)
            os.sched_yield()
            self._stop()

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def goes_on(self) -> str:
        """Let it go on to its end; what it says then."""
        self._process.send_signal(signal.SIGCONT)
        said, _ = self._process.communicate("\n", timeout=60)
        assert self._process.returncode == 0
        return said

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.communicate()


def writable(file: str) -> bool:
    """Whether nobody is writing into a file of SQLite."""
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
            db.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
    return True


def unlocked(schema: str) -> bool:
    """Whether no transaction is open in a schema of Postgres."""
    with psycopg.connect(POSTGRES, autocommit=True) as db:
        found = db.execute(
            "SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND l.pid <> pg_backend_pid()",
            (schema,),
        )
        return not found.fetchall()


@pytest.mark.anyio
async def test_who_stands_still_while_it_renews_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A worker in Postgres is stopped between what it has read of its run and what it writes."""
    with Opened("postgres", tmp_path) as opened:
        store, other = opened.new(), opened.another()
        assert isinstance(store, PostgresStore)
        await created(store, "r", lease_s=30.0)
        reads, goes_on = threading.Event(), threading.Event()
        seen: list[int] = []

        def stands_still(row: Owned | None, now: float) -> Owned:
            assert row is not None
            seen.append(row.epoch)
            reads.set()
            goes_on.wait(60)
            return renewed("r", row, 0, now, 30.0)

        def work() -> Any:
            driver = store.connect(writes=True)
            try:
                return driver.own([("r", stands_still)])
            finally:
                driver.close()

        found: list[Any] = []
        async with anyio.create_task_group() as group:

            async def renews() -> None:
                found.extend(await anyio.to_thread.run_sync(work))

            group.start_soon(renews)
            await anyio.to_thread.run_sync(reads.wait)
            try:
                claim = await other.claim("r", lease_s=30.0, force=True)
            finally:
                goes_on.set()
        assert claim.epoch == 1
        assert seen == [0, 1]  # it has read anew, and learns that it has lost the run
        assert [type(one) for one in found] == [StaleWriter]
        await store.close()
        await other.close()


async def nowhere(_place: str) -> None:
    """The one that takes over waits nowhere."""


def made(effects: Path, number: int) -> bool:
    """Whether a payment was made, or is by the worker that stands still inside it.

    Others are in doubt too where a question cut off the one that was paying beside it.
    """
    return number in STOPPED_IN or str(number) in effects.read_text().split()


async def taken_over(store: Store, effects: Path, shape: str) -> tuple[list[str], set[int]]:
    """What another process' worker comes to once the lease has ended, and which payments were in doubt."""
    agent = worker(store, effects, nowhere, shape)
    with anyio.fail_after(60):
        while not (ended := await agent.recover_all()):
            await anyio.sleep(0.02)
    doubts: set[int] = set()
    asked = ended[0].error
    if asked is None:
        return ended[0].result, doubts
    while True:
        assert isinstance(asked, TriageSuspendedError), asked
        about = re.search(r'"number": (\d)', asked.question)
        assert about, asked.question
        number = int(about[1])
        doubts.add(number)
        answer = triage.happened(f"paid {number}") if made(effects, number) else triage.rerun()
        try:
            return await agent.resume(asked.token, answer), doubts
        except TriageSuspendedError as more:
            asked = more


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops no process")
@pytest.mark.parametrize(
    ("opened", "place", "shape"),
    covering(
        ("sqlite", "postgres"), (("before", "asyncio"), ("inside", "trio")), SHAPES, together=2
    ),
    indirect=["opened"],
)
def test_a_worker_that_stood_still_writes_nothing_and_repeats_nothing(
    opened: Opened, tmp_path: Path, place: tuple[str, Any], shape: str
) -> None:
    where, backend = place
    store = opened.new()
    effects = tmp_path / "effects"
    zombie = Stopped(opened, where, effects, backend, shape)
    numbers = range(1, 1 + 4 * SHAPES[shape])

    async def journals() -> dict[str, list[Event]]:
        return {info.run_id: await store.read(info.run_id) for info in await store.runs()}

    async def meanwhile() -> dict[str, list[Event]]:
        result, doubts = await taken_over(store, effects, shape)
        assert result == [f"paid {number}" for number in numbers]
        if where == "inside":
            assert doubts >= set(STOPPED_IN[: SHAPES[shape]])
        else:
            assert not doubts.intersection(STOPPED_IN)
        return await journals()

    try:
        before = anyio.run(meanwhile, backend=backend)
        assert zombie.goes_on() == "StaleWriter\n"
    finally:
        zombie.kill()
    # What its body had begun comes to its end, once; no other effect is its own.
    assert sorted(effects.read_text().split()) == [str(number) for number in numbers]

    async def check() -> None:
        after = await journals()
        assert after == before
        assert RUN in after
        assert len(after) == (1 if shape == "alone" else 1 + SHAPES[shape])
        for events in after.values():
            check_journal(events)
        await store.close()

    anyio.run(check)


# Connections --------------------------------------------------------------------------------------


def cut(name: str) -> int:
    """Cut every connection that goes by this name, as a restart of the server does."""
    with psycopg.connect(POSTGRES, autocommit=True) as db:
        found = db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            (name,),
        )
        return len(found.fetchall())


@pytest.mark.anyio
async def test_a_run_goes_on_over_connections_that_are_cut(tmp_path: Path) -> None:
    with Opened("postgres", tmp_path) as opened:
        opened.new()
        url = f"{POSTGRES}?application_name={opened.name}"
        store = PostgresStore(url, schema=opened.name)
        paid: list[int] = []
        cuts = 0

        @triage.tool(effect="once")
        async def pay(number: int) -> int:
            paid.append(number)
            return number

        async def works(task: str, *, run: triage.Run) -> str:
            nonlocal cuts
            for number in range(60):
                run.record_step(Step(action="think", tool_output=number))
                if number % 6 == 0:
                    # One time before the append, one time while it may be on its way.
                    cuts += await anyio.to_thread.run_sync(cut, opened.name)
                await pay(number)
            return task

        assert await Agent(works, RETRY, store=store).run("task", run_id=RUN) == "task"
        assert cuts > 5
        assert paid == list(range(60))
        events = await store.read(RUN)
        check_journal(events)
        steps = [event.step for event in events if isinstance(event, StepRecorded)]
        thoughts = [step.tool_output for step in steps if step.action == "think"]
        assert thoughts == list(range(60))
        assert sum(isinstance(event, CallFinished) for event in events) == 60
        await store.close()
