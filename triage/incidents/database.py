"""The desk's database: tables, connections, threads and rows, in SQLite and Postgres."""

from __future__ import annotations

import copy
import json
import os
import re
import sqlite3
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

from triage.core.errors import StoreCorrupt, StoreError, StoreTooNew, TriageError, UsageError
from triage.core.taxonomy import FailureType, Level, Severity
from triage.stores.base import Store
from triage.stores.memory import MemoryStore
from triage.stores.postgres import PostgresStore
from triage.stores.sqlite import SQLiteStore, translated
from triage.stores.writer import Call, Lane, ThreadedStore, stop_with, together

from . import model

# The tables, beside those of the runs.


def _words(words: object) -> str:
    return ", ".join(f"'{word}'" for word in words)  # type: ignore[attr-defined] # enums and sets


_CLOSED = _words(sorted(model.CLOSED))

# {id}, {real}, {text} and {big} differ between the dialects.
TABLES: tuple[str, ...] = (
    """CREATE TABLE tasks (
        task_id {text} PRIMARY KEY NOT NULL,
        title {text} NOT NULL DEFAULT '',
        status {text} NOT NULL CHECK (status IN ('open', 'done', 'failed')),
        priority {big},
        estimated_hours {real} CHECK (estimated_hours >= 0),
        timeout_s {real} CHECK (timeout_s > 0))""",
    """CREATE TABLE waits (
        task_id {text} NOT NULL REFERENCES tasks (task_id),
        waits_for {text} NOT NULL,
        PRIMARY KEY (task_id, waits_for))""",
    f"""CREATE TABLE incidents (
        id {{id}},
        fingerprint {{text}} NOT NULL,
        source {{text}} NOT NULL,
        agent_id {{text}},
        agent_type {{text}} NOT NULL DEFAULT '',
        task_id {{text}},
        run_id {{text}},
        message {{text}} NOT NULL,
        failure_type {{text}} NOT NULL CHECK (failure_type IN ({_words(FailureType)})),
        cause {{text}},
        severity {{text}} NOT NULL CHECK (severity IN ({_words(Severity)})),
        level {{text}} NOT NULL CHECK (level IN ({_words(Level)})),
        retryable {{big}} NOT NULL CHECK (retryable IN (0, 1)),
        action {{text}} NOT NULL,
        strategy {{text}} NOT NULL CHECK (strategy IN ({_words(model.RecoveryStrategy)})),
        status {{text}} NOT NULL CHECK (status IN ({_words(model.Status)})),
        attempt {{big}} NOT NULL DEFAULT 0 CHECK (attempt >= 0),
        max_retries {{big}} NOT NULL CHECK (max_retries >= 0),
        retry_after_s {{real}},
        next_attempt_at {{real}},
        escalation_level {{text}},
        ack_due {{real}},
        acknowledged_by {{text}},
        owner {{text}},
        lease_until {{real}},
        stamp {{text}} NOT NULL DEFAULT '',
        files {{text}} NOT NULL DEFAULT '[]',
        stack_trace {{text}},
        recovery_action {{text}},
        first_seen {{real}} NOT NULL,
        last_seen {{real}} NOT NULL CHECK (last_seen >= first_seen),
        occurrences {{big}} NOT NULL DEFAULT 1 CHECK (occurrences >= 1),
        resolved_at {{real}},
        version {{big}} NOT NULL DEFAULT 0,
        CHECK ((status = 'recovering') = (owner IS NOT NULL)),
        CHECK ((owner IS NULL) = (lease_until IS NULL)),
        CHECK ((status = 'waiting') = (next_attempt_at IS NOT NULL)),
        CHECK ((status IN ({_CLOSED})) = (resolved_at IS NOT NULL)))""",
    "CREATE UNIQUE INDEX incidents_open ON incidents (fingerprint) WHERE resolved_at IS NULL",
    "CREATE INDEX incidents_by_fingerprint ON incidents (fingerprint, id)",
    "CREATE INDEX incidents_by_status ON incidents (status, last_seen, id)",
    "CREATE INDEX incidents_open_by_time ON incidents (last_seen, id) WHERE resolved_at IS NULL",
    "CREATE INDEX incidents_by_level ON incidents (level, status)",
    "CREATE INDEX incidents_by_task ON incidents (task_id) WHERE task_id IS NOT NULL",
    "CREATE INDEX incidents_by_run ON incidents (run_id) WHERE run_id IS NOT NULL",
    "CREATE INDEX incidents_by_type ON incidents (agent_type)",
    "CREATE INDEX incidents_due ON incidents (next_attempt_at) WHERE next_attempt_at IS NOT NULL",
    "CREATE INDEX incidents_leased ON incidents (lease_until) WHERE lease_until IS NOT NULL",
    "CREATE INDEX incidents_unheard ON incidents (ack_due) WHERE ack_due IS NOT NULL",
    "CREATE INDEX incidents_ended ON incidents (resolved_at) WHERE resolved_at IS NOT NULL",
    # Failures seen already; without an incident if that was pruned.
    """CREATE TABLE sightings (
        source {text} NOT NULL,
        key {text} NOT NULL,
        incident {big} REFERENCES incidents (id),
        at {real} NOT NULL,
        PRIMARY KEY (source, key))""",
    "CREATE INDEX sightings_by_incident ON sightings (incident, at)",
    "CREATE INDEX sightings_by_time ON sightings (at)",
    "CREATE TABLE cursors (source {text} PRIMARY KEY NOT NULL, mark {text} NOT NULL)",
    """CREATE TABLE agents (
        agent_id {text} PRIMARY KEY NOT NULL,
        agent_type {text} NOT NULL,
        task_id {text} REFERENCES tasks (task_id),
        status {text} NOT NULL CHECK (status IN
            ('running', 'done', 'failed', 'killed', 'timeout', 'dead', 'replaced')),
        started {real} NOT NULL,
        heartbeat {real},
        heartbeat_s {real} CHECK (heartbeat_s > 0),
        due {real},
        ended {real},
        message {text},
        replaces {text} REFERENCES agents (agent_id),
        root {text} NOT NULL,
        attempt {big} NOT NULL DEFAULT 1 CHECK (attempt >= 1),
        unseen {big} NOT NULL DEFAULT 0 CHECK (unseen IN (0, 1)),
        CHECK ((status = 'running') = (ended IS NULL)))""",
    "CREATE INDEX agents_unseen ON agents (ended) WHERE unseen = 1",
    "CREATE INDEX agents_by_status ON agents (status, due)",
    "CREATE INDEX agents_by_task ON agents (task_id) WHERE task_id IS NOT NULL",
    """CREATE TABLE incident_log (
        id {id},
        incident {big} REFERENCES incidents (id),
        at {real} NOT NULL,
        verb {text} NOT NULL,
        actor {text} NOT NULL,
        status {text},
        attempt {big},
        text {text} NOT NULL DEFAULT '')""",
    "CREATE INDEX incident_log_by_incident ON incident_log (incident, id)",
    f"""CREATE TABLE messages (
        id {{id}},
        incident {{big}} NOT NULL REFERENCES incidents (id),
        role {{text}} NOT NULL,
        level {{text}} NOT NULL CHECK (level IN ({_words(Level)})),
        kind {{text}} NOT NULL,
        key {{text}} NOT NULL UNIQUE,
        text {{text}} NOT NULL,
        body {{text}} NOT NULL,
        status {{text}} NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'sent', 'failed')),
        attempts {{big}} NOT NULL DEFAULT 0 CHECK (attempts >= 0),
        created_at {{real}} NOT NULL,
        due {{real}} NOT NULL,
        sent_at {{real}},
        CHECK ((status = 'sent') = (sent_at IS NOT NULL)))""",
    "CREATE INDEX messages_by_role ON messages (role, sent_at) WHERE sent_at IS NOT NULL",
    "CREATE INDEX messages_by_status ON messages (status, due)",
    "CREATE INDEX messages_by_incident ON messages (incident)",
    # The last commit of each desk, to recognise one whose reply was lost.
    """CREATE TABLE commits (
        desk {text} PRIMARY KEY NOT NULL,
        stamp {text} NOT NULL,
        at {real} NOT NULL)""",
    # Holds a row only inside a transaction that prunes.
    "CREATE TABLE pruning (at {real} NOT NULL)",
)

