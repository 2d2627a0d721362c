"""What ends a process, a loop or an attempt from outside: nothing is lost, classified or done twice."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
from store_kinds import POSTGRES, Opened
from support import ENVIRONMENT, RETRY, Says, always, program, question_of

import triage
from engine.durable_runs import RUN, check_journal
from triage import Agent, Checks, Retry, Run
from triage.core import (
    AttemptFailed,
    StoreFull,
    TriageSuspendedError,
)
from triage.stores import SQLiteStore

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"),
    pytest.mark.timeout(180),
]


ROOT = Path(__file__).parents[2]


# What passes --------------------------------------------------------------------------------------
PLACES = ("agent", "tool", "classifier", "strategy", "observer", "verify", "compensator")


class Compensation:
    """What the compensator of a module does, which is at hand in every process."""

    runs: ClassVar[Callable[[], None]]


def undo(_result: str) -> None:
    Compensation.runs()


def raising(place: str, error: type[BaseException], store: Any) -> tuple[Agent[Any], list[int]]:
    """An agent in which something raises at a place, and the attempts it has begun."""
    attempts: list[int] = []

    def at(here: str) -> None:
        if here == place and len(attempts) < 2:
            raise error

    Compensation.runs = partial(at, "compensator")

    @triage.tool(effect="once", compensate=undo)
    async def act() -> str:
        at("tool")
        return "done"

    class Sees(Says):
        def classify(self, trajectory: Any, task: Any) -> Any:
            at("classifier")
            return self.answer

    def strategy(context: Any) -> Any:
        at("strategy")
        return triage.Rollback(2) if place == "compensator" else Retry()

    async def works(task: str, *, run: Run) -> str:
        attempts.append(run.attempt)
        if place == "compensator":
            run.record_step(triage.Step(action="begin"))
        await act()
        at("agent")
        if len(attempts) == 1 and place not in ("observer", "verify"):
            raise ConnectionError("late")
        return "done"

    def observer(_event: Any) -> None:
        if attempts:
            at("observer")

    checks = Checks(verify=lambda _result: at("verify"))
    options: dict[str, Any] = {"observers": [observer] if place == "observer" else []}
    policy = always(strategy)
    return Agent(works, policy, classifier=Sees(), checks=checks, store=store, **options), attempts


# An observer's own GeneratorExit ends no program: it is logged as its error.
ENDS = [
    (place, error)
    for place in PLACES
    for error in (KeyboardInterrupt, SystemExit, GeneratorExit)
    if (place, error) != ("observer", GeneratorExit)
]


@pytest.mark.anyio
@pytest.mark.parametrize(("place", "error"), ENDS)
async def test_what_ends_a_program_is_raised_on_and_no_failure(
    place: str, error: type[BaseException], tmp_path: Path, anyio_backend_name: str
) -> None:
    store = SQLiteStore(str(tmp_path / "runs.db"))
    agent, attempts = raising(place, error, store)
    with pytest.raises(error):
        await agent.run("t", run_id=RUN)
    await store.close()  # waits for what is on its way
    events = await store.read(RUN)
    check_journal(events)
    failed = sum(isinstance(event, AttemptFailed) for event in events)
    # What fails before it is a failure; it itself is none.
    assert failed == (1 if place in ("strategy", "compensator") else 0)
    info = await store.info(RUN)
    assert info is not None
    assert (info.status, info.claims) == ("running", 0)
    # A coroutine that is closed cannot wait until it has given its run back.
    assert (info.lease_until is None) == (error is not GeneratorExit)
    attempts.append(0)  # from now on nothing raises
    if place == "tool":  # it may have done its work
        asked = await question_of(agent.recover(RUN))
        assert await agent.resume(asked.token, triage.happened("done")) == "done"
    else:
        assert await agent.recover(RUN) == "done"
    await store.close()


# The loop -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["asyncio.run", "stopped", "closed"])
def test_a_loop_that_ends_leaves_its_runs_to_be_gone_on_with(how: str, tmp_path: Path) -> None:
    place = str(tmp_path / "runs.db")
    begun: list[str] = []

    def agent() -> Agent[Any]:
        async def works(task: str, *, run: Run, _triage_state: Any, update_state: Any) -> Any:
            if _triage_state is None:
                update_state({"half": task})
                await run.flush()
                begun.append(task)
                await anyio.sleep_forever()
            return _triage_state["half"]

        return Agent(works, store=SQLiteStore(place), name="works")

    async def left() -> None:
        works = agent()
        for name in "abc":
            task = asyncio.ensure_future(works.run(name, run_id=name))
            tasks.append(task)
        while len(begun) < 3:
            await asyncio.sleep(0.001)

    tasks: list[Any] = []
    if how == "asyncio.run":
        asyncio.run(left())  # cancels what is left
    else:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(left())
        if how == "stopped":
            loop.call_soon(loop.stop)
            loop.run_forever()
        for task in tasks:
            task._log_destroy_pending = False  # asyncio would complain, and rightly
        tasks.clear()
        loop.close()
        gc.collect()

    async def recovered() -> dict[str, Any]:
        works = agent()
        found = {name: await works.recover(name) for name in "abc"}
        await works.store.close()
        return found

    assert asyncio.run(recovered()) == {"a": "a", "b": "b", "c": "c"}


# Processes ----------------------------------------------------------------------------------------
WORKER = """
import os, sys, time
import anyio, triage
from triage import Agent, Durability
from triage.core.errors import StaleWriter, TriageSuspendedError

