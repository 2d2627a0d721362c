"""Kills plan-first runs at every point, has a fresh process go on, and checks what is left.

    python tests/plan_crash.py FOLDER [--every 1]

A point is before and after every write of the store, every effect, and every answer of the planner. The
first process is killed at the point, the second at another one, the third brings the run to its end. Prints
the numbers of runs and kills and what was wrong; exits with 1 if anything was.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import trio  # noqa: F401 - so that no child has to import it
from crash_child import LEASE_S, Deadly, Fuse, Outside, Place
from durable_runs import check_journal, in_doubt
from plan_runs import ANSWER, BAD, FIND, READ, Approval, capabilities, plan, state_of, step

import triage
from triage import Durability
from triage.errors import AlreadyResumed, TriageSuspendedError
from triage.plan import Orchestrator, Target, feedback  # noqa: F401 - imported before the fork
from triage.stores import Store, open_store

PLAN = plan(step("bill", "pay", cents=5), FIND, READ, step("bill2", "pay", cents=7), ANSWER)
EFFECTS = {"pay 5": 1, "pay 7": 1}


def made(store: Any, world: Outside) -> Orchestrator:
    """An orchestrator of a run with an invention, a transient failure and an approval."""
    fuse, place = world.fuse, world.place

    async def planner(request: Any) -> Any:
        fuse.point()
        place.note("plans", f"{request.version} {request.feedback[:20]}")
        answer = PLAN if "teleport" in request.feedback else BAD
        fuse.point()
        return answer

    def fails(name: str) -> None:
        if name == "read" and not place.noted("failed once"):
            place.note("failed once", "read")
            raise ConnectionError("the service is gone")

    registry = capabilities(world, fails, read={"retry": triage.strategies.Preset(3, FAST)})
    durability = Durability(lease_s=LEASE_S)
    return Orchestrator(
        registry, planner, approval=Approval(), store=store, durability=durability, name="crash"
    )


FAST = triage.strategies.Backoff(base=0.001, jitter=False)


def truth(world: Outside, question: str) -> Any:
    """What somebody who can look answers."""
    cents = 5 if '"cents": 5' in question else 7
    return triage.happened(cents) if world.done()[f"pay {cents}"] else triage.rerun()


async def drive(orchestrator: Orchestrator, run_id: str, world: Outside) -> Any:
    """Bring the run to its end from wherever it stands."""
    store, place = orchestrator.store, world.place
    token: str | None = None
    answer: Any = None
    while True:
        try:
            info = await store.info(run_id)
            if info is None:
                assert not world.done(), "an effect without a record"
                return await orchestrator.run("task", run_id=run_id)
            if info.status != "suspended":
                return await orchestrator.recover(run_id)
            if token is None:
                return await orchestrator.recover(run_id, force=True)
            return await orchestrator.resume(token, answer)
        except TriageSuspendedError as asked:
            token = asked.token
            answer = truth(world, asked.question) if in_doubt(asked) else triage.approve()
            if in_doubt(asked):
                place.note("doubts", asked.question)
        except AlreadyResumed:
            token = None


async def check(store: Store, run_id: str, world: Outside, result: Any) -> None:
    """What must hold of a run that was killed and has ended."""
    events = await store.read(run_id)
    check_journal(events)
    assert result == {"now": ["value of", "beam-1"]}, result
    paid = {name: count for name, count in world.done().items() if name.startswith("pay")}
    assert paid == EFFECTS, world.done()
    state = await state_of(store, run_id)
    assert state.ended is Target.END
    assert (state.replans, state.version) == (1, 1), state.decisions
    assert state.total_retries <= 1, state.decisions  # a failure may die with its process
    assert Counter(done.step.context_key for done in state.done) == Counter(
        step.context_key for step in PLAN.steps
    )


def child(path: str, run_id: str, place: Place, at: int) -> None:
    """All a process does before it is killed; at 0 it is not, and checks."""
    fuse = Fuse(at)
    world = Outside(place, fuse)

    async def main() -> None:
        store = open_store(path)
        deadly: Any = Deadly(store, fuse)
        result = await drive(made(deadly, world), run_id, world)
        if at == 0:
            await check(store, run_id, world, result)
            place.note("points", str(fuse.count))
            place.note("ended", run_id)
        await store.close()

    try:
        anyio.run(main, backend="trio" if run_id.endswith("t") else "asyncio")
    except BaseException:  # noqa: BLE001 - told to the parent, whatever it is
        place.note("failed", traceback.format_exc())


def forked(path: str, run_id: str, place: Place, at: int) -> bool:
    """Whether the process was killed."""
    pid = os.fork()
    if pid == 0:
        child(path, run_id, place, at)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def one(folder: Path, number: int, first: int, second: int) -> tuple[int, int, str]:
    """Kills, points of the whole, and what was wrong."""
    run_id = f"run-{number}-{'t' if number % 2 else 'a'}"
    place = Place(folder / run_id)
    place.folder.mkdir()
    path = f"sqlite:///{place.folder / 'runs.db'}"
    kills = sum(forked(path, run_id, place, at) for at in (first, second) if at)
    forked(path, run_id, place, 0)
    points = max([0, *map(int, place.noted("points"))])
    wrong = "\n".join(place.noted("failed"))
    return (
        kills,
        points,
        wrong or ("" if place.noted("ended") else "the last process came to no end"),
    )


def main() -> int:
    """Kill a run at each point; 1 if anything was lost or done twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="only every so-manieth point")
    options = parser.parse_args()
    _, points, wrong = one(options.folder, 0, 0, 0)
    found = [wrong] if wrong else []
    runs = kills = 0
    for at in range(1, points + 1, options.every):
        killed, _, wrong = one(options.folder, at, at, 1 + at * 7 % points if at % 3 == 0 else 0)
        runs, kills = runs + 1, kills + killed
        if wrong:
            found.append(f"killed at {at}: {wrong}")
    sys.stdout.write(f"{runs} runs, {points} points, {kills} kills, {len(found)} wrong\n")
    sys.stdout.write("".join(f"{text}\n" for text in found[:5]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