SQLITE_KEEP: tuple[str, ...] = (
    """CREATE TRIGGER incident_log_no_update BEFORE UPDATE ON incident_log
    BEGIN SELECT RAISE(ABORT, 'the incident log is only added to'); END""",
    """CREATE TRIGGER incident_log_no_delete BEFORE DELETE ON incident_log
    WHEN NOT EXISTS (SELECT 1 FROM pruning)
    BEGIN SELECT RAISE(ABORT, 'the incident log is only added to'); END""",
)
POSTGRES_KEEP: tuple[str, ...] = (
    """CREATE FUNCTION incident_log_kept() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            IF EXISTS (SELECT 1 FROM pruning) THEN RETURN NULL; END IF;
        END IF;
        RAISE EXCEPTION 'the incident log is only added to';
    END $$""",
    """CREATE TRIGGER incident_log_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON incident_log
    FOR EACH STATEMENT EXECUTE FUNCTION incident_log_kept()""",
)
"""Triggers that protect the log: no change, and no deletion except by pruning."""

SQLITE_WORDS = {
    "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "real": "REAL",
    "text": "TEXT",
    "big": "INTEGER",
}
POSTGRES_WORDS = {
    "id": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "real": "float8",
    "text": 'text COLLATE "C"',
    "big": "bigint",
}
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    TABLES,
    ("ALTER TABLE incidents ADD COLUMN alternative {text} NOT NULL DEFAULT ''",),
)
"""Statements that bring the tables from each version to the next."""
VERSION = len(MIGRATIONS)

