"""Runs in Postgres: durable, and shared by many machines."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, ClassVar, LiteralString

from triage.core import (
    Event,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
    UsageError,
    misuse,
    redact,
)

from .base import Owned, RunInfo
from .rows import Append, Row, events_of, info_of, packed, refused
from .writer import Change, Lost, ThreadedStore, own_each

_missing: ImportError | None = None
try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:  # raised when a store is made
    if TYPE_CHECKING:
        raise
    else:
        _missing = error

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresStore(ThreadedStore):
    """Keeps runs in a database, in a schema of their own. Needs the extra `postgres`.

    url: `postgresql://user@host/database`, as libpq knows it; of several hosts, the one that accepts writes
    is used. schema: `"triage"` by default, made if there is none. timeout: seconds after which a database
    that does not answer is given up, 10 by default; until then an append whose connection was lost is
    repeated. Its connections have `synchronous_commit` on, or stronger where the server says so. A pooler
    in between must keep sessions.

    Raises UsageError for any other value, and when the package is missing.
    """

    def __init__(self, url: str, *, schema: str = "triage", timeout: float = 10.0) -> None:
        if not isinstance(url, str):
            raise misuse("PostgresStore.url", url, "text")
        if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
            wanted = "1 to 63 of the characters a-z 0-9 _, no digit first"
            raise misuse("PostgresStore.schema", schema, wanted)
        if _missing is not None:
            raise UsageError(
                f"a store in Postgres needs psycopg ({_missing}): pip install 'triage-recovery[postgres]'"
            ) from _missing
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error as error:
            raise UsageError(f"PostgresStore.url is none: {str(error).partition(':')[0]}") from None
        self.url = url
        self.schema = schema
        self._shown = f"{given.get('host', '')}/{given.get('dbname', '')}, schema={schema!r}"
        connect = partial(PostgresDriver, url, schema, timeout)
        super().__init__(connect, timeout=timeout)

    def __repr__(self) -> str:
        return f"PostgresStore({self._shown})"


# The tables and their statements ------------------------------------------------------------

_MIGRATIONS: tuple[LiteralString, ...] = (
    """
    CREATE TABLE runs (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        run_id text NOT NULL COLLATE "C" UNIQUE,
        agent text NOT NULL COLLATE "C",
        parent text COLLATE "C",
        status text NOT NULL COLLATE "C",
        token text COLLATE "C",
        started float8 NOT NULL,
        updated float8 NOT NULL,
        finished float8,
        events int NOT NULL,
        epoch int NOT NULL DEFAULT 0,
        claims int NOT NULL DEFAULT 0,
        lease_until float8,
        claimant text NOT NULL DEFAULT '' COLLATE "C"
    ) WITH (fillfactor = 70);
    CREATE INDEX runs_by_status ON runs (status, id);
    CREATE INDEX runs_by_token ON runs (token) WHERE token IS NOT NULL;
    CREATE INDEX runs_by_end ON runs (finished) WHERE finished IS NOT NULL;
    CREATE TABLE events (
        run bigint NOT NULL,
        seq int NOT NULL,
        count int NOT NULL,
        crc bigint NOT NULL,
        body text NOT NULL,
        refs text,
        PRIMARY KEY (run, seq)
    );
    CREATE TABLE blobs (digest text COLLATE "C" PRIMARY KEY, body bytea NOT NULL);
    ALTER TABLE blobs ALTER COLUMN body SET STORAGE EXTERNAL;
    CREATE TABLE uses (run bigint NOT NULL, digest text NOT NULL COLLATE "C", PRIMARY KEY (run, digest));
    CREATE INDEX uses_by_digest ON uses (digest);
    """,
)
"""The statements that bring the tables from each version to the next."""
_VERSION = len(_MIGRATIONS)

_LOCK = 0x747269616765
"""An advisory lock: exclusive for migrations and `prune`, shared by appends with large values."""

_APPEND = """
WITH stamp AS MATERIALIZED (
    SELECT extract(epoch FROM clock_timestamp())::float8 AS now
), given AS MATERIALIZED (
    SELECT * FROM unnest(
        %(run_id)s::text[], %(at)s::int[], %(epoch)s::int[], %(count)s::int[], %(updated)s::float8[],
        %(lease_s)s::float8[], %(status)s::text[], %(token)s::text[], %(progress)s::bool[],
        %(agent)s::text[], %(parent)s::text[], %(started)s::float8[], %(crc)s::bigint[],
        %(body)s::text[], %(refs)s::text[]
    ) AS g (
        run_id, at, epoch, added, updated, lease_s, status, token, progress, agent, parent, started,
        crc, body, refs)
), created AS (
    INSERT INTO runs (
        run_id, agent, parent, started, updated, events, status, token, lease_until, finished)
    SELECT g.run_id, g.agent, g.parent, g.started, g.updated, g.added, g.status, g.token,
        CASE WHEN g.status = 'running' THEN stamp.now + g.lease_s END,
        CASE WHEN g.status NOT IN ('running', 'suspended') THEN stamp.now END
    FROM given g, stamp
    WHERE g.at = 0 AND g.epoch = 0 AND g.started IS NOT NULL
    ON CONFLICT (run_id) DO NOTHING
    RETURNING id, run_id
), added AS (
    UPDATE runs r SET
        events = r.events + g.added,
        updated = g.updated,
        status = coalesce(g.status, r.status),
        token = CASE WHEN g.status IS NULL THEN r.token ELSE g.token END,
        claims = CASE WHEN coalesce(g.status, 'running') = 'running' AND NOT g.progress
            THEN r.claims ELSE 0 END,
        lease_until = CASE coalesce(g.status, r.status)
            WHEN 'running' THEN coalesce(stamp.now + g.lease_s, r.lease_until)
            ELSE CASE WHEN g.status IS NULL THEN r.lease_until END END,
        finished = CASE
            WHEN coalesce(g.status, 'running') NOT IN ('running', 'suspended') THEN stamp.now
            ELSE r.finished END
    FROM given g, stamp
    WHERE g.at > 0 AND r.run_id = g.run_id AND r.epoch = g.epoch AND r.events = g.at
    RETURNING r.id, r.run_id
), written AS (
    SELECT id, run_id FROM created UNION ALL SELECT id, run_id FROM added
), kept AS (
    INSERT INTO events (run, seq, count, crc, body, refs)
    SELECT w.id, g.at, g.added, g.crc, g.body, g.refs FROM written w JOIN given g USING (run_id)
)
SELECT run_id, id FROM written"""

# Resets the claims of the runs around some that made progress.
_FORGIVE = """
WITH RECURSIVE around (run_id) AS (
    SELECT parent FROM runs WHERE run_id = ANY(%s) AND parent IS NOT NULL
    UNION
    SELECT r.parent FROM runs r JOIN around USING (run_id) WHERE r.parent IS NOT NULL)
