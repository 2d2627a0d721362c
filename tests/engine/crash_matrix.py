"""Kills runs at every point and at random instants, has them recovered, and checks what is left.

    PYTHONPATH=tests python -m engine.crash_matrix [--stores sqlite postgres] [--kinds answering nested …]
        [--kills 10000] [--runs 2000] [--seconds 600] [--seed 1] [--whole]

A run is killed before or after a write of its store or an effect, or at any time; the process that
recovers it is killed too, at each of its points in turn; a third one brings the run to its end and checks
it. Every kind of run takes its turn in every store. `--kills`, `--runs` and `--seconds` are bounds for all
stores together, of which each gets an equal share.

The last line is JSON: kills (processes that were killed), lost (runs of which an effect or something that
was acknowledged is missing), repeated (an effect happened twice), stuck (a run came to no right end),
questions (calls in doubt that a person was asked about), runs, seconds and the seed. Exits with 1 if
anything was lost, repeated or stuck.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psycopg  # noqa: F401 - so that no child has to import it
import trio  # noqa: F401 - as above
from store_kinds import DURABLE, Opened

from engine import crash_child

ANY_TIME = -1
"""Instead of a point: some instant."""
WARM = 4
"""So many runs that nobody kills, to know how many points there are, and how long a run takes."""
STUCK_S = 120
"""Seconds after which a process is ended that comes to no end by itself."""


class Schedule(NamedTuple):
    """Where the first process is killed, and the second: a point, ANY_TIME, or 0 for nowhere."""

    first: int
    second: int


class Outcome(NamedTuple):
    """kills: how many of its processes died so. wrong: `lost`, `repeated`, `stuck` or nothing. why: what
    the checker said.
    """

    kills: int
    questions: int
    wrong: str
    why: str


class Matrix:
    """Runs schedules of a kind of run in a store, each on a run of its own."""

    def __init__(self, kind: str, opened: Opened, folder: Path, seed: int) -> None:
        self._kind = kind
        self._opened = opened
        self._folder = folder / f"{opened.kind}-{kind.replace(' ', '-')}"
        self._folder.mkdir()
        self._random = random.Random(seed)
        self._count = 0
        self._usual = 0.1

    def run(self, schedule: Schedule) -> Outcome:
        """One schedule, on asyncio and trio in turn."""
        self._count += 1
        name = f"{self._kind.replace(' ', '-')}-{self._count}"
        run_id = f"{name}-{'t' if self._count % 2 else 'a'}"
        folder = self._folder / run_id
        folder.mkdir()
        shared = self._opened.kind != "sqlite"
        store = self._opened.name if shared else str(folder / "runs.db")
        kills = sum(self._process(store, run_id, folder, at) for at in schedule if at)
        self._process(store, run_id, folder, 0)
        place = crash_child.Place(folder)
        questions = len(place.noted("doubts"))
        why = "\n".join(place.noted("failed"))
        if not place.noted("points") and not why:
            why = "the last process came to no end"
        wrong = ""
        if why:
            raised = why.splitlines()[-1]
            kinds = {"engine.crash_child.Lost": "lost", "engine.crash_child.Repeated": "repeated"}
            wrong = kinds.get(raised.partition(":")[0], "stuck")
        self.points = max([0, *map(int, place.noted("points"))])
        for module in place.noted("modules"):
            with suppress(ImportError):
                importlib.import_module(module)  # so that the next child need not
        if not wrong:
            shutil.rmtree(folder)
        return Outcome(kills, questions, wrong, why)

    def _process(self, store: str, run_id: str, folder: Path, at: int) -> bool:
        """Whether a process that works on the run was killed."""
        began = time.monotonic()
        child = os.fork()
        if not child:
            signal.alarm(STUCK_S)
            place = crash_child.Place(folder)
            fuse = crash_child.Fuse(max(0, at))
            try:
                made = self._opened.at(store)
                crash_child.works(self._kind, made, run_id, place, fuse, last=not at)
                for name in sys.modules if self._count <= WARM else ():
                    place.note("modules", name)
            except BaseException:
                place.note("failed", traceback.format_exc().rstrip())
                os._exit(1)
            os._exit(0)
        if at == ANY_TIME:
            time.sleep(self._random.uniform(0, self._usual))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not at and not folder.joinpath("tokens").exists():
            self._usual = time.monotonic() - began
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def schedules(matrix: Matrix, *, whole: bool, seed: int) -> Iterator[Schedule]:
    """All points, then pairs of points, and random instants between them; without an end.

    whole: pairs in order, so that none is left out; else drawn.
    """
    for _ in range(WARM):
        matrix.run(Schedule(0, 0))
    points = matrix.points
    draw = random.Random(seed)
    for first in range(1, points + 1):
        yield Schedule(first, 0)
        yield Schedule(ANY_TIME, 0)
    pairs = [(first, second) for first in range(1, points + 1) for second in range(1, points + 1)]
    while True:
        if not whole:
            draw.shuffle(pairs)
        for first, second in pairs:
            yield Schedule(first, second)
            if draw.random() < 0.3:
                yield Schedule(ANY_TIME, draw.choice((ANY_TIME, second)))


class Bounds(NamedTuple):
    """How much is done in each store."""

    kills: float
    runs: float
    seconds: float


def tried(
    kind: str, kinds: list[str], folder: Path, bounds: Bounds, seed: int, *, whole: bool
) -> Counter[str]:
    """What has come of runs of these kinds, in turn, in one store."""
    total: Counter[str] = Counter()
    ends = time.monotonic() + bounds.seconds
    with Opened(kind, folder) as opened:
        opened.new()  # names the schema, or the prefix
        matrices = [Matrix(each, opened, folder, seed) for each in kinds]
        turns = [(matrix, schedules(matrix, whole=whole, seed=seed)) for matrix in matrices]
        while True:
            for matrix, turn in turns:
                done = total["kills"] >= bounds.kills or total["runs"] >= bounds.runs
                if done or time.monotonic() > ends:
                    return total
                schedule = next(turn)
                outcome = matrix.run(schedule)
                total.update(runs=1, kills=outcome.kills, questions=outcome.questions)
                if outcome.wrong:
                    total[outcome.wrong] += 1
                    print(kind, schedule, outcome.why, sep="\n", file=sys.stderr)  # noqa: T201 - a program


def main() -> int:
    """Run the matrix; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--stores", nargs="+", choices=DURABLE, default=DURABLE)
    kinds = tuple(crash_child.KINDS)
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--kills", type=int, default=math.inf)
    parser.add_argument("--runs", type=int, default=math.inf)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--whole", action="store_true", help="pairs of points in order")
    options = parser.parse_args()
    logging.disable()
    share = len(options.stores)
    bounds = Bounds(options.kills / share, options.runs / share, options.seconds / share)
    total: Counter[str] = Counter()
    began = time.monotonic()
    # A kill loses nothing that was written, so a disk in memory shows the same in less time.
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="triage-crash-", dir=fast))
    for store in options.stores:
        found = tried(store, options.kinds, folder, bounds, options.seed, whole=options.whole)
        print(f"{store}: {dict(found)}", file=sys.stderr)  # noqa: T201 - a program
        total.update(found)
    counted = {
        name: total[name] for name in ("kills", "lost", "repeated", "stuck", "questions", "runs")
    }
    took = round(time.monotonic() - began, 1)
    print(json.dumps({**counted, "seconds": took, "seed": options.seed}))  # noqa: T201 - a program
    wrong = total["lost"] + total["repeated"] + total["stuck"]
    if not wrong:
        shutil.rmtree(folder)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
