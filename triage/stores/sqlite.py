"""Runs in a SQLite file: durable on one machine, with the standard library alone."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import threading
import time
import zlib
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import quote

from triage.core import (
    Event,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
    check_word,
    misuse,
)

from .base import Owned, RunInfo, ticks
from .rows import Append, Row, events_of, info_of, packed, refused, row_of
from .writer import Change, ThreadedStore, own_each


class SQLiteStore(ThreadedStore):
    """Keeps runs in a file, which any number of processes of this machine may share.

    path: of the file, made with mode 0600 if there is none. synchronous: with `"full"` (default) commits
    survive the loss of power; with `"normal"` they survive the death of the process, and a loss of power
    may take the last ones. timeout: seconds to wait for another process' lock, 10 by default. The first
    use or `await store.open()` opens the file; one that is damaged, read-only, newer or another program's
    is refused then and left untouched.

    Raises UsageError for any other value.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["full", "normal"] = "full",
        timeout: float = 10.0,
    ) -> None:
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise misuse("SQLiteStore.path", path, "the path of a file, as text or a Path")
        if not os.fspath(path) or "\0" in os.fspath(path):
            raise misuse("SQLiteStore.path", path, "the path of a file")
        if os.fspath(path) == ":memory:":
            raise misuse(
                "SQLiteStore.path", path, "the path of a file", "in memory is MemoryStore()"
            )
        check_word("SQLiteStore.synchronous", synchronous, ("full", "normal"))
        # Absolute, since the working directory may change.
        self.path = str(Path(path).absolute())
        self._file = _File(self.path)
        connect = partial(SQLiteDriver, self._file, synchronous, timeout)
        super().__init__(connect, timeout=timeout)

    async def close(self) -> None:
        """As in `Store`."""
        await super().close()
        self._file.identity = None

    def __repr__(self) -> str:
        return f"SQLiteStore({self.path!r})"


# The tables ---------------------------------------------------------------------------------------

APPLICATION = 0x54524741
"""Marks a file as ours: `TRGA`."""
CHECKED = 32 * 2**20
"""Files of up to so many bytes are checked as a whole when they are opened."""
LOG = 4_000
"""Pages of 4 KB after which the log is written into the file. That waits for the disk twice more; with a
longer log, one write more often serves a page that was changed many times."""

_COLUMNS = (
    "id", "run_id", "agent", "parent", "status", "token", "started", "updated", "finished", "events",
    "epoch", "claims", "lease_until", "claimant",
)  # fmt: skip
ROW_CRC = f"row_crc({', '.join(_COLUMNS)})"
"""The checksum of a run's row, in SQL."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Ids are never reused, so that a remembered id cannot mean another run.
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run_id TEXT NOT NULL UNIQUE,
            agent TEXT NOT NULL,
            parent TEXT,
            status TEXT NOT NULL,
            token TEXT,
            started REAL NOT NULL,
            updated REAL NOT NULL,
            finished REAL,
            events INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            claims INTEGER NOT NULL,
            lease_until REAL,
            claimant TEXT NOT NULL)""",
        "CREATE INDEX runs_by_status ON runs (status)",
        "CREATE INDEX runs_by_token ON runs (token) WHERE token IS NOT NULL",
        "CREATE INDEX runs_by_end ON runs (finished) WHERE finished IS NOT NULL",
        # Every append goes to the end of this table. In a table ordered by run, each commit would touch a
        # page for every run; the index has that order.
        """CREATE TABLE events (
            id INTEGER PRIMARY KEY,
            run INTEGER NOT NULL,
            seq INTEGER NOT NULL,
            count INTEGER NOT NULL,
            crc INTEGER NOT NULL,
            body TEXT NOT NULL,
            refs TEXT)""",
        "CREATE UNIQUE INDEX events_by_run ON events (run, seq)",
        "CREATE TABLE blobs (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, body BLOB NOT NULL)",
        """CREATE TABLE uses (
            run INTEGER NOT NULL,
            digest TEXT NOT NULL,
            PRIMARY KEY (run, digest)) WITHOUT ROWID""",
        "CREATE INDEX uses_by_digest ON uses (digest)",
    ),
    (
        # A checksum for each run's row, and the run's id in a second tree: a damaged index alone must not
        # make a run unknown.
        "ALTER TABLE runs ADD COLUMN crc INTEGER NOT NULL DEFAULT 0",
        "CREATE TABLE ids (digest BLOB PRIMARY KEY) WITHOUT ROWID",
        "INSERT INTO ids SELECT digest_of(run_id) FROM runs",
        f"UPDATE runs SET crc = {ROW_CRC}",
    ),
    (
        # One row for each start of the machine that has used the file: see `Clock`.
        """CREATE TABLE clock (
            boot TEXT PRIMARY KEY,
            zero REAL NOT NULL,
            seen REAL NOT NULL,
            crc INTEGER NOT NULL) WITHOUT ROWID""",
    ),
)
"""The statements that bring a file from each version to the next."""
VERSION = len(MIGRATIONS)

