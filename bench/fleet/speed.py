"""Compare the speed of a fleet with plain DBOS: `python -m bench.fleet.speed`.

Each run makes two calls with one effect each, on one worker. Measured are the runs per second and the time
from enqueueing a run to its first effect. Both have the same queue, and wait only for their database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer

import triage
from triage import Agent
from triage.adapters import dbos
from triage.adapters.fleet import Queue, Worker

from .storm import database
from .world import World

WORKERS = 20
"""How many runs the worker executes at once."""
POLL_S = 0.2


class Side:
    """One side of the comparison, on a database of its own."""

    def __init__(self, store: str, world: World) -> None:
        self.store = store
        self.world = world

    async def prepare(self) -> None:
        """Create the tables."""

    async def enqueue(self, name: str) -> None:
        """Enqueue a run."""

    async def work(self) -> None:
        """Work until the process ends."""


class Ours(Side):
    """A fleet of triage on DBOS."""

    def __init__(self, store: str, world: World) -> None:
        super().__init__(store, world)

        @triage.tool(effect="once")
        async def pay(key: str) -> str:
            world.do(key)
            return key

        async def desk(task: str) -> list[str]:
            return [await pay(f"{task}/0"), await pay(f"{task}/1")]

        queue = Queue("desk", worker_concurrency=WORKERS, polling_s=POLL_S)
        options: dict[str, Any] = {"queues": [queue]}
        self.fleet = dbos.Fleet([Agent(desk, name="desk")], store, **options)

    async def prepare(self) -> None:
        await self.fleet.migrate()

    async def enqueue(self, name: str) -> None:
        await self.fleet.enqueue("desk", name, run_id=name)

    async def work(self) -> None:
        await Worker(self.fleet).run()


class PlainDBOS(Side):
    """Plain DBOS, with each call as a step."""

    async def prepare(self) -> None:
        await asyncio.to_thread(DBOS.migrate, self.store)
        self.client = DBOSClient(
            system_database_url=self.store,
            serializer=DBOSPortableJSONSerializer(),
            application_name="plain",
        )
        await self.client.register_queue_async(
            "desk", worker_concurrency=WORKERS, polling_interval_sec=POLL_S
        )

    async def enqueue(self, name: str) -> None:
        await self.client.enqueue_async(
            {
                "workflow_name": "desk",
                "queue_name": "desk",
                "workflow_id": name,
                "app_version": "1",
            },
            name,
        )

    async def work(self) -> None:
        DBOS(
            config={
                "name": "plain",
                "system_database_url": self.store,
                "application_version": "1",
                "executor_id": "plain",
                "serializer": DBOSPortableJSONSerializer(),
                "log_level": "WARNING",
            }
        )

        @DBOS.step()
        async def pay(key: str) -> str:
            self.world.do(key)
            return key

        @DBOS.workflow(name="desk")
        async def desk(task: str) -> list[str]:
            return [await pay(f"{task}/0"), await pay(f"{task}/1")]

        DBOS.launch()
        await asyncio.Event().wait()


SIDES: dict[str, type[Side]] = {"triage": Ours, "plain": PlainDBOS}


@asynccontextmanager
async def worker(side: str, store: str, effects: str) -> AsyncGenerator[Process]:
    """Run a worker in a process of its own while the context is open."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.fleet.speed",
        "--work",
        side,
        store,
        effects,
        env={**os.environ},
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def measured(side: str, runs: int, single: int) -> dict[str, float]:
    """Return the runs per second, and the median seconds until a single run begins.

    runs: how many are enqueued for the rate. single: how many are enqueued one by one.
    """
    with tempfile.TemporaryDirectory() as folder, database() as store:
        effects = f"{folder}/effects"
        world = World(effects)
        work = SIDES[side](store, world)
        await work.prepare()
        for number in range(runs):
            await work.enqueue(f"many-{number}")
        async with worker(side, store, effects):
            while len(done := list(world.done())) < 2 * runs:  # noqa: ASYNC110 - another process'
                await asyncio.sleep(0.05)
            times = [effect.at for effect in done]
            waits: list[float] = []
            for number in range(single):
                since = time.time()
                await work.enqueue(f"one-{number}")
                first: float | None = None
                while first is None:
                    await asyncio.sleep(0.02)
                    first = next(
                        (one.at for one in world.done() if one.key == f"one-{number}/0"), None
                    )
                waits.append(first - since)
        rate = runs / (max(times) - min(times))
        return {"runs_per_s": round(rate, 1), "begins_after_s": round(statistics.median(waits), 3)}


async def compared(runs: int, single: int, rounds: int) -> dict[str, Any]:
    """Measure both sides in turn; return the best round of each, and ours relative to the plain one."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    for _ in range(rounds):
        for name, each in found.items():
            each.append(await measured(name, runs, single))
    best = {name: max(each, key=lambda one: one["runs_per_s"]) for name, each in found.items()}
    times = round(best["triage"]["runs_per_s"] / best["plain"]["runs_per_s"], 2)
    return {**best, "times_plain": times, "runs": runs, "rounds": rounds}


def main() -> int:
    """Run the command line; return 1 if a fleet on DBOS is not half as fast as plain DBOS, else 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--single", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work", nargs=3, metavar=("SIDE", "STORE", "EFFECTS"))
    given = parser.parse_args()
    if given.work:
        side, store, effects = given.work
        asyncio.run(SIDES[side](store, World(Path(effects))).work())
        return 0
    found = asyncio.run(compared(given.runs, given.single, given.rounds))
    for side in SIDES:
        rate, wait = found[side].values()
        print(f"{side:<8}{rate:>10} runs/s, begins after {wait} s")
    print(json.dumps(found))
    return int(found["times_plain"] < 0.5)


if __name__ == "__main__":
    sys.exit(main())
