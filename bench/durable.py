"""What durability costs: durable steps per second, bytes per step, what a resumption runs again.

    python -m bench.durable [--rounds 5] [--quick]

Each figure is the median of the rounds, ours and the other measured in turn. SQLite with synchronous=FULL
throughout, in the directory for temporary files.
"""

from __future__ import annotations

import argparse
import asyncio
import queue
import sqlite3
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import triage
from triage import Agent, Step
from triage.stores import SQLiteStore, dumps

from . import envs

AGENTS, STEPS = 100, 20
OUTPUT = "found " * 80
"""What each step holds: 480 characters."""
PEER = Path(__file__).resolve().parent / "peers" / "durable_triage_agent.py"


def step(at: int) -> Step:
    """One step as an agent records it."""
    return Step(action="search", tool_called="search", tool_input={"page": at}, tool_output=OUTPUT)


def stepping(store: SQLiteStore, steps: int) -> Agent[str]:
    """An agent that waits after each step until it is durable."""

    async def agent(task: str, *, run: triage.Run) -> str:
        for at in range(steps):
            run.record_step(step(at))
            await run.flush()
        return task

    return Agent(agent, store=store)


def recording(store: SQLiteStore, steps: int) -> Agent[str]:
    """The same without waiting: the steps are durable when the run ends, most of them long before."""

    async def agent(task: str, *, record_step: Callable[[Step], int]) -> str:
        for at in range(steps):
            record_step(step(at))
            await asyncio.sleep(0)
        return task

    return Agent(agent, store=store)


