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
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from triage import approve, happened, rerun
from triage.adapters.dbos.tables import PATIENT, SPACING
from triage.core import (
    AlreadyResumed,
    RunBusy,
    RunOver,
    RunRecovered,
    RunSuspended,
    StoreError,
    UsageError,
)
from triage.engine.answering import waits_for
from triage.engine.questions import question_at
from triage.stores.base import is_progress

from .world import World

SERVER = os.environ.get("TRIAGE_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres")
OPEN = ("running", "suspended")
STARTS = 20
"""How often a worker that dies at its start is started before the storm gives up."""


@contextmanager
def database(prefix: str = "triage_fleet_storm") -> Generator[str]:
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
class Leave:
    """A worker that was told to leave by a rolling restart.

    at: when it was told, in seconds since the epoch. runs: the runs it had.
    """

    at: float
    runs: list[str]


@dataclass
class Storm:
    """One storm: its options, its workers and what has been counted."""

    store: str
    folder: Path
    runs: int
    kills: int
    workers: int
    lease_s: float
    drain_s: float
    rng: random.Random
    living: list[int] = field(default_factory=list)
    begun: int = 0
    failed_starts: int = 0
    deaths: list[Death] = field(default_factory=list)
    leaves: list[Leave] = field(default_factory=list)
    questions: int = 0
    in_doubt: int = 0
    cuts: int = 0
    restarts: int = 0
    zombies: set[int] = field(default_factory=set)

    nursery: Process = field(init=False)
    group: asyncio.TaskGroup = field(init=False)

    def __post_init__(self) -> None:
        self.forking = asyncio.Lock()
        self.world = World(self.folder / "effects")
        self.env = {
            **os.environ,
            "STORM_STORE": self.store,
            "STORM_EFFECTS": str(self.folder / "effects"),
            "STORM_LEASE_S": str(self.lease_s),
            "STORM_DRAIN_S": str(self.drain_s),
        }
        os.environ.update(self.env)
        from .agents import made

        self.fleet = made(self.store)

    @property
    def strikes(self) -> int:
        """How many workers are killed or stopped: each fourth is stopped, so that `kills` are killed."""
        return self.kills + self.kills // 3

    # Processes ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def workers_may_begin(self) -> AsyncGenerator[None]:
        """Start the nursery; at the end, stop the workers, and kill those that do not leave."""
        self.nursery = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.fleet.nursery", env=self.env, stdin=PIPE, stdout=PIPE
        )
        yield
        for number in self.living:
            os.kill(number, signal.SIGTERM)
        for number in self.living:
            if not await self._gone(number, 30.0):
                os.kill(number, signal.SIGKILL)
        assert self.nursery.stdin is not None
        self.nursery.stdin.close()
        await self.nursery.wait()

    async def begin_worker(self) -> None:
        """Start a worker and wait until it takes runs; if it dies before, start another."""
        for _ in range(STARTS):
            path = self.folder / f"worker-{self.begun}"
            number = await self._fork(path)
            while _lives(number):
                if path.exists() and b"takes from" in path.read_bytes():
                    self.living.append(number)
                    return
                await asyncio.sleep(0.05)
            self.failed_starts += 1
        raise RuntimeError(
            f"{STARTS} workers died at their start, the last with {path.read_text()}"
        )

    async def _fork(self, path: Path) -> int:
        """Fork a worker that writes its output to this file; return its process id."""
        self.begun += 1
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        async with self.forking:
            self.nursery.stdin.write(f"{path}\n".encode())
            return int(await self.nursery.stdout.readline())

    async def _gone(self, number: int, patience_s: float = 60.0) -> bool:
        """Wait until a worker has ended; return False if it has not within `patience_s`."""
        ends = time.monotonic() + patience_s
        while _lives(number) and time.monotonic() < ends:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
        return not _lives(number)

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
        """Kill a worker, or each fourth time stop it for longer than its lease, and start another.

        Waits until at most a quarter of the workers are at their start.
        """
        while len(self.living) < self.workers - self.workers // 4:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
        number, runs = await self._busy(self.living)
        self.living.remove(number)
        stop = count % 4 == 3
        os.kill(number, signal.SIGSTOP if stop else signal.SIGKILL)
        self.deaths.append(Death(number, time.time(), runs, stop))
        if stop:
            self.zombies.add(number)
            self.group.create_task(self._let_go_on(number))
        self.group.create_task(self.begin_worker())

    async def _busy(self, workers: list[int]) -> tuple[int, list[str]]:
        """Return one of these workers that has runs, and their ids; after two seconds without one, any."""
        for _ in range(20):
            for number in self.rng.sample(workers, len(workers)):
                runs = await self.held_by(number)
                if runs:
                    return number, runs
            await asyncio.sleep(0.1)
        return self.rng.choice(workers), []

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
            _, runs = await self._busy([number])
            os.kill(number, signal.SIGTERM)
            self.leaves.append(Leave(time.time(), runs))
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
        async with self.workers_may_begin(), asyncio.TaskGroup() as self.group:
            for _ in range(self.workers):
                await self.begin_worker()
            begun = time.monotonic()
            answering = self.group.create_task(self._keep_answering())
            enqueuing = self.group.create_task(self._enqueue())
            cuts = {int(self.strikes * (place + 1) / 4) for place in range(3)}
            waves = {int(self.strikes * (one + 1) / (restarts + 1)) for one in range(restarts)}
            for number in range(self.strikes):
                await asyncio.sleep(self.rng.uniform(0.1, 0.8))
                await self.strike(number)
                if number in cuts:
                    self.cut()
                if number in waves:
                    await self.restart_all()
            while self.restarts < restarts:  # all of them, where nobody is killed
                await self.restart_all()
            await enqueuing
            left = await self._calm(patience_s)
            seconds = time.monotonic() - begun
            answering.cancel()
        found = await self._judged(left)
        await self.fleet.close()
        return {**found, "seconds": round(seconds, 1)}

    async def _keep_answering(self) -> None:
        while True:
            await self.answer_all()
            await asyncio.sleep(0.3)

    async def _enqueue(self) -> None:
        """Enqueue the runs, spread over the storm."""
        for number in range(self.runs):
            while not await self._is_due(number):  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.05)
            agent = "clerk" if number % 2 else "desk"
            while True:
                try:
                    await self.fleet.enqueue(agent, {"number": number}, run_id=f"run-{number}")
                    break
                except StoreError:
                    await asyncio.sleep(0.2)

    async def _is_due(self, number: int) -> bool:
        """Return whether the next run is due, so that there is work all the time, but no backlog."""
        if self.strikes:
            return len(self.deaths) >= number * self.strikes / self.runs - 1
        with suppress(StoreError):
            return len(await self.fleet.places()) < 4 * self.workers
        return False

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
        found = list(self._takeovers(journals))
        takeovers = sorted(seconds for seconds, spent in found if spent < PATIENT)
        held_back = sorted(seconds for seconds, spent in found if spent >= PATIENT)
        handovers = sorted(self._handovers(journals))
        waits = sum(
            isinstance(event, RunSuspended) for events in journals.values() for event in events
        )
        return {
            "runs": self.runs,
            "kills": sum(not death.stopped for death in self.deaths),
            "stops": sum(death.stopped for death in self.deaths),
            "failed_starts": self.failed_starts,
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
            "held_back": len(held_back),
            "held_back_s": round(held_back[-1], 2) if held_back else None,
            "lease_s": self.lease_s,
            "handovers": len(handovers),
            "handover_s": round(handovers[-1], 2) if handovers else None,
            "wrong": [*left, *missing, *beyond][:10],
        }

    def _takeovers(self, journals: dict[str, list[Any]]) -> Iterator[tuple[float, int]]:
        """Yield the seconds to each takeover, and how many owners the run had lost before without progress.

        After `PATIENT` of them a takeover is held back.
        """
        for death in self.deaths:
            for run_id in death.runs:
                events = journals.get(run_id, [])
                after = [event for event in events if event.time > death.at]
                first = next((event for event in after if isinstance(event, RunRecovered)), None)
                again = first is not None and any(
                    run_id in other.runs and death.at < other.at < first.time
                    for other in self.deaths
                )
                if first is not None and first is after[0] and not again:
                    before = events[: len(events) - len(after)]
                    yield first.time - death.at, first.epoch - 1 - _epoch_of_progress(before)

    def _handovers(self, journals: dict[str, list[Any]]) -> Iterator[float]:
        """Yield for each worker that left the seconds until others continued the first run it gave back.

        The time that it was to wait for its runs is not counted.
        """
        for leave in self.leaves:
            gone_on = [
                event.time
                for run_id in leave.runs
                for event in journals.get(run_id, ())
                if isinstance(event, RunRecovered) and event.time > leave.at
            ]
            if gone_on:
                yield max(0.0, min(gone_on) - leave.at - self.drain_s)


