"""Play every harness that draws its cases, with new seeds, for an hour.

    python -m bench.fuzz [--minutes 60] [--seed 1] [--only programs …]

Each harness gets a share of the time. It is a command that plays one round from a seed, and starts again
with the next seed while time is left. A failed round is shown with the command that plays it again, and
the others go on. Two harnesses work at a time. Exits with 1 if a round failed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parents[1]
AT_A_TIME = 2
SHOWN_LINES = 40
"""Last lines shown of the output of a round that failed."""
PATHS = os.pathsep.join((str(HERE), str(HERE / "tests")))
EXAMPLES = "10"
"""How many times the usual number of examples a property draws in a round."""


@dataclass(frozen=True)
class Harness:
    """A harness. share: of the time. command: what plays a round, `{seed}` standing for its seed."""

    name: str
    share: float
    command: str


HARNESSES = (
    *(
        Harness(
            f"programs, {store}, {backend}",
            0.1,
            f"-m bench.programs --seconds 60 --store {store} --backend {backend} --seed {{seed}}00000",
        )
        for store in ("memory", "sqlite")
        for backend in ("asyncio", "trio")
    ),
    Harness("properties", 0.2, "-m pytest -m hypothesis --timeout 1800 --hypothesis-seed {seed}"),
    Harness("state machines", 0.2, "-m pytest -k machine --timeout 1800"),
    Harness("products", 0.1, "-m pytest -m products --timeout 1800"),
    Harness("kills", 0.1, "-m engine.crash_matrix --seconds 60 --kills 10000 --seed {seed}"),
    Harness("two that recover", 0.04, "-m bench.races --rounds 20"),
    Harness("flipped bits", 0.04, "-m bench.flips --flips 300 --seed {seed}"),
    Harness("crowds", 0.02, "-m bench.soak --runs 2000 --rounds 2 --seed {seed}"),
)


@dataclass
class Played:
    """What came of a harness: rounds played, and the commands of those that failed."""

    rounds: int = 0
    failed: list[str] = field(default_factory=list)


def play(harness: Harness, *, seconds: float, seed: int) -> Played:
    """Play rounds of a harness, at least one, until the time is over."""
    played = Played()
    until = time.monotonic() + seconds
    while not played.rounds or time.monotonic() < until:
        command = shlex.split(harness.command.format(seed=seed + played.rounds))
        done = subprocess.run(
            [sys.executable, *command],
            cwd=HERE,
            env={**os.environ, "TRIAGE_EXAMPLES": EXAMPLES, "PYTHONPATH": PATHS},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        played.rounds += 1
        if done.returncode:
            played.failed.append(f"python {shlex.join(command)}")
            shown = "\n".join(done.stdout.splitlines()[-SHOWN_LINES:])
            print(f"FAILED {played.failed[-1]}\n{shown}", flush=True)
    return played


def main(argv: Sequence[str] | None = None) -> int:
    """Play the harnesses as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[""])
    given = parser.parse_args(argv)
    chosen = [one for one in HARNESSES if one.name.startswith(tuple(given.only))]
    budget = given.minutes * 60 * AT_A_TIME / sum(one.share for one in chosen)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        playing = [
            (one, pool.submit(play, one, seconds=one.share * budget, seed=given.seed))
            for one in sorted(chosen, key=lambda one: -one.share)
        ]
    failed = 0
    for harness, done in playing:
        played = done.result()
        failed += len(played.failed)
        print(f"{harness.name}: {played.rounds} rounds, {len(played.failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
