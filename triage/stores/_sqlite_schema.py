"""The tables of a SQLite file, and how a file is opened, checked and brought to them."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from functools import cache
from pathlib import Path
from urllib.parse import quote

from triage.errors import StoreCorrupt, StoreError, StoreReadOnly, StoreTooNew, StoreUnavailable

APPLICATION = 0x54524741
"""Tells a file of ours from those of other programs: `TRGA`."""
CHECKED = 32 * 2**20
"""Files of up to so many bytes are checked through when they are opened."""
LOG = 4_000
"""Pages of the log, of 4 KB each, after which they are brought into the file: that waits for the disk twice
more, and takes a page that was written many times only once."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Ids are never used again, so that who remembers one cannot meet another run.
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
        # Written at the end, whichever run: a table in the order of the runs would touch a page a run
        # with each commit. The index has the order.
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
)
"""What brings a file from each version to the next."""
VERSION = len(MIGRATIONS)

APPENDED = ("run", "epoch", "updated", "lease", "seq", "count", "crc", "body", "refs")
"""What is inserted into `appended`, a view of each connection that writes."""
NOTHING = (None,) * len(APPENDED)
SIZES = (*range(1, 8), *range(8, 109, 4))
"""Rows of a statement that appends: few statements are prepared, and few rows in them are `NOTHING`.

Any SQLite takes 999 values.
"""
_APPENDING = (
    f"CREATE TEMP VIEW appended AS SELECT {', '.join(f'NULL AS {name}' for name in APPENDED)}",
    # A run that goes on as it is: whoever is not its owner, or not at its end, fails the statement.
    """CREATE TEMP TRIGGER appending INSTEAD OF INSERT ON appended BEGIN
        UPDATE runs SET events = events + NEW.count, updated = NEW.updated,
            lease_until = CASE WHEN status = 'running' THEN coalesce(NEW.lease, lease_until)
                ELSE lease_until END
        WHERE id = NEW.run AND epoch = NEW.epoch AND events = NEW.seq;
        SELECT RAISE(ABORT, 'stale') WHERE changes() = 0;
        INSERT INTO events (run, seq, count, crc, body, refs)
        VALUES (NEW.run, NEW.seq, NEW.count, NEW.crc, NEW.body, NEW.refs);
    END""",
)


@cache
def adding(size: int) -> str:
    """The statement that inserts so many rows into `appended`."""
    row = f"({', '.join('?' * len(APPENDED))})"
    rows = ", ".join([row] * size)
    return f"INSERT INTO appended SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL"  # noqa: S608 - marks only


def connect(path: str, synchronous: str, timeout: float, *, writes: bool) -> sqlite3.Connection:
    """Open a file, made if there is none. writes: look through a small one for damage first.

    Raises StoreError for what is no store of this release or may not be written, and leaves it alone.
    """
    _prepare(path)
    uri = f"file:{quote(path)}?mode=rw"
    # Another thread may close it, before a fork.
    db = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=timeout
    )
    try:
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
            for statement in _APPENDING:
                db.execute(statement)
    except BaseException:
        db.close()
        raise
    return db


_making = threading.Lock()


def _prepare(path: str) -> None:
    """See that there is a file that may be a store; only we may read a new one.

    One that is there is never opened here: to close it again would let go of the locks that all other
    connections of this process have on it, and another process would take its log for left behind.
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
    # Marked so, it is meant so, also where we are the superuser.
    if not mode & 0o222 or not os.access(path, os.W_OK):
        raise StoreReadOnly(f"{path} may not be written")


def _version(db: sqlite3.Connection, path: str) -> int:
    """The version of the tables, 0 for a new file."""
    # All at one moment: another connection may be making the tables.
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
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
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
