"""A connection to Postgres: what is read and written."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from itertools import starmap
from typing import Any, ClassVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from triage.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
)
from triage.events import Event
from triage.redact import redact

from . import _postgres_sql as q
from ._blobs import packed
from ._commits import Change, own_each
from ._lane import Lost
from ._owners import Owned
from ._rows import Append, Row, events_of, info_of, refused, row_of
from .base import RunInfo

PRUNED = 200
"""Runs removed in one commit."""
WEAK = ("off", "local")
"""What `synchronous_commit` must not be: a commit could be lost after it was told."""

_BY_CODE: tuple[tuple[str, type[StoreError], str], ...] = (
    ("53100", StoreFull, "has no room left; free some and go on"),
    ("42501", StoreReadOnly, "may not be written by this user"),
    ("XX001", StoreCorrupt, "is damaged"),
    ("XX002", StoreCorrupt, "is damaged"),
)


def _error_of(error: psycopg.Error, connection: psycopg.Connection[Any] | None) -> Exception:
    """What is raised for an error of the driver; `Lost` where another try may help."""
    code = error.sqlstate or ""
    text = redact(str(error).strip().partition("\n")[0])
    for prefix, kind, meaning in _BY_CODE:
        if code.startswith(prefix):
            return kind(f"the database {meaning} ({text})")
    if code == "25006" or "read-only" in text:  # a failover has left us with the old one
        return Lost(StoreReadOnly(f"the database may not be written ({text})"))
    gone = connection is not None and connection.closed
    again = gone or not code or code in ("40001", "40P01") or code[:2] in ("08", "57")
    if again and code != "57014":  # the statement took too long
        return Lost(StoreUnavailable(f"the database does not answer ({text})"))
    if isinstance(error, psycopg.OperationalError):
        return StoreUnavailable(f"the database refuses us ({text})")
    return StoreError(f"the database cannot do it ({code} {text})")


class PostgresDriver:
    """A connection, used by one thread at a time. writes: it is not for reading alone."""

    close_at_fork: ClassVar[bool] = False

    def __init__(self, url: str, schema: str, timeout: float, *, writes: bool) -> None:
        self._db: psycopg.Connection[Any] | None = None
        given = conninfo_to_dict(url)
        defaults: dict[str, Any] = {
            "connect_timeout": max(2, int(timeout)),
            "tcp_user_timeout": int(timeout * 1000),
            # Of several hosts, the one that may be written: after a failover it is another one.
            "target_session_attrs": "read-write",
            "application_name": "triage",
        }
        options = {name: value for name, value in defaults.items() if name not in given}
        try:
            self._db = db = psycopg.connect(url, autocommit=True, **options)
            (weak,) = db.execute("SELECT current_setting('synchronous_commit')").fetchone() or ("",)
            db.execute(
                "SELECT set_config('search_path', %s, false), "
                "set_config('statement_timeout', %s, false), "
                "set_config('synchronous_commit', %s, false)",
                (schema, str(int(timeout * 1000)), "on" if weak in WEAK else weak),
            )
            _migrate(db, schema)
            # Not before: who waits for another's migration must see what it has made.
            if not writes:
                db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        except psycopg.Error as error:
            failure = _error_of(error, self._db)
            self.close()
            raise failure from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """As in `Driver`."""
        if self._db is not None:
            self._db.close()

    @property
    def raw(self) -> psycopg.Connection[Any]:
        """The connection itself."""
        assert self._db is not None
        return self._db

    @contextmanager
    def translated(self) -> Generator[psycopg.Connection[Any]]:
        """The connection; what it raises is raised as a StoreError, or as `Lost`."""
        assert self._db is not None
        try:
            yield self._db
        except psycopg.Error as error:
            raise _error_of(error, self._db) from error

    # Appends --------------------------------------------------------------------------------------

    def commit(self, batch: list[Append]) -> list[BaseException | None]:
        """As in `Driver`."""
        outcomes: dict[str, BaseException | None] = {append.run_id: None for append in batch}
        left = [append for append in batch if append.lines]
        # Once, nearly always. What could not be written is looked into and, if it can be now, tried
        # again; somebody else may be faster again and again, yet each time the journal gets longer.
        while left:
            with self.translated() as db:
                try:
                    written = _append(db, left)
                except (psycopg.DataError, psycopg.IntegrityError) as error:
                    if len(left) == 1:
                        outcomes[left[0].run_id] = _refusal(error)
                        break
                    for append in left:
                        (outcomes[append.run_id],) = self.commit([append])
                    break
                retried: list[Append] = []
                for append in left:
                    if append.run_id in written:
                        outcomes[append.run_id] = None
                        continue
                    error_of_it = self._refused(db, append)
                    outcomes[append.run_id] = error_of_it
                    if error_of_it is None and append.lines:
                        retried.append(append)
                left = retried
        return [outcomes[append.run_id] for append in batch]

    def _refused(self, db: psycopg.Connection[Any], append: Append) -> BaseException | None:
        with db.transaction():
            found = db.execute(q.OWNED, (append.run_id,)).fetchone()
            owned = None if found is None else Owned(*found[:6])
            return refused(append, owned, lambda: _rows(db, append.run_id, append.at)[1])

    # Owners ---------------------------------------------------------------------------------------

    def own(self, batch: list[tuple[str, Change]]) -> list[Owned | StoreError]:
        """As in `Driver`."""
        with self.translated() as db, db.transaction():
            return own_each(batch, partial(_own, db))

    # Reading --------------------------------------------------------------------------------------

    def read(self, run_id: str, after: int) -> list[Event]:
        """As in `Driver`."""
        with self.translated() as db, db.transaction():
            length, rows = _rows(db, run_id, after + 1)
            if length != (rows[-1].end if rows else 0):
                raise StoreCorrupt(f"run {run_id} lacks events before position {length}")

            def fetch(digest: str) -> bytes | None:
                found = db.execute("SELECT body FROM blobs WHERE digest = %s", (digest,)).fetchone()
                return None if found is None else bytes(found[0])

            return events_of(run_id, rows, after, fetch)

    def runs(self, where: dict[str, str], limit: int | None) -> list[RunInfo]:
        """As in `Driver`."""
        values = {name: where.get(name) for name in ("run_id", "status", "agent", "parent")}
        with self.translated() as db:
            found = db.execute(q.RUNS, {**values, "limit": limit}, prepare=False)
            return [info_of(row) for row in found.fetchall()]

    def find(self, token: str) -> str | None:
        """As in `Driver`."""
        statement = "SELECT run_id FROM runs WHERE token = %s AND status = 'suspended'"
        with self.translated() as db:
            found = db.execute(statement, (token,)).fetchone()
        return None if found is None else str(found[0])

    def now(self) -> float:
        """As in `Driver`."""
        with self.translated() as db:
            found = db.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
            (now,) = found.fetchone() or (0.0,)
        return float(now)

    def prune(self, older_than: float | None, keep: int | None) -> int:
        """As in `Driver`."""
        age = float("-inf") if older_than is None else older_than
        count = 0
        while True:
            with self.translated() as db, db.transaction():
                db.execute("SELECT pg_advisory_xact_lock(%s)", (q.LOCK,))
                found = db.execute(q.ENDED, (age, keep or 0, PRUNED)).fetchall()
                for statement in q.REMOVE:
                    db.execute(statement, {"gone": [row[0] for row in found]})
            count += len(found)
            if len(found) < PRUNED:
                return count


def _own(db: psycopg.Connection[Any], run_id: str, change: Change) -> Owned:
    found = db.execute(q.OWNED, (run_id,)).fetchone()
    owned, now = (None, 0.0) if found is None else (Owned(*found[:6]), found[6])
    row = change(owned, now)
    values = (row.status, row.epoch, row.claims, row.lease_until, row.claimant, run_id)
    db.execute(q.OWN, values)
    return row


def _append(db: psycopg.Connection[Any], batch: list[Append]) -> dict[str, int]:
    """Write what is not stale, in one commit: the ids of the runs that were written, by run."""
    columns = zip(*map(_columns, batch), strict=True)
    arrays = [_array(column) for column in columns]
    pieces = {p.digest: p.body for append in batch for p in append.pieces}
    if not pieces:
        return dict(db.execute(q.APPEND, arrays).fetchall())
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock_shared(%s)", (q.LOCK,))
        digests = sorted(pieces)  # in one order, so that two writers cannot wait for each other
        known = {
            row[0]
            for row in db.execute("SELECT digest FROM blobs WHERE digest = ANY(%s)", (digests,))
        }
        new = [digest for digest in digests if digest not in known]
        db.execute(q.KEEP, (new, [packed(pieces[digest]) for digest in new]))
        written: dict[str, int] = dict(db.execute(q.APPEND, arrays).fetchall())
        uses = [
            (written[append.run_id], piece.digest)
            for append in batch
            if append.run_id in written
            for piece in append.pieces
        ]
        db.execute(q.USE, ([run for run, _ in uses], [digest for _, digest in uses]))
    return written


def _array(values: tuple[Any, ...]) -> str:
    """Values as Postgres writes an array: made here at a tenth of what the driver's own takes."""
    texts = (
        "NULL"
        if value is None
        else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if value.__class__ is str
        else repr(value)
        for value in values
    )
    return f"{{{','.join(texts)}}}"