UPDATE runs SET claims = 0
WHERE run_id IN (SELECT run_id FROM around) AND claims > 0 AND status = 'running'"""
_KEEP = """
INSERT INTO blobs (digest, body) SELECT * FROM unnest(%s::text[], %s::bytea[])
ON CONFLICT DO NOTHING"""
_USE = """
INSERT INTO uses (run, digest) SELECT * FROM unnest(%s::bigint[], %s::text[])
ON CONFLICT DO NOTHING"""

_OWNED = """
SELECT run_id, status, events, epoch, claims, lease_until, claimant,
    extract(epoch FROM clock_timestamp())::float8
FROM runs WHERE run_id = ANY(%s)"""
# Rows that have changed since they were read are left as they are. No lock is held meanwhile: a process
# that stands still would keep it.
_OWN = """
UPDATE runs r SET status = g.status, epoch = g.epoch, claims = g.claims, lease_until = g.lease_until,
    claimant = g.claimant
FROM unnest(
    %(run_id)s::text[], %(status)s::text[], %(epoch)s::int[], %(claims)s::int[],
    %(lease_until)s::float8[], %(claimant)s::text[], %(was_status)s::text[], %(was_events)s::int[],
    %(was_epoch)s::int[], %(was_claims)s::int[], %(was_lease_until)s::float8[], %(was_claimant)s::text[]
) AS g (
    run_id, status, epoch, claims, lease_until, claimant, was_status, was_events, was_epoch, was_claims,
    was_lease_until, was_claimant)
WHERE r.run_id = g.run_id AND r.status = g.was_status AND r.events = g.was_events
    AND r.epoch = g.was_epoch AND r.claims = g.was_claims AND r.claimant = g.was_claimant
    AND r.lease_until IS NOT DISTINCT FROM g.was_lease_until
RETURNING r.run_id"""

_READ = """
SELECT e.seq, e.count, e.crc, e.body, e.refs FROM events e
WHERE e.run = %(run)s AND e.seq >= coalesce(
    (SELECT max(seq) FROM events WHERE run = %(run)s AND seq <= %(from)s), 0)
