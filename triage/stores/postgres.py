"""Runs in Postgres: durable, and shared by many machines."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, LiteralString

from triage.core.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    UsageError,
    misuse,
)
from triage.core.redaction import redact

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
from .writer import Lost, ThreadedStore

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

    url: `postgresql://user@host/database`, in libpq's form; of several hosts, uses the one that accepts
    writes. schema: `"triage"` by default, created if missing. timeout: seconds to wait for a database that
    does not answer, 10 by default; until then an append is repeated after a lost connection. Its
    connections have `synchronous_commit` on, or the server's setting if stronger. A pooler in between must
    keep sessions.

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

_MIGRATIONS: tuple[str, ...] = (
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
    """
    ALTER TABLE runs ADD COLUMN kind text NOT NULL DEFAULT 'run' COLLATE "C";
    ALTER TABLE runs ADD COLUMN subject text COLLATE "C";
    ALTER TABLE runs ADD COLUMN due float8;
    """
    + ";".join((*INDEXES, error_events("({entry}::jsonb -> 'values' ->> '{field}')"))),
)
"""The statements that bring the tables from each version to the next."""
_VERSION = len(_MIGRATIONS)

_LOCK = 0x747269616765
"""An advisory lock: exclusive for migrations and removal, shared by appends with large values."""
_LOCKS: dict[Transaction, LiteralString] = {
    "large": "SELECT pg_advisory_xact_lock_shared(%s)",
    "prune": "SELECT pg_advisory_xact_lock(%s)",
}
_NOW = "extract(epoch FROM clock_timestamp())::float8"
_TYPES = {
    **dict.fromkeys(("at", "epoch", "count", "claims", "events"), "int"),
    **dict.fromkeys(("updated", "lease_s", "started", "lease_until", "due"), "float8"),
    **dict.fromkeys(("progress", "leased", "ended"), "bool"),
    "crc": "bigint",
    "packed": "bytea",
}
"""Types of values by name; the others are text."""
_WORDS = {"sound": "true", "sealed": "", "written": "written", "skip": "FOR UPDATE SKIP LOCKED"}
_NAME = re.compile(r"(?<!:):([a-z_]+)")
# One statement, so that no row stays locked while this process hangs.
_APPEND = f"""
WITH given AS MATERIALIZED (SELECT * FROM {{source}}),
created AS ({CREATE} RETURNING id, run_id),
went_on AS ({GO_ON} RETURNING runs.id, runs.run_id),
turned AS ({TURN} RETURNING runs.id, runs.run_id),
written AS (SELECT * FROM created UNION ALL SELECT * FROM went_on UNION ALL SELECT * FROM turned),
added AS ({ADD})
SELECT run_id FROM written"""


@lru_cache(128)  # statements that remove runs have the numbers of these
def _spelled(statement: str) -> bytes:
    return _NAME.sub(r"%(\1)s", statement.format_map(_WORDS)).encode()


@cache
def _for_each(statement: str, names: tuple[str, ...]) -> bytes:
    """Rewrite a statement to run for each element of arrays with these names."""
    arrays = ", ".join(
        f"%({one})s::{_TYPES.get(one.removeprefix('was_'), 'text')}[]" for one in names
    )
    source = f"(SELECT *, {_NOW} AS now FROM unnest({arrays}) AS g ({', '.join(names)})) AS g"
    rows = "given AS g" if statement is _APPEND else source
    words = {**_WORDS, "source": source, "rows": f"FROM {rows}", "and_rows": f", {rows}"}
    return _NAME.sub(r"g.\1", statement).format_map(words).encode()


# A connection -------------------------------------------------------------------------------------

SPARE_SECONDS = 1.0
"""Seconds beyond the timeout for the server's own report that a statement took too long."""
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
"""Messages of a server that will refuse us again. libpq gives only the message of a failed connection, not
its SQLSTATE (3D000, 28000, 28P01)."""


def _refused_for_good(error: psycopg.Error) -> str | None:
    """Return why connecting again is useless; None if it may help, also with one of several hosts."""
    text = str(error)
    reasons = [found.group() for found in _REFUSED.finditer(text)]
    if error.sqlstate is not None or len(reasons) < max(1, text.count("connection to server")):
        return None
    return redact(reasons[0].removeprefix("FATAL:").strip())


