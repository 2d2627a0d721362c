"""Runs in a SQLite file: durable on one machine, with the standard library alone."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import threading
import time
import zlib
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote

from triage.core.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    check_word,
    misuse,
)

from .clock import Clock
from .sql import (
    ADD,
    CREATE,
    GO_ON,
    INDEXES,
    TURN,
    Driver,
    Transaction,
    Values,
    check_version,
    error_events,
)
from .writer import ThreadedStore


class SQLiteStore(ThreadedStore):
    """Keeps runs in a file, which any number of processes of this machine may share.

    path: of the file, created with mode 0600 if missing. synchronous: with `"full"` (default) commits
    survive a power failure; with `"normal"` they survive the death of the process, and a power failure may
    lose the last ones. timeout: seconds to wait for another process' lock, 10 by default. The first use or
    `await store.open()` opens the file; a damaged, read-only or newer file and one of another program are
    then refused, and left untouched.

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
"""SQLite's application id of our files: `TRGA`."""
CHECKED = 32 * 2**20
"""Maximum bytes of a file that is checked as a whole when it is opened."""
LOG = 4_000
"""Pages of 4 KB after which the log is written into the file, which waits for the disk twice more. A longer
log writes a page once for more of its changes."""

_FIRST_COLUMNS = (
    "id", "run_id", "agent", "parent", "status", "token", "started", "updated", "finished", "events",
    "epoch", "claims", "lease_until", "claimant",
)  # fmt: skip
_FIRST_CRC = f"row_crc({', '.join(_FIRST_COLUMNS)})"
ROW_CRC = f"row_crc({', '.join((*_FIRST_COLUMNS, 'kind', 'subject', 'due'))})"
"""The checksum of a run's row, in SQL."""
_SOUND = f"crc = {ROW_CRC}"

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
        # Appends go to the end of this table, and only its index is ordered by run. In a table ordered by
        # run, each commit would touch a page for every run.
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
        f"UPDATE runs SET crc = {_FIRST_CRC}",
    ),
    (
        # One row for each start of the machine that has used the file: see `Clock`.
        """CREATE TABLE clock (
            boot TEXT PRIMARY KEY,
            zero REAL NOT NULL,
            seen REAL NOT NULL,
            crc INTEGER NOT NULL) WITHOUT ROWID""",
    ),
    (
        # Journals of other kinds than runs.
        "ALTER TABLE runs ADD COLUMN kind TEXT NOT NULL DEFAULT 'run'",
        "ALTER TABLE runs ADD COLUMN subject TEXT",
        "ALTER TABLE runs ADD COLUMN due REAL",
        f"UPDATE runs SET crc = {ROW_CRC} WHERE crc = {_FIRST_CRC}",
        *INDEXES,
        error_events("json_extract({entry}, '$.values.{field}')"),
    ),
)
"""The statements that migrate a file from each version to the next."""
VERSION = len(MIGRATIONS)


def connect(path: str, synchronous: str, timeout: float, *, writes: bool) -> sqlite3.Connection:
    """Open a file, and create it if missing. writes: check a small file for damage first.

    Raises StoreError for a file that is no store of this release or may not be written, and leaves the
    file untouched.
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
    """Add the functions for checksums of rows and for the table of ids to a connection."""
    db.create_function("row_crc", -1, _row_crc, deterministic=True)
    db.create_function("digest_of", 1, _digest_of, deterministic=True)


def _row_crc(*columns: object) -> int:
    return zlib.crc32(repr(columns).encode("utf-8", "surrogatepass"))


def _digest_of(run_id: str) -> bytes:
    return hashlib.blake2b(run_id.encode(), digest_size=12).digest()


_making = threading.Lock()


def _prepare(path: str) -> None:
    """Create a missing file, readable by its owner only; refuse a file that cannot be a store.

    An existing file is not opened here: closing it would drop the locks of all other connections of this
    process, and another process would take its log for abandoned.
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
    # A read-only file is refused for the superuser, too.
    if not mode & 0o222 or not os.access(path, os.W_OK):
        raise StoreReadOnly(f"{path} may not be written")


def _version(db: sqlite3.Connection, path: str) -> int:
    """Return the version of the tables, 0 for a new file."""
    # In one transaction, since another connection may be creating the tables.
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
    check_version(path, version, VERSION)
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
            # Another process opens the same new file now, which SQLite itself does not wait for.
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


# A connection -------------------------------------------------------------------------------------

