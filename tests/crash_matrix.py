"""Kills runs at every point and at random instants, has them recovered, and checks what is left.

    python tests/crash_matrix.py [--store sqlite] [--kind paying] [--runs 2000] [--seconds 600] [--seed 1]

A run is killed before or after a write of its store or an effect, or at any time; the process that
recovers it is killed too, at each of its points in turn; a third one brings the run to its end and checks
it. Prints the numbers of runs, kills, doubts and losses; exits with 1 if anything was lost or done twice.
"""

from __future__ import annotations

import argparse
import importlib
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

import crash_child
import psycopg  # noqa: F401 - so that no child has to import it
import trio  # noqa: F401 - as above
from store_kinds import Opened

ANY_TIME = -1
"""Instead of a point: some instant."""
WARM = 4
"""So many runs that nobody kills, to know how many points there are, and how long a run takes."""


class Schedule(NamedTuple):
    """Where the first process is killed, and the second: a point, ANY_TIME, or 0 for nowhere."""

    first: int
    second: int


class Outcome(NamedTuple):
    """kills: how many of its processes died so. failed: what the checker said."""

    kills: int
    doubts: int
    failed: str


class Matrix:
    """Runs schedules, each on a run of its own."""

    def __init__(self, kind: str, opened: Opened, folder: Path, seed: int) -> None:
        self._kind = kind
        self._opened = opened
        self._folder = folder
        self._random = random.Random(seed)
        self._count = 0
        self._usual = 0.1

    def run(self, schedule: Schedule) -> Outcome:
        """One schedule, on asyncio and trio in turn."""
        self._count += 1
        run_id = f"run-{self._count}-{'t' if self._count % 2 else 'a'}"
        folder = self._folder / run_id
        folder.mkdir()
        store = self._opened.name if self._opened.kind == "postgres" else str(folder / "runs.db")
        kills = 0
        for at in schedule:
            if at:
                kills += self._process(store, run_id, folder, at)
        self._process(store, run_id, folder, 0)
        place = crash_child.Place(folder)
        doubts, failed = len(place.noted("doubts")), "\n".join(place.noted("failed"))
        if not place.noted("points") and not failed:
            failed = "the last process came to no end"
        self.points = max([0, *map(int, place.noted("points"))])
        for name in place.noted("modules"):
            with suppress(ImportError):
                importlib.import_module(name)  # so that the next child need not
        if not failed:
            shutil.rmtree(folder)
        return Outcome(kills, doubts, failed)

    def _process(self, store: str, run_id: str, folder: Path, at: int) -> bool:
        """Whether a process that works on the run was killed."""
        began = time.monotonic()
        child = os.fork()
        if not child:
            place = crash_child.Place(folder)
            fuse = crash_child.Fuse(max(0, at))
            try:
                made = self._opened.at(store)
                crash_child.works(self._kind, made, run_id, place, fuse, last=not at)
                for name in sys.modules if self._count <= WARM else ():
                    place.note("modules", name)
            except BaseException:
                place.note("failed", traceback.format_exc())
                os._exit(1)
            os._exit(0)
        if at == ANY_TIME:
            time.sleep(self._random.uniform(0, self._usual))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not at and not folder.joinpath("tokens").exists():
            self._usual = time.monotonic() - began
        return os.WIFSIGNALED(status)


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


def main() -> int:
    """Run the matrix; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--kind", choices=tuple(crash_child.KINDS), default="paying")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--whole", action="store_true", help="pairs of points in order")
    options = parser.parse_args()
    ends = time.monotonic() + options.seconds
    total: Counter[str] = Counter()
    # A kill loses nothing that was written, so a disk in memory shows the same in less time.
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="triage-crash-", dir=fast))
    with Opened(options.store, folder) as opened:
        opened.new()  # names the schema
        matrix = Matrix(options.kind, opened, folder, options.seed)
        for schedule in schedules(matrix, whole=options.whole, seed=options.seed):
            outcome = matrix.run(schedule)
            total.update(runs=1, kills=outcome.kills, doubts=outcome.doubts)
            if outcome.failed:
                total["losses"] += 1
                print(schedule, outcome.failed, sep="\n", file=sys.stderr)  # noqa: T201 - a program
            if total["runs"] >= options.runs or time.monotonic() > ends:
                break
    print(  # noqa: T201 - a program
        f"{options.store}, {options.kind}, seed {options.seed}: {total['runs']} runs, "
        f"{total['kills']} kills, {total['doubts']} in doubt, {total['losses']} lost or done twice"
    )
    if not total["losses"]:
        shutil.rmtree(folder)
    return int(bool(total["losses"]))


if __name__ == "__main__":
    sys.exit(main())