def _error_of(error: psycopg.Error, connection: psycopg.Connection[Any] | None) -> Exception:
    """Return the exception to raise for an error of the driver; `Lost` if a retry may help."""
    code = error.sqlstate or ""
    text = redact(str(error).strip().partition("\n")[0])
    for prefix, kind, meaning in _BY_CODE:
        if code.startswith(prefix):
            return kind(f"the database {meaning} ({text})")
    if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
        return StoreError(f"the database cannot keep it ({text})")
    for_good = _refused_for_good(error) if connection is None else None
    if for_good is not None:
        return StoreUnavailable(
            f"the database refuses us ({for_good}); correct its url, or create it"
        )
    if code == "25006" or "read-only" in text:  # the old primary after a failover
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
    """Return a class of connections that count as lost when the server is silent for this long.

    The server's own `statement_timeout` does not help if the server has stopped or its answers are lost.
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


class PostgresDriver(Driver):
    """A connection to a database. writes: whether it is used for more than reading."""

    close_at_fork: ClassVar[bool] = False
    place = "the database"

    def __init__(self, url: str, schema: str, timeout: float, *, writes: bool) -> None:
        given = conninfo_to_dict(url)
        defaults: dict[str, Any] = {
            "connect_timeout": max(2, int(timeout)),
            "tcp_user_timeout": int(timeout * 1000),
            # Of several hosts, the one that accepts writes, which changes with a failover.
            "target_session_attrs": "read-write",
            "application_name": "triage",
        }
        options = {name: value for name, value in defaults.items() if name not in given}
        db: psycopg.Connection[Any] | None = None
        try:
            db = _patient(timeout + SPARE_SECONDS).connect(url, autocommit=True, **options)
            (weak,) = db.execute("SELECT current_setting('synchronous_commit')").fetchone() or ("",)
            settings = {
                "search_path": schema,
                "statement_timeout": str(int(timeout * 1000)),
                "synchronous_commit": "on" if weak in WEAK else weak,
                # Values differ: a listing of few runs needs another plan than a listing of many.
                "plan_cache_mode": "auto" if writes else "force_custom_plan",
            }
            for setting in settings.items():
                db.execute("SELECT set_config(%s, %s, false)", setting)
            _migrate(db, schema)
            # Set after the migration, which must see the latest migration of another connection.
            if not writes:
                db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        except BaseException as error:
            failure = _error_of(error, db) if isinstance(error, psycopg.Error) else None
            if db is not None:
                db.close()
            if failure is None:
                raise
            raise failure from error
        self.raw = self._db = db

    def close(self) -> None:
        """As in `Driver`."""
        self._db.close()

    def now(self) -> float:
        """As in `Store`."""
        with self.translated():
            [(now,)] = self._rows(f"SELECT {_NOW}", {})
        return float(now)

    @contextmanager
    def translated(self) -> Generator[None]:
        """As in `Driver`."""
        try:
            yield
        except psycopg.Error as error:
            raise _error_of(error, self._db) from error

    @contextmanager
    def _transaction(self, kind: Transaction) -> Generator[None]:
        with self.translated():
            if kind == "commit":  # each statement is one
                yield
                return
            with self._db.transaction():
                if kind in _LOCKS:
                    self._db.execute(_LOCKS[kind], (_LOCK,))
                yield

    def _rows(self, statement: str, values: Values) -> list[tuple[Any, ...]]:
        cursor = self._db.execute(_spelled(statement), values)
        return cursor.fetchall() if cursor.description else []

    def _each(self, statement: str, values: Sequence[Values]) -> list[tuple[Any, ...]]:
        columns = {name: [each[name] for each in values] for name in values[0]}
        cursor = self._db.execute(_for_each(statement, tuple(columns)), columns)
        return cursor.fetchall() if cursor.description else []

    def _change(self, statement: str, values: Sequence[Values]) -> set[str]:
        return {run_id for (run_id,) in self._each(f"{statement} RETURNING runs.run_id", values)}

    def _append(self, values: Sequence[Values]) -> set[str]:
        return {run_id for (run_id,) in self._each(_APPEND, values)}


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
                # Look again, since the lookup before the lock may have cached a missing table.
                version = _version(db, schema)
            for statements in _MIGRATIONS[version:]:
                db.execute(statements.encode())
            db.execute("UPDATE meta SET version = greatest(version, %s)", (_VERSION,))
    check_version(f"schema {schema}", version, _VERSION)


def _version(db: psycopg.Connection[Any], schema: str) -> int:
    (there,) = db.execute("SELECT to_regclass(%s)", (f"{schema}.meta",)).fetchone() or (None,)
    if there is None:
        return 0
    (version,) = db.execute("SELECT max(version) FROM meta").fetchone() or (0,)
    return int(version or 0)
