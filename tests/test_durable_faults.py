"""Durable runs whose store fails, whose owner is a zombie, whose answers come twice; modes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from durable_runs import RUN, Kept, agent_of, check_journal, payments
from store_kinds import opening
from support import RETRY, Says, always

import triage
from triage import Agent, Durability, Step
from triage.errors import (
    StaleWriter,
    StoreError,
    StoreUnavailable,
    TriageAbortError,
)
from triage.events import Event, StepRecorded
from triage.stores import SQLiteStore, Store

pytestmark = pytest.mark.anyio


opened = opening("sqlite", "postgres")


class Failing:
    """A store whose k-th write fails, and every one after it if it stays so."""

    def __init__(self, store: Store, at: int, *, stays: bool) -> None:
        self._store = store
        self._at = at
        self._stays = stays
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def submit(self, run_id: str, events: Sequence[Event], **options: Any) -> None:
        self.count += 1
        if self.count == self._at or (self._stays and self.count > self._at):
            options["done"](StoreUnavailable(f"write {self.count} failed"))
        else:
            self._store.submit(run_id, events, **options)


async def ends(agent: Agent[Any]) -> Any:
    """The result of a run, or the error that ends it."""
    try:
        return await agent.run("task", run_id=RUN)
    except Exception as error:  # noqa: BLE001 - what it is, is the test's question
        return error


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("choice", ["fail", "continue"])
async def test_whichever_write_fails_nothing_of_the_agents_own_is_lost(
    choice: Any, stays: Any, tmp_path: Path
) -> None:
    expected = ["task", 10, 20, "paid 5", "paid 7"]
    failed = 0
    for at in range(1, 100):
        store = SQLiteStore(str(tmp_path / f"{at}.db"))
        failing: Any = Failing(store, at, stays=stays)
        world = Kept()
        durability = Durability(on_store_error=choice)
        ended = await ends(agent_of("retry", failing, world, durability=durability))
        events = await store.read(RUN)
        if events:
            check_journal(events)
        await store.close()
        if choice == "continue" or failing.count < at:
            assert ended == expected, at
            assert sum(payments(world).values()) == 2
        else:
            failed += 1
            assert isinstance(ended, StoreUnavailable), at
            # The agent had finished, or it had failed, or it was on its way: the error says so.
            assert getattr(ended, "result", expected) == expected
        if failing.count < at:
            break
    else:
        pytest.fail("every write failed")
    assert failed or choice == "continue"


@pytest.mark.parametrize("choice", ["fail", "continue"])
async def test_an_error_of_the_agent_is_raised_although_the_store_fails(
    choice: Any, tmp_path: Path
) -> None:
    for at in range(1, 6):
        store = SQLiteStore(str(tmp_path / f"{at}.db"))
        failing: Any = Failing(store, at, stays=True)

        async def works(task: str) -> str:
            raise ValueError("the agent's own")

        agent = Agent(
            works,
            always(lambda _context: triage.Abort("no")),
            classifier=Says(),
            store=failing,
            durability=Durability(on_store_error=choice),
        )
        with pytest.raises((TriageAbortError, StoreError)) as raised:
            await agent.run("task")
        chain = [raised.value, raised.value.__cause__]
        assert any(isinstance(error, ValueError) for error in chain), at
        await store.close()


# Owners -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["fail", "continue"])
@pytest.mark.parametrize("by", ["record_step", "flush"])
async def test_a_zombie_learns_that_it_lost_the_run_and_writes_nothing(
    by: str, choice: Any, store: Store
) -> None:
    taken = anyio.Event()

    async def works(task: str, *, run: triage.Run, record_step: Callable[[Step], int]) -> str:
        if taken.is_set():
            record_step(Step(action="new owner"))
            return "new"
        record_step(Step(action="first"))
        await run.flush()
        await store.claim(RUN, lease_s=60, force=True)
        taken.set()
        record_step(Step(action="of a zombie"))
        for _ in range(500):
            if by == "flush":
                await run.flush()
            else:
                record_step(Step(action="of a zombie"))
                await anyio.sleep(0.001)
        return "old"

    # Without its store a run may go on, and never beside the owner it has now.
    durability = Durability(on_store_error=choice)
    agent = Agent(works, RETRY, classifier=Says(), store=store, durability=durability)
    with pytest.raises(StaleWriter):
        await agent.run("task", run_id=RUN)
    assert await agent.recover(RUN) == "new"
    events = await store.read(RUN)
    check_journal(events)
    steps = [event.step.action for event in events if isinstance(event, StepRecorded)]
    assert steps == ["first", "new owner"]


async def test_a_silent_call_keeps_its_lease(store: Store) -> None:
    held: list[bool] = []

    async def works(task: str) -> str:
        for _ in range(8):
            await anyio.sleep(0.1)  # longer, all in all, than the lease lasts
        with pytest.raises(triage.errors.RunBusy):
            await store.claim(RUN, lease_s=1)
        held.append(True)
        return "kept"

    agent = Agent(works, RETRY, store=store, durability=Durability(lease_s=0.3))
    assert await agent.run("task", run_id=RUN) == "kept"
    assert held == [True]


async def test_a_cancelled_run_is_given_back_and_gone_on_with(store: Store) -> None:
    async def works(task: str, *, _triage_state: Any, update_state: Any) -> Any:
        if _triage_state is None:
            update_state({"done": 1})
            await anyio.sleep_forever()
        return _triage_state

    agent = Agent(works, RETRY, store=store)
    with anyio.move_on_after(0.3):
        await agent.run("task", run_id=RUN)
    info = await store.info(RUN)
    assert info is not None
    assert (info.status, info.lease_until, info.claims) == ("running", None, 0)
    (ended,) = await agent.recover_all()
    assert ended.result == {"done": 1}


# Modes --------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import anyio
import triage
from triage import Agent, Durability, Step

async def works(task, *, run, record_step):
    record_step(Step(action="one"))
    await anyio.sleep(0.2)
    if sys.argv[3] == "flush":
        await run.flush()
    os.kill(os.getpid(), signal.SIGKILL)

agent = Agent(works, store=sys.argv[1], durability=Durability(mode=sys.argv[2]), name="works")
anyio.run(lambda: agent.run("task"))
"""


