"""Flip single bits of a SQLite file of runs, and see that no run is ever read wrongly.

    python -m bench.flips [--flips 2000] [--seed 1] [--as-large]

Each round takes a fresh copy of a file with finished, suspended and running runs, flips one bit anywhere in
it, opens it and asks for everything: each journal, each run's row, the lists, the tokens; then it starts a
run under an id that exists. What comes back is what was written, or StoreCorrupt or StoreUnavailable is
raised. Anything else is wrong: another journal, an empty one, UnknownRun, a second start. `--as-large`
leaves out the check of the whole file when it is opened, which files of more than 32 MB do not get.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio

import triage
from triage import Agent, FailurePolicy, Step, Suspend
from triage.core import StoreCorrupt, StoreUnavailable
from triage.stores import SQLiteStore, sqlite

RUNS = 24


async def worker(task: str, *, run: triage.Run) -> str:
    for number in range(3):
        run.record_step(Step(action=f"step {number}", tool_output={"task": task, "n": number}))
    run.update_state({"seen": task})
    if task.endswith("5"):
        raise LookupError("which one?")
    return f"done {task}"


async def fill(path: Path) -> dict[str, Any]:
    """Write the runs, and give what the store says of them."""
    store = SQLiteStore(path)
    policy = FailurePolicy(default=lambda _: Suspend("which one?"))
    agent = Agent(worker, policy, store=store)
    for number in range(RUNS):
        with suppress(triage.TriageError):
            await agent.run(f"task {number}", run_id=f"run-{number}")
    found = await everything(store)
    await store.close()
    return found


async def everything(store: SQLiteStore) -> dict[str, Any]:
    found: dict[str, Any] = {"list": await store.runs()}
    for number in range(RUNS):
        run_id = f"run-{number}"
        found[f"journal {run_id}"] = await store.read(run_id)
        found[f"row {run_id}"] = await store.info(run_id)
    return found


async def starts_again(path: Path, run_id: str) -> bool:
    """Whether a run whose id exists can be begun a second time."""
    began: list[str] = []

    async def second(task: str) -> str:
        began.append(task)
        return task

    store = SQLiteStore(path)
    try:
        await Agent(second, store=store).run("another task", run_id=run_id)
    except Exception:
        return bool(began)
    finally:
        await store.close()
    return bool(began)


async def flip(path: Path, bit: int, right: dict[str, Any], run_id: str) -> str:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))
    store = SQLiteStore(path)
    outcome = "unchanged"
    try:
        for name, expected in right.items():
            kind, _, run = name.partition(" ")
            try:
                found: Any
                if kind == "list":
                    found = await store.runs()
                elif kind == "journal":
                    found = await store.read(run)
                else:
                    found = await store.info(run)
            except (StoreCorrupt, StoreUnavailable):
                outcome = "refused"
                continue
            if found != expected:
                return f"WRONG {kind}"
    except triage.core.StoreError as error:
        return f"WRONG error {type(error).__name__}: {error}"
    finally:
        try:
            await store.close()
        except (StoreCorrupt, StoreUnavailable):
            outcome = "refused"
    if await starts_again(path, run_id):
        return "WRONG second start"
    return outcome


async def main(flips: int, seed: int, *, as_large: bool) -> int:
    if as_large:
        sqlite.CHECKED = 0
    draw = random.Random(seed)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.db"
        right = await fill(whole)
        size = whole.stat().st_size * 8
        for number in range(flips):
            copy = Path(folder) / f"{number}.db"
            shutil.copy(whole, copy)
            bit = draw.randrange(size)
            outcome = await flip(copy, bit, right, f"run-{draw.randrange(RUNS)}")
            if outcome.startswith("WRONG"):
                print(f"bit {bit}, page {bit // 8 // 4096 + 1}: {outcome}", file=sys.stderr)
            counts[outcome] += 1
            for ending in ("", "-wal", "-shm"):
                copy.with_name(f"{copy.name}{ending}").unlink(missing_ok=True)
    for outcome, count in counts.most_common():
        print(f"{count:6}  {outcome}")
    return int(any(outcome.startswith("WRONG") for outcome in counts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--as-large", action="store_true")
    arguments = parser.parse_args()
    sys.exit(anyio.run(partial(main, arguments.flips, arguments.seed, as_large=arguments.as_large)))
