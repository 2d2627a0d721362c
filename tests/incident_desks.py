"""Desks for tests: on each kind of store, with a clock that can be moved on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql
from store_kinds import POSTGRES, Opened
from stores.store_runs import edit_sqlite
from support import FakeEnvironment

from triage.incidents import Hooks, IncidentDesk, Message, Recovery
from triage.stores import MemoryStore, Store

KINDS = ("memory", "sqlite", "postgres")
NOON = 1_761_474_900.0
"""2025-10-26T10:35:00Z."""
OWNER = "orch-20251026-001"
DIED = "Process died unexpectedly"
# What "later" means in a database with a clock of its own: everything happened earlier.
TIMES = {
    "incidents": (
        "next_attempt_at", "ack_due", "lease_until", "first_seen", "last_seen", "resolved_at",
    ),
    "agents": ("started", "heartbeat", "due", "ended"),
    "messages": ("created_at", "due", "sent_at"),
    "sightings": ("at",),
    "runs": ("started", "updated", "finished", "lease_until"),
}  # fmt: skip


class World:
    """Desks that share one store, and its time."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.env = FakeEnvironment()
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
        """Time goes by."""
        self.env.now += seconds
        if self.kind == "postgres":
            self.execute(
                *(
                    f"UPDATE {table} SET "
                    + ", ".join(f"{name} = {name} - {seconds}" for name in names)
                    for table, names in TIMES.items()
                )
            )

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