T = TypeVar("T")
Values = Mapping[str, Any]
Work = Callable[["Db"], Any]
Outcome = tuple[Any, Exception | None]
"""What a job returned, or what it raised."""


class Dialect(NamedTuple):
    """The differences between the two databases.

    write, read: begin a transaction. lock: serialises the writes of all desks; SQLite does that itself.
    now: asks for the store's time; None where the connection tells it. columns: lists a table's columns.
    words: types. kept: the triggers that protect the log.
    """

    name: str
    write: str
    read: str
    lock: str | None
    now: str | None
    columns: str
    words: Mapping[str, str]
    kept: tuple[str, ...]


SQLITE = Dialect(
    name="sqlite",
    write="BEGIN IMMEDIATE",
    read="BEGIN",
    lock=None,
    now=None,
    columns="SELECT name FROM pragma_table_info(:name, :place)",
    words=SQLITE_WORDS,
    kept=SQLITE_KEEP,
)
POSTGRES = Dialect(
    name="postgres",
    write="BEGIN",
    read="BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    lock="SELECT pg_advisory_xact_lock(hashtext('triage incidents'), hashtext(current_schema()))",
    now="SELECT extract(epoch FROM clock_timestamp())::float8",
    columns="SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(concat_ws('.', "
    "quote_ident(coalesce(:place, current_schema())), quote_ident(:name))) "
    "AND attnum > 0 AND NOT attisdropped",
    words=POSTGRES_WORDS,
    kept=POSTGRES_KEEP,
)