ORDER BY e.seq"""

_RUNS = """
SELECT run_id, agent, status, started, updated, events, epoch, claims, lease_until, parent
FROM runs
WHERE (%(run_id)s::text IS NULL OR run_id = %(run_id)s)
    AND (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(agent)s::text IS NULL OR agent = %(agent)s)
    AND (%(parent)s::text IS NULL OR parent = %(parent)s)
ORDER BY id DESC LIMIT %(limit)s"""

_ENDED = """
SELECT id FROM runs
WHERE finished < extract(epoch FROM clock_timestamp())::float8 - %s AND id NOT IN (
    SELECT id FROM runs WHERE finished IS NOT NULL ORDER BY finished DESC, id DESC LIMIT %s)
LIMIT %s FOR UPDATE SKIP LOCKED"""
_REMOVE = (
    "DELETE FROM events WHERE run = ANY(%(gone)s)",
    """DELETE FROM blobs WHERE digest IN (SELECT digest FROM uses WHERE run = ANY(%(gone)s))
    AND NOT EXISTS (
        SELECT 1 FROM uses WHERE uses.digest = blobs.digest AND run <> ALL(%(gone)s))""",
    "DELETE FROM uses WHERE run = ANY(%(gone)s)",
    "DELETE FROM runs WHERE id = ANY(%(gone)s)",
)


# A connection -------------------------------------------------------------------------------------

SPARE_SECONDS = 1.0
"""Seconds beyond the timeout that a server has to say that a statement took too long."""
PRUNED = 200
"""Runs removed in one commit."""
WEAK = ("off", "local")
"""Settings of `synchronous_commit` under which an acknowledged commit could be lost."""

_BY_CODE: tuple[tuple[str, type[StoreError], str], ...] = (
    ("53100", StoreFull, "has no room left; free some and go on"),
    ("42501", StoreReadOnly, "may not be written by this user"),
    ("XX001", StoreCorrupt, "is damaged"),
    ("XX002", StoreCorrupt, "is damaged"),
)


_REFUSED = re.compile(
    r'FATAL: +(?:database ".{1,80}?" does not exist'
    r'|role ".{1,80}?" (?:does not exist|is not permitted to log in)'
    r'|\S{1,20} authentication failed for user ".{1,80}?"'
    r"|no pg_hba\.conf entry [^\n]{1,300})"
    r"|fe_sendauth: no password supplied"
)
"""Messages of a server that will refuse us later too. libpq gives only the message of a failed connection,
not its SQLSTATE (3D000, 28000, 28P01)."""


def _refused_for_good(error: psycopg.Error) -> str | None:
    """Return why connecting again is useless; None where it may help, with one of several hosts too."""
    text = str(error)
    reasons = [found.group() for found in _REFUSED.finditer(text)]
    if error.sqlstate is not None or len(reasons) < max(1, text.count("connection to server")):
        return None
    return redact(reasons[0].removeprefix("FATAL:").strip())


def _error_of(error: psycopg.Error, connection: psycopg.Connection[Any] | None) -> Exception:
    """Return the exception to raise for an error of the driver; `Lost` where another try may help."""
    code = error.sqlstate or ""
    text = redact(str(error).strip().partition("\n")[0])
    for prefix, kind, meaning in _BY_CODE:
        if code.startswith(prefix):
            return kind(f"the database {meaning} ({text})")
    for_good = _refused_for_good(error) if connection is None else None
    if for_good is not None:
        return StoreUnavailable(
            f"the database refuses us ({for_good}); correct its url, or create it"
        )
    if code == "25006" or "read-only" in text:  # after a failover this is the old primary
        return Lost(StoreReadOnly(f"the database may not be written ({text})"))
    gone = connection is not None and connection.closed
    again = gone or not code or code in ("40001", "40P01") or code[:2] in ("08", "57")
    if again and code != "57014":  # the statement took too long
        return Lost(StoreUnavailable(f"the database does not answer ({text})"))
    if isinstance(error, psycopg.OperationalError):
        return StoreUnavailable(f"the database refuses us ({text})")
    return StoreError(f"the database cannot do it ({code} {text})")


@cache
def _patient(seconds: float) -> type[psycopg.Connection[Any]]:
    """A connection that is closed, as if it were lost, when the server says nothing for so long.

    The server's own `statement_timeout` does not help where it has stopped, or its answers are lost.
    """

    class Patient(psycopg.Connection[Any]):
        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            return super().wait(self._until_silent(gen), *args, **kwargs)

        def _until_silent(self, gen: Any) -> Generator[Any, Any, Any]:
            heard = time.monotonic()
            try:
                state = next(gen)
                while True:
                    ready = yield state
                    if ready:
                        heard = time.monotonic()
                    elif time.monotonic() - heard > seconds:
                        self.pgconn.finish()
                        raise psycopg.OperationalError(f"no word from it in {seconds:g} s")
                    state = gen.send(ready)
            except StopIteration as ended:
                return ended.value

    return Patient


class PostgresDriver:
    """A connection, used by one thread at a time. writes: whether it is used for more than reading."""

    close_at_fork: ClassVar[bool] = False

    def __init__(self, url: str, schema: str, timeout: float, *, writes: bool) -> None:
        self._db: psycopg.Connection[Any] | None = None
        given = conninfo_to_dict(url)
        kind = _patient(timeout + SPARE_SECONDS)
        defaults: dict[str, Any] = {
            "connect_timeout": max(2, int(timeout)),
            "tcp_user_timeout": int(timeout * 1000),
            # Of several hosts, the one that accepts writes; after a failover it is another one.
            "target_session_attrs": "read-write",
            "application_name": "triage",
        }
        options = {name: value for name, value in defaults.items() if name not in given}
        try:
            self._db = db = kind.connect(url, autocommit=True, **options)
            (weak,) = db.execute("SELECT current_setting('synchronous_commit')").fetchone() or ("",)
            db.execute(
                "SELECT set_config('search_path', %s, false), "
                "set_config('statement_timeout', %s, false), "
                "set_config('synchronous_commit', %s, false)",
                (schema, str(int(timeout * 1000)), "on" if weak in WEAK else weak),
            )
            _migrate(db, schema)
            # Set after the migration, which must see what another connection has just migrated.
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
        """Give the connection, and raise its errors as a StoreError, or as `Lost`."""
        assert self._db is not None
        try:
            yield self._db
        except psycopg.Error as error:
            raise _error_of(error, self._db) from error

    # Appends --------------------------------------------------------------------------------------

    def commit(self, batch: list[Append]) -> None:
        """As in `Driver`."""
        # One statement can change a run only once.
        rounds: list[dict[str, Append]] = []
        for append in batch:
            for some in rounds:
                if append.run_id not in some:
                    some[append.run_id] = append
                    break
            else:
                rounds.append({append.run_id: append})
        with self.translated() as db:
            for some in rounds:
                self._commit(db, list(some.values()))

    def _commit(self, db: psycopg.Connection[Any], batch: list[Append]) -> None:
        """Write appends of different runs."""
        left = [append for append in batch if append.lines]
        # Nearly always one pass. An append that was not written is looked at and, if it may be written
        # now, tried again. Another writer may win each time, but each time the journal gets longer.
        while left:
            try:
                written = _append(db, left)
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                if len(left) > 1:
                    for append in left:
                        self._commit(db, [append])
                    return
                left[0].error = StoreError(f"the database cannot keep the events ({error})")
                left[0].error.__cause__ = error
                return
            stale = [append for append in left if append.run_id not in written]
            for append in stale:
                append.error = self._refused(db, append)
            left = [append for append in stale if append.error is None and append.lines]

    def _refused(self, db: psycopg.Connection[Any], append: Append) -> StoreError | None:
        found = _owned(db, [append.run_id]).get(append.run_id)
        owned = None if found is None else found[0]
        return refused(append, owned, lambda: _rows(db, append.run_id, append.at)[1])

    # Owners ---------------------------------------------------------------------------------------

    def own(self, batch: list[tuple[str, Change]]) -> list[Owned | StoreError]:
        """As in `Driver`; several changes of one run take a commit each."""
        rows: dict[int, Owned | StoreError] = {}
        with self.translated() as db:
            while left := [at for at in range(len(batch)) if at not in rows]:
                turn = {batch[at][0]: at for at in reversed(left)}  # the first change of each run
                done = _own(db, {run_id: batch[at][1] for run_id, at in turn.items()})
                rows |= {turn[run_id]: row for run_id, row in done.items()}
        return [rows[at] for at in range(len(batch))]

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
        values = dict.fromkeys(("run_id", "status", "agent", "parent")) | where
        with self.translated() as db:
            rows = db.execute(_RUNS, {**values, "limit": limit}, prepare=False).fetchall()
        return [info_of(dict(zip(RunInfo._fields, row, strict=True))) for row in rows]

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
                db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                found = db.execute(_ENDED, (age, keep or 0, PRUNED)).fetchall()
                for statement in _REMOVE:
                    db.execute(statement, {"gone": [row[0] for row in found]})
            count += len(found)
            if len(found) < PRUNED:
                return count


def _owned(db: psycopg.Connection[Any], run_ids: Sequence[str]) -> dict[str, tuple[Owned, float]]:
    """Who has these runs, by run id, each with the store's time."""
    found = db.execute(_OWNED, (list(run_ids),)).fetchall()
    return {run_id: (Owned(*row[:6]), row[6]) for run_id, *row in found}