async def seconds(work: Callable[[], Awaitable[Any]]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


# A bare loop ---------------------------------------------------------------------------------------


class Bare:
    """A writer thread that commits whatever has been put meanwhile, and nothing else."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows: queue.SimpleQueue[tuple[str, int, str, asyncio.Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    async def add(self, run_id: str, seq: int, body: str) -> None:
        """Return once the row is durable."""
        done = asyncio.get_running_loop().create_future()
        self._rows.put((run_id, seq, body, done))
        await done

    def close(self) -> None:
        """End the thread."""
        self._rows.put(None)
        self._thread.join()

    def _write(self) -> None:
        db = sqlite3.connect(self._file, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE events (run TEXT, seq INT, body TEXT, PRIMARY KEY (run, seq))")
        while (row := self._rows.get()) is not None:
            rows = [row]
            while not self._rows.empty() and (more := self._rows.get()) is not None:
                rows.append(more)
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO events VALUES (?, ?, ?)", [each[:3] for each in rows])
            db.execute("COMMIT")
            futures = [each[3] for each in rows]
            rows[0][3].get_loop().call_soon_threadsafe(_tell, futures)
        db.close()


def _tell(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


# The figures ---------------------------------------------------------------------------------------


async def crowd(folder: Path) -> float:
    """Durable steps per second of 100 agents at once, over those of the bare loop."""
    store = SQLiteStore(folder / "crowd.db")
    await store.open()
    agent = stepping(store, STEPS)
    ours = await seconds(lambda: asyncio.gather(*(agent.run("task") for _ in range(AGENTS))))
    await store.close()

    bare = Bare(folder / "bare.db")
    await bare.add("warm", 0, "")

    async def one(number: int) -> None:
        for at in range(STEPS):
            event = triage.events.StepRecorded(f"run-{number}", at, time.time(), 1, at, step(at))
            await bare.add(event.run_id, at, dumps(event))

    theirs = await seconds(lambda: asyncio.gather(*(one(number) for number in range(AGENTS))))
    bare.close()
    print(f"  ours {AGENTS * STEPS / ours:,.0f}/s, bare {AGENTS * STEPS / theirs:,.0f}/s")
    return theirs / ours


async def single(folder: Path, steps: int, peer: Path) -> float:
    """Steps per second of one run until all are durable, over triage-agent with its own store."""
    store = SQLiteStore(folder / "one.db")
    await store.open()
    ours = await seconds(lambda: recording(store, steps).run("task"))
    each = await seconds(lambda: stepping(store, steps // 4).run("task"))
    await store.close()
    command = (peer, PEER, str(steps), str(folder / "peer.db"))
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    printed, _ = await process.communicate()
    theirs = float(printed)
    size = (folder / "peer.db").stat().st_size / 2**20
    print(
        f"  ours {steps / ours:,.0f}/s, and {steps // 4 / each:,.0f}/s where each step is waited for;"
    )
    print(f"  triage-agent {steps / theirs:,.0f}/s and {size:,.0f} MB")
    return theirs / ours


async def bytes_per_step(folder: Path) -> list[float]:
    """What a step takes in the file, of runs of 100, 1,000 and 10,000 steps."""
    found: list[float] = []
    empty = 0
    for steps in (0, 100, 1000, 10_000):
        file = folder / f"{steps}.db"
        store = SQLiteStore(file)
        await stepping(store, steps).run("task")
        await store.close()
        size = file.stat().st_size
        if steps:
            found.append((size - empty) / steps)
        else:
            empty = size
    return found


async def again(folder: Path) -> int:
    """How many of 50 recorded calls a resumption runs again."""
    ran: list[int] = []
    reached = asyncio.Event()

    @triage.tool(effect="read")
    async def look(number: int) -> int:
        ran.append(number)
        return number

    async def agent(task: str) -> str:
        for number in range(50):
            await look(number)
        if not reached.is_set():
            reached.set()
            await asyncio.sleep(60)
        return task

    store = SQLiteStore(folder / "again.db")
    made = Agent(agent, store=store)
    running = asyncio.create_task(made.run("task", run_id="r"))
    await reached.wait()
    running.cancel()
    await asyncio.wait((running,))
    ran.clear()
    await made.recover("r")
    await store.close()
    return len(ran)


async def late(folder: Path) -> float:
    """How late a heartbeat of 1 ms is beside 200 durable steps, over beside none (99th percentile)."""

    async def beats(until: asyncio.Task[Any]) -> float:
        delays: list[float] = []
        while not until.done():
            due = time.perf_counter() + 0.001
            await asyncio.sleep(0.001)
            delays.append(time.perf_counter() - due)
        return statistics.quantiles(delays, n=100)[98]

    store = SQLiteStore(folder / "late.db")
    await store.open()
    began = time.perf_counter()

    async def paced() -> None:
        await stepping(store, 200).run("task")

    beside = await beats(asyncio.create_task(paced()))
    took = time.perf_counter() - began
    await store.close()
    alone = await beats(asyncio.create_task(asyncio.sleep(max(took, 0.3))))
    print(f"  {beside * 1000:.2f} ms beside, {alone * 1000:.2f} ms alone")
    return beside / alone


def median(rounds: int, figure: Callable[[Path], Awaitable[float]]) -> float:
    """Of a figure that is taken so often, each time in a folder of its own."""
    taken: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:

            async def take(path: Path = Path(folder)) -> float:
                return await figure(path)

            taken.append(asyncio.run(take()))
    return statistics.median(taken)


def main() -> None:
    """Print the figures, and beside each what is promised."""
    parser = argparse.ArgumentParser(prog="python -m bench.durable", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="500 steps beside triage-agent, not 2,000"
    )
    options = parser.parse_args()
    steps = 500 if options.quick else 2000
    peer = envs.ready("triage-agent")
    print(f"{AGENTS} agents at once, over a bare writer thread (at least 0.6):")
    print(f"{median(options.rounds, crowd):.2f}")
    print(f"one run of {steps:,} steps, over triage-agent 1.0.1 (at least 50):")
    print(f"{median(min(options.rounds, 3), lambda folder: single(folder, steps, peer)):.0f}")
    with tempfile.TemporaryDirectory() as folder:
        sizes = asyncio.run(bytes_per_step(Path(folder)))
        print("bytes per step in runs of 100, 1,000 and 10,000 steps (the same):")
        print(", ".join(f"{size:.0f}" for size in sizes))
        print("calls of 50 recorded ones that a resumption runs again (0):")
        print(asyncio.run(again(Path(folder))))
    print("a heartbeat of 1 ms beside 200 durable steps, over beside none (at most 3):")
    print(f"{median(options.rounds, late):.2f}")


if __name__ == "__main__":
    main()