PRUNED = 200
"""Runs removed in one commit. Others may write between two commits."""


def connect(path: str, synchronous: str, timeout: float, *, writes: bool) -> sqlite3.Connection:
    """Open a file, and make it if there is none. writes: check a small one for damage first.

    Raises StoreError for a file that is no store of this release or may not be written, and leaves it
    alone.
    """
    _prepare(path)
    uri = f"file:{quote(path)}?mode=rw"
    # Before a fork another thread closes it.
    db = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=timeout
    )
    try:
        add_functions(db)
        version = _version(db, path)
        if writes and version:
            _check(db, path)
        _use_wal(db, path, timeout)
        db.execute(f"PRAGMA synchronous = {synchronous}")
        if version < VERSION:
            _migrate(db, path)
        if writes:
            db.execute("PRAGMA temp_store = MEMORY")
            db.execute(f"PRAGMA wal_autocheckpoint = {LOG}")
    except BaseException:
        db.close()
        raise
    return db


def add_functions(db: sqlite3.Connection) -> None:
    """Let a connection compute the checksums of rows, and what the table of ids needs."""
    db.create_function("row_crc", -1, _row_crc, deterministic=True)
    db.create_function("digest_of", 1, _digest_of, deterministic=True)


def _row_crc(*columns: object) -> int:
    return zlib.crc32(repr(columns).encode("utf-8", "surrogatepass"))


def _digest_of(run_id: str) -> bytes:
    return hashlib.blake2b(run_id.encode(), digest_size=12).digest()


_making = threading.Lock()


def _prepare(path: str) -> None:
    """Make the file if there is none, readable by its owner only; refuse what cannot be a store.

    A file that exists is not opened here: closing it would drop the locks that all other connections of
    this process hold on it, and another process would take its log for abandoned.
    """
    try:
        with _making:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        pass
    except PermissionError as error:
        raise StoreReadOnly(f"{path} may not be made: {error.strerror}") from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be made: {error.strerror}") from error
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path} is no file")
    # A file marked read-only is meant to be so, for the superuser too.
    if not mode & 0o222 or not os.access(path, os.W_OK):
        raise StoreReadOnly(f"{path} may not be written")


def _version(db: sqlite3.Connection, path: str) -> int:
    """Return the version of the tables, 0 for a new file."""
    # In one transaction, since another connection may be making the tables.
    alone = not db.in_transaction
    if alone:
        db.execute("BEGIN")
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if alone:
        db.execute("COMMIT")
    if application != APPLICATION and (tables or application or version):
        raise StoreCorrupt(
            f"{path} is the database of another program; give runs a file of their own"
        )
    if version > VERSION:
        raise StoreTooNew(
            f"{path} has tables of version {version}, this release knows {VERSION}; use the release "
            "that wrote it or a newer one"
        )
    return int(version)


