"""Desks for tests: on each kind of store, with a clock that can be moved on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from store_kinds import POSTGRES, Opened
from stores.store_runs import edit_sqlite
from support import FakeEnvironment

from triage.incidents import (
    Hooks,
    Incident,
    IncidentDesk,
    LogEntry,
    Message,
    Recovery,
    Status,
)
from triage.stores import MemoryStore, Store

KINDS = ("memory", "sqlite", "postgres")
NOON = 1_761_474_900.0
"""2025-10-26T10:35:00Z."""
OWNER = "orch-20251026-001"
DIED = "Process died unexpectedly"


class Ticking(FakeEnvironment):
    """Time that goes on by a microsecond at each look, so that incidents have an order."""

    def time(self) -> float:
        self.now += 1e-6
        return self.now


class World:
    """Desks that share one store, and its time."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.env = Ticking()
        self.env.now = NOON
        self.opened = Opened(kind, folder)
        self.store: Store = MemoryStore()
        self.desks: list[IncidentDesk] = []

    def __enter__(self) -> Self:
        self.opened.__enter__()
        self.store = self.opened.new()
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.__exit__(None, None, None)

    def desk(self, owner: str = OWNER, **options: Any) -> IncidentDesk:
        """A desk on the shared store."""
        made = IncidentDesk(self.store, owner=owner, environment=self.env, **options)
        self.desks.append(made)
        return made

    def later(self, seconds: float) -> None:
        """Time goes by, also on the store's own clock, by which leases end."""
        self.env.now += seconds
        if isinstance(self.store, MemoryStore):
            for run in self.store._runs.values():  # noqa: SLF001 - it has no clock to move
                run.lease_until = None if run.lease_until is None else run.lease_until - seconds
                run.finished = None if run.finished is None else run.finished - seconds
            return
        self.execute(
            f"UPDATE runs SET lease_until = lease_until - {seconds}, finished = finished - {seconds}"
        )

    async def all(self) -> list[Incident]:
        """All incidents, in the order they were found."""
        desk = self.desk("asks")
        found = [one for status in Status for one in await desk.incidents(status, limit=1000)]
        return sorted(found, key=lambda one: one.log[0].at)

    async def nth(self, number: int) -> str:
        """The id of the incident that was found so late, from 1."""
        return (await self.all())[number - 1].error_id

    async def log(self) -> list[LogEntry]:
        """The log of all incidents."""
        return [entry for one in await self.all() for entry in one.log]

    async def messages(self) -> list[Message]:
        """The messages about all incidents."""
        return [message for one in await self.all() for message in one.messages]

    def execute(self, *statements: str) -> None:
        """Change the tables by hand."""
        if self.kind == "postgres":
            with psycopg.connect(POSTGRES, autocommit=True) as there:
                name = sql.Identifier(self.opened.name)
                there.execute(sql.SQL("SET search_path = {}").format(name))
                for statement in statements:
                    there.execute(statement.encode())
            return
        edit_sqlite(self.opened.name, *statements)

    def select(self, statement: str) -> list[dict[str, Any]]:
        """The rows that a query finds, by the names of their columns."""
        if self.kind == "postgres":
            with psycopg.connect(POSTGRES, row_factory=dict_row) as there:
                name = sql.Identifier(self.opened.name)
                there.execute(sql.SQL("SET search_path = {}").format(name))
                return there.execute(statement.encode()).fetchall()
        with closing(sqlite3.connect(self.opened.name)) as file:
            file.row_factory = sqlite3.Row
            return [dict(row) for row in file.execute(statement)]

    async def close(self) -> None:
        """Let go of the connections."""
        for desk in self.desks:
            await desk.close()
        await self.store.close()


class Restarts:
    """A hook that counts, and gives new agents their ids."""

    def __init__(self, answer: Callable[[Recovery], Any] | None = None) -> None:
        self.seen: list[Recovery] = []
        self.answer = answer

    async def __call__(self, recovery: Recovery) -> Any:
        self.seen.append(recovery)
        if self.answer is not None:
            return self.answer(recovery)
        return f"agent-{len(self.seen) + 1}"

    @property
    def hooks(self) -> Hooks:
        return Hooks(restart=self)


class Inbox:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[Message] = []

    def __call__(self, message: Message) -> None:
        self.got.append(message)

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(message.role, message.kind) for message in self.got]


def refuses(_recovery: Recovery) -> None:
    """A hook that cannot, and says more than it should."""
    raise ConnectionError("no spawner; api_key=sk-abcdefghijklmnopqrstuvwxyz123456")