class Db:
    """One connection, used by one thread at a time.

    now: seconds since the epoch on the store's clock, taken when the transaction began.
    """

    close_at_fork: ClassVar[bool] = True

    def __init__(
        self,
        dialect: Dialect,
        connection: Any,
        translated: Callable[[], AbstractContextManager[Any]],
        clock: Callable[[], float],
    ) -> None:
        self.dialect = dialect
        self.now = 0.0
        self._connection = connection
        self._translated = translated
        self._clock = clock
        self._attached: set[str] = set()

    def rows(self, statement: str, values: Values | None = None) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._execute(statement, values).fetchall()]

    def one(self, statement: str, values: Values | None = None) -> tuple[Any, ...] | None:
        """The first row, None if there is none."""
        row = self._execute(statement, values).fetchone()
        return None if row is None else tuple(row)

    def run(self, statement: str, values: Values | None = None) -> int:
        """Execute a change; returns the number of changed rows."""
        return int(self._execute(statement, values).rowcount)

    def columns(self, table: str, place: str | None = None) -> frozenset[str]:
        """The names of a table's columns, empty for a missing table. place: its schema."""
        found = self.rows(self.dialect.columns, {"name": table, "place": place})
        return frozenset(str(row[0]) for row in found)

    def attach(self, uri: str, name: str) -> None:
        """Attach another SQLite file under a name, outside a transaction."""
        if name not in self._attached:
            self.run(f"ATTACH DATABASE :uri AS {name}", {"uri": uri})
            self._attached.add(name)

    def _execute(self, statement: str, values: Values | None) -> Any:
        with self._translated():
            if self.dialect is POSTGRES:
                return self._connection.execute(_for_postgres(statement), values or {})
            return self._connection.execute(statement, values or {})

    @contextmanager
    def transaction(self, *, write: bool) -> Generator[None]:
        self.run(self.dialect.write if write else self.dialect.read)
        try:
            if write and self.dialect.lock is not None:
                self.rows(self.dialect.lock)
            if self.dialect.now is None:
                self.now = self._clock()
            else:
                self.now = float((self.one(self.dialect.now) or (0.0,))[0])
            yield
            self.run("COMMIT")
        except BaseException:
            try:
                self.run("ROLLBACK")
            except Exception as error:
                # A lost connection has rolled back already; the driver may wrap that error.
                lost = isinstance(error, StoreError)
                if not lost and not isinstance(getattr(error, "error", None), StoreError):
                    raise
            raise

    def each(self, works: list[Work], outcomes: list[Outcome], mark: Mark) -> None:
        """Do these jobs in one commit. A refused one changes nothing and does not affect the others.

        outcomes: receives what each returned, or why it was refused.
        """
        with self.transaction(write=True):
            self.run(_MARK, {**mark._asdict(), "now": self.now})
            for work in works:
                self.run("SAVEPOINT one")
                try:
                    outcomes.append((work(self), None))
                    self.run("RELEASE one")
                except TriageError as refusal:
                    # An error of the store itself fails all of them.
                    if isinstance(refusal, StoreError):
                        raise
                    self.run("ROLLBACK TO one")
                    outcomes.append((None, refusal))

    def has_committed(self, mark: Mark) -> bool:
        """Whether the last commit of this desk has this mark."""
        found = self.one(
            "SELECT 1 FROM commits WHERE desk = :desk AND stamp = :stamp", mark._asdict()
        )
        return found is not None

    def close(self) -> None:
        self._connection.close()


class Mark(NamedTuple):
    """Identifies a commit of a desk."""

    desk: str
    stamp: str


_MARK = """INSERT INTO commits (desk, stamp, at) VALUES (:desk, :stamp, :now)
ON CONFLICT (desk) DO UPDATE SET stamp = excluded.stamp, at = excluded.at"""
_NAME = re.compile(r"(?<!:):([a-z_][a-z_0-9]*)")


def _for_postgres(statement: str) -> bytes:
    return _NAME.sub(r"%(\1)s", statement.replace("%", "%%")).encode()


