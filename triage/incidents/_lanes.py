"""The desk's threads: one writes, in group commits, and one reads; both with the store's own driver."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from triage.errors import StoreError, TriageError, UsageError
from triage.stores import MemoryStore, Store
from triage.stores._lane import Lane, Stop, Waiter, together, waiter, wake
from triage.stores._threaded import ThreadedStore, _lanes, _let_go

from ._db import POSTGRES, SQLITE, Db, Mark, Outcome, Work, in_memory, migrate

T = TypeVar("T")
BATCH = 200
"""Works that share a commit at most."""
QUEUE = 10_000
TIMEOUT = 10.0
_HERE = os.urandom(8).hex()


class _Job:
    __slots__ = ("before", "waiter", "work", "writes")

    def __init__(self, work: Work, waiter: Waiter, before: Work | None, *, writes: bool) -> None:
        self.work = work
        self.before = before
        self.writes = writes
        self.waiter = waiter


class Lanes:
    """The way to the database of a store, under asyncio and trio.

    Raises UsageError for a store that is neither SQLite, Postgres nor memory. Nothing is opened yet.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        connect = _connects(store, clock)
        memory = isinstance(store, MemoryStore)
        self._kept = memory
        patience = store.timeout if isinstance(store, ThreadedStore) else TIMEOUT
        self._writer = _lane("incidents-writer", partial(connect, writes=True), patience)
        # What is in memory has one connection, and what it reads waits behind what it writes.
        self._reader = (
            self._writer
            if memory
            else _lane("incidents-reader", partial(connect, writes=False), patience)
        )
        lanes: Any = {self._writer, self._reader}
        _lanes.update(lanes)
        weakref.finalize(self, _let_go, *lanes).atexit = False

    async def write(self, work: Callable[[Db], T]) -> T:
        """Do this in a transaction whose commit others may share.

        Raises what `work` raises, or StoreError.
        """
        return await self._done(self._writer, work, None, writes=True)

    async def read(self, work: Callable[[Db], T], *, before: Work | None = None) -> T:
        """Do this in a transaction that reads. before: what is done before it begins."""
        return await self._done(self._reader, work, before, writes=False)

    async def _done(
        self, lane: Lane[Db], work: Callable[[Db], T], before: Work | None, *, writes: bool
    ) -> T:
        done = waiter()
        lane.put(_Job(work, done, before, writes=writes))
        found: T = await done
        return found

    async def close(self) -> None:
        """Wait for what was given to them, then end the threads and close the connections.

        Tables in memory stay as long as their store.
        """
        if self._kept:
            return
        for lane in {self._writer, self._reader}:
            if not lane.idle:
                done = waiter()
                lane.put(Stop(partial(wake, done)))
                await done


def _lane(name: str, connect: Callable[[], Db], patience: float) -> Lane[Db]:
    return Lane(name, connect, _work, timeout=patience, limit=QUEUE)


_of_memory: weakref.WeakKeyDictionary[MemoryStore, Lanes] = weakref.WeakKeyDictionary()


def lanes_of(store: Store, clock: Callable[[], float]) -> Lanes:
    """The way to a store's tables; all desks of one memory store share theirs. Raises as `Lanes`."""
    if not isinstance(store, MemoryStore):
        return Lanes(store, clock)
    found = _of_memory.get(store)
    if found is None:
        found = _of_memory[store] = Lanes(store, clock)
    return found


def _work(lane: Lane[Db], jobs: list[_Job]) -> None:
    """Do them in their order: writes that stand together in one commit, reads one by one."""
    for writes, group in groupby(jobs, key=attrgetter("writes")):
        some = list(group)
        size = BATCH if writes else 1
        for start in range(0, len(some), size):
            _do(lane, some[start : start + size], writes=writes)


def _do(lane: Lane[Db], jobs: list[_Job], *, writes: bool) -> None:
    outcomes: list[Outcome]
    try:
        outcomes = lane.use(_Commit(lane, jobs) if writes else partial(_in_one, jobs))
    except Exception as error:  # noqa: BLE001 - handed to whoever waits
        outcomes = [(None, copy.copy(error)) for _ in jobs]
    with together():
        for job, outcome in zip(jobs, outcomes, strict=True):
            wake(job.waiter, outcome)


class _Commit:
    """Works that share a commit. Asked for again after its reply was lost, it is not made twice."""

    def __init__(self, lane: Lane[Db], jobs: list[_Job]) -> None:
        self._works = [job.work for job in jobs]
        # A forked child has the same lane, and commits of its own.
        self._mark = Mark(f"{_HERE}-{id(lane):x}-{os.getpid()}", os.urandom(8).hex())
        self._outcomes: list[Outcome] = []

    def __call__(self, db: Db) -> list[Outcome]:
        if not self._outcomes or not db.has_committed(self._mark):
            self._outcomes = []
            db.each(self._works, self._outcomes, self._mark)
        return self._outcomes


def _in_one(jobs: list[_Job], db: Db) -> list[Outcome]:
    """What a work gave or refused; what the store itself raises goes on to the lane."""
    (job,) = jobs
    try:
        if job.before is not None:
            job.before(db)
        with db.transaction(write=False):
            return [(job.work(db), None)]
    except StoreError:
        raise
    except TriageError as refusal:
        return [(None, refusal)]


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


def _sqlite(store: ThreadedStore, clock: Callable[[], float], *, writes: bool) -> Db:
    driver = store.connect(writes=writes)
    db = Db(SQLITE, driver.raw, driver.translated, clock)
    db.run("PRAGMA foreign_keys = ON")
    return _migrated(db)


def _postgres(store: ThreadedStore, clock: Callable[[], float], *, writes: bool) -> Db:
    driver = store.connect(writes=writes)
    return _migrated(Db(POSTGRES, driver.raw, driver.translated, clock))


def _migrated(db: Db) -> Db:
    try:
        migrate(db)
    except BaseException:
        db.close()
        raise
    return db
