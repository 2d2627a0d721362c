"""A connection to a SQLite file: what is read and written."""

from __future__ import annotations

import sqlite3
import time
from bisect import bisect_left
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from triage.errors import StoreCorrupt, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from triage.events import Event

from ._blobs import Piece, packed
from ._commits import Change, own_each
from ._owners import Owned
from ._rows import Append, Row, events_of, info_of, refused, row_of
from ._sqlite_schema import NOTHING, SIZES, adding, connect
from .base import RunInfo

KNOWN = 20_000
"""Runs whose row is remembered, so that it need not be looked up."""
PRUNED = 200
"""Runs removed in one commit: others may write in between."""

_COLUMNS = "run_id, agent, status, started, updated, events, epoch, claims, lease_until, parent"
_WHERE = {name: f"{name} = ?" for name in ("run_id", "status", "agent", "parent")}
_NEW = """
INSERT INTO runs (run_id, agent, parent, started, updated, events, lease_until, status, token,
    finished, epoch, claims, claimant)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, '') ON CONFLICT DO NOTHING"""
_TURN = """
UPDATE runs SET events = events + ?, updated = ?, lease_until = coalesce(?, lease_until),
    status = ?, token = ?
WHERE id = ? AND epoch = ? AND events = ?"""
_OVER = """
UPDATE runs SET events = events + ?, updated = ?, lease_until = NULL,
    status = ?, token = ?, finished = ?, claims = 0
WHERE id = ? AND epoch = ? AND events = ?"""
_ROW = "INSERT INTO events (run, seq, count, crc, body, refs) VALUES (?, ?, ?, ?, ?, ?)"
_READ = """
SELECT seq, count, crc, body, refs FROM events
WHERE run = ?
    AND seq >= coalesce((SELECT max(seq) FROM events WHERE run = ? AND seq <= ?), 0)
ORDER BY seq"""
_ENDED = """
SELECT id FROM runs WHERE finished < ? AND id NOT IN (
    SELECT id FROM runs WHERE finished IS NOT NULL ORDER BY finished DESC, id DESC LIMIT ?)
LIMIT ?"""

_REFUSED = (sqlite3.DataError, sqlite3.IntegrityError, OverflowError)
"""What says that a row cannot be written: it is stale, or of no form for SQLite."""
_ERRORS: tuple[tuple[str, type[StoreError], str], ...] = (
    ("SQLITE_FULL", StoreFull, "has no room left; free some and go on"),
    ("SQLITE_READONLY", StoreReadOnly, "may not be written"),
    ("SQLITE_PERM", StoreReadOnly, "may not be written"),
    ("SQLITE_NOTADB", StoreCorrupt, "is damaged, or no store; restore it from a copy"),
    ("SQLITE_CORRUPT", StoreCorrupt, "is damaged; restore it from a copy"),
    ("SQLITE_BUSY", StoreUnavailable, "is locked by another process"),
    ("SQLITE_LOCKED", StoreUnavailable, "is locked"),
    ("SQLITE_CANTOPEN", StoreUnavailable, "cannot be opened"),
    ("SQLITE_IOERR", StoreUnavailable, "cannot be read or written"),
)


def _error_of(error: sqlite3.Error, path: str) -> StoreError:
    name = getattr(error, "sqlite_errorname", None) or ""
    for prefix, kind, text in _ERRORS:
        if name.startswith(prefix):
            return kind(f"{path} {text} ({error})")
    if "decode" in str(error):
        return StoreCorrupt(f"{path} is damaged; restore it from a copy ({error})")
    return StoreError(f"{path}: {name or type(error).__name__}: {error}")


@contextmanager
def _translated(path: str) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _error_of(error, path) from error


