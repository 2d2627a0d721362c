"""Kill, stop, restart and disconnect a fleet's workers while they work, and judge the outcome."""

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
import uuid
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from triage import approve, happened, rerun
from triage.core import (
    AlreadyResumed,
    RunBusy,
    RunOver,
    RunRecovered,
    RunSuspended,
    StoreError,
    UsageError,
)
from triage.engine import question_at, waits_for

from .world import World

SERVER = os.environ.get("TRIAGE_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres")
OPEN = ("running", "suspended")


@contextmanager
def database(prefix: str = "triage_fleet_storm") -> Iterator[str]:
    """Create a database, yield its URL, and drop it afterwards."""
    name = f"{prefix}_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(SERVER, autocommit=True) as db:
        db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield f"{SERVER.rpartition('/')[0]}/{name}"
    finally:
        with psycopg.connect(SERVER, autocommit=True) as db:
            db.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@dataclass
class Death:
    """A worker that was killed or stopped.

    at: when, in seconds since the epoch. runs: the runs it had. stopped: SIGSTOP instead of SIGKILL.
    """

    worker: int
    at: float
    runs: list[str]
    stopped: bool


@dataclass
class Storm:
    """One storm: its options, its workers and what has been counted."""

    engine: str
    store: str
    folder: Path
    runs: int
    kills: int
    workers: int
    lease_s: float
    rng: random.Random
    living: list[int] = field(default_factory=list)
    begun: int = 0
    deaths: list[Death] = field(default_factory=list)
    questions: int = 0
    in_doubt: int = 0
    cuts: int = 0
    restarts: int = 0
    zombies: set[int] = field(default_factory=set)

    nursery: Process = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.tasks: list[asyncio.Future[None]] = []
        self.world = World(self.folder / "effects")
        self.env = {
            **os.environ,
            "STORM_STORE": self.store,
            "STORM_EFFECTS": str(self.folder / "effects"),
            "STORM_LEASE_S": str(self.lease_s),
            "STORM_ENGINE": self.engine,
        }
        os.environ.update(self.env)
        from .agents import made

        self.fleet = made(self.engine, self.store)

    @property
    def strikes(self) -> int:
        """How many workers are killed or stopped: each fourth is stopped, so that `kills` are killed."""
        return self.kills + self.kills // 3

    # Processes ------------------------------------------------------------------------------------

    async def begin_worker(self) -> None:
        """Start a worker and wait until it takes runs."""
        path = self.folder / f"worker-{self.begun}"
        self.begun += 1
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(f"{path}\n".encode())
        number = int(await self.nursery.stdout.readline())
        while not _says(path, b"takes from"):  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.05)
        self.living.append(number)

    async def _gone(self, number: int, patience_s: float = 60.0) -> bool:
        """Wait until a worker has ended; return False if it has not within `patience_s`."""
        ends = time.monotonic() + patience_s
        while time.monotonic() < ends:
            try:
                os.kill(number, 0)
            except ProcessLookupError:
                return True
            await asyncio.sleep(0.05)
        return False

    async def held_by(self, number: int) -> list[str]:
        """Return the ids of the runs that a worker has."""
        with suppress(StoreError):
            places = await self.fleet.places()
            mark = f"-{number}-"
            return [
                one.run_id
                for one in places
                if one.state == "running" and mark in (one.worker or "")
            ]
        return []

    async def strike(self, count: int) -> None:
        """Kill a worker, or each fourth time stop it for longer than its lease, and start another."""
        number, runs = await self._busy()
        self.living.remove(number)
        stop = count % 4 == 3
        os.kill(number, signal.SIGSTOP if stop else signal.SIGKILL)
        self.deaths.append(Death(number, time.time(), runs, stop))
        if stop:
            self.zombies.add(number)
            self.tasks.append(asyncio.ensure_future(self._let_go_on(number)))
        await self.begin_worker()

    async def _busy(self) -> tuple[int, list[str]]:
        """Return a worker that has runs, and their ids; after two seconds without one, any worker."""
        for _ in range(20):
            for number in self.rng.sample(self.living, len(self.living)):
                runs = await self.held_by(number)
                if runs:
                    return number, runs
            await asyncio.sleep(0.1)
        return self.rng.choice(self.living), []

    async def _let_go_on(self, number: int) -> None:
        """Resume a stopped worker, which finds its runs taken over, and then terminate it."""
        await asyncio.sleep(self.lease_s + 2.0)
        os.kill(number, signal.SIGCONT)
        await asyncio.sleep(2.0)
        os.kill(number, signal.SIGTERM)
        await self._gone(number)
        self.zombies.discard(number)

    async def restart_all(self) -> None:
        """Replace the workers by new ones, one after the other."""
        for number in list(self.living):
            await self.begin_worker()
            os.kill(number, signal.SIGTERM)
            self.living.remove(number)
            await self._gone(number)
        self.restarts += 1

    def cut(self) -> None:
        """Terminate all sessions of the database."""
        with psycopg.connect(SERVER, autocommit=True) as db:
            name = self.store.rpartition("/")[2]
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )
        self.cuts += 1

    # A person -------------------------------------------------------------------------------------

    async def answer_all(self) -> None:
        """Answer every suspended run, as a person would who can look at the world."""
        with suppress(StoreError):
            for info in await self.fleet.store.runs("suspended"):
                await self._answer(info.run_id)

    async def _answer(self, run_id: str) -> None:
        events = await self.fleet.store.read(run_id)
        asked = waits_for(events)
        if asked is None:
            return
        reply: Any = approve()
        if asked.doubt:
            question = question_at(events)
            assert question is not None
            effect = f"{run_id}/{question.tool}/{question.arguments['number']}"
            if self.world.has(effect):
                verb = {"pay": "paid", "book": "booked"}[question.tool]
                reply = happened(f"{verb} {question.arguments['number']}")
            else:
                reply = rerun()
        with suppress(AlreadyResumed, RunBusy, RunOver, UsageError):
            await self.fleet.answer(run_id, reply, by="storm")
            self.questions += 1
            self.in_doubt += asked.doubt

    # All of it ------------------------------------------------------------------------------------

    async def rage(self, patience_s: float, restarts: int) -> dict[str, Any]:
        """Carry out the storm, and return what became of the runs.

        patience_s: seconds that runs have to end afterwards. restarts: rolling restarts on the way.
        """
        await self.fleet.migrate()
        self.nursery = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.fleet.nursery", env=self.env, stdin=PIPE, stdout=PIPE
        )
        for _ in range(self.workers):
            await self.begin_worker()
        begun = time.monotonic()
        answering = asyncio.ensure_future(self._keep_answering())
        enqueuing = asyncio.ensure_future(self._enqueue())
        cuts = {int(self.strikes * (place + 1) / 4) for place in range(3)}
        waves = {int(self.strikes * (one + 1) / (restarts + 1)) for one in range(restarts)}
        for number in range(self.strikes):
            await asyncio.sleep(self.rng.uniform(0.1, 0.8))
            await self.strike(number)
            if number in cuts:
                self.cut()
            if number in waves:
                await self.restart_all()
        await enqueuing
        left = await self._calm(patience_s)
        seconds = time.monotonic() - begun
        answering.cancel()
        await asyncio.gather(*self.tasks)
        for number in self.living:
            os.kill(number, signal.SIGTERM)
        for number in self.living:
            if not await self._gone(number, 30.0):
                os.kill(number, signal.SIGKILL)
        assert self.nursery.stdin is not None
        self.nursery.stdin.close()
        await self.nursery.wait()
        found = await self._judged(left)
        await self.fleet.close()
        return {"engine": self.engine, **found, "seconds": round(seconds, 1)}

    async def _keep_answering(self) -> None:
        while True:
            await self.answer_all()
            await asyncio.sleep(0.3)

    async def _enqueue(self) -> None:
        """Enqueue the runs, spread over the storm."""
        for number in range(self.runs):
            due = number * self.strikes / self.runs - 1
            while len(self.deaths) < due:  # noqa: ASYNC110 - so that there is work all the time
                await asyncio.sleep(0.05)
            agent = "clerk" if number % 2 else "desk"
            while True:
                try:
                    await self.fleet.enqueue(agent, {"number": number}, run_id=f"run-{number}")
                    break
                except StoreError:
                    await asyncio.sleep(0.2)

    async def _calm(self, patience_s: float) -> list[str]:
        """Wait until all runs have ended; return those that have not within `patience_s`."""
        ends = time.monotonic() + patience_s
        while True:
            left: list[str] = []
            with suppress(StoreError):
                infos = {info.run_id: info for info in await self.fleet.store.runs()}
                left = [
                    f"run-{number}"
                    for number in range(self.runs)
                    if f"run-{number}" not in infos or infos[f"run-{number}"].status in OPEN
                ]
                if not left or time.monotonic() > ends:
                    return left
            await asyncio.sleep(0.3)

    async def _judged(self, left: list[str]) -> dict[str, Any]:
        counts = Counter(effect.key for effect in self.world.done())
        stopped = {death.worker for death in self.deaths if death.stopped}
        statuses: Counter[str] = Counter()
        missing: list[str] = []
        beyond: list[str] = []
        repeated = 0
        journals: dict[str, list[Any]] = {}
        for number in range(self.runs):
            run_id = f"run-{number}"
            events = journals[run_id] = await self.fleet.store.read(run_id)
            info = await self.fleet.store.info(run_id)
            statuses["none" if info is None else info.status] += 1
            tool = "book" if number % 2 else "pay"
            for step in range(4):
                key = f"{run_id}/{tool}/{step}"
                if not counts[key]:
                    missing.append(key)
                again = counts[key] - 1
                if again <= 0:
                    continue
                repeated += again
                # An idempotent effect may be repeated once for each owner lost. An effect with `once` may
                # be repeated only by a stopped worker, whose call cannot be called back.
                owners = sum(isinstance(event, RunRecovered) for event in events)
                by_zombie = sum(
                    effect.key == key and effect.process in stopped for effect in self.world.done()
                )
                if again > (owners if tool == "book" else by_zombie):
                    beyond.append(key)
        takeovers = sorted(self._takeovers(journals))
        waits = sum(
            isinstance(event, RunSuspended) for events in journals.values() for event in events
        )
        return {
            "runs": self.runs,
            "kills": sum(not death.stopped for death in self.deaths),
            "stops": sum(death.stopped for death in self.deaths),
            "restarts": self.restarts,
            "cuts": self.cuts,
            "lost": len(left) + len(missing) + self.runs - statuses["done"],
            "repeated": repeated,
            "repeated_beyond": len(beyond),
            "dead_letters": statuses["dead_letter"],
            "questions": waits,
            "answered": self.questions,
            "in_doubt": self.in_doubt,
            "takeovers": len(takeovers),
            "takeover_s": round(takeovers[-1], 2) if takeovers else None,
            "takeover_median_s": round(takeovers[len(takeovers) // 2], 2) if takeovers else None,
            "lease_s": self.lease_s,
            "wrong": [*left, *missing, *beyond][:10],
        }

    def _takeovers(self, journals: dict[str, list[Any]]) -> Iterator[float]:
        """Yield the seconds from the loss of a worker to the takeover of each of its runs."""
        for death in self.deaths:
            for run_id in death.runs:
                after = [event for event in journals.get(run_id, ()) if event.time > death.at]
                first = next((event for event in after if isinstance(event, RunRecovered)), None)
                again = first is not None and any(
                    run_id in other.runs and death.at < other.at < first.time
                    for other in self.deaths
                )
                if first is not None and first is after[0] and not again:
                    yield first.time - death.at


def _says(path: Path, text: bytes) -> bool:
    return path.exists() and text in path.read_bytes()


async def storm(
    engine: str,
    *,
    runs: int,
    kills: int,
    workers: int,
    lease_s: float,
    restarts: int,
    seed: int,
    patience_s: float,
    keep: str | None = None,
) -> dict[str, Any]:
    """Put a fleet through a storm in a database of its own, and return what became of its runs."""
    with tempfile.TemporaryDirectory() as made, database() as store:
        folder = Path(keep or made)
        found = Storm(engine, store, folder, runs, kills, workers, lease_s, random.Random(seed))
        return await found.rage(patience_s, restarts)


def main() -> int:
    """Run the command line; return 1 if the fleet broke a promise or a takeover was late, else 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="dbos")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--restarts", type=int, default=2, help="Rolling restarts.")
    parser.add_argument("--lease", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--patience", type=float, default=300.0)
    parser.add_argument("--keep", help="Keep the workers' logs and the effects in this folder.")
    given = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda _number, _frame: sys.exit(1)
    )  # so that the database is dropped
    found = asyncio.run(
        storm(
            given.engine,
            runs=given.runs,
            kills=given.kills,
            workers=given.workers,
            lease_s=given.lease,
            restarts=given.restarts,
            seed=given.seed,
            patience_s=given.patience,
            keep=given.keep,
        )
    )
    found["seed"] = given.seed
    print(json.dumps(found))
    wrong = found["lost"] or found["repeated_beyond"] or found["dead_letters"]
    late = (found["takeover_s"] or 0.0) > given.lease + 2.0
    return int(bool(wrong or late))


if __name__ == "__main__":
    sys.exit(main())