@pytest.mark.parametrize(
    ("mode", "flush", "stored"),
    [
        ("step", "", ["RunStarted", "AttemptStarted", "StepRecorded"]),
        ("attempt", "", ["RunStarted", "AttemptStarted"]),
        ("attempt", "flush", ["RunStarted", "AttemptStarted", "StepRecorded"]),
        ("exit", "", []),
        ("exit", "flush", ["RunStarted", "AttemptStarted", "StepRecorded"]),
    ],
)
def test_what_a_mode_keeps_of_a_run_that_is_killed(
    mode: str, flush: str, stored: list[str], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    command = [sys.executable, "-c", KILLED, url, mode, flush]
    done = subprocess.run(command, check=False, cwd=Path(triage.__file__).parents[1], timeout=60)
    assert done.returncode == -signal.SIGKILL

    async def read() -> list[str]:
        store = SQLiteStore(str(tmp_path / "runs.db"))
        runs = await store.runs()
        events = await store.read(runs[0].run_id) if runs else []
        await store.close()
        return [type(event).__name__ for event in events]

    if stored or (tmp_path / "runs.db").exists():
        assert anyio.run(read) == stored


FORKED = """
import os, sys, time
import anyio
from triage import Agent, Durability

async def works(task):
    await anyio.sleep(0.1)
    if os.fork():
        os._exit(0)  # the owner is gone; its child works on runs of its own
    async def own(task):
        await anyio.sleep(1.5)
    child = Agent(own, store=sys.argv[1], durability=Durability(lease_s=0.3))
    import threading
    thread = threading.Thread(target=lambda: child.run_sync("child", run_id="child"))
    thread.start()
    thread.join()
    os._exit(0)

agent = Agent(works, store=sys.argv[1], durability=Durability(lease_s=0.3), name="works")
anyio.run(lambda: agent.run("task", run_id="run-1"))
"""


def test_a_forked_child_does_not_keep_the_lease_of_its_parents_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    root = Path(triage.__file__).parents[1]
    subprocess.run([sys.executable, "-c", FORKED, url], check=True, cwd=root, timeout=60)

    async def claim() -> int:
        store = SQLiteStore(str(tmp_path / "runs.db"))
        try:
            with anyio.fail_after(1):
                while True:
                    try:
                        return (await store.claim(RUN, lease_s=1)).epoch
                    except triage.errors.RunBusy:
                        await anyio.sleep(0.05)
        finally:
            await store.close()

    assert anyio.run(claim) == 1
