"""Measure queue limits over several workers: `python -m bench.fleet.limits`.

Three worker processes take runs from five queues, each with a limit of its own. The last line is JSON: for
each limit, what it allows and the most that was seen in the log of effects. A rate is counted when DBOS
hands out the runs; `begun` is the most runs that began within one span.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

import psycopg

import triage
from triage import Agent
from triage.adapters.dbos import Fleet, Queue, Worker

from .storm import database
from .world import World

WORKERS = 3
WORK_S = 0.15
RATE, PERIOD_S = 6, 2.0
QUEUES = (
    Queue("together", concurrency=2, polling_s=0.1),
    Queue("ranked", concurrency=2, polling_s=0.1),
    Queue("each", worker_concurrency=1, polling_s=0.1),
    Queue("rated", rate=(RATE, PERIOD_S), polling_s=0.1),
    Queue("parted", partition_concurrency=1, polling_s=0.1),
)


def fleet_of(store: str, world: World) -> Fleet:
    """Return a fleet whose runs log when they begin and end."""

    async def desk(task: dict[str, Any], *, run: triage.Run) -> None:
        world.do(f"begin/{task['queue']}/{task['part']}/{run.run_id}")
        await asyncio.sleep(WORK_S)
        world.do(f"end/{task['queue']}/{task['part']}/{run.run_id}")

    return Fleet([Agent(desk, name="desk")], store, queues=QUEUES)


def forked(store: str, effects: str) -> int:
    """Fork a worker process and return its process id."""
    number = os.fork()
    if number:
        return number
    with suppress(BaseException):
        asyncio.run(Worker(fleet_of(store, World(effects))).run())
    os._exit(0)


async def _measured(store: str, effects: str, count: int, seed: int) -> dict[str, Any]:
    world = World(effects)
    fleet = fleet_of(store, world)
    rng = random.Random(seed)
    for number in range(count):
        for queue in QUEUES:
            part = f"part-{number % 3}"
            options: dict[str, Any] = {"partition": part} if queue.partition_concurrency else {}
            if queue.name == "ranked":
                options["priority"] = rng.randint(1, 5)
            task = {"queue": queue.name, "part": part}
            await fleet.enqueue("desk", task, queue=queue.name, **options)
    ends = time.monotonic() + 90

    def are_left() -> bool:
        return len(list(world.done())) < 2 * count * len(QUEUES) and time.monotonic() < ends

    while are_left():  # noqa: ASYNC110 - other processes have no event
        await asyncio.sleep(0.1)
    await fleet.close()
    return judged(world, count, _claims(store))


def _claims(store: str) -> list[float]:
    """Return when DBOS handed out the rated queue's runs, in seconds since the epoch (database clock)."""
    with psycopg.connect(store) as db:
        rows = db.execute(
            "SELECT started_at_epoch_ms / 1000.0 FROM triage_dbos.workflow_status "
            "WHERE queue_name = 'rated' AND name = 'triage.run' ORDER BY 1"
        ).fetchall()
    return [float(at) for (at,) in rows]


def judged(world: World, count: int, claims: list[float]) -> dict[str, Any]:
    """Return for each limit what it allows and the most that was seen."""
    effects = sorted(world.done(), key=lambda effect: effect.at)
    most: dict[str, int] = {}
    now: dict[tuple[str, Any], int] = {}
    starts: list[float] = []
    for effect in effects:
        what, queue, part, _ = effect.key.split("/")
        scope: dict[str, Any] = {"each": effect.process, "parted": part}
        place = (queue, scope.get(queue))
        now[place] = now.get(place, 0) + (1 if what == "begin" else -1)
        most[queue] = max(most.get(queue, 0), now[place])
        if (what, queue) == ("begin", "rated"):
            starts.append(effect.at)
    # Runs begin some time after they are handed out, so starts may bunch up on a busy machine.
    most["rated"] = _most_in(PERIOD_S, claims)
    allowed = {"together": 2, "ranked": 2, "each": 1, "rated": RATE, "parted": 1}
    seen = {queue: {"allowed": allowed[queue], "seen": most[queue]} for queue in allowed}
    seen["rated"]["begun"] = _most_in(PERIOD_S, starts)
    return {
        "limits": seen,
        "runs": len(effects) // 2,
        "wanted": count * len(QUEUES),
        "workers": WORKERS,
    }


def _most_in(seconds: float, times: list[float]) -> int:
    """Return the largest number of these times that fall within a span of `seconds`."""
    return max(sum(first <= at < first + seconds for at in times) for first in times)


def main() -> int:
    """Run the command line; return 1 if a limit was exceeded or a run is missing, else 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=30, help="Runs of each queue.")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    given = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda _number, _frame: sys.exit(1)
    )  # so that the database is dropped
    with tempfile.TemporaryDirectory() as folder, database() as store:
        effects = f"{folder}/effects"

        async def migrate() -> None:
            fleet = fleet_of(store, World(effects))
            await fleet.migrate()
            await fleet.engine.declare(QUEUES)
            await fleet.close()

        asyncio.run(migrate())
        workers = [forked(store, effects) for _ in range(WORKERS)]
        try:
            found = asyncio.run(_measured(store, effects, given.count, given.seed))
        finally:
            for number in workers:
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)
    print(json.dumps({**found, "seed": given.seed}))
    beyond = any(limit["seen"] > limit["allowed"] for limit in found["limits"].values())
    return int(beyond or found["runs"] != found["wanted"])


if __name__ == "__main__":
    sys.exit(main())
