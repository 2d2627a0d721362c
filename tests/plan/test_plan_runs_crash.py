"""Cut off or killed at any point, a plan-first run goes on in a fresh process and repeats nothing."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine.durable_runs import begun, check_journal, left_open
from store_kinds import Opened
from support import ENVIRONMENT, program

import triage
from triage import TriageSuspendedError
from triage.core import CallFinished, Event
from triage.plan import Approval, Capability, Orchestrator, Registry, Target
from triage.stores import MemoryStore, Store, open_store

from .runs import (
    ANSWER,
    BAD,
    FIND,
    READ,
    RESULT,
    Fails,
    Kept,
    Script,
    orchestrator,
    plan,
    state_of,
    step,
)

FOUND = re.compile(r"(\d+) runs, (\d+) points, (\d+) kills, (\d+) left, (\d+) wrong")
PLAN = plan(step("bill", "pay", cents=5), FIND, READ, step("bill2", "pay", cents=7), ANSWER)
RUN = "run-1"


def made(store: Store, world: Kept, *, fails: bool, planner: Script) -> Any:
    failing = Fails(read=ConnectionError("gone")) if fails else Fails()
    return orchestrator(planner, world, fails=failing, store=store, approval=Approval())


def planning() -> Script:
    """A planner that invents the same twice; it goes by its request alone, as after a crash."""
    return Script(lambda request: PLAN if request.entry >= 4 else BAD)


@pytest.mark.anyio
async def test_a_target_is_counted_in_the_store_before_it_is_entered(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path / 'runs.db'}"
    entered: list[Target | None] = []

    async def look() -> None:
        other = open_store(place)
        entered.append((await state_of(other, RUN)).at)
        await other.close()

    async def planner(_request: Any) -> Any:
        await look()
        return plan(step("x", "look"))

    planned = Orchestrator(
        Registry([Capability("look", "looks", look, effect="read")]), planner, store=place
    )
    await planned.run("task", run_id=RUN)
    await planned.store.close()
    assert entered == [Target.PLANNER, Target.STEP]


async def brought_to_its_end(orchestrator: Any, world: Kept, first: Any) -> Any:
    work = first
    while True:
        try:
            return await work()
        except TriageSuspendedError as asked:
            answer: Any = triage.approve()
            if asked.question.startswith("did pay"):
                cents = 5 if '"cents": 5' in asked.question else 7
                paid = world.done()[f"pay {cents}"]
                answer = triage.happened(cents) if paid else triage.rerun()
            work = partial(orchestrator.resume, asked.token, answer)


async def whole() -> list[Event]:
    store, world = MemoryStore(), Kept()
    run = made(store, world, fails=True, planner=planning())
    assert await brought_to_its_end(run, world, partial(run.run, "task", run_id=RUN)) == RESULT
    return await store.read(RUN)


@pytest.mark.anyio
@pytest.mark.parametrize(("kind", "anyio_backend"), [("memory", "asyncio"), ("sqlite", "trio")])
async def test_cut_off_after_any_event_it_ends_as_it_would_have(kind: str, tmp_path: Path) -> None:
    events = await whole()
    with Opened(kind, tmp_path) as opened:
        for length in range(1, len(events) + 1, 1 if kind == "memory" else 5):
            for happened in (True, False) if left_open(events[:length]) else (True,):
                store = opened.new()
                await cut(store, events[:length], happened=happened)
                await store.close()


async def cut(store: Store, prefix: Sequence[Event], *, happened: bool) -> None:
    """Go on after these events, in a world where the open payment has happened or has not."""
    lost = left_open(prefix)
    world = Kept([name for name in begun(prefix) if happened or name not in lost])
    failed = any(isinstance(e, CallFinished) and e.outcome == "failed" for e in prefix)
    await store.append(RUN, list(prefix), at=0, epoch=0)
    planner = planning()
    run = made(store, world, fails=not failed, planner=planner)
    again = partial(run.recover, RUN, force=True)
    where = (len(prefix), type(prefix[-1]).__name__)
    assert await brought_to_its_end(run, world, again) == RESULT, where
    found = await store.read(RUN)
    check_journal(found)
    assert found[: len(prefix)] == prefix
    done = world.done()
    assert (done["pay 5"], done["pay 7"]) == (1, 1), where
    state = await state_of(store, RUN)
    assert state.ended is Target.END
    assert (state.replans, state.version) == (2, 1), where
    assert state.total_retries <= 1, where
    made_before = sum(isinstance(e, CallFinished) and e.key.startswith("planner") for e in prefix)
    assert planner.count == 3 - made_before, where


@pytest.mark.timeout(240)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_killed_at_any_point_every_step_with_an_effect_happens_once(
    kind: str, tmp_path: Path
) -> None:
    with Opened(kind, tmp_path):  # skips, or fails, where it does not run
        pass
    command = program("plan.crash", str(tmp_path), "--store", kind, "--every", "12")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=200, env=ENVIRONMENT
    )
    found = FOUND.search(done.stdout)
    assert found is not None, done.stdout + done.stderr
    runs, points, kills, left, wrong = map(int, found.groups())
    assert wrong == 0, done.stdout
    assert points > 40
    # How many writes a run makes depends on what is stored together: the last point may not come.
    assert kills >= runs - 1 > points // 13 - 1
    assert left > runs // 3, "suspended in one process, answered in another"
