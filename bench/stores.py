"""Durable appends a second, beside a bare loop that only commits in groups: `python -m bench.stores`.

Both run on asyncio, in one process, in turn; the ratio is the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec

from triage import Step
from triage.core import RunFinished, RunStarted, StepRecorded, StoreError
from triage.stores import Store, open_store

from .bare import Bare

POSTGRES = os.environ.get("TRIAGE_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
CROWDS = ((1, 1_500), (10, 400), (100, 100))
"""Agents at once, and steps of each."""
STEP = Step(
    action="search",
    tool_called="search",
    tool_input={"query": "flights to Rome", "limit": 3},
    tool_output="found it; " * 60,
)


async def bare(folder: Path, agents: int, steps: int) -> float:
    """Rows a second of a loop that only inserts and commits."""
    writer = Bare(folder / "bare.db")

    async def agent(run_id: str) -> None:
        for seq in range(steps):
            event = {
                "run": run_id,
                "seq": seq,
                "time": time.time(),
                "step": msgspec.structs.asdict(STEP),
            }
            await writer.add(run_id, seq, json.dumps(event))

    rate = await _rate([partial(agent, str(number)) for number in range(agents)], steps)
    writer.close()
    return rate


async def appends(store: Store, agents: int, steps: int) -> float:
    """Appends of one step a second, each awaited, with a lease."""
    runs = [uuid.uuid4().hex for _ in range(agents)]
    for run_id in runs:
        await store.append(run_id, [RunStarted(run_id, 0, 1.0, "agent", "t")], at=0, epoch=0)

    async def agent(run_id: str) -> None:
        for seq in range(1, steps + 1):
            event = StepRecorded(run_id, seq, time.time(), 1, seq - 1, STEP)
            await store.append(run_id, (event,), at=seq, epoch=0, lease_s=30.0)

    return await _rate([partial(agent, run_id) for run_id in runs], steps)


async def _rate(agents: list[Callable[[], Awaitable[None]]], steps: int) -> float:
    start = time.perf_counter()
    await asyncio.gather(*(agent() for agent in agents))
    return len(agents) * steps / (time.perf_counter() - start)


async def sqlite(rounds: int) -> None:
    """The ratio to the bare loop."""
    for agents, steps in CROWDS:
        pairs: list[tuple[float, float]] = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                without = await bare(Path(folder), agents, steps)
                store = open_store(f"sqlite:///{folder}/runs.db")
                pairs.append((await appends(store, agents, steps), without))
                await store.close()
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(mine / other for mine, other in pairs)
        print(
            f"sqlite, full {agents:5} agents {ours:8.0f}/s   bare {theirs:8.0f}/s   {ratio:5.2f}x"
        )


async def services() -> None:
    """Postgres, where it answers; what is written stays in a schema of its own."""
    try:
        store = open_store(f"{POSTGRES}?schema=bench")
        for agents, steps in CROWDS:
            rate = await appends(store, agents, steps)
            print(f"postgres     {agents:5} agents {rate:8.0f}/s")
        await store.close()
    except StoreError as error:
        print(f"postgres     {error}")


async def sizes() -> None:
    """Bytes of a file for each step of a run."""
    for steps in (100, 1_000, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            store = open_store(f"sqlite:///{folder}/runs.db")
            await appends(store, 1, steps)
            await store.close()
            size = (Path(folder) / "runs.db").stat().st_size
            print(f"sqlite       {steps:6} steps {size / steps:7.0f} bytes a step")


async def filled(runs: int, rounds: int, *, each: int = 2_000) -> None:
    """What a new run and an append cost in a file that holds so many runs, beside a fresh one."""

    async def fill(store: Store, count: int) -> None:
        for _ in range(count):
            run_id = uuid.uuid4().hex
            ended = RunFinished(run_id, 1, 2.0, "done", result="ok")
            await store.append(
                run_id, [RunStarted(run_id, 0, 1.0, "agent", "t"), ended], at=0, epoch=0
            )

    async def costs(store: Store) -> tuple[float, float]:
        run_ids = [uuid.uuid4().hex for _ in range(each)]
        began = time.process_time()
        for run_id in run_ids:
            started = RunStarted(run_id, 0, 1.0, "agent", "t")
            await store.append(run_id, [started], at=0, epoch=0, lease_s=30.0)
        between = time.process_time()
        for run_id in run_ids:
            event = StepRecorded(run_id, 1, 2.0, 1, 0, STEP)
            await store.append(run_id, [event], at=1, epoch=0, lease_s=30.0)
        return (between - began) / each, (time.process_time() - between) / each

    with tempfile.TemporaryDirectory() as folder:
        empty, full = (open_store(f"sqlite:///{folder}/{name}.db") for name in ("empty", "full"))
        await asyncio.gather(*(fill(full, runs // 500) for _ in range(500)))
        found = [(await costs(empty), await costs(full)) for _ in range(rounds)]
        for at, name in enumerate(("a new run", "an append")):
            fresh, old = (statistics.median(pair[side][at] for pair in found) for side in (0, 1))
            times = (
                f"{fresh * 1e6:5.0f} µs fresh   {old * 1e6:5.0f} µs filled   {old / fresh:5.2f}x"
            )
            print(f"sqlite, {runs:,} runs   {name:10} {times} of the process' CPU")
        await empty.close()
        await full.close()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.stores", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="pairs to take the median of")
    parser.add_argument(
        "--filled", type=int, metavar="RUNS", help="only: in a file of so many runs"
    )
    options = parser.parse_args()
    if options.filled is not None:
        asyncio.run(filled(options.filled, options.rounds))
        return
    asyncio.run(sqlite(options.rounds))
    asyncio.run(services())
    asyncio.run(sizes())


if __name__ == "__main__":
    main()