_ERRORS: tuple[tuple[str, type[StoreError], str], ...] = (
    ("SQLITE_CONSTRAINT", StoreError, "cannot keep it"),
    ("SQLITE_TOOBIG", StoreError, "cannot keep it"),
    ("SQLITE_MISMATCH", StoreError, "cannot keep it"),
    ("SQLITE_FULL", StoreFull, "has no room left; free some and go on"),
    ("SQLITE_READONLY", StoreReadOnly, "may not be written"),
    ("SQLITE_PERM", StoreReadOnly, "may not be written"),
    # Our statements never change, so an error in one is an error in the tables.
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

    After a move it would still be open here, and nobody would find the new events.
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


_WORDS = {
    "sound": _SOUND,
    "sealed": f", crc = {ROW_CRC.replace('claims', '0')}",
    "rows": "",
    "and_rows": "",
    "written": "runs",
    "skip": "",
}
_BEGIN = {"commit": "BEGIN IMMEDIATE", "prune": "BEGIN IMMEDIATE", "read": "BEGIN"}
_SEAL = f"UPDATE runs SET crc = {ROW_CRC} WHERE run_id = :run_id"
_ENTER = "INSERT INTO ids (digest) VALUES (digest_of(:run_id)) ON CONFLICT (digest) DO NOTHING"
_KNOWN = """
SELECT 1 FROM ids WHERE digest = digest_of(:run_id) UNION ALL SELECT 1 FROM runs WHERE run_id = :run_id"""
# Past the index.
_WAITING = "SELECT false, run_id FROM runs WHERE +token = :token AND status = 'suspended'"
_FORGET = (
    "DELETE FROM ids WHERE digest IN (SELECT digest_of(run_id) FROM runs WHERE id IN ({gone}))"
)


@lru_cache(128)  # statements that remove runs have the numbers of these
def _spelled(statement: str) -> str:
    return statement.format_map(_WORDS)


class SQLiteDriver(Driver):
    """A connection to a file. writes: whether it is used for more than reading."""

    # A forked child that shared it would hold none of its locks.
    close_at_fork: ClassVar[bool] = True

    def __init__(self, file: _File, synchronous: str, timeout: float, *, writes: bool) -> None:
        self.place = file.path
        self._file = file
        self._clock = Clock(file.path)
        self._now = 0.0
        if file.identity is not None:
            file.check()
        with translated(file.path):
            self.raw = self._db = connect(file.path, synchronous, timeout, writes=writes)
        file.check()

    def close(self) -> None:
        """As in `Driver`."""
        self._db.close()

    def now(self) -> float:
        """As in `Store`; see `Clock`."""
        with self.translated():
            return self._clock.read(self._db)

    def translated(self) -> AbstractContextManager[None]:
        """As in `Driver`."""
        self._file.check()
        return translated(self.place)

    @contextmanager
    def _transaction(self, kind: Transaction) -> Generator[None]:
        if kind == "large":  # inside of a commit, which has locked the file
            yield
            return
        db = self._db
        with self.translated():
            # A deferred transaction must only read, since it cannot wait for the lock to write.
            db.execute(_BEGIN[kind])
            try:
                if kind != "read":
                    self._now = self._clock.tell(db)
                yield
                db.execute("COMMIT")
            except BaseException:
                self._clock.forget()
                if db.in_transaction:  # a full disk may have rolled it back
                    db.execute("ROLLBACK")
                raise

    def _rows(self, statement: str, values: Values) -> list[tuple[Any, ...]]:
        return self._db.execute(_spelled(statement), values).fetchall()

    def _each(self, statement: str, values: Sequence[Values]) -> list[tuple[Any, ...]]:
        said, now = _spelled(statement), self._now
        return [row for each in values for row in self._db.execute(said, {**each, "now": now})]

    def _change(self, statement: str, values: Sequence[Values]) -> set[str]:
        said, now = _spelled(statement), self._now
        changed: set[str] = set()
        for each in values:
            if self._db.execute(said, {**each, "now": now}).rowcount:
                self._db.execute(_SEAL, each)
                changed.add(each["run_id"])
        return changed

    def _append(self, values: Sequence[Values]) -> set[str]:
        written = self._change(CREATE, [each for each in values if not each["at"]])
        for run_id in written:
            if self._db.execute(_ENTER, {"run_id": run_id}).rowcount != 1:
                raise self._damaged(run_id)
        for change, is_turn in ((GO_ON, False), (TURN, True)):
            some = [
                each for each in values if each["at"] and (each["status"] is not None) is is_turn
            ]
            written |= self._change(change, some)
        self._each(ADD, [each for each in values if each["run_id"] in written])
        return written

    def _remove(self, gone: str) -> None:
        self._db.execute(_FORGET.format(gone=gone))
        super()._remove(gone)

    def _is_known(self, run_id: str) -> bool:
        return bool(self._rows(_KNOWN, {"run_id": run_id}))

    def _past_index(self, token: str) -> list[tuple[Any, ...]]:
        return self._rows(_WAITING, {"token": token})