def migrate(db: Db) -> None:
    """Bring the tables to the version of this release. Raises StoreTooNew for newer ones."""
    version = _version(db)
    if version < VERSION:
        with db.transaction(write=True):
            version = _version(db)
            if not version:
                db.run("CREATE TABLE IF NOT EXISTS incident_meta (version integer NOT NULL)")
                db.run(
                    "INSERT INTO incident_meta SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM incident_meta)"
                )
                # Postgres may have cached, before the lock, that the table does not exist.
                version = _version(db)
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    db.run(statement.format_map(db.dialect.words))
            if not version:
                for statement in db.dialect.kept:
                    db.run(statement)
            if version < VERSION:
                db.run("UPDATE incident_meta SET version = :version", {"version": VERSION})
    elif version > VERSION:
        raise StoreTooNew(
            f"the store's incidents are of version {version}, this release knows {VERSION}; use the "
            "release that wrote them or a newer one"
        )


def _version(db: Db) -> int:
    if not db.columns("incident_meta"):
        return 0
    return int((db.one("SELECT max(version) FROM incident_meta") or (0,))[0] or 0)


def in_memory(clock: Callable[[], float]) -> Db:
    """Tables in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    db = Db(SQLITE, connection, lambda: translated("memory:"), clock)
    migrate(db)
    return db


# The desk's threads -------------------------------------------------------------------------------

BATCH = 200
"""The most jobs in one commit."""
TIMEOUT = 10.0
_HERE = os.urandom(8).hex()


class _Write(Call):
    """A job that writes; several may share a commit."""


class _Read(Call):
    """A job that reads. before: done before its transaction begins."""

    def __init__(self, work: Work, before: Work | None) -> None:
        super().__init__(work)
        self.before = before


class Lanes:
    """Access to a store's database under asyncio and trio: one thread writes and one reads.

    clock: that of incidents in SQLite and in memory; None for the store's own. Opens nothing until it is
    used. Raises UsageError for a store that is neither SQLite, Postgres nor memory.
    """

    def __init__(self, store: Store, clock: Callable[[], float] | None) -> None:
        connect = _connects(store, clock)
        timeout = store.timeout if isinstance(store, ThreadedStore) else TIMEOUT
        self._memory = isinstance(store, MemoryStore)
        writes, reads = partial(connect, writes=True), partial(connect, writes=False)
        self._writer = Lane("incidents-writer", writes, _work, timeout=timeout)
        # Tables in memory have one connection for both.
        self._reader = (
            self._writer
            if self._memory
            else Lane("incidents-reader", reads, _work, timeout=timeout)
        )
        stop_with(self, self._writer, self._reader)

    async def write(self, work: Callable[[Db], T]) -> T:
        """Do a job in a writing transaction. Raises what `work` raises, or StoreError."""
        job = _Write(work)
        self._writer.put(job)
        found: T = await job.waiter
        return found

    async def read(self, work: Callable[[Db], T], *, before: Work | None = None) -> T:
        """Do a job in a reading transaction. before: done before it begins."""
        job = _Read(work, before)
        self._reader.put(job)
        found: T = await job.waiter
        return found

    async def close(self) -> None:
        """Finish the jobs, end the threads and close the connections.

        Tables in memory stay as long as their store.
        """
        if not self._memory:
            await self._writer.close()
            await self._reader.close()


_of_memory: weakref.WeakKeyDictionary[MemoryStore, Lanes] = weakref.WeakKeyDictionary()


def lanes_of(store: Store, clock: Callable[[], float] | None) -> Lanes:
    """The lanes of a store; all desks of one memory store share them. Raises as `Lanes`."""
    if not isinstance(store, MemoryStore):
        return Lanes(store, clock)
    found = _of_memory.get(store)
    if found is None:
        found = _of_memory[store] = Lanes(store, clock)
    return found


def _work(lane: Lane[Db], jobs: list[Any]) -> None:
    """Do jobs in order: writes together in one commit, reads one by one."""
    size = BATCH if isinstance(jobs[0], _Write) else 1
    for start in range(0, len(jobs), size):
        some = jobs[start : start + size]
        work = _Commit(lane, some) if isinstance(some[0], _Write) else partial(_read, some[0])
        try:
            outcomes: list[Outcome] = lane.use(work)
        except Exception as error:  # handed to the callers
            outcomes = [(None, copy.copy(error)) for _ in some]
        with together():
            for job, (result, refusal) in zip(some, outcomes, strict=True):
                job.waiter.wake(result, refusal)


class _Commit:
    """Jobs that share a commit. Called again after a lost reply, it does not commit twice."""

    def __init__(self, lane: Lane[Db], jobs: list[_Write]) -> None:
        self._works = [job.work for job in jobs]
        # A forked child has the same lane, and commits of its own.
        self._mark = Mark(f"{_HERE}-{id(lane):x}-{os.getpid()}", os.urandom(8).hex())
        self._outcomes: list[Outcome] = []

    def __call__(self, db: Db) -> list[Outcome]:
        if not self._outcomes or not db.has_committed(self._mark):
            self._outcomes = []
            db.each(self._works, self._outcomes, self._mark)
        return self._outcomes


def _read(job: _Read, db: Db) -> list[Outcome]:
    """The outcome of a reading job. Errors of the store propagate to the lane."""
    try:
        if job.before is not None:
            job.before(db)
        with db.transaction(write=False):
            return [(job.work(db), None)]
    except StoreError:
        raise
    except TriageError as refusal:
        return [(None, refusal)]


def _connects(store: Store, clock: Callable[[], float] | None) -> Callable[..., Db]:
    """A function that opens a connection where a store keeps its runs."""
    if isinstance(store, MemoryStore):
        return lambda writes: in_memory(clock or time.time)  # one connection reads and writes
    kind = type(store).__name__
    if isinstance(store, SQLiteStore):
        return partial(_opened, store, clock, SQLITE)
    if isinstance(store, PostgresStore):
        return partial(_opened, store, clock, POSTGRES)
    raise UsageError(
        f"IncidentDesk.store must be in SQLite, Postgres or memory, not {kind}: incidents need tables; "
        'write "sqlite:///runs.db" or "postgresql://…"'
    )


def _opened(
    store: ThreadedStore, clock: Callable[[], float] | None, dialect: Dialect, *, writes: bool
) -> Db:
    driver = store.connect(writes=writes)
    db = Db(dialect, driver.raw, driver.translated, driver.now if clock is None else clock)
    try:
        if dialect is SQLITE:
            db.run("PRAGMA foreign_keys = ON")
        migrate(db)
    except BaseException:
        db.close()
        raise
    return db


# Pruning.

PRUNED = 200
"""Incidents removed in one commit, so that others can write in between."""
_COMMITS_S = 86_400.0
"""Seconds the mark of a desk's last commit is kept; it is needed for a few seconds."""

