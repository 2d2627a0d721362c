"""Who recovers: python -m bench.recovery [--only ours] [--kinds] [--tasks N] [--seed S] [--json FILE].

Exits with 1 where ours misses what is asked of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import envs

from .desk import UNDECLARED
from .kinds import LOOPS, SUBSTITUTES
from .play import homes

Line = dict[str, Any]
WORKERS = min(2, os.cpu_count() or 1)


@dataclass(frozen=True)
class Figures:
    """What one contestant comes to over some plays."""

    recoverable: int
    recovered: int
    left: int
    hopeless: int
    stopped: int
    healthy: int
    broken: int
    repeated: int
    wrong: int
    plays: int
    calls: int
    oracle: int
    wall_s: float
    heard_s: float | None

    @property
    def share(self) -> float:
        """Of the recoverable tasks those that came to the right result and the right orders.

        Those too that were rightly left to a person.
        """
        return self.recovered / max(1, self.recoverable)

    @property
    def cost(self) -> float:
        """Model calls over what an oracle needs, in the tasks that were recovered, loops apart."""
        return self.calls / max(1, self.oracle)


def figures(lines: Iterable[Line]) -> Figures:
    """Count."""
    lines = list(lines)
    groups = {
        name: [x for x in lines if x["group"] == name]
        for name in ("recoverable", "hopeless", "healthy")
    }
    done = [x for x in groups["recoverable"] if x["good"]]
    left = [x for x in done if x["status"] == "left"]
    priced = [x for x in done if x["kind"] not in LOOPS and x not in left]
    return Figures(
        recoverable=len(groups["recoverable"]),
        recovered=len(done),
        left=len(left),
        hopeless=len(groups["hopeless"]),
        stopped=sum(x["good"] for x in groups["hopeless"]),
        healthy=len(groups["healthy"]),
        broken=sum(not x["good"] for x in groups["healthy"]),
        repeated=sum(x["repeated"] for x in lines),
        wrong=sum(x["wrong"] for x in lines),
        plays=len(lines),
        calls=sum(x["answered"] for x in priced),
        oracle=sum(x["oracle"] for x in priced),
        wall_s=sum(x["wall_s"] for x in lines),
        heard_s=max(
            (x["heard_s"] for x in lines if x["kind"] in SUBSTITUTES and x["heard_s"] is not None),
            default=None,
        ),
    )


def missed(name: str, found: Figures) -> list[str]:
    """What is asked of each of ours, and not so."""
    if name in UNDECLARED:
        asks = [
            (found.share >= 0.95, f"recovers or leaves {found.share:.1%}, asked are 95 %"),
            (found.repeated == 0, f"repeats {found.repeated} effects"),
            (found.broken == 0, f"disturbs {found.broken} healthy tasks"),
        ]
        return [f"{name} {text}" for held, text in asks if not held]
    asks = [
        (found.share >= 0.93, f"recovers {found.share:.1%}, asked are 93 %"),
        (found.stopped == found.hopeless, f"stops {found.stopped} of {found.hopeless} hopeless"),
        (found.repeated == 0, f"repeats {found.repeated} effects"),
        (found.broken == 0, f"disturbs {found.broken} healthy tasks"),
        (found.wrong <= 0.01 * found.plays, f"returns {found.wrong} wrong results"),
        (
            found.heard_s is None or found.heard_s <= 25,
            f"lets the model hear of a broken tool after {found.heard_s} s",
        ),
        (found.cost <= 1.2, f"makes {found.cost:.2f} x the model calls of an oracle"),
    ]
    return [f"{name} {text}" for held, text in asks if not held]


def table(lines: list[Line]) -> str:
    """A row for each contestant."""
    head = (
        "| contestant | recovered | hopeless stopped | effects repeated | healthy disturbed "
        "| wrong results | model calls / oracle | wait before the model hears | ms a task |"
    )
    rows = [head, "|---|---|---|---|---|---|---|---|---|"]
    for name, found in by_contestant(lines):
        rows.append(
            f"| {name} | {found.share:.1%} ({found.recovered}/{found.recoverable}"
            f"{f', {found.left} left to a person' if found.left else ''}) "
            f"| {found.stopped}/{found.hopeless} | {found.repeated} | {found.broken}/{found.healthy} "
            f"| {found.wrong} ({found.wrong / max(1, found.plays):.1%}) | {found.cost:.2f} "
            f"| {'' if found.heard_s is None else f'{found.heard_s:g} s'} "
            f"| {1000 * found.wall_s / max(1, found.plays):.0f} |"
        )
    return "\n".join(rows)


def by_contestant(lines: list[Line]) -> Iterator[tuple[str, Figures]]:
    """The figures of those that played, in the order of the table."""
    for name in homes():
        mine = [line for line in lines if line["contestant"] == name]
        if mine:
            yield name, figures(mine)


def saved_by_retrying(lines: list[Line]) -> dict[str, tuple[int, int]]:
    """Of the tasks that blind retry saves with nothing bought twice, how many each saves by itself."""
    saved = {
        line["task"]
        for line in lines
        if line["contestant"] == "tenacity" and line["group"] == "recoverable" and line["good"]
    }
    return {
        name: (
            sum(
                line["good"] and line["status"] == "returned"
                for line in lines
                if line["contestant"] == name and line["task"] in saved
            ),
            len(saved),
        )
        for name, _ in by_contestant(lines)
        if saved and name in UNDECLARED
    }


def kinds_table(lines: list[Line]) -> str:
    """A row for each kind, a column for each contestant: how many went as they should."""
    names = [name for name, _ in by_contestant(lines)]
    rows = [f"| kind | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for group in ("recoverable", "hopeless", "healthy"):
        kinds = dict.fromkeys(line["kind"] for line in lines if line["group"] == group)
        for kind in kinds:
            cells = []
            for name in names:
                mine = [x for x in lines if x["contestant"] == name and x["kind"] == kind]
                cells.append(f"{sum(x['good'] for x in mine)}/{len(mine)}")
            rows.append(f"| {group}: {kind.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(rows)


def play(names: list[str], python: Path, wanted: dict[str, Any], workers: int) -> list[Line]:
    """Let the contestants play in processes of their own, each of which takes a part of the tasks."""
    script = Path(__file__).with_name("play.py")

    def one(part: int) -> list[Line]:
        asked = json.dumps({**wanted, "contestants": names, "part": [part, workers]})
        done = subprocess.run(
            [str(python), str(script), asked],
            stdout=subprocess.PIPE,
            check=True,
            cwd=script.parent,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    with ThreadPoolExecutor(workers) as pool:
        return [line for lines in pool.map(one, range(workers)) for line in lines]


def main(arguments: list[str] | None = None) -> int:
    """Play, print, and say by the exit code whether ours keeps to what is asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], help="contestants by the start of their name"
    )
    parser.add_argument("--kind", nargs="+", default=[], help="these kinds alone")
    parser.add_argument("--kinds", action="store_true", help="a table by kind as well")
    parser.add_argument("--tasks", type=int, default=0, help="about so many tasks, of all kinds")
    parser.add_argument("--seed", type=int, default=1, help="other data, places and seconds")
    parser.add_argument("--json", type=Path, help="a file for a line about each play")
    given = parser.parse_args(arguments)

    names = [n for n in homes() if not given.only or any(n.startswith(o) for o in given.only)]
    if "ours: run.model" in names and not _has_run_model():
        print("ours: run.model is left out: there is no run.model yet", file=sys.stderr)
        names.remove("ours: run.model")
    wanted = {"seed": given.seed, "kinds": given.kind, "tasks": given.tasks}
    here = [n for n in names if n != "triage-agent"]
    began, lines = time.perf_counter(), []
    if here:
        lines += play(here, Path(sys.executable), wanted, WORKERS)
    if "triage-agent" in names:
        lines += play(["triage-agent"], envs.ready("recovery-peer"), wanted, WORKERS)
    if given.json:
        given.json.write_text("".join(json.dumps(x) + "\n" for x in lines), encoding="utf-8")

    counts = {group: len({x["task"] for x in lines if x["group"] == group})
              for group in ("recoverable", "hopeless", "healthy")}  # fmt: skip
    kinds = len({x["kind"] for x in lines if x["group"] == "recoverable"})
    print(f"{counts} of {kinds} kinds of failure, {time.perf_counter() - began:.0f} s\n")
    print(table(lines))
    if given.kinds:
        print("\n" + kinds_table(lines))
    ours = [
        (n, found) for n, found in by_contestant(lines) if n.startswith("ours") or n in UNDECLARED
    ]
    faults = [fault for name, found in ours for fault in missed(name, found)]
    print()
    for name, (saved, savable) in saved_by_retrying(lines).items():
        print(f"of {savable} tasks that blind retry saves, {name} saves {saved}")
        if saved < 0.97 * savable:
            faults.append(
                f"{name} saves {saved / savable:.1%} of what retrying saves, asked are 97 %"
            )
    shares = [found.share for name, found in ours if name not in UNDECLARED]
    if shares and max(shares) - min(shares) > 0.02:
        faults.append(f"ours are {100 * (max(shares) - min(shares)):.1f} points apart")
    if ours:
        print("\n" + ("\n".join(f"missed: {fault}" for fault in faults) or "nothing is missed"))
    return 1 if faults else 0


def _has_run_model() -> bool:
    import triage

    return hasattr(triage.Run, "model")


if __name__ == "__main__":
    sys.exit(main())
