"""Kills plan-first runs at every point, has a fresh process go on, and checks what is left.

    PYTHONPATH=tests python -m plan.crash FOLDER [--store sqlite] [--every 1] [--whole]

A point is before and after every write of the store, every effect, and every answer of the planner. One
process is killed at the point, one after it at another, and more bring the run to its end. In every other
pair of runs a process leaves where the run is suspended, and what was asked is answered to another one:
by the token, or at the store. At each point one of these four kinds of run is killed, with --whole all of
them. Prints the numbers of runs, kills and processes that left, and what was wrong; exits with 1 if
anything was.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import psycopg  # noqa: F401 - so that no child has to import it
import trio  # noqa: F401 - as above
from engine.crash_child import Deadly, Fuse, Outside, Place
from engine.durable_runs import check_journal, in_doubt
from store_kinds import Opened

import triage
from triage import Durability
from triage.core import AlreadyResumed, RunBusy, TriageSuspendedError
from triage.plan import Orchestrator, Target, answer_in, feedback  # noqa: F401 - imported before the fork
from triage.stores import Store

from .runs import ANSWER, BAD, FIND, READ, Approval, capabilities, plan, state_of, step

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
    durability = Durability(lease_s=0.5)
    return Orchestrator(
        registry, planner, approval=Approval(), store=store, durability=durability, name="crash"
    )


FAST = triage.strategies.Backoff(base=0.001, jitter=False)


def truth(world: Outside, question: str) -> Any:
    """What somebody who can look answers."""
    cents = 5 if '"cents": 5' in question else 7
    return triage.happened(cents) if world.done()[f"pay {cents}"] else triage.rerun()


async def drive(orchestrator: Orchestrator, run_id: str, world: Outside, *, leaves: bool) -> Any:
    """Bring the run to its end from wherever it stands; LEFT where a process that leaves is asked."""
    store, place = orchestrator.store, world.place
    token, question, busy = "", "", False
    if leaves and (tokens := place.noted("tokens")):
        token, question = tokens[-1].split(" ", 1)
    while True:
        try:
            info = await store.info(run_id)
            if info is None:
                assert not world.done(), "an effect without a record"
                return await orchestrator.run("task", run_id=run_id)
            if info.status != "suspended":
                return await orchestrator.recover(run_id)
            asking = await orchestrator.asked(run_id)
            approval = asking is not None and asking.not_begun
            if leaves and approval and run_id.endswith("t") and not busy:
                await answer_in(store, run_id, triage.approve(), by="ann")
                return await orchestrator.recover(run_id)
            if not token:
                return await orchestrator.recover(run_id, force=True)
            doubt = question.startswith("did ")
            answer = truth(world, question) if doubt else triage.approve()
            return await orchestrator.resume(token, answer)
        except TriageSuspendedError as asked:
            token, question = asked.token, asked.question
            place.note("tokens", f"{token} {question}")
            if in_doubt(asked):
                place.note("doubts", question)
            if leaves:
                return LEFT
        except AlreadyResumed:
            token = ""
        except RunBusy:  # a process died while it answered: its lease is not waited for
            token, busy = "", True


LEFT = object()


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


def child(store: Store, run_id: str, place: Place, at: int, *, leaves: bool) -> None:
    """All a process does before it is killed or leaves; at 0 it is not killed. The last one checks."""
    fuse = Fuse(at)
    world = Outside(place, fuse)

    async def main() -> None:
        deadly: Any = Deadly(store, fuse)
        result = await drive(made(deadly, world), run_id, world, leaves=leaves)
        if result is LEFT:
            place.note("left", str(fuse.count))
        else:
            await check(store, run_id, world, result)
            place.note("points", str(fuse.count))
        await store.close()

    try:
        anyio.run(main, backend="trio" if run_id.endswith("t") else "asyncio")
    except BaseException:
        place.note("failed", traceback.format_exc())


class Outcome(NamedTuple):
    """kills: processes that were killed. left: that left a suspended run. points: of the last one."""

    kills: int
    left: int
    points: int
    wrong: str


class Crashes:
    """Runs that are killed, in one kind of store."""

    def __init__(self, opened: Opened, folder: Path) -> None:
        self._opened = opened
        self._folder = folder

    def one(self, number: int, first: int, second: int) -> Outcome:
        """One run: killed at the first point of all its processes, and then at the second of the rest."""
        run_id = f"run-{number}-{'t' if number % 2 else 'a'}"
        place = Place(self._folder / run_id)
        place.folder.mkdir()
        leaves = number % 4 > 1
        due = [at for at in (first, second) if at]
        kills = since = 0
        for _ in range(MOST):
            at = due[0] - since if due else 0
            left = len(place.noted("left"))
            if self._killed(run_id, place, max(0, at), leaves=leaves):
                kills, since = kills + 1, 0
                due.pop(0)
            elif len(place.noted("left")) > left:
                since += int(place.noted("left")[-1])
                due = due if since < sum(due[:1]) else []
            else:
                break
        points, wrong = place.noted("points"), "\n".join(place.noted("failed"))
        if not points and not wrong:
            wrong = "it came to no end"
        left = len(place.noted("left"))
        return Outcome(kills, left, int(points[-1]) if points else 0, wrong)

    def _killed(self, run_id: str, place: Place, at: int, *, leaves: bool) -> bool:
        """Whether a process that works on the run was killed."""
        postgres = self._opened.kind == "postgres"
        name = self._opened.name if postgres else str(place.folder / "runs.db")
        pid = os.fork()
        if pid == 0:
            child(self._opened.at(name), run_id, place, at, leaves=leaves)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        return os.WIFSIGNALED(status)


MOST = 12
"""More processes than any run needs."""


def main() -> int:
    """Kill a run at each point; 1 if anything was lost or done twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--every", type=int, default=1, help="only every so-manieth point")
    parser.add_argument("--whole", action="store_true", help="each point in all four kinds of run")
    options = parser.parse_args()
    with Opened(options.store, options.folder) as opened:
        if options.store == "postgres":
            opened.new()  # names the schema
        crashes = Crashes(opened, options.folder)
        whole = crashes.one(0, 0, 0)
        found = [whole.wrong] if whole.wrong else []
        total: Counter[str] = Counter()
        points = range(1, whole.points + 1, options.every)
        often = 4 if options.whole else 1
        for number, at in enumerate((at for at in points for _ in range(often)), 1):
            second = 1 + at * 7 % whole.points if at % 3 == 0 else 0
            outcome = crashes.one(number, at, second)
            total.update(runs=1, kills=outcome.kills, left=outcome.left)
            if outcome.wrong:
                found.append(f"killed at {at}: {outcome.wrong}")
    sys.stdout.write(
        f"{total['runs']} runs, {whole.points} points, {total['kills']} kills, {total['left']} left, "
        f"{len(found)} wrong\n"
    )
    sys.stdout.write("".join(f"{text}\n" for text in found[:5]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
