"""Databases of fleets for the tests, each with its tables."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
import psycopg
import pytest
from store_kinds import POSTGRES, missing

from bench.fleet import storm
from triage import Agent
from triage.adapters import dbos
from triage.adapters.fleet import Fleet, Queue
from triage.core import Deduplicated, UsageError
from triage.stores import PostgresStore


@contextmanager
def database() -> Generator[str]:
    """A database of its own; its URL."""
    try:
        psycopg.connect(POSTGRES).close()
    except psycopg.Error as error:
        missing("postgres", error)
        raise
    with storm.database("triage_fleet") as url:
        yield url


async def idle(task: Any) -> Any:
    """Give the task back."""
    return task


def dbos_fleet(
    url: str, agents: Sequence[Any] = (), queues: Sequence[Queue] = (), **options: Any
) -> dbos.Fleet:
    """A fleet on DBOS of a name of its own."""
    options.setdefault("name", f"f{uuid.uuid4().hex[:12]}")
    return dbos.Fleet(agents or [Agent(idle)], PostgresStore(url), queues=queues, **options)


@contextmanager
def migrated() -> Generator[str]:
    """A database with the tables of a fleet."""
    with database() as url:

        async def migrate() -> None:
            fleet = dbos_fleet(url)
            await fleet.migrate()
            await fleet.close()

        anyio.run(migrate)
        yield url


async def check_transaction(fleet: Fleet, connection: Any) -> None:
    """Check that what is enqueued with a connection is so once its transaction is committed."""

    async def end(how: str) -> None:
        found = getattr(connection, how)()
        if inspect.isawaitable(found):
            await found

    name = uuid.uuid4().hex[:12]
    back = await fleet.enqueue("idle", {"a": 1}, run_id=f"back-{name}", connection=connection)
    await end("rollback")
    assert await fleet.places([back]) == []
    run_id = f"kept-{name}"
    for _ in range(2):  # the same once more is no other
        await fleet.enqueue("idle", {"a": 1}, run_id=run_id, connection=connection)
    with pytest.raises(UsageError, match="taken by another task"):
        await fleet.enqueue("idle", {"a": 2}, run_id=run_id, connection=connection)
    assert await fleet.places([run_id]) == []
    await end("commit")
    assert [place.state for place in await fleet.places([run_id])] == ["queued"]
    later = await fleet.enqueue(
        "idle", 1, delay_s=60, priority=3, deduplication=run_id, connection=connection
    )
    with pytest.raises(Deduplicated):
        await fleet.enqueue("idle", 2, deduplication=run_id, connection=connection)
    await end("rollback")
    assert await fleet.places([later]) == []
