"""Processes that stand still while they own a run, and connections that are cut under one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from durable_runs import check_journal
from store_kinds import POSTGRES, Opened, opening
from store_worker import RUN, worker
from support import RETRY

import triage
from triage import Agent, Step, TriageSuspendedError
from triage.events import CallFinished, StepRecorded
from triage.stores import PostgresStore, Store

HERE = Path(__file__).parent
PATH = os.pathsep.join((str(Path(triage.__file__).parents[1]), str(HERE)))
ALL = [f"paid {number}" for number in (1, 2, 3, 4)]


opened = opening("sqlite", "postgres")


class Stopped:
    """A worker of another process that stands still at a place of its run."""

    def __init__(self, opened: Opened, where: str, effects: Path, backend: str) -> None:
        words = (opened.kind, opened.name, where, str(effects), backend)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "store_worker.py"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PATH},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "here\n"
        self._process.send_signal(signal.SIGSTOP)

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


async def nowhere(_place: str) -> None:
    """The one that takes over waits nowhere."""


async def taken_over(store: Store, effects: Path, *, doubt: bool) -> None:
    """Another process' worker goes on with the run once the lease has ended."""
    agent = worker(store, effects, nowhere)
    with anyio.fail_after(30):
        while not (ended := await agent.recover_all()):  # noqa: ASYNC110 - by the store's clock
            await anyio.sleep(0.02)
    if not doubt:
        assert ended[0].result == ALL
        return
    asked = ended[0].error
    assert isinstance(asked, TriageSuspendedError)
    assert await agent.resume(asked.token, triage.happened("paid 3")) == ALL


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops no process")
@pytest.mark.parametrize(("where", "backend"), [("before", "asyncio"), ("inside", "trio")])
def test_a_worker_that_stood_still_writes_nothing_and_repeats_nothing(
    opened: Opened, tmp_path: Path, where: str, backend: Any
) -> None:
    store = opened.new()
    effects = tmp_path / "effects"
    zombie = Stopped(opened, where, effects, backend)

    async def meanwhile() -> list[Any]:
        await taken_over(store, effects, doubt=where == "inside")
        return list(await store.read(RUN))

    try:
        before = anyio.run(meanwhile, backend=backend)
        assert zombie.goes_on() == "StaleWriter\n"
    finally:
        zombie.kill()
    # What its body had begun comes to its end, once; no other effect is its own.
    assert sorted(effects.read_text().split()) == ["1", "2", "3", "4"]

    async def check() -> None:
        after = await store.read(RUN)
        assert after == before
        check_journal(after)
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
