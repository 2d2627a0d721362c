"""The desk's threads: one writes, in group commits, and one reads; both with the store's own driver."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from triage.errors import UsageError
from triage.stores import MemoryStore, Store
from triage.stores._lane import Lane, Outcome, Stop, Waiter, together, waiter, wake
from triage.stores._threaded import ThreadedStore, _lanes, _let_go

from ._db import POSTGRES, SQLITE, Db, Work, in_memory, migrate

T = TypeVar("T")
BATCH = 200
"""Works that share a commit at most."""
QUEUE = 10_000
TIMEOUT = 10.0


class _Job:
    __slots__ = ("before", "waiter", "work")

    def __init__(self, work: Work, waiter: Waiter, before: Work | None) -> None:
        self.work = work
        self.before = before
        self.waiter = waiter


class Lanes:
    """The way to the database of a store, under asyncio and trio.

    Raises UsageError for a store that is neither SQLite, Postgres nor memory. Nothing is opened yet.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        connect = _connects(store, clock)
        memory = isinstance(store, MemoryStore)
        self.durable = not memory
        self._writer: Lane[Db] = Lane(
            "incidents-writer", partial(connect, writes=True), _write, timeout=TIMEOUT, limit=QUEUE
        )
        # What is in memory has one connection, and what it reads waits behind what it writes.
        self._reader: Lane[Db] = (
            self._writer
            if memory
            else Lane(
                "incidents-reader",
                partial(connect, writes=False),
                _read,
                timeout=TIMEOUT,
                limit=QUEUE,
            )
        )
        lanes: Any = {self._writer, self._reader}
        _lanes.update(lanes)
        weakref.finalize(self, _let_go, *lanes).atexit = False

    async def write(self, work: Callable[[Db], T]) -> T:
        """Do this in a transaction whose commit others may share.

        Raises what `work` raises, or StoreError.
        """
        return await self._done(self._writer, work)

    async def read(self, work: Callable[[Db], T], *, before: Work | None = None) -> T:
        """Do this in a transaction that reads. before: what is done before it begins."""
        return await self._done(self._reader, work, before)

    async def _done(self, lane: Lane[Db], work: Callable[[Db], T], before: Work | None = None) -> T:
        done = waiter()
        lane.put(_Job(work, done, before))
        found: T = await done
        return found

    async def close(self) -> None:
        """Wait for what was given to them, then end the threads and close the connections."""
        for lane in {self._writer, self._reader}:
            if not lane.idle:
                done = waiter()
                lane.put(Stop(partial(wake, done)))
                await done


def _write(lane: Lane[Db], jobs: list[_Job]) -> None:
    for start in range(0, len(jobs), BATCH):
        some = jobs[start : start + BATCH]
        outcomes: list[Outcome]
        try:
            outcomes = lane.use(partial(_together, some))
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            outcomes = [(None, copy.copy(error)) for _ in some]
        with together():
            for job, outcome in zip(some, outcomes, strict=True):
                wake(job.waiter, outcome)


def _read(lane: Lane[Db], jobs: list[_Job]) -> None:
    for job in jobs:
        outcome: Outcome
        try:
            outcome = (lane.use(partial(_in_one, job)), None)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            outcome = (None, error)
        wake(job.waiter, outcome)


def _together(jobs: list[_Job], db: Db) -> list[Outcome]:
    for job in jobs:
        if job.before is not None:
            job.before(db)
    return list(db.each([job.work for job in jobs]))


def _in_one(job: _Job, db: Db) -> Any:
    if job.before is not None:
        job.before(db)
    with db.transaction(write=False):
        return job.work(db)


# Connections --------------------------------------------------------------------------------------


def _connects(store: Store, clock: Callable[[], float]) -> Callable[..., Db]:
    """What opens a connection for the room where a store keeps its runs."""
    if isinstance(store, MemoryStore):
        return lambda writes: in_memory(clock)  # noqa: ARG005 - one connection does both
    kind = type(store).__name__
    if isinstance(store, ThreadedStore) and kind != "RedisStore":
        from triage.stores.postgres import PostgresStore
        from triage.stores.sqlite import SQLiteStore

        if isinstance(store, SQLiteStore):
            return partial(_sqlite, store, clock)
        if isinstance(store, PostgresStore):
            return partial(_postgres, store, clock)
    raise UsageError(
        f"IncidentDesk.store must be in SQLite, Postgres or memory, not {kind}: incidents need tables; "
        'write "sqlite:///runs.db" or "postgresql://…"'
    )


def _driver(store: ThreadedStore, *, writes: bool) -> Any:
    """One more connection, with all checks and migrations of the store itself."""
    lane = store._writer if writes else store._reader  # noqa: SLF001 - the store knows how to connect
    return lane._connect()  # noqa: SLF001 - as above


def _sqlite(store: ThreadedStore, clock: Callable[[], float], *, writes: bool) -> Db:
    from triage.stores._sqlite import _translated

    path = str(getattr(store, "path", ""))
    connection = _driver(store, writes=writes)._db  # noqa: SLF001 - the connection is the driver's
    db = Db(SQLITE, connection, partial(_translated, path), clock)
    db.run("PRAGMA foreign_keys = ON")
    return _migrated(db)


def _postgres(store: ThreadedStore, clock: Callable[[], float], *, writes: bool) -> Db:
    driver = _driver(store, writes=writes)
    translated = driver._connection  # noqa: SLF001 - the driver knows its errors
    return _migrated(Db(POSTGRES, driver._db, translated, clock))  # noqa: SLF001 - as above


def _migrated(db: Db) -> Db:
    try:
        migrate(db)
    except BaseException:
        db.close()
        raise
    return db