def _own(
    db: psycopg.Connection[Any], changes: Mapping[str, Change]
) -> dict[str, Owned | StoreError]:
    """Change rows of runs in one statement; leave out those that somebody else has changed meanwhile."""
    before = _owned(db, list(changes))
    unknown = (None, 0.0)
    found = own_each(
        list(changes.items()), lambda run_id, change: change(*before.get(run_id, unknown))
    )
    after = dict(zip(changes, found, strict=True))
    rows = {run_id: row for run_id, row in after.items() if isinstance(row, Owned)}
    if rows:
        values: dict[str, list[Any]] = {"run_id": list(rows)}
        for name in Owned._fields:
            values[name] = [getattr(row, name) for row in rows.values()]
            values[f"was_{name}"] = [getattr(before[run_id][0], name) for run_id in rows]
        written = {run_id for (run_id,) in db.execute(_OWN, values).fetchall()}
        for run_id in rows.keys() - written:
            del after[run_id]
    return after


def _append(db: psycopg.Connection[Any], batch: list[Append]) -> dict[str, int]:
    """Write the appends that are not stale, in one commit; return the row ids of their runs, by run id."""
    given = [append.columns() for append in batch]
    columns = {name: [each[name] for each in given] for name in given[0]}
    pieces = {piece.digest: piece.body for append in batch for piece in append.pieces}
    written: dict[str, int]
    if not pieces:
        written = dict(db.execute(_APPEND, columns).fetchall())
    else:
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock_shared(%s)", (_LOCK,))
            digests = sorted(pieces)  # in one order, so that two writers cannot deadlock
            db.execute(_KEEP, (digests, [packed(pieces[digest]) for digest in digests]))
            written = dict(db.execute(_APPEND, columns).fetchall())
            uses = [
                (written[append.run_id], piece.digest)
                for append in batch
                if append.run_id in written
                for piece in append.pieces
            ]
            db.execute(_USE, ([run for run, _ in uses], [digest for _, digest in uses]))
    got_on = [
        append.run_id
        for append in batch
        if append.progress and append.epoch and append.run_id in written
    ]
    if got_on:
        # By itself: a process that stands still in a transaction would keep the rows from their owners.
        db.execute(_FORGIVE, (got_on,))
    return written