def _check(db: sqlite3.Connection, path: str) -> None:
    if Path(path).stat().st_size > CHECKED:
        return
    (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise StoreCorrupt(f"{path} is damaged; restore it from a copy ({found})")


def _use_wal(db: sqlite3.Connection, path: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            # Whoever opens the same new file at this moment: SQLite does not wait for that itself.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StoreUnavailable(f"{path} is where SQLite has no WAL: keep it on a local disk")
        return


def _migrate(db: sqlite3.Connection, path: str) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        for statements in MIGRATIONS[_version(db, path) :]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


# The clock ----------------------------------------------------------------------------------------

NOTED = 60.0
"""Seconds of the store's time after which it is noted again how late it is."""


@cache
def boot_id() -> str | None:
    """Return an id of this start of the machine and of the process' time namespace; None if unknown.

    Processes with the same id read the same counter in `ticks`.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"  # noqa: PTH115 - the link leads nowhere
    except (OSError, UnicodeDecodeError):
        return None


class Clock:
    """The clock of a store in a file, in seconds since the epoch, shared by all processes that use it.

    It starts from the wall time of the first use after the machine was started and then counts seconds, so
    it does not follow jumps of the wall clock. After a restart it starts from the wall time again, but not
    before the latest time noted in the file. On a system without `boot_id` it is the wall clock.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._zero: float | None = None
        self._noted = 0.0

    def read(self, db: sqlite3.Connection) -> float:
        """Return the time without writing. Until a writer has set the clock, it is the wall time."""
        boot = boot_id()
        if boot is None:
            return time.time()
        if self._zero is None:
            self._zero = self._stored(db, boot)
        return self._start(db) if self._zero is None else self._zero + ticks()

    def tell(self, db: sqlite3.Connection) -> float:
        """Return the time in a transaction that writes. Set the clock if nobody has, and note the time."""
        boot = boot_id()
        if boot is None:
            return time.time()
        now = self.read(db)
        if self._zero is None:
            # The lock is held, so no other process sets the clock meanwhile.
            self._zero = now - ticks()
            db.execute(
                "INSERT INTO clock VALUES (:boot, :zero, :seen, row_crc(:boot, :zero, :seen))",
                {"boot": boot, "zero": self._zero, "seen": now},
            )
            self._noted = now
        elif now - self._noted > NOTED:
            db.execute(
                "UPDATE clock SET seen = :seen, crc = row_crc(boot, zero, :seen) WHERE boot = :boot",
                {"seen": now, "boot": boot},
            )
            self._noted = now
        return now

    def forget(self) -> None:
        """Read the clock from the file next time: the transaction that may have set it was rolled back."""
        self._zero = None
        self._noted = 0.0

    def _stored(self, db: sqlite3.Connection, boot: str) -> float | None:
        row = db.execute(
            "SELECT zero, crc = row_crc(boot, zero, seen) FROM clock WHERE boot = ?", (boot,)
        ).fetchone()
        if row is None:
            return None
        zero, sound = row
        if not sound:
            raise StoreCorrupt(f"the clock in {self._path} is damaged; restore it from a copy")
        return float(zero)

    def _start(self, db: sqlite3.Connection) -> float:
        """Return the time at which a new clock starts."""
        (seen,) = db.execute(
            "SELECT max(seen) FROM clock WHERE crc = row_crc(boot, zero, seen)"
        ).fetchone()
        return max(time.time(), seen or 0.0)


# A connection -------------------------------------------------------------------------------------

_INFO = RunInfo._fields
_SOUND = f"crc = {ROW_CRC}"
_CREATE = """
INSERT INTO runs (run_id, agent, parent, started, updated, events, status, token, lease_until, finished,
    epoch, claims, claimant)
VALUES (:run_id, :agent, :parent, :started, :updated, :count, :status, :token,
    CASE WHEN :status = 'running' THEN :now + :lease_s END,
    CASE WHEN :status NOT IN ('running', 'suspended') THEN :now END, 0, 0, '')
ON CONFLICT DO NOTHING"""
# These change nothing for a writer that is not the owner, or not at the journal's end.
_GO_ON = f"""
UPDATE runs SET
    events = events + :count,
    updated = :updated,
    claims = CASE WHEN :progress THEN 0 ELSE claims END,
    lease_until = CASE status WHEN 'running' THEN coalesce(:now + :lease_s, lease_until)
        ELSE lease_until END
WHERE run_id = :run_id AND epoch = :epoch AND events = :at AND {_SOUND}"""
_TURN = f"""
UPDATE runs SET
    events = events + :count,
    updated = :updated,
    status = :status,
    token = :token,
    claims = CASE WHEN :status = 'running' AND NOT :progress THEN claims ELSE 0 END,
    lease_until = CASE :status WHEN 'running' THEN coalesce(:now + :lease_s, lease_until) END,
    finished = CASE WHEN :status NOT IN ('running', 'suspended') THEN :now END
WHERE run_id = :run_id AND epoch = :epoch AND events = :at AND {_SOUND}"""
# Resets the claims of the runs around one that made progress.
_FORGIVE = f"""
WITH RECURSIVE around (run_id) AS (
    SELECT parent FROM runs WHERE run_id = :run_id AND parent IS NOT NULL
    UNION
    SELECT parent FROM runs JOIN around USING (run_id) WHERE parent IS NOT NULL)
UPDATE runs SET claims = 0, crc = {ROW_CRC.replace("claims", "0")}
WHERE run_id IN around AND claims > 0 AND status = 'running' AND {_SOUND}"""
_SEAL = f"UPDATE runs SET crc = {ROW_CRC} WHERE run_id = ?"
_ENTER = "INSERT INTO ids (digest) VALUES (digest_of(?)) ON CONFLICT DO NOTHING"
_ADD = """
INSERT INTO events (run, seq, count, crc, body, refs)
SELECT id, :at, :count, :crc, :body, :refs FROM runs WHERE run_id = :run_id"""
_USE = """
INSERT INTO uses (run, digest) SELECT id, :digest FROM runs WHERE run_id = :run_id
ON CONFLICT DO NOTHING"""
_KEEP = "INSERT INTO blobs (digest, body) VALUES (?, ?) ON CONFLICT DO NOTHING"
_READ = """
SELECT seq, count, crc, body, refs FROM events
WHERE run = ?
    AND seq >= coalesce((SELECT max(seq) FROM events WHERE run = ? AND seq <= ?), 0)
ORDER BY seq"""
_ENDED = """
SELECT id FROM runs WHERE finished < ? AND id NOT IN (
    SELECT id FROM runs WHERE finished IS NOT NULL ORDER BY finished DESC, id DESC LIMIT ?)
LIMIT ?"""


_ERRORS: tuple[tuple[str, type[StoreError], str], ...] = (
    ("SQLITE_FULL", StoreFull, "has no room left; free some and go on"),
    ("SQLITE_READONLY", StoreReadOnly, "may not be written"),
    ("SQLITE_PERM", StoreReadOnly, "may not be written"),
    # Our statements are always the same, so an error in one is an error in the tables.
    ("SQLITE_ERROR", StoreCorrupt, "is damaged; restore it from a copy"),
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
def translated(path: str) -> Generator[None]:
    """Raise errors of SQLite inside as a StoreError that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise _error_of(error, path) from error
    except UnicodeDecodeError as error:
        raise StoreCorrupt(f"{path} is damaged; restore it from a copy ({error})") from error


class _File:
    """The file of a store, which must stay the same while the store is open.

    After a move it would still be open here, and nobody would find what is written into it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.identity: tuple[int, int] | None = None

    def check(self) -> None:
        """Remember the file at the first call. Raises StoreUnavailable if the path leads elsewhere now."""
        found: tuple[int, int] | None = None
        with suppress(OSError):
            status = os.stat(self.path)  # noqa: PTH116 - with each commit
            found = status.st_dev, status.st_ino
        if self.identity is None:
            self.identity = found
        elif found != self.identity:
            raise StoreUnavailable(f"{self.path} was replaced or removed while it was open")


class _Unkeepable(Exception):
    """SQLite cannot keep an append, whose `error` says so."""


class SQLiteDriver:
    """A connection, used by one thread at a time. writes: whether it is used for more than reading."""

    # A forked child that shared it would hold none of its locks.
    close_at_fork: ClassVar[bool] = True

    def __init__(self, file: _File, synchronous: str, timeout: float, *, writes: bool) -> None:
        self._path = file.path
        self._file = file
        self._clock = Clock(file.path)
        if file.identity is not None:
            file.check()
        with translated(file.path):
            self._db = connect(file.path, synchronous, timeout, writes=writes)
        file.check()

    @property
    def raw(self) -> sqlite3.Connection:
        """As in `Driver`."""
        return self._db

    def translated(self) -> AbstractContextManager[None]:
        """As in `Driver`."""
        self._file.check()
        return translated(self._path)

    def close(self) -> None:
        """As in `Driver`."""
        self._db.close()

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Generator[sqlite3.Connection]:
        """Run a transaction. A deferred one must only read: it could not wait for the lock to write."""
        db = self._db
        with self.translated():
            db.execute(f"BEGIN {kind}")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                self._clock.forget()
                if db.in_transaction:  # a full disk may have rolled it back
                    db.execute("ROLLBACK")
                raise

    # Appends --------------------------------------------------------------------------------------

    def commit(self, batch: list[Append]) -> None:
        """As in `Driver`."""
        # Compress before taking the lock, for which other processes wait.
        bodies = {piece.digest: packed(piece.body) for each in batch for piece in each.pieces}
        while left := [append for append in batch if append.error is None]:
            with suppress(_Unkeepable), self._transaction() as db:
                now = self._clock.tell(db)
                for append in left:
                    self._append(db, append, bodies, now)
                break

    def _append(
        self, db: sqlite3.Connection, append: Append, bodies: dict[str, bytes], now: float
    ) -> None:
        try:
            if self._written(db, append, bodies, now):
                return
            owned = self._owned(db, append.run_id)
            append.error = refused(append, owned, lambda: self._rows(db, append))
            if append.error is None and append.lines:  # its first events stood there already
                self._written(db, append, bodies, now)
        except (sqlite3.DataError, sqlite3.IntegrityError, OverflowError) as error:
            append.error = StoreError(
                f"run {append.run_id}: SQLite cannot keep the events from {append.at} on"
            )
            raise _Unkeepable from error

    def _written(
        self, db: sqlite3.Connection, append: Append, bodies: dict[str, bytes], now: float
    ) -> bool:
        """Write an append; return False if it is stale."""
        if not append.at and (append.epoch or append.started is None):
            return False
        change = _CREATE if not append.at else _GO_ON if append.status is None else _TURN
        values = {**append.columns(), "now": now}
        if db.execute(change, values).rowcount != 1:
            return False
        if not append.at and db.execute(_ENTER, (append.run_id,)).rowcount != 1:
            raise self._damaged(append.run_id)
        db.execute(_SEAL, (append.run_id,))
        if append.progress and append.epoch:
            db.execute(_FORGIVE, values)
        db.execute(_ADD, values)
        for piece in append.pieces:
            db.execute(_USE, {"run_id": append.run_id, "digest": piece.digest})
            db.execute(_KEEP, (piece.digest, bodies[piece.digest]))
        return True

    def _rows(self, db: sqlite3.Connection, append: Append) -> list[Row]:
        (run,) = db.execute("SELECT id FROM runs WHERE run_id = ?", (append.run_id,)).fetchone()
        return [row_of(append.run_id, row) for row in db.execute(_READ, (run, run, append.at))]

    # Owners ---------------------------------------------------------------------------------------

    def _owned(self, db: sqlite3.Connection, run_id: str) -> Owned | None:
        row = db.execute(
            "SELECT status, events, epoch, claims, lease_until, claimant FROM runs "
            f"WHERE run_id = ? AND {_SOUND}",
            (run_id,),
        ).fetchone()
        if row is None:
            self._unknown(run_id)
            return None
        return Owned(*row)

    def _unknown(self, run_id: str) -> None:
        """Raise StoreCorrupt if anything in the file says that the run exists."""
        known = self._db.execute(
            "SELECT 1 FROM ids WHERE digest = digest_of(:run_id) "
            "UNION ALL SELECT 1 FROM runs WHERE run_id = :run_id",
            {"run_id": run_id},
        ).fetchone()
        if known is not None:
            raise self._damaged(run_id)

    def _damaged(self, run_id: str) -> StoreCorrupt:
        return StoreCorrupt(f"{self._path} is damaged at run {run_id!r}; restore it from a copy")

    def own(self, batch: list[tuple[str, Change]]) -> list[Owned | StoreError]:
        """As in `Driver`."""
        with self._transaction() as db:
            return own_each(batch, partial(self._own, db))

    def _own(self, db: sqlite3.Connection, run_id: str, change: Change) -> Owned:
        row = change(self._owned(db, run_id), self._clock.tell(db))
        db.execute(
            "UPDATE runs SET status = ?, epoch = ?, claims = ?, lease_until = ?, claimant = ? "
            "WHERE run_id = ?",
            (row.status, row.epoch, row.claims, row.lease_until, row.claimant, run_id),
        )
        db.execute(_SEAL, (run_id,))
        return row

    # Reading --------------------------------------------------------------------------------------

    def read(self, run_id: str, after: int) -> list[Event]:
        """As in `Driver`."""
        with self._transaction("DEFERRED") as db:
            found = db.execute(
                f"SELECT id, events FROM runs WHERE run_id = ? AND {_SOUND}", (run_id,)
            ).fetchone()
            if found is None:
                self._unknown(run_id)
                return []
            run, length = found
            rows = [row_of(run_id, row) for row in db.execute(_READ, (run, run, after + 1))]
            if length != (rows[-1].end if rows else 0):
                raise StoreCorrupt(f"run {run_id} lacks events before position {length}")
            return events_of(run_id, rows, after, self._fetch)

    def _fetch(self, digest: str) -> bytes | None:
        row = self._db.execute("SELECT body FROM blobs WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else row[0]

    def runs(self, where: dict[str, str], limit: int | None) -> list[RunInfo]:
        """As in `Driver`."""
        # Only names of columns get into the statement; values are bound.
        tests = " AND ".join(f"{name} = :{name}" for name in where) or "1"
        columns = ", ".join((_SOUND, *_INFO))
        statement = f"SELECT {columns} FROM runs WHERE {tests} ORDER BY id DESC LIMIT :most"
        values = {**where, "most": -1 if limit is None else limit}
        with self.translated():
            rows = self._db.execute(statement, values).fetchall()
            if not rows and "run_id" in where:
                self._unknown(where["run_id"])
        found: list[RunInfo] = []
        for sound, *row in rows:
            info = dict(zip(_INFO, row, strict=True))
            if not sound:
                raise self._damaged(info["run_id"])
            found.append(info_of(info))
        return found

    def find(self, token: str) -> str | None:
        """As in `Driver`."""
        with self.translated():
            # If the index has no such token, search without it: tokens that find nothing are rare.
            for column in ("token", "+token"):
                row = self._db.execute(
                    f"SELECT {_SOUND}, run_id FROM runs WHERE {column} = ? AND status = 'suspended'",
                    (token,),
                ).fetchone()
                if row is not None:
                    sound, run_id = row
                    if not sound or column != "token":
                        raise self._damaged(run_id)
                    return str(run_id)
        return None

    def now(self) -> float:
        """As in `Driver`; see `Clock`."""
        with self.translated():
            return self._clock.read(self._db)

    def prune(self, older_than: float | None, keep: int | None) -> int:
        """As in `Driver`."""
        count = 0
        while True:
            with self._transaction() as db:
                border = float("inf") if older_than is None else self._clock.tell(db) - older_than
                gone = db.execute(_ENDED, (border, keep or 0, PRUNED)).fetchall()
                db.executemany("DELETE FROM events WHERE run = ?", gone)
                db.executemany(
                    "DELETE FROM blobs WHERE digest IN (SELECT digest FROM uses WHERE run = ?) AND "
                    "NOT EXISTS (SELECT 1 FROM uses WHERE uses.digest = blobs.digest AND run <> ?)",
                    [(run, run) for (run,) in gone],
                )
                db.executemany("DELETE FROM uses WHERE run = ?", gone)
                db.executemany(
                    "DELETE FROM ids WHERE digest IN (SELECT digest_of(run_id) FROM runs WHERE id = ?)",
                    gone,
                )
                db.executemany("DELETE FROM runs WHERE id = ?", gone)
            count += len(gone)
            if len(gone) < PRUNED:
                return count