def _epoch_of_progress(events: list[Any]) -> int:
    """Return the epoch of the owner under whom a run last got on."""
    newest = found = 0
    for event in events:
        if isinstance(event, RunRecovered):
            newest = event.epoch
        elif is_progress(event) or isinstance(event, RunSuspended):
            found = newest
    return found


def _lives(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


async def storm(
    *,
    runs: int,
    kills: int,
    workers: int,
    lease_s: float,
    drain_s: float,
    restarts: int,
    seed: int,
    patience_s: float,
    keep: str | None = None,
) -> dict[str, Any]:
    """Put a fleet through a storm in a database of its own, and return what became of its runs."""
    with tempfile.TemporaryDirectory() as made, database() as store:
        folder = made if keep is None else tempfile.mkdtemp(dir=keep)
        rng = random.Random(seed)
        found = Storm(store, Path(folder), runs, kills, workers, lease_s, drain_s, rng)
        return await found.rage(patience_s, restarts)


def main() -> int:
    """Run the command line; return 1 if the fleet broke a promise or a run went on late, else 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--restarts", type=int, default=2, help="Rolling restarts.")
    parser.add_argument("--lease", type=float, default=10.0)
    parser.add_argument("--drain", type=float, default=1.0, help="As of triage worker, in seconds.")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--patience", type=float, default=300.0)
    parser.add_argument("--keep", help="Keep the logs and effects in a new folder below this one.")
    given = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda _number, _frame: sys.exit(1)
    )  # so that the database is dropped
    found = asyncio.run(
        storm(
            runs=given.runs,
            kills=given.kills,
            workers=given.workers,
            lease_s=given.lease,
            drain_s=given.drain,
            restarts=given.restarts,
            seed=given.seed,
            patience_s=given.patience,
            keep=given.keep,
        )
    )
    found["seed"] = given.seed
    print(json.dumps(found))
    most = {
        "lost": 0,
        "repeated_beyond": 0,
        "dead_letters": 0,
        "takeover_s": given.lease + 2.0,
        "held_back_s": (1 + SPACING) * given.lease + 2.0,
        "handover_s": 2.0,
    }
    over = [name for name, bound in most.items() if (found[name] or 0) > bound]
    for name in over:
        late = "; seconds are those of an idle machine" if name.endswith("_s") else ""
        print(f"{name} is {found[name]}, and may be {most[name]:g}{late}", file=sys.stderr)
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