_OVER = """
SELECT id FROM incidents WHERE resolved_at < :border
AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.incident = incidents.id AND m.status = 'pending')
ORDER BY resolved_at LIMIT :most"""
# A failure that a foreign table or a run still shows stays known, or it would be found again.
_SHOWN = """
UPDATE sightings SET incident = NULL WHERE {these}
AND source NOT IN ('agents', 'tasks', 'reports', 'desk'){but}"""
_BUT_RUNS_THAT_ARE_GONE = """
AND (source <> 'runs' OR EXISTS (SELECT 1 FROM runs WHERE runs.run_id =
    (SELECT i.run_id FROM incidents i WHERE i.id = sightings.incident)))"""
_ENDED_AGENTS = """
DELETE FROM agents WHERE ended < :border AND unseen = 0
AND NOT EXISTS (SELECT 1 FROM agents a WHERE a.replaces = agents.agent_id)"""


class Pruned(NamedTuple):
    """How many rows were removed."""

    incidents: int = 0
    log: int = 0
    messages: int = 0
    agents: int = 0

    def and_(self, other: Pruned) -> Pruned:
        return Pruned._make(one + more for one, more in zip(self, other, strict=True))


def prunable(db: Db, older_than: float) -> int:
    """How many incidents would be removed."""
    statement = f"SELECT count(*) FROM ({_OVER}) found"
    row = db.one(statement, {"border": db.now - older_than, "most": 1 << 60})
    return 0 if row is None else int(row[0])


