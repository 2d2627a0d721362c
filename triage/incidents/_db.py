"""A connection of the desk: statements with `:names`, the same in both dialects."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar

from triage.errors import StoreError, StoreTooNew, TriageError

from ._schema import (
    MIGRATIONS,
    POSTGRES_KEEP,
    POSTGRES_WORDS,
    SQLITE_KEEP,
    SQLITE_WORDS,
    VERSION,
)

T = TypeVar("T")
Values = Mapping[str, Any]
Work = Callable[["Db"], Any]
Outcome = tuple[Any, Exception | None]
"""What a work has given, or what it has raised."""


class Dialect(NamedTuple):
    """In what the two databases differ.

    write, read: begin a transaction. lock: taken in it by who writes, so that desks write one after the
    other; SQLite does that itself. now: the store's clock; SQLite is on our machine and has ours. columns:
    the names of a table's columns. words: types. kept: what guards the log.
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
    "sqlite",
    "BEGIN IMMEDIATE",
    "BEGIN",
    None,
    None,
    "SELECT name FROM pragma_table_info(:name, :place)",
    SQLITE_WORDS,
    SQLITE_KEEP,
)
POSTGRES = Dialect(
    "postgres",
    "BEGIN",
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "SELECT pg_advisory_xact_lock(hashtext('triage incidents'), hashtext(current_schema()))",
    "SELECT extract(epoch FROM clock_timestamp())::float8",
    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(concat_ws('.', "
    "quote_ident(coalesce(:place, current_schema())), quote_ident(:name))) "
    "AND attnum > 0 AND NOT attisdropped",
    POSTGRES_WORDS,
    POSTGRES_KEEP,
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
        """All rows of a query."""
        return [tuple(row) for row in self._execute(statement, values).fetchall()]

    def one(self, statement: str, values: Values | None = None) -> tuple[Any, ...] | None:
        """The first row, None if there is none."""
        row = self._execute(statement, values).fetchone()
        return None if row is None else tuple(row)

    def run(self, statement: str, values: Values | None = None) -> int:
        """Change something; how many rows were."""
        return int(self._execute(statement, values).rowcount)

    def columns(self, table: str, place: str | None = None) -> frozenset[str]:
        """The names of a table's columns, none for a table that is not there. place: its schema."""
        found = self.rows(self.dialect.columns, {"name": table, "place": place})
        return frozenset(str(row[0]) for row in found)

    def attach(self, uri: str, name: str) -> None:
        """Let another SQLite file be read beside ours, under a name; not inside a transaction."""
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
        """All of it or nothing."""
        self.run(self.dialect.write if write else self.dialect.read)
        try:
            if write and self.dialect.lock is not None:
                self.rows(self.dialect.lock)
            self.now = self._time()
            yield
            self.run("COMMIT")
        except BaseException:
            self._undo("ROLLBACK")
            raise

    def _time(self) -> float:
        if self.dialect.now is None:
            return self._clock()
        return float((self.one(self.dialect.now) or (0.0,))[0])

    def _undo(self, statement: str) -> None:
        """A connection that is gone has undone it by itself."""
        try:
            self.run(statement)
        except StoreError:
            return
        except Exception as error:
            if not isinstance(getattr(error, "error", None), StoreError):
                raise

    def each(self, works: list[Work], outcomes: list[Outcome], mark: Mark) -> None:
        """Do these in one commit; one that is refused changes nothing and does not touch the others.

        outcomes: gets what each has given, or why it was refused.
        """
        with self.transaction(write=True):
            self.run(_MARK, {**mark._asdict(), "now": self.now})
            for work in works:
                self.run("SAVEPOINT one")
                try:
                    outcomes.append((work(self), None))
                    self.run("RELEASE one")
                except TriageError as refusal:
                    # What the store itself refuses (no room, no connection) is the fate of them all.
                    if isinstance(refusal, StoreError):
                        raise
                    self.run("ROLLBACK TO one")
                    outcomes.append((None, refusal))

    def has_committed(self, mark: Mark) -> bool:
        """Whether the last commit of this desk is the one it has marked so."""
        found = self.one(
            "SELECT 1 FROM commits WHERE desk = :desk AND stamp = :stamp", mark._asdict()
        )
        return found is not None

    def close(self) -> None:
        """Let go of it."""
        self._connection.close()


class Mark(NamedTuple):
    """Names a commit: by whom, and which."""

    desk: str
    stamp: str


_MARK = """INSERT INTO commits (desk, stamp, at) VALUES (:desk, :stamp, :now)
ON CONFLICT (desk) DO UPDATE SET stamp = excluded.stamp, at = excluded.at"""
_NAME = re.compile(r"(?<!:):([a-z_][a-z_0-9]*)")


@cache
def _for_postgres(statement: str) -> bytes:
    return _NAME.sub(r"%(\1)s", statement.replace("%", "%%")).encode()


def migrate(db: Db) -> None:
    """Bring the room's tables to this release's version. Raises StoreTooNew for newer ones."""
    version = _version(db)
    if version < VERSION:
        with db.transaction(write=True):
            version = _version(db)
            if not version:
                db.run("CREATE TABLE IF NOT EXISTS incident_meta (version integer NOT NULL)")
                db.run(
                    "INSERT INTO incident_meta SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM incident_meta)"
                )
                # Postgres may remember a name that was looked up before the lock as of nothing.
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
    """A desk's tables in memory, gone with the desk."""
    from triage.stores._sqlite import _translated

    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    db = Db(SQLITE, connection, lambda: _translated("memory:"), clock)
    migrate(db)
    return db
