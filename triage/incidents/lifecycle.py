"""Read failures from foreign tables, `agent_lifecycle` and `orchestrator_task` by default."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import quote

from triage.core.errors import UsageError, check_number, misuse

from .database import Db
from .detection import OVERLAP_S
from .model import MILLIS, Sighting, iso, seconds_of
from .playbook import failure_text

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_COLUMNS = ("agent_id", "agent_type", "task_id", "status", "error_message", "completed_at")
_NEEDED = frozenset({"agent_id", "status", "completed_at"})


@dataclass(frozen=True)
class Lifecycle:
    """A table of agents that another system writes, in the store's database or another SQLite file.

    table: its name; in Postgres with a schema (`public.agent_lifecycle`) if it is not the store's.
    columns: our names (agent_id, agent_type, task_id, status, error_message, completed_at) to theirs;
    agent_type, task_id and error_message may be None. failed: values of `status` that mean a failure.
    task_table: has priority and estimated hours by `task_id`; None without one. heartbeat: the column with
    the time of the last heartbeat, None without one; a row with a status of `running` and a heartbeat older
    than heartbeat_s seconds is a silent death. database: the path of another SQLite file, None for the
    store's database. It is only read.

    Times are ISO 8601 texts (UTC without a zone), seconds since the epoch, or timestamps. With an index on
    (status, completed_at), and one on (status, heartbeat), a large table is read as fast as a small one.
    Raises UsageError for an invalid name, and on reading for missing tables and columns.
    """

    table: str = "agent_lifecycle"
    columns: Mapping[str, str | None] = field(
        default_factory=lambda: {name: name for name in _COLUMNS}
    )
    failed: tuple[str, ...] = ("failed", "killed", "timeout")
    task_table: str | None = "orchestrator_task"
    heartbeat: str | None = None
    running: tuple[str, ...] = ("running",)
    heartbeat_s: float = 120.0
    database: str | None = None

    def __post_init__(self) -> None:
        parts = 2 if self.database is None else 1
        _quoted("Lifecycle.table", self.table, parts=parts)
        if self.task_table is not None:
            _quoted("Lifecycle.task_table", self.task_table, parts=parts)
        if not isinstance(cast("object", self.columns), Mapping):
            raise misuse("Lifecycle.columns", self.columns, "a mapping of names")
        unknown = set(self.columns) - set(_COLUMNS)
        if unknown:
            names = ", ".join(_COLUMNS)
            raise misuse("Lifecycle.columns key", min(map(str, unknown)), f"one of {names}")
        for name, column in self.columns.items():
            if column is None and name in _NEEDED:
                raise misuse(f"Lifecycle.columns[{name!r}]", column, "a column's name")
            if column is not None:
                _quoted(f"Lifecycle.columns[{name!r}]", column, parts=1)
        if self.heartbeat is not None:
            _quoted("Lifecycle.heartbeat", self.heartbeat, parts=1)
        for name in ("failed", "running"):
            words = getattr(self, name)
            if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
                raise misuse(f"Lifecycle.{name}", words, "a tuple of texts")
        check_number("Lifecycle.heartbeat_s", self.heartbeat_s, "seconds", above=True)
        if self.database is not None and not isinstance(cast("object", self.database), str):
            raise misuse("Lifecycle.database", self.database, "the path of a file, or None")

    @property
    def name(self) -> str:
        """The source of its failures."""
        return self.table

    def prepare(self, db: Db) -> None:
        """Attach the other file, if there is one; before a transaction."""
        if self.database is None:
            return
        if db.dialect.name != "sqlite":
            raise UsageError("Lifecycle.database is for SQLite; give the table a schema instead")
        path = Path(self.database).absolute()
        if not path.is_file():
            raise UsageError(f"Lifecycle.database names no file: {path.name}")
        db.attach(f"file:{quote(str(path))}?mode=ro", self._place)

    def sightings(self, db: Db, most: int, *, full: bool) -> list[Sighting]:
        """The unseen failures, oldest first; at most `most` of each kind."""
        self._check(db)
        found: list[Sighting] = []
        for word in self.failed:
            values = {"word": word, "source": self.name, "most": most}
            since = None if full else self._since(db, word)
            if since is None:
                rows = db.rows(self.statement("all"), values)
            else:
                rows = db.rows(self.statement("since"), {**values, "since": since})
                rows += db.rows(self.statement("open"), values)
            found += map(self._failure, rows)
        if self.heartbeat is not None:
            found += self._silent(db, most)
        return sorted(found, key=lambda one: one.at or 0.0)

    # Statements: names are checked and quoted, values are bound -----------------------------------

    def statement(self, border: Literal["all", "since", "open"]) -> str:
        """The query for failures of one status: all, those since a time, or those without a time."""
        ended = self._column("completed_at")
        tests = {"all": "", "since": f" AND {ended} >= :since", "open": f" AND {ended} IS NULL"}
        extra = ("NULL", "NULL")
        if self.task_table is not None and self.columns.get("task_id", "task_id") is not None:
            # A join would duplicate the failure if two tasks had the same id.
            task = _quoted("", self.task_table, self._place)
            of = f"FROM {task} t WHERE t.task_id = {self._column('task_id')} LIMIT 1"
            extra = (f"(SELECT t.priority {of})", f"(SELECT t.estimated_hours {of})")
        return self._select(extra, f"{self._column('status')} = :word{tests[border]}", ended)

    def _select(self, extra: tuple[str, ...], where: str, by: str) -> str:
        key = (
            f"CAST({self._column('agent_id')} AS TEXT) || ':' || "
            f"CAST({self._column('status')} AS TEXT) || ':' || coalesce(CAST({by} AS TEXT), '')"
        )
        chosen = ", ".join((*map(self._column, _COLUMNS), *extra, key))
        return (
            f"SELECT {chosen} FROM {_quoted('', self.table, self._place)} al WHERE {where} AND NOT "
            "EXISTS (SELECT 1 FROM sightings s WHERE s.source = :source AND s.key = "
            f"{key}) ORDER BY {by} LIMIT :most"
        )

    def _column(self, name: str) -> str:
        theirs = self.columns.get(name, name)
        return "NULL" if theirs is None else f'al."{theirs}"'

    @property
    def _place(self) -> str:
        if self.database is None:
            return ""
        path = str(Path(self.database).absolute())
        return f"other_{hashlib.sha256(path.encode()).hexdigest()[:12]}"

    def _sample(self, db: Db, column: str, word: str) -> Any:
        """One of a column's values, to learn its form; None if it has none."""
        statement = (
            f"SELECT {column} FROM {_quoted('', self.table, self._place)} al "
            f"WHERE {self._column('status')} = :word AND {column} IS NOT NULL ORDER BY {column} LIMIT 1"
        )
        row = db.one(statement, {"word": word})
        return None if row is None else row[0]

    def _since(self, db: Db, word: str) -> Any:
        """The time from which to read, a little before the newest failure seen; None for all."""
        mark = db.one(
            "SELECT mark FROM cursors WHERE source = :source", {"source": self.cursor(word)}
        )
        sample = None if mark is None else self._sample(db, self._column("completed_at"), word)
        if mark is None or sample is None:
            return None
        return _border(sample, float(mark[0]) - OVERLAP_S, above=False)

    def cursor(self, word: str) -> str:
        """The name under which the desk notes how far failures of a status have been read."""
        return f"{self.name}:{word}"

    def _silent(self, db: Db, most: int) -> list[Sighting]:
        beat = f'al."{self.heartbeat}"'
        late = db.now - self.heartbeat_s
        statement = self._select(
            (beat,), f"{self._column('status')} = :word AND {beat} < :border", beat
        )
        found: list[Sighting] = []
        for word in self.running:
            sample = self._sample(db, beat, word)
            border = None if sample is None else _border(sample, late, above=True)
            values = {"word": word, "border": border, "source": self.name, "most": most}
            for row in [] if border is None else db.rows(statement, values):
                last = seconds_of(row[6])
                if last is not None and last < late:
                    text = (
                        f"Process died: agent {row[0]} sent no heartbeat for {db.now - last:.0f} s"
                    )
                    found.append(self._sighting(row, text, "dead", db.now))
        return found

    def _check(self, db: Db) -> None:
        """Check that tables and columns exist: SQLite reads an unknown quoted name as a text."""
        wanted = {self.columns.get(name, name) for name in _COLUMNS} | {self.heartbeat}
        tables: dict[str, set[str | None]] = {self.table: wanted}
        if self.task_table is not None:
            tables[self.task_table] = {"task_id", "priority", "estimated_hours"}
        for table, columns in tables.items():
            schema, _, name = table.rpartition(".")
            there = db.columns(name, self._place or schema or None)
            missing = sorted(column for column in columns if column and column not in there)
            if not there:
                raise UsageError(
                    f"Lifecycle: there is no table {table}; name it by table= or task_table="
                )
            if missing:
                raise UsageError(
                    f"Lifecycle: {table} has no column {', '.join(missing)}; name it by columns="
                )

    # Values ---------------------------------------------------------------------------------------

    def _failure(self, row: tuple[Any, ...]) -> Sighting:
        status = str(row[3])
        found = self._sighting(row, failure_text(status, _text(row[4])), status, seconds_of(row[5]))
        priority = row[6] if isinstance(row[6], int) else None
        hours = float(row[7]) if isinstance(row[7], int | float) and row[7] >= 0 else None
        return found._replace(priority=priority, estimated_hours=hours)

    def _sighting(self, row: tuple[Any, ...], text: str, status: str, at: float | None) -> Sighting:
        agent_id = str(row[0])
        return Sighting(
            source=self.name,
            key=str(row[-1]),
            message=text,
            agent_id=agent_id,
            agent_type=_text(row[1]) or "",
            task_id=_text(row[2]),
            status=status,
            at=at,
            scope=agent_id,
        )


def _quoted(field: str, name: object, place: str = "", *, parts: int = 2) -> str:
    """Quote a name. Raises UsageError for anything but a plain identifier."""
    pieces = name.split(".") if isinstance(name, str) else []
    if not 1 <= len(pieces) <= parts or not all(map(_NAME.fullmatch, pieces)):
        wanted = "a name of letters, digits and _" + (", with a schema before a dot" * (parts > 1))
        raise misuse(field, name, wanted)
    return ".".join(f'"{piece}"' for piece in ((place, *pieces) if place else pieces))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _border(sample: object, seconds: float, *, above: bool) -> Any:
    """A time in the form of the column's values, rounded down; above: rounded up.

    Texts are cut to the day, the part that all text forms share.
    """
    if isinstance(sample, int | float):
        return seconds * 1000 if sample > MILLIS else seconds
    if isinstance(sample, str):
        return f"{iso(seconds)[:10]}{'~' if above else ''}"
    when = dt.datetime.fromtimestamp(seconds, dt.UTC)
    naive = isinstance(sample, dt.datetime) and sample.tzinfo is None
    return when.replace(tzinfo=None) if naive else when
