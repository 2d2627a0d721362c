"""What a fleet relies on in DBOS beside the contract of engines: one test for each, named after it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import dbos
import psycopg
import pytest

from fleet.fleets import dbos_fleet, idle
from triage import Agent
from triage.adapters.dbos import DBOSEngine, Fleet, Queue, Worker
from triage.adapters.fleet import Job, Ticket
from triage.core import UsageError
from triage.stores import PostgresStore

from .promises import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

POLL_S = 0.05


def rows(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as db:
        cursor = db.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


def status_of(url: str, run_id: str) -> str:
    """A job's status in DBOS' table."""
    statement = "SELECT status FROM triage_dbos.workflow_status WHERE workflow_uuid = %s"
    (status,) = rows(url, statement, run_id)[0]
    return str(status)


class Bench:
    """Carries out jobs. A job whose id is in `held` goes on until its event is set."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self.held: dict[str, asyncio.Event] = {}

    async def carry(self, job: Job) -> dict[str, Any]:
        """Count the job and wait while it is held."""
        self.times[job.id] += 1
        if job.id in self.held:
            await self.held[job.id].wait()
        return {"status": "done"}

    async def carried(self, job: Job, times: int = 1) -> None:
        """Wait until a job was handed out so many times."""
        await until(lambda: self.times[job.id] >= times, f"{job.id} was not handed out")


def name_of(fleet: Fleet) -> str:
    """The fleet's name, which no other test has."""
    assert isinstance(fleet.engine, DBOSEngine)
    return fleet.engine.fleet


def a_queue(fleet: Fleet, **limits: Any) -> Queue:
    """A queue that no other test has."""
    return Queue(f"{name_of(fleet)}-queue", polling_s=POLL_S, **limits)


@asynccontextmanager
async def serving(fleet: Fleet, queue: Queue, bench: Bench) -> AsyncGenerator[Any]:
    """Have a worker take jobs from the queue."""

    async def due(_entry: Any, _moment: float) -> None:
        raise AssertionError

    await fleet.engine.declare([queue])
    async with fleet.engine.serve("worker-1", [queue], bench.carry, due) as leave:
        yield leave


async def ended(url: str, job: Job) -> None:
    """Wait until DBOS has recorded the job's end."""
    await until(lambda: status_of(url, job.id) == "SUCCESS", f"{job.id} has not ended")


# Tables -------------------------------------------------------------------------------------------
def test_a_client_connects_when_it_is_first_used() -> None:
    assert DBOSEngine(PostgresStore("postgresql://postgres@127.0.0.1:9/none")).client is not None


async def test_its_tables_are_thirteen_and_migrating_again_keeps_what_is_in_them(
    url: str, fleet: Fleet
) -> None:
    job = Job("migrated", "idle", "idle")
    await fleet.engine.submit(job)
    await fleet.migrate()
    assert status_of(url, job.id) == "ENQUEUED"
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'triage_dbos'"
    assert rows(url, tables) == [(13,)]


async def test_tables_of_an_older_dbos_are_said_to_be_old(url: str, fleet: Fleet) -> None:
    await fleet.engine.check()
    rows(url, "UPDATE triage_dbos.dbos_migrations SET version = version - 1")
    with pytest.raises(UsageError, match=r"missing or old.*triage fleet migrate"):
        await fleet.engine.check()
    rows(url, "UPDATE triage_dbos.dbos_migrations SET version = version + 1")
    await fleet.engine.check()


# Queues -------------------------------------------------------------------------------------------
async def test_the_limits_that_were_declared_last_hold(url: str, fleet: Fleet) -> None:
    limits = (
        "SELECT concurrency, worker_concurrency, rate_limit_max, rate_limit_period_sec, "
        "polling_interval_sec FROM triage_dbos.queues WHERE name = %s"
    )
    first = a_queue(fleet, concurrency=5, worker_concurrency=10, rate=(7, 2.0))
    await fleet.engine.declare([first])
    assert rows(url, limits, first.name) == [(5, 5, 7, 2.0, POLL_S)]
    await fleet.engine.declare([a_queue(fleet, worker_concurrency=3)])
    assert rows(url, limits, first.name) == [(None, 3, None, None, POLL_S)]