def prune_some(db: Db, older_than: float) -> Pruned:
    """Remove incidents that ended so long ago, with their log and messages; at most `PRUNED`."""
    found = db.rows(_OVER, {"border": db.now - older_than, "most": PRUNED})
    if not found:
        return Pruned()
    numbers = ", ".join(str(int(row[0])) for row in found)  # only numbers get into the statements
    these = f"incident IN ({numbers})"
    with _unlocked(db):
        log = db.run(f"DELETE FROM incident_log WHERE {these}")
    messages = db.run(f"DELETE FROM messages WHERE {these}")
    but = _BUT_RUNS_THAT_ARE_GONE if db.columns("runs") else ""
    db.run(_SHOWN.format(these=these, but=but))
    db.run(f"DELETE FROM sightings WHERE {these}")
    gone = db.run(f"DELETE FROM incidents WHERE id IN ({numbers})")
    return Pruned(gone, log, messages)


def prune_rest(db: Db, older_than: float) -> Pruned:
    """Remove old rows that belong to no incident, and old messages of open ones."""
    values = {"border": db.now - older_than}
    with _unlocked(db):
        log = db.run("DELETE FROM incident_log WHERE incident IS NULL AND at < :border", values)
    messages = db.run(
        "DELETE FROM messages WHERE status <> 'pending' AND created_at < :border", values
    )
    agents = 0
    while some := db.run(_ENDED_AGENTS, values):  # from the last of each line to the first
        agents += some
    db.run("DELETE FROM commits WHERE at < :border", {"border": db.now - _COMMITS_S})
    return Pruned(0, log, messages, agents)


@contextmanager
def _unlocked(db: Db) -> Generator[None]:
    """Allow removing log entries within the block, for this transaction only."""
    db.run("INSERT INTO pruning (at) VALUES (:now)", {"now": db.now})
    yield
    db.run("DELETE FROM pruning")


# Rows: read as values, written by compare-and-set.

INCIDENT = ", ".join(model.Incident._fields)
AGENT = ", ".join(model.AgentRecord._fields)
TASK = ", ".join(model.TaskRecord._fields)
MESSAGE = ", ".join(model.Message._fields)
LOG = "id, incident, at, verb, actor, status, attempt, text"

# Only our own field names get into statements; values are bound.
_BY_ID = f"SELECT {INCIDENT} FROM incidents WHERE id = :id"
_FIELDS = [name for name in model.Incident._fields if name != "id"]
_INSERT = (
    f"INSERT INTO incidents ({', '.join(_FIELDS)}) "
    f"VALUES ({', '.join(f':{name}' for name in _FIELDS)})"
)
_LAST = "SELECT max(id) FROM incidents WHERE fingerprint = :fingerprint"
_LOG = """INSERT INTO incident_log (incident, at, verb, actor, status, attempt, text)
VALUES (:incident, :at, :verb, :actor, :status, :attempt, :text)"""
_ENQUEUE = """
INSERT INTO messages (incident, role, level, kind, key, text, body, created_at, due)
VALUES (:incident, :role, :level, :kind, :key, :text, :body, :now, :now) ON CONFLICT (key) DO NOTHING"""


def incident_of(row: tuple[Any, ...]) -> model.Incident:
    """An incident from its columns. Raises StoreCorrupt for an invalid row."""
    raw = model.Incident._make(row)
    try:
        return raw._replace(
            failure_type=FailureType(raw.failure_type),
            severity=Severity(raw.severity),
            level=Level(raw.level),
            retryable=bool(raw.retryable),
            strategy=model.RecoveryStrategy(raw.strategy),
            status=model.Status(raw.status),
            files=tuple(json.loads(str(raw.files))),
        )
    except (ValueError, TypeError) as error:
        raise StoreCorrupt(f"incident {raw.id} is damaged: {error}") from error