def _columns(append: Append) -> tuple[Any, ...]:
    head = append.head
    at, size, *row = row_of(append)
    return (
        append.run_id, at, append.epoch, size, append.updated, append.lease_s, append.status,
        append.token, *((None,) * 3 if head is None else head), *row,
    )  # fmt: skip


def _rows(db: psycopg.Connection[Any], run_id: str, start: int) -> tuple[int, list[Row]]:
    """The journal's length and its rows from a position on; 0 and none for an unknown run."""
    found = db.execute("SELECT id, events FROM runs WHERE run_id = %s", (run_id,)).fetchone()
    if found is None:
        return 0, []
    rows = db.execute(q.READ, {"run": found[0], "from": start}).fetchall()
    return found[1], list(starmap(Row, rows))


def _refusal(error: psycopg.Error) -> StoreError:
    refusal = StoreError(f"the database cannot keep the events ({error})")
    refusal.__cause__ = error
    return refusal


def _migrate(db: psycopg.Connection[Any], schema: str) -> None:
    """Bring the tables to this release's version. Raises StoreTooNew for newer ones."""
    version = _version(db, schema)
    if version == q.VERSION:
        return
    if version < q.VERSION:
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", (q.LOCK,))
            name = sql.Identifier(schema)
            version = _version(db, schema)
            if not version:
                (there,) = db.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() or (None,)
                if there is None:
                    db.execute(sql.SQL("CREATE SCHEMA {}").format(name))
                db.execute("CREATE TABLE IF NOT EXISTS meta (version int NOT NULL)")
                db.execute("INSERT INTO meta SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM meta)")
                # A name that was looked up before the lock may be remembered as of nothing.
                version = _version(db, schema)
            for statements in q.MIGRATIONS[version:]:
                db.execute(statements)
            db.execute("UPDATE meta SET version = greatest(version, %s)", (q.VERSION,))
    if version > q.VERSION:
        raise StoreTooNew(
            f"schema {schema} has tables of version {version}, this release knows {q.VERSION}; use "
            "the release that wrote it or a newer one"
        )


def _version(db: psycopg.Connection[Any], schema: str) -> int:
    (there,) = db.execute("SELECT to_regclass(%s)", (f"{schema}.meta",)).fetchone() or (None,)
    if there is None:
        return 0
    (version,) = db.execute("SELECT max(version) FROM meta").fetchone() or (0,)
    return int(version or 0)
