"""What durability costs: durable steps per second, bytes per step, what a resumption runs again.

    python -m bench.durable [--rounds 5] [--quick]

Ours and the other are measured in turn, and the median of the ratios counts. SQLite with
synchronous=FULL throughout, in the directory for temporary files.
"""

from __future__ import annotations

import argparse
import asyncio
import selectors
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import triage
from triage import Agent, Checks, Step
from triage.core import dumps
from triage.stores import SQLiteStore

from . import envs
from .bare import Bare

AGENTS, STEPS = 100, 100
"""Agents at once, and the steps of each."""
LENGTHS = (200, 2000)
"""Steps of a single run."""
CALLS = 500
"""Of a run whose calls happen once."""
PACED = 200
"""Steps that a heartbeat is measured beside."""
OUTPUT = "found " * 80
"""What each step holds: 480 characters."""
PEER = Path(__file__).resolve().parent / "peers" / "durable_triage_agent.py"


def step(at: int) -> Step:
    """One step as an agent records it."""
    return Step(action="search", tool_called="search", tool_input={"page": at}, tool_output=OUTPUT)


def stepping(store: SQLiteStore, steps: int, *, watch: bool = True) -> Agent[str]:
    """An agent that waits after each step until it is durable. watch: it is watched for loops."""

    async def agent(task: str, *, run: triage.Run) -> str:
        for at in range(steps):
            run.record_step(step(at))
            await run.flush()
        return task

    return Agent(agent, store=store, checks=Checks(watch=watch))


def recording(store: SQLiteStore, steps: int) -> Agent[str]:
    """The same without waiting: the steps are durable when the run ends, most of them long before."""

    async def agent(task: str, *, record_step: Callable[[Step], int]) -> str:
        for at in range(steps):
            record_step(step(at))
            await asyncio.sleep(0)
        return task

    return Agent(agent, store=store)


def paying(store: SQLiteStore, calls: int) -> Agent[str]:
    """An agent whose calls happen once: each is durable before it begins and after it ends."""

    @triage.tool(effect="once")
    async def pay(number: int) -> str:
        return f"receipt {number}"

    async def agent(task: str) -> str:
        for at in range(calls):
            await pay(at)
        return task

    return Agent(agent, store=store)


async def once(folder: Path) -> float:
    """Microseconds that the process works for a durable call with the effect `once`."""
    store = SQLiteStore(folder / "once.db")
    await store.open()
    await paying(store, 50).run("warm")
    began = time.process_time()
    await paying(store, CALLS).run("task")
    worked = time.process_time() - began
    await store.close()
    return worked / CALLS * 1e6