async def test_a_queue_belongs_to_the_fleet_that_declared_it_first(url: str, fleet: Fleet) -> None:
    queue = a_queue(fleet)
    await fleet.engine.declare([queue])
    other = dbos_fleet(url)
    with pytest.raises(UsageError, match="DBOS refuses it"):
        await other.engine.declare([queue])
    await other.close()


async def test_a_worker_is_handed_only_jobs_of_its_queues_and_of_its_version(
    url: str, fleet: Fleet
) -> None:
    queue, bench = a_queue(fleet), Bench()
    other = Queue(f"{queue.name}-other", polling_s=POLL_S)
    later = dbos_fleet(url, name=name_of(fleet), version="2")
    await fleet.engine.declare([other])
    elsewhere, newer, ours = (
        Job(f"{name}-{queue.name}", "idle", place.name)
        for name, place in (("elsewhere", other), ("newer", queue), ("ours", queue))
    )
    await fleet.engine.submit(elsewhere)
    await later.engine.submit(newer)
    await fleet.engine.submit(ours)
    async with serving(fleet, queue, bench):
        await bench.carried(ours)
        await asyncio.sleep(5 * POLL_S)
    assert bench.times == {ours.id: 1}
    (place,) = await fleet.places([newer.id])
    assert (place.state, place.version) == ("queued", f"{name_of(fleet)}:2")
    await later.close()


async def test_a_schedule_that_is_no_cron_expression_is_refused(fleet: Fleet) -> None:
    with pytest.raises(UsageError, match="DBOS refuses it"):
        await fleet.schedule("at noon", "idle", 1)


# Jobs that come back ------------------------------------------------------------------------------
async def test_what_another_worker_has_taken_stays_there_until_it_is_put_back(
    url: str, fleet: Fleet
) -> None:
    queue, bench = a_queue(fleet), Bench()
    lost, ours = Job(f"lost-{queue.name}", "idle", queue.name), Job("ours", "idle", queue.name)
    await fleet.engine.submit(lost)
    rows(
        url,
        "UPDATE triage_dbos.workflow_status SET status = 'PENDING', executor_id = 'dead', "
        "started_at_epoch_ms = 0 WHERE workflow_uuid = %s",
        lost.id,
    )
    async with serving(fleet, queue, bench):
        await fleet.engine.submit(ours)
        await bench.carried(ours)
        assert bench.times[lost.id] == 0
        await fleet.engine.requeue(await fleet.engine.abandoned(fleet.lease_s))
        await bench.carried(lost)


async def test_a_job_is_handed_out_however_often_it_was_before(url: str, fleet: Fleet) -> None:
    queue, bench = a_queue(fleet), Bench()
    job = Job(f"often-{queue.name}", "idle", queue.name)
    await fleet.engine.submit(job)
    rows(
        url,
        "UPDATE triage_dbos.workflow_status SET recovery_attempts = 1000 WHERE workflow_uuid = %s",
        job.id,
    )
    async with serving(fleet, queue, bench):
        await bench.carried(job)
        await ended(url, job)


async def test_the_end_of_a_job_counts_only_from_the_worker_that_has_it(
    url: str, fleet: Fleet
) -> None:
    queue, bench = a_queue(fleet), Bench()
    job = Job(f"twice-{queue.name}", "idle", queue.name)
    first = bench.held[job.id] = asyncio.Event()
    async with serving(fleet, queue, bench):
        await fleet.engine.submit(job)
        await bench.carried(job)
        second = bench.held[job.id] = asyncio.Event()
        await fleet.engine.requeue([Ticket(job.id, queue.name)])
        await bench.carried(job, 2)
        first.set()
        await asyncio.sleep(5 * POLL_S)
        assert status_of(url, job.id) == "PENDING"
        second.set()
        await ended(url, job)