class SQLiteDriver:
    """A connection, used by one thread at a time. writes: it is not for reading alone."""

    # A child that shared one would hold none of its locks.
    close_at_fork: ClassVar[bool] = True

    def __init__(self, path: str, synchronous: str, timeout: float, *, writes: bool) -> None:
        self._path = path
        self._ids: dict[str, int] = {}
        self._packed: dict[str, bytes] = {}
        with _translated(path):
            self._db = connect(path, synchronous, timeout, writes=writes)

    @property
    def raw(self) -> sqlite3.Connection:
        """The connection itself."""
        return self._db

    def translated(self) -> AbstractContextManager[None]:
        """What SQLite raises inside is raised as a StoreError."""
        return _translated(self._path)

    def close(self) -> None:
        """As in `Driver`."""
        self._db.close()

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Generator[sqlite3.Connection]:
        """A deferred one only reads: one that then wrote could not wait for the lock."""
        db = self._db
        with _translated(self._path):
            db.execute(f"BEGIN {kind}")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # a full disk may have rolled it back
                    db.execute("ROLLBACK")
                raise

    # Appends --------------------------------------------------------------------------------------

    def commit(self, batch: list[Append]) -> list[BaseException | None]:
        """As in `Driver`."""
        outcomes: list[BaseException | None] = [None] * len(batch)
        if self._at_once(batch):
            return outcomes
        new: dict[str, int] = {}
        self._pack(batch)
        with self._transaction() as db:
            # Nearly always nobody is stale, and a few statements write them all.
            db.execute("SAVEPOINT batch")
            if not self._written(db, batch, new):
                db.execute("ROLLBACK TO batch")
                new.clear()
                outcomes = [self._write_one(db, append) for append in batch]
        if len(self._ids) > KNOWN:
            self._ids.clear()
        self._ids.update(new)
        self._packed.clear()
        return outcomes

    def _at_once(self, batch: list[Append]) -> bool:
        """Write steps of known runs by one statement, which is a transaction; False if that fails.

        Between two statements this thread may wait for the interpreter, and everybody for the lock.
        """
        if len(batch) > SIZES[-1]:
            return False
        ids, now = self._ids, time.time()
        rows: list[tuple[Any, ...]] = []
        for append in batch:
            run = ids.get(append.run_id)
            if run is None or append.status is not None or append.pieces:
                return False
            rows.append(_added(append, run, now))
        with _translated(self._path):
            try:
                self._add(self._db, rows)
            except _REFUSED:
                return False
        return True

    def _add(self, db: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
        """Write rows of runs that go on as they are, a few statements for all."""
        for start in range(0, len(rows), SIZES[-1]):
            some = rows[start : start + SIZES[-1]]
            size = SIZES[bisect_left(SIZES, len(some))]
            some += [NOTHING] * (size - len(some))
            db.execute(adding(size), list(chain.from_iterable(some)))

    def _written(self, db: sqlite3.Connection, batch: list[Append], new: dict[str, int]) -> bool:
        try:
            return self._write(db, batch, new)
        except _REFUSED:
            return False

    def _write(self, db: sqlite3.Connection, batch: list[Append], new: dict[str, int]) -> bool:
        """Write all of a batch. False, in the middle of it, if one cannot be written."""
        now = time.time()
        changes: dict[str, list[tuple[Any, ...]]] = {_TURN: [], _OVER: []}
        rows: list[tuple[Any, ...]] = []
        added: list[tuple[Any, ...]] = []
        for append in batch:
            run = self._ids.get(append.run_id) if append.at else self._create(db, append, now)
            if run is None:
                run = append.at and self._found(db, append.run_id)
                if not run:
                    return False
            new[append.run_id] = run
            if append.at and append.status is None:
                added.append(_added(append, run, now))
            else:
                rows.append((run, *row_of(append)))
                if append.at:
                    statement, change = _change_of(append, run, now)
                    changes[statement].append(change)
            for piece in append.pieces:
                self._keep(db, run, piece)
        for statement, values in changes.items():
            if values and db.executemany(statement, values).rowcount != len(values):
                return False
        if rows:
            db.executemany(_ROW, rows)
        self._add(db, added)
        return True

    def _create(self, db: sqlite3.Connection, append: Append, now: float) -> int | None:
        head = append.head
        if head is None or append.epoch:
            return None
        leased = append.lease_s is not None and not append.over
        lease = now + append.lease_s if leased and append.lease_s is not None else None
        end = now if append.over and append.status != "suspended" else None
        values = (
            append.run_id, head.agent, head.parent, head.started, append.updated, len(append.lines),
            lease, append.status, append.token, end,
        )  # fmt: skip
        cursor = db.execute(_NEW, values)
        return cursor.lastrowid if cursor.rowcount == 1 else None

    def _found(self, db: sqlite3.Connection, run_id: str) -> int | None:
        row = db.execute("SELECT id FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        return None if row is None else int(row[0])

    def _pack(self, batch: list[Append]) -> None:
        """Make ready what is to be kept of large values, before other processes wait for the lock."""
        self._packed.clear()
        for append in batch:
            for piece in append.pieces:
                if piece.digest not in self._packed and not self._kept(piece.digest):
                    self._packed[piece.digest] = packed(piece.body)

    def _kept(self, digest: str) -> bool:
        with _translated(self._path):
            found = self._db.execute("SELECT 1 FROM blobs WHERE digest = ?", (digest,))
            return found.fetchone() is not None

    def _keep(self, db: sqlite3.Connection, run: int, piece: Piece) -> None:
        """Keep a large value, if it is not kept already."""
        digest = piece.digest
        db.execute("INSERT INTO uses VALUES (?, ?) ON CONFLICT DO NOTHING", (run, digest))
        if not self._kept(digest):
            # Where it was removed since it was looked for, it is not ready.
            body = self._packed.get(digest) or packed(piece.body)
            db.execute("INSERT INTO blobs (digest, body) VALUES (?, ?)", (digest, body))

    def _write_one(self, db: sqlite3.Connection, append: Append) -> BaseException | None:
        """Write one append, and say why if that cannot be; its neighbours are not touched."""
        error = refused(append, self._owned(db, append.run_id), lambda: self._rows(db, append))
        if error is not None or not append.lines:
            return error
        self._ids.pop(append.run_id, None)
        db.execute("SAVEPOINT one")
        if not self._written(db, [append], {}):
            db.execute("ROLLBACK TO one")
            return StoreError(
                f"run {append.run_id}: SQLite cannot keep the events from {append.at} on"
            )
        return None

    def _rows(self, db: sqlite3.Connection, append: Append) -> list[Row]:
        run = self._found(db, append.run_id)
        return [Row(*row) for row in db.execute(_READ, (run, run, append.at))]

    # Owners ---------------------------------------------------------------------------------------

    def _owned(self, db: sqlite3.Connection, run_id: str) -> Owned | None:
        row = db.execute(
            "SELECT status, events, epoch, claims, lease_until, claimant FROM runs WHERE run_id = ?",
            (run_id,),
        ).fetchone()
        return None if row is None else Owned(*row)

    def own(self, batch: list[tuple[str, Change]]) -> list[Owned | StoreError]:
        """As in `Driver`."""
        with self._transaction() as db:
            return own_each(batch, partial(self._own, db))

    def _own(self, db: sqlite3.Connection, run_id: str, change: Change) -> Owned:
        row = change(self._owned(db, run_id), time.time())
        db.execute(
            "UPDATE runs SET status = ?, epoch = ?, claims = ?, lease_until = ?, claimant = ? "
            "WHERE run_id = ?",
            (row.status, row.epoch, row.claims, row.lease_until, row.claimant, run_id),
        )
        return row

    # Reading --------------------------------------------------------------------------------------

    def read(self, run_id: str, after: int) -> list[Event]:
        """As in `Driver`."""
        with self._transaction("DEFERRED") as db:
            found = db.execute("SELECT id, events FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            if found is None:
                return []
            run, length = found
            rows = [Row(*row) for row in db.execute(_READ, (run, run, after + 1))]
            if length != (rows[-1].end if rows else 0):
                raise StoreCorrupt(f"run {run_id} lacks events before position {length}")
            return events_of(run_id, rows, after, self._fetch)

    def _fetch(self, digest: str) -> bytes | None:
        row = self._db.execute("SELECT body FROM blobs WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else row[0]

    def runs(self, where: dict[str, str], limit: int | None) -> list[RunInfo]:
        """As in `Driver`."""
        tests = " AND ".join(_WHERE[name] for name in where) or "1"
        # Only names from the table above get into the statement; values are bound.
        statement = f"SELECT {_COLUMNS} FROM runs WHERE {tests} ORDER BY id DESC LIMIT ?"  # noqa: S608
        values = (*where.values(), -1 if limit is None else limit)
        with _translated(self._path):
            return [info_of(row) for row in self._db.execute(statement, values).fetchall()]

    def find(self, token: str) -> str | None:
        """As in `Driver`."""
        statement = "SELECT run_id FROM runs WHERE token = ? AND status = 'suspended'"
        with _translated(self._path):
            row = self._db.execute(statement, (token,)).fetchone()
        return None if row is None else str(row[0])

    def now(self) -> float:
        """As in `Driver`: this machine's, as a file has no other."""
        return time.time()

    def prune(self, older_than: float | None, keep: int | None) -> int:
        """As in `Driver`."""
        border = time.time() - (older_than or 0.0) if older_than is not None else float("inf")
        count = 0
        while True:
            with self._transaction() as db:
                gone = db.execute(_ENDED, (border, keep or 0, PRUNED)).fetchall()
                db.executemany("DELETE FROM events WHERE run = ?", gone)
                db.executemany(
                    "DELETE FROM blobs WHERE digest IN (SELECT digest FROM uses WHERE run = ?) AND "
                    "NOT EXISTS (SELECT 1 FROM uses WHERE uses.digest = blobs.digest AND run <> ?)",
                    [(run, run) for (run,) in gone],
                )
                db.executemany("DELETE FROM uses WHERE run = ?", gone)
                db.executemany("DELETE FROM runs WHERE id = ?", gone)
            count += len(gone)
            if len(gone) < PRUNED:
                return count


def _added(append: Append, run: int, now: float) -> tuple[Any, ...]:
    """A row of `appended`."""
    lease = None if append.lease_s is None else now + append.lease_s
    return (run, append.epoch, append.updated, lease, *row_of(append))


def _change_of(append: Append, run: int, now: float) -> tuple[str, tuple[Any, ...]]:
    """What an append that says a status changes in its run's row: the statement and its values."""
    which = (run, append.epoch, append.at)
    count = len(append.lines)
    if not append.over:
        lease = None if append.lease_s is None else now + append.lease_s
        return _TURN, (count, append.updated, lease, append.status, None, *which)
    end = None if append.status == "suspended" else now
    return _OVER, (count, append.updated, append.status, append.token, end, *which)
