"""A fleet on DBOS: transactions of SQLAlchemy, one worker in a process, and what is refused at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import triage
from fleet.fleets import check_transaction, dbos_fleet, idle
from triage import Agent, Checks, Suspend, approve
from triage.adapters.dbos import Fleet, Queue, Worker
from triage.adapters.dbos.engine import url_of
from triage.adapters.fleet import Job
from triage.core import UsageError
from triage.stores import SQLiteStore

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


@triage.tool(effect="once")
async def pay(to: str) -> str:
    return f"{to} is paid"


def rows(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as db:
        return db.execute(statement.encode(), values).fetchall()


# Transactions -------------------------------------------------------------------------------------
@asynccontextmanager
async def by_alchemy(url: str, kind: Any) -> AsyncGenerator[Any]:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        yield Session(connection) if kind is Session else connection
    engine.dispose()


@asynccontextmanager
async def by_async_alchemy(url: str, kind: Any) -> AsyncGenerator[Any]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    async with engine.connect() as connection:
        yield AsyncSession(connection) if kind is AsyncSession else connection
    await engine.dispose()


CONNECTIONS: dict[str, tuple[Any, Any]] = {
    "alchemy connection": (by_alchemy, sa.Connection),
    "alchemy session": (by_alchemy, Session),
    "async alchemy connection": (by_async_alchemy, None),
    "async alchemy session": (by_async_alchemy, AsyncSession),
}


@pytest.mark.parametrize("way", CONNECTIONS)
async def test_what_is_enqueued_in_a_transaction_is_so_once_that_is_committed(
    way: str, url: str, fleet: Fleet
) -> None:
    connect, which = CONNECTIONS[way]
    opened: AbstractAsyncContextManager[Any] = connect(url, which)
    async with opened as connection:
        await check_transaction(fleet, connection)


async def test_a_job_is_the_same_by_whichever_way_it_was_enqueued(url: str, fleet: Fleet) -> None:
    job = Job("way-1", "idle", "idle", {"a": [1, "é", None]}, {"b": 2}, 2e9, 3, 60.0)
    await fleet.engine.submit(job)
    statement = (
        "SELECT status, name, priority, application_version, application_name, queue_name, serialization, "
        "(delay_until_epoch_ms - created_at + 5000) / 10000 FROM triage_dbos.workflow_status "
        "WHERE workflow_uuid = %s"
    )
    inputs = "SELECT inputs FROM triage_dbos.workflow_input WHERE workflow_uuid = %s"
    async with await psycopg.AsyncConnection.connect(url) as connection:
        other = Job("way-2", "idle", "idle", {"a": [1, "é", None]}, {"b": 2}, 2e9, 3, 60.0)
        await fleet.engine.submit(other, connection)
        await connection.commit()
    assert rows(url, statement, "way-1") == rows(url, statement, "way-2")
    first, second = (json.loads(rows(url, inputs, way)[0][0]) for way in ("way-1", "way-2"))
    assert first == second == {"positionalArgs": [job.payload], "namedArgs": {}}


# Workers ------------------------------------------------------------------------------------------
async def test_one_process_has_one_worker(url: str) -> None:
    fleet = dbos_fleet(url)
    worker = Worker(fleet)
    working = asyncio.ensure_future(worker.run())
    while not (await asyncio.to_thread(rows, url, "SELECT count(*) FROM triage_dbos.queues"))[0][0]:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    with pytest.raises(UsageError, match="one process has one worker"):
        await Worker(fleet).run()
    worker.stop()
    await working
    await fleet.close()


@pytest.mark.parametrize("priority", [1, 9])
@pytest.mark.parametrize("by", ["fleet", "journal"])
async def test_an_answered_run_goes_on_before_all_that_wait_in_its_queue(
    by: str, priority: int, url: str
) -> None:
    order: list[str] = []

    async def desk(task: str) -> str:
        order.append(task)
        return await pay(task) if task == "asked" else task

    asks = Checks(guard=lambda _: Suspend("may it be paid?"))
    name = f"desk-{by}-{priority}"
    agents = [Agent(desk, checks=asks, name=name)]
    fleet = dbos_fleet(url, agents, [Queue(name, concurrency=1, polling_s=0.05)])

    async def works(until: Callable[[], Awaitable[bool]]) -> None:
        worker = Worker(fleet, look_s=60)
        working = asyncio.ensure_future(worker.run())
        while not await until() and not working.done():
            await asyncio.sleep(0.05)
        worker.stop()
        await working

    async def asked() -> bool:
        return await fleet.status(run_id) == "suspended"

    async def ended() -> bool:
        return len(order) >= 20

    run_id = await fleet.enqueue(name, "asked", priority=priority)
    await works(asked)
    order.clear()
    for number in range(20):
        await fleet.enqueue(name, str(number))
    if by == "fleet":
        await fleet.answer(run_id, approve())
    else:
        await fleet.agents[name].answer(run_id, approve())
        await fleet.wake()
    await works(ended)
    assert order[0] == "asked"
    await fleet.close()


# What is said at once -----------------------------------------------------------------------------
def misused(**options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "agents": [Agent(idle)],
        "store": "postgresql://postgres@127.0.0.1/test",
    }
    return {**given, **options}


MISUSES = {
    "keeps its runs in Postgres": misused(store="sqlite:///runs.db"),
    "leave its store out": misused(agents=[Agent(idle, store=SQLiteStore("runs.db"))]),
    "two agents of this fleet": misused(agents=[Agent(idle), Agent(idle)]),
    "needs an agent": misused(agents=[]),
    r"must be agents": misused(agents=[idle]),
    r"Fleet\.lease_s": misused(lease_s=0),
    r"Fleet\.name": misused(name="no name"),
    r"Fleet\.version": misused(version=""),
    "two queues": misused(queues=[Queue("a"), Queue("a")]),
    "must be Queue": misused(queues=["a"]),
}


@pytest.mark.parametrize("said", MISUSES)
def test_a_fleet_that_cannot_be_is_refused_with_the_remedy(said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Fleet(**MISUSES[said])


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "_dbos_x"},
        {"concurrency": 0},
        {"worker_concurrency": True},
        {"partition_concurrency": -1},
        {"polling_s": 0},
        {"rate": (0, 1)},
        {"rate": (1, 0)},
    ],
    ids=repr,
)
def test_a_queue_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"Queue\."):
        Queue(**{"name": "a", **options})


@pytest.mark.parametrize(
    ("conninfo", "host"),
    [
        ("postgresql://user:p%40ss@host:5433/db?sslmode=require", "host"),
        ("host=a,b port=1,2 dbname=db user=user password=p@ss", "a,b"),
        ("postgresql:///db?host=/run/postgres&user=user&password=p%40ss", "/run/postgres"),
    ],
)
def test_the_text_of_a_connection_is_the_same_for_alchemy(conninfo: str, host: str) -> None:
    made = make_url(url_of(conninfo))
    assert (made.username, made.password, made.database) == ("user", "p@ss", "db")
    assert made.query["host"] == host