async def test_a_job_that_is_put_back_loses_its_deduplication_and_keeps_its_place(
    url: str, fleet: Fleet
) -> None:
    await fleet.engine.submit(Job("again", "idle", "idle", 1, deduplication="text", priority=7))
    await fleet.engine.submit(Job("part", "idle", "idle", 1, partition="p"))
    await fleet.engine.requeue([Ticket("again", "idle"), Ticket("part", "idle")])
    kept = (
        "SELECT status, queue_name, priority, deduplication_id, queue_partition_key "
        "FROM triage_dbos.workflow_status WHERE workflow_uuid IN ('again', 'part') ORDER BY 3 DESC"
    )
    assert rows(url, kept) == [
        ("ENQUEUED", "idle", 7, None, None),
        ("ENQUEUED", "idle", 1, None, "p"),
    ]


async def test_what_has_ended_is_not_put_back(url: str, fleet: Fleet) -> None:
    await fleet.engine.submit(Job("over", "idle", "idle", 1))
    rows(
        url,
        "UPDATE triage_dbos.workflow_status SET status = 'SUCCESS' WHERE workflow_uuid = 'over'",
    )
    await fleet.engine.requeue([Ticket("over", "idle")])
    assert [place.state for place in await fleet.places(["over"])] == ["ended"]


# Workers ------------------------------------------------------------------------------------------
async def test_a_worker_that_is_told_to_leave_ends_and_records_what_it_has_begun(
    url: str, fleet: Fleet
) -> None:
    queue, bench = a_queue(fleet), Bench()
    job = Job(f"last-{queue.name}", "idle", queue.name)
    bench.held[job.id] = asyncio.Event()
    async with serving(fleet, queue, bench) as leave:
        await fleet.engine.submit(job)
        await bench.carried(job)
        names = {thread.name for thread in threading.enumerate()}
        assert f"queue-worker-{queue.name}" in names
        leave()
        await until(
            lambda: not any("queue-worker" in one.name for one in threading.enumerate()),
            "a worker that was told to leave still asks for jobs",
        )
        assert dbos.DBOS(config={"name": "another"})._active_workflows_set.activeList() == [job.id]
        bench.held[job.id].set()
    assert status_of(url, job.id) == "SUCCESS"


async def test_a_worker_opens_at_most_seven_connections(url: str) -> None:
    fleet = dbos_fleet(url, [Agent(idle, name="seven")], [Queue("seven", polling_s=POLL_S)])
    for number in range(60):
        await fleet.enqueue("seven", number)
    worker = Worker(fleet, look_s=0.1)
    working = asyncio.ensure_future(worker.run())
    most = 0
    statement = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watching:
        while len(await fleet.store.runs("done", agent="seven")) < 60:
            (now,) = await (await watching.execute(statement)).fetchone() or (0,)
            most = max(most, now)
    worker.stop()
    await working
    await fleet.close()
    assert 3 < most <= 7


async def test_nothing_in_its_tables_is_pickled(url: str) -> None:
    fleet = dbos_fleet(url, [Agent(idle)], [Queue("portable", polling_s=0.1)])
    run_id = await fleet.enqueue("idle", {"a": 1}, queue="portable")
    worker = Worker(fleet, ["portable"])
    working = asyncio.ensure_future(worker.run())
    assert await fleet.result(run_id, timeout_s=30) == {"a": 1}
    worker.stop()
    await working
    found = rows(
        url,
        "SELECT s.serialization, o.output, s.status FROM triage_dbos.workflow_status s "
        "JOIN triage_dbos.workflow_output o USING (workflow_uuid) WHERE workflow_uuid = %s",
        run_id,
    )
    assert found == [("portable_json", '{"status":"done"}', "SUCCESS")]
    assert rows(url, "SELECT count(*) FROM triage_dbos.operation_outputs") == [(0,)]
    await fleet.close()