def _columns(incident: model.Incident) -> dict[str, Any]:
    values = incident._asdict()
    values["files"] = json.dumps(incident.files)
    values["retryable"] = int(incident.retryable)
    for name in ("failure_type", "severity", "level", "strategy", "status"):
        values[name] = str(values[name])
    return values


def load(db: Db, number: int) -> model.Incident:
    """The incident with this number. Raises UnknownIncident."""
    row = db.one(_BY_ID, {"id": number})
    if row is None:
        raise model.UnknownIncident(f"the store knows no incident err-{number:03d}")
    return incident_of(row)


def find(
    db: Db, where: str, values: dict[str, Any], *, order: str, limit: int
) -> list[model.Incident]:
    """The incidents for which a condition holds, in order."""
    statement = f"SELECT {INCIDENT} FROM incidents WHERE {where} ORDER BY {order} LIMIT :most"
    return [incident_of(row) for row in db.rows(statement, {**values, "most": limit})]


def insert(db: Db, incident: model.Incident) -> model.Incident:
    values = _columns(incident)
    db.run(_INSERT, values)
    found = db.one(_LAST, {"fingerprint": incident.fingerprint})
    return incident._replace(id=int((found or (0,))[0]))


def save(db: Db, before: model.Incident, after: model.Incident) -> model.Incident:
    """Write the changes of a move. Raises IncidentBusy if somebody else has changed the row."""
    old, new = _columns(before), _columns(after)
    changed = [name for name in _FIELDS if old[name] != new[name]]
    if not changed:
        return after
    sets = ", ".join(f"{name} = :{name}" for name in changed)
    statement = f"UPDATE incidents SET {sets} WHERE id = :id AND version = :before"
    values = {name: new[name] for name in changed}
    if not db.run(statement, {**values, "id": before.id, "before": before.version}):
        raise model.IncidentBusy(
            f"{before.error_id} was changed by somebody else meanwhile; look again"
        )
    return after


def log(
    db: Db, verb: str, actor: str, text: str = "", incident: model.Incident | None = None
) -> None:
    values = {
        "incident": None if incident is None else incident.id,
        "at": db.now,
        "verb": verb,
        "actor": actor,
        "status": None if incident is None else str(incident.status),
        "attempt": None if incident is None else incident.attempt,
        "text": text,
    }
    db.run(_LOG, values)


def enqueue(
    db: Db, incident: model.Incident, roles: Iterable[str], kind: str, text: str, mark: object
) -> int:
    """Put a message to each role into the outbox; returns how many were new.

    mark: distinguishes messages of one kind about one incident.
    """
    body = json.dumps(message_body(incident, kind, text))
    count = 0
    for role in roles:
        values = {
            "incident": incident.id,
            "role": role,
            "level": str(incident.level),
            "kind": kind,
            "key": f"{incident.error_id}/{incident.fingerprint[:8]}/{kind}/{role}/{mark}",
            "text": text,
            "body": body,
            "now": db.now,
        }
        count += db.run(_ENQUEUE, values)
    return count


def message_body(incident: model.Incident, kind: str, text: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "text": text,
        "error_id": incident.error_id,
        "agent_id": incident.agent_id,
        "task_id": incident.task_id,
        "run_id": incident.run_id,
        "error_message": incident.message,
        "failure_type": str(incident.failure_type),
        "cause": incident.cause,
        "severity": str(incident.level),
        "retryable": incident.retryable,
        "recommended_action": incident.action,
        "suggested_alternative": incident.alternative,
        "files_affected": list(incident.files),
        "occurrences": incident.occurrences,
        "attempt": incident.attempt,
        "timestamp": model.iso(incident.last_seen),
    }


def message_of(row: tuple[Any, ...]) -> model.Message:
    raw = model.Message._make(row)
    return raw._replace(level=Level(raw.level), body=json.loads(str(raw.body)))
