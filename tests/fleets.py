"""Databases of fleets for the tests, each with its tables, dropped afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
import psycopg
from psycopg import sql
from store_kinds import POSTGRES, missing

from triage import Agent
from triage.adapters import dbos, procrastinate
from triage.adapters.fleet import Fleet, Queue
from triage.stores import PostgresStore


@contextmanager
def database() -> Iterator[str]:
    """A database of its own; its URL."""
    name = f"triage_fleet_{uuid.uuid4().hex[:12]}"
    try:
        server = psycopg.connect(POSTGRES, autocommit=True)
    except psycopg.Error as error:
        missing("postgres", error)
        raise
    with server as db:
        db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield f"{POSTGRES.rpartition('/')[0]}/{name}"
    finally:
        with psycopg.connect(POSTGRES, autocommit=True) as db:
            db.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


async def idle(task: Any) -> Any:
    """Give the task back."""
    return task


def dbos_fleet(
    url: str, agents: Sequence[Agent[Any]] = (), queues: Sequence[Queue] = (), **options: Any
) -> dbos.Fleet:
    """A fleet on DBOS of a name of its own."""
    name = options.pop("name", f"f{uuid.uuid4().hex[:12]}")
    given = agents or [Agent(idle)]
    return dbos.Fleet(given, PostgresStore(url), queues=queues, name=name, **options)


def procrastinate_fleet(
    url: str, agents: Sequence[Agent[Any]] = (), queues: Sequence[Queue] = (), **options: Any
) -> procrastinate.Fleet:
    """A fleet on procrastinate of a name of its own."""
    name = options.pop("name", f"f{uuid.uuid4().hex[:12]}")
    given = agents or [Agent(idle)]
    return procrastinate.Fleet(given, PostgresStore(url), queues=queues, name=name, **options)


@contextmanager
def migrated(make: Callable[[str], Fleet]) -> Iterator[str]:
    """A database with the tables of a kind of fleet."""
    with database() as url:

        async def migrate() -> None:
            fleet = make(url)
            await fleet.migrate()
            await fleet.close()

        anyio.run(migrate)
        yield url
