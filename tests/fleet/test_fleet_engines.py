"""What a fleet does: its promises, transactions, and what is said of a database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from fleet.fleets import check_transaction, database, dbos_fleet
from triage import Agent
from triage.adapters.fleet import Fleet, Queue, Worker
from triage.core import StoreUnavailable, UsageError
from triage.plan import Capability, ExecutionPlan, Orchestrator, PlannedStep, Registry

from .promises import fleet_checks

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


@pytest.mark.parametrize("check", fleet_checks, ids=lambda check: check.__name__)
async def test_a_fleet_keeps_its_promises(check: Any, url: str) -> None:
    def make(agents: Sequence[Agent[Any]], queues: Sequence[Queue], lease_s: float) -> Fleet:
        return dbos_fleet(url, agents, queues, lease_s=lease_s)

    await check(make)


async def test_what_is_enqueued_in_a_transaction_of_psycopg_is_so_once_that_is_committed(
    url: str, fleet: Fleet
) -> None:
    with psycopg.connect(url) as connection:
        await check_transaction(fleet, connection)
    async with await psycopg.AsyncConnection.connect(url) as opened:
        await check_transaction(fleet, opened)
    rows: Any = dict_row
    with psycopg.connect(url, row_factory=rows) as connection:
        await check_transaction(fleet, connection)
    async with await psycopg.AsyncConnection.connect(url, row_factory=rows) as opened:
        await check_transaction(fleet, opened)
    with pytest.raises(UsageError, match=r"enqueue\.connection"):
        await fleet.enqueue("idle", 1, connection="postgresql://")


async def test_an_orchestrator_is_one_of_its_agents(url: str) -> None:
    planned = ExecutionPlan((PlannedStep("out", "respond"),))
    respond = Capability("respond", "answers", lambda task: f"{task} is done", effect="read")
    desk = Orchestrator(Registry([respond]), lambda _request: planned, name="desk")
    fleet = dbos_fleet(url, [desk])
    worker = Worker(fleet)
    working = asyncio.ensure_future(worker.run())
    run_id = await fleet.enqueue(desk, "order 17")
    assert await fleet.result(run_id, timeout_s=30) == "order 17 is done"
    worker.stop()
    await working
    await fleet.close()


async def test_tables_that_are_missing_are_made_by_the_command_that_is_named() -> None:
    with database() as url:
        fleet = dbos_fleet(url)
        for call in (fleet.enqueue("idle", 1), fleet.engine.check(), Worker(fleet).run()):
            with pytest.raises(UsageError, match="triage fleet migrate"):
                await call
        await fleet.close()


async def test_a_database_that_does_not_answer_is_unavailable() -> None:
    fleet = dbos_fleet("postgresql://postgres@127.0.0.1:9/none")
    with pytest.raises(StoreUnavailable):
        await fleet.enqueue("idle", 1)
    await fleet.close()
