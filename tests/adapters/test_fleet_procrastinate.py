"""What a fleet on procrastinate does beside the contract: transactions of psycopg, and what it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from fleets import database, idle, migrated, procrastinate_fleet

from triage import Agent
from triage.adapters.fleet import Queue
from triage.adapters.procrastinate import Fleet
from triage.core import Deduplicated, StoreUnavailable, UsageError

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


@pytest.fixture
def anyio_backend() -> str:
    """Workers need asyncio."""
    return "asyncio"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with migrated(procrastinate_fleet) as made:
        yield made


@pytest.fixture
async def fleet(url: str) -> AsyncIterator[Fleet]:
    made = procrastinate_fleet(url)
    yield made
    await made.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_what_is_enqueued_in_a_transaction_is_so_once_that_is_committed(
    kind: str, url: str, fleet: Fleet
) -> None:
    if kind == "sync":
        with psycopg.connect(url) as db:
            back = await fleet.enqueue("idle", 1, run_id="back-sync", connection=db)
            db.rollback()
            kept = await fleet.enqueue("idle", 1, run_id="kept-sync", connection=db)
            assert await fleet.places([kept]) == []
    else:
        async with await psycopg.AsyncConnection.connect(url) as db_:
            back = await fleet.enqueue("idle", 1, run_id="back-async", connection=db_)
            await db_.rollback()
            kept = await fleet.enqueue("idle", 1, run_id="kept-async", connection=db_)
            assert await fleet.places([kept]) == []
            with pytest.raises(UsageError, match="another task"):
                await fleet.enqueue("idle", 2, run_id="kept-async", connection=db_)
    assert await fleet.places([back]) == []
    assert [place.state for place in await fleet.places([kept])] == ["queued"]
    with pytest.raises(UsageError, match=r"enqueue\.connection"):
        await fleet.enqueue("idle", 1, connection=object())


async def test_migrating_twice_changes_nothing(fleet: Fleet) -> None:
    first = await fleet.enqueue("idle", 1, deduplication="text", delay_s=60)
    await fleet.migrate()
    await fleet.engine.check()
    assert await fleet.status(first) == "delayed"
    with pytest.raises(Deduplicated):
        await fleet.enqueue("idle", 2, deduplication="text")


@pytest.mark.parametrize(
    "queue",
    [Queue("a", concurrency=1), Queue("a", rate=(1, 1.0)), Queue("a", partition_concurrency=1)],
)
def test_a_limit_that_it_cannot_hold_is_refused(queue: Queue) -> None:
    with pytest.raises(UsageError, match="procrastinate cannot hold this limit of a"):
        procrastinate_fleet("postgresql://postgres@127.0.0.1/test", [Agent(idle)], [queue])


async def test_what_it_cannot_do_is_refused(fleet: Fleet) -> None:
    with pytest.raises(UsageError, match="cannot hold this: schedule"):
        await fleet.schedule("* * * * *", "idle", 1)


async def test_tables_that_are_missing_are_made_by_the_command_that_is_named() -> None:
    with database() as url:
        fleet = procrastinate_fleet(url)
        for call in (fleet.enqueue("idle", 1), fleet.engine.check()):
            with pytest.raises(UsageError, match="triage fleet migrate"):
                await call
        await fleet.close()


async def test_a_database_that_does_not_answer_is_unavailable() -> None:
    fleet = procrastinate_fleet("postgresql://postgres@127.0.0.1:9/none")
    with pytest.raises(StoreUnavailable):
        await fleet.enqueue("idle", 1)
    await fleet.close()