place, folder, how = sys.argv[1:]

@triage.tool(effect="idempotent")
async def act(number):
    with open(f"{folder}/effects", "a") as file:
        file.write(f"{number} {os.getpid()}\\n")
    while how == "starts" and number == 4 and not await anyio.Path(folder, "go-on").exists():
        await anyio.sleep(0.01)
    return number

async def works(task):
    if how == "dies":
        os._exit(9)
    return [await act(number) for number in range(20)]

async def main():
    agent = Agent(works, store=place, durability=Durability(lease_s=0.3), name="works")
    try:
        if how == "starts":
            return await agent.run("t", run_id="run-1")
        return await agent.recover("run-1")
    except StaleWriter:
        print("stale")
    finally:
        await agent.store.close()

print(anyio.run(main))
"""


def worker(place: str, folder: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, place, str(folder), how],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        encoding="utf-8",
    )


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_process_that_was_paused_finds_out_and_repeats_one_body_at_most(
    kind: str, tmp_path: Path
) -> None:
    with Opened(kind, tmp_path) as opened:
        opened.new()
        place = f"sqlite:///{opened.name}"
        if kind == "postgres":
            place = f"{POSTGRES}?schema={opened.name}"
        effects = tmp_path / "effects"
        with worker(place, tmp_path, "starts") as zombie:
            while not effects.exists() or len(effects.read_text().splitlines()) < 5:
                time.sleep(0.01)
            os.kill(zombie.pid, signal.SIGSTOP)
            with worker(place, tmp_path, "goes on") as other:
                out, _ = other.communicate(timeout=60)
            (tmp_path / "go-on").touch()
            os.kill(zombie.pid, signal.SIGCONT)
            said, _ = zombie.communicate(timeout=60)
        assert out.strip() == str(list(range(20)))
        assert "stale" in said
        done = Counter(line.split()[0] for line in effects.read_text().splitlines())
        assert set(done) == set(map(str, range(20)))
        # The one that was under way is not repeated by the zombie, nor is anything written by it.
        assert sum(done.values()) <= 20 + 2
        store = opened.another()

        async def read() -> Any:
            events, info = await store.read("run-1"), await store.info("run-1")
            await store.close()
            return events, info

        events, info = anyio.run(read)
        check_journal(events, info.epoch)
        assert info.epoch == 1


# The disk -----------------------------------------------------------------------------------------
@pytest.mark.anyio
async def test_a_full_disk_stops_a_run_before_its_next_effect_and_room_lets_it_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    databases: list[sqlite3.Connection] = []

    def small(*args: Any, **options: Any) -> sqlite3.Connection:
        databases.append(connect(*args, **options))
        databases[-1].execute("PRAGMA max_page_count = 60")
        return databases[-1]

    monkeypatch.setattr(sqlite3, "connect", small)
    store = SQLiteStore(str(tmp_path / "runs.db"))
    did: list[int] = []

    @triage.tool(effect="once")
    async def act(number: int) -> str:
        did.append(number)
        return f"{number}{os.urandom(3000).hex()}"

    async def works(task: str) -> list[str]:
        return [(await act(number)).split("{")[0][:4] for number in range(60)]

    agent = Agent(works, RETRY, classifier=Says(), store=store)
    with pytest.raises(StoreFull):
        await agent.run("t", run_id=RUN)
    assert 3 < len(did) < 50
    stopped = len(did)
    for db in databases:
        db.execute("PRAGMA max_page_count = 4000")
    result: Any = None
    try:
        result = await agent.recover(RUN)
    except TriageSuspendedError as asked:  # its result found no room: somebody has to look
        assert did == list(range(stopped))
        result = await agent.resume(asked.token, triage.happened("seen"))
    assert len(result) == 60
    assert did == list(range(60))
    await store.close()


# Kills, again and again; `make crash` does more ---------------------------------------------------


@pytest.mark.parametrize(
    ("store", "kinds"),
    [
        ("sqlite", ("answering", "rolling back", "giving up", "equal calls", "parallel")),
        ("postgres", ("answering", "nested")),
    ],
)
def test_whatever_kills_a_run_it_is_brought_to_its_end(
    store: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    with Opened(store, tmp_path):  # skips, or fails, where it does not run
        pass
    command = program("engine.crash_matrix", "--stores", store, "--kinds", *kinds)
    runs = 4 * len(kinds)
    command += ["--runs", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["runs"] == runs
    assert found["kills"] >= runs / 2
    assert (found["lost"], found["repeated"], found["stuck"]) == (0, 0, 0)