async def seconds(work: Callable[[], Awaitable[Any]]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


# The figures ---------------------------------------------------------------------------------------


async def crowd(folder: Path, *, watch: bool) -> float:
    """Durable steps per second of 100 agents at once, over those of the bare loop."""
    store = SQLiteStore(folder / "crowd.db")
    await store.open()
    agent = stepping(store, STEPS, watch=watch)
    await agent.run("warm")
    ours = await seconds(lambda: asyncio.gather(*(agent.run("task") for _ in range(AGENTS))))
    await store.close()

    bare = Bare(folder / "bare.db")
    await bare.add("warm", 0, "")

    async def one(number: int) -> None:
        for at in range(STEPS):
            event = triage.core.events.StepRecorded(
                f"run-{number}", at, time.time(), 1, at, step(at)
            )
            await bare.add(event.run_id, at, dumps(event))

    theirs = await seconds(lambda: asyncio.gather(*(one(number) for number in range(AGENTS))))
    bare.close()
    print(f"  ours {AGENTS * STEPS / ours:,.0f}/s, bare {AGENTS * STEPS / theirs:,.0f}/s")
    return theirs / ours


class Single(NamedTuple):
    """One run's durable steps a second. waiting: where each is waited for. size: of their file, in MB."""

    waiting: float
    ours: float
    theirs: float
    size: float


async def single(folder: Path, steps: int, peer: Path) -> Single:
    """One run of so many steps until all are durable, and triage-agent with its own store."""
    store = SQLiteStore(folder / "one.db")
    await store.open()
    ours = await seconds(lambda: recording(store, steps).run("task"))
    waiting = await seconds(lambda: stepping(store, steps).run("task"))
    await store.close()
    command = (peer, PEER, str(steps), str(folder / "peer.db"))
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    printed, _ = await process.communicate()
    size = (folder / "peer.db").stat().st_size / 2**20
    return Single(steps / waiting, steps / ours, steps / float(printed), size)


def singles(rounds: int, lengths: Iterable[int]) -> None:
    """Print the table of single runs."""
    peer = envs.ready("triage-agent")
    print("one run, durable steps a second, over triage-agent 1.0.1 (at least 50):")
    for steps in lengths:
        taken: list[Single] = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                taken.append(asyncio.run(single(Path(folder), steps, peer)))
        waiting, ours, theirs, size = (statistics.median(each) for each in zip(*taken, strict=True))
        print(f"  {steps:,} steps")
        print(f"    triage-agent: nothing is durable until the run ends   {theirs:7,.0f}/s")
        print(f"    ours: durable as soon as may be, all when the run ends {ours:7,.0f}/s", end="")
        print(f" {statistics.median(each.ours / each.theirs for each in taken):5.0f}x")
        print(
            f"    ours: each is durable before the next                 {waiting:7,.0f}/s", end=""
        )
        print(f" {statistics.median(each.waiting / each.theirs for each in taken):5.0f}x")
        print(f"    its file has {size:,.0f} MB")


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
    there = asyncio.create_task(reached.wait())
    await asyncio.wait((running, there), return_when=asyncio.FIRST_COMPLETED)
    there.cancel()
    running.cancel()
    await asyncio.wait((running,))
    ran.clear()
    await made.recover("r")
    await store.close()
    return len(ran)


async def beats(until: asyncio.Task[Any]) -> list[float]:
    """How late a heartbeat of 1 ms is each time, in seconds, until that is done."""
    delays: list[float] = []
    while not until.done():
        due = time.perf_counter() + 0.001
        await asyncio.sleep(0.001)
        delays.append(time.perf_counter() - due)
    return delays


async def late(folder: Path, rounds: int) -> tuple[float, float, float]:
    """How late the 99th of 100 beats is beside durable steps, beside a bare writer and beside nothing."""
    store = SQLiteStore(folder / "late.db")
    agent = stepping(store, PACED)
    await agent.run("warm")
    bare = Bare(folder / "bare.db")
    await bare.add("warm", 0, "")

    async def rows(number: int) -> None:
        for at in range(PACED):
            await bare.add(f"run-{number}", at, OUTPUT)

    delays: tuple[list[float], ...] = ([], [], [])
    for number in range(rounds):
        began = time.perf_counter()
        delays[0].extend(await beats(asyncio.create_task(agent.run("task"))))
        took = time.perf_counter() - began
        delays[1].extend(await beats(asyncio.create_task(rows(number))))
        delays[2].extend(await beats(asyncio.create_task(asyncio.sleep(took))))
    await store.close()
    bare.close()
    ours, written, alone = (statistics.quantiles(each, n=100)[98] for each in delays)
    return ours, written, alone


def lateness(rounds: int) -> float:
    """Print how late the heartbeat is; beside durable steps, over beside nothing.

    In a loop that waits with `select`: epoll rounds what is left of a wait up to a whole millisecond each
    time anything else wakes the loop, and that would be measured instead.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
        ) as runner,
    ):
        ours, written, alone = runner.run(late(Path(folder), rounds))
    print(f"  {ours * 1000:.2f} ms beside durable steps, {alone * 1000:.2f} ms beside nothing,")
    print(f"  {written * 1000:.2f} ms beside a bare writer thread")
    return ours / alone


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
        "--quick", action="store_true", help="no run of 2,000 steps beside triage-agent"
    )
    options = parser.parse_args()
    print(f"{AGENTS} agents at once, {STEPS} steps each, over a bare writer thread (at least 0.4):")
    print(f"{median(options.rounds, partial(crowd, watch=False)):.2f}")
    print("the same, watched for loops, which is more than the bare loop does:")
    print(f"{median(options.rounds, partial(crowd, watch=True)):.2f}")
    print("microseconds of the process for a durable call that happens once (at most 250):")
    print(f"{median(options.rounds, once):.0f}")
    singles(min(options.rounds, 3), LENGTHS[:1] if options.quick else LENGTHS)
    with tempfile.TemporaryDirectory() as folder:
        sizes = asyncio.run(bytes_per_step(Path(folder)))
        print("bytes per step in runs of 100, 1,000 and 10,000 steps (the same):")
        print(", ".join(f"{size:.0f}" for size in sizes))
        print("calls of 50 recorded ones that a resumption runs again (0):")
        print(asyncio.run(again(Path(folder))))
    print(f"a heartbeat of 1 ms beside {PACED} durable steps, over beside nothing (at most 3):")
    print(f"{lateness(4 * options.rounds):.2f}")


if __name__ == "__main__":
    main()