def _rows(db: psycopg.Connection[Any], run_id: str, start: int) -> tuple[int, list[Row]]:
    """Return the journal's length and its rows from a position on; 0 and none for an unknown run."""
    found = db.execute("SELECT id, events FROM runs WHERE run_id = %s", (run_id,)).fetchone()
    if found is None:
        return 0, []
    rows = db.execute(_READ, {"run": found[0], "from": start}).fetchall()
    return found[1], list(starmap(Row, rows))


def _migrate(db: psycopg.Connection[Any], schema: str) -> None:
    """Bring the tables to this release's version. Raises StoreTooNew for newer ones."""
    version = _version(db, schema)
    if version == _VERSION:
        return
    if version < _VERSION:
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            name = sql.Identifier(schema)
            version = _version(db, schema)
            if not version:
                (there,) = db.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() or (None,)
                if there is None:
                    db.execute(sql.SQL("CREATE SCHEMA {}").format(name))
                db.execute("CREATE TABLE IF NOT EXISTS meta (version int NOT NULL)")
                db.execute("INSERT INTO meta SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM meta)")
                # Look again: the lookup before the lock may have cached that there is no such table.
                version = _version(db, schema)
            for statements in _MIGRATIONS[version:]:
                db.execute(statements)
            db.execute("UPDATE meta SET version = greatest(version, %s)", (_VERSION,))
    if version > _VERSION:
        raise StoreTooNew(
            f"schema {schema} has tables of version {version}, this release knows {_VERSION}; use "
            "the release that wrote it or a newer one"
        )


def _version(db: psycopg.Connection[Any], schema: str) -> int:
    (there,) = db.execute("SELECT to_regclass(%s)", (f"{schema}.meta",)).fetchone() or (None,)
    if there is None:
        return 0
    (version,) = db.execute("SELECT max(version) FROM meta").fetchone() or (0,)
    return int(version or 0)
