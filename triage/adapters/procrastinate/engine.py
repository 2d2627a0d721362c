"""`ProcrastinateEngine`: a fleet's queues in procrastinate."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

from triage.adapters.fleet import (
    WAKE,
    Carry,
    Database,
    Due,
    Job,
    Place,
    Queue,
    Ticket,
    in_thread,
    rows_from,
    unavailable,
)
from triage.core import StoreUnavailable, UsageError, child_logger, misuse
from triage.stores import PostgresStore

from .tables import OURS, Tables

try:
    import procrastinate
    from procrastinate import jobs, manager, schema
    from procrastinate.worker import Worker
except ImportError as error:
    raise UsageError(
        f"this fleet needs procrastinate ({error}): pip install 'triage-recovery[procrastinate]'"
    ) from error

RUN = "triage.run"
"""Name of the task that carries out a run."""
UNLIMITED = 1000
"""Concurrency of a worker for a queue without a limit, since procrastinate needs a number."""
AGAIN_S = 1.0
"""Seconds before an operation that failed, usually for a lost connection, is tried again."""

_log = child_logger("fleet")
_serving = threading.Lock()


class ProcrastinateEngine:
    """Keeps queues in procrastinate, in a schema of its own in the store's database.

    name: the fleet's name. Raises UsageError if it is not a text or is empty.
    """

    name = "procrastinate"
    abilities = frozenset(
        {"worker_concurrency", "priority", "deduplication", "delay", "transaction"}
    )

    def __init__(self, store: PostgresStore, *, name: str = "triage") -> None:
        if not isinstance(name, str) or not name:
            raise misuse("Fleet.name", name, "text")
        self.fleet = name
        self.schema = f"{store.schema}_procrastinate"
        self.url = store.url
        self._tables = Tables(self.schema, store.schema)
        self._database = Database(store.url, search_path=self.schema)

    # Tables ---------------------------------------------------------------------------------------

    async def migrate(self) -> None:
        """As in `FleetEngine`. Tables of an older procrastinate are updated by its own migrations."""
        await in_thread(self._migrate)

    def _migrate(self) -> None:
        name = sql.Identifier(self.schema)
        try:
            with psycopg.connect(self.url) as db:
                db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (self.schema,))
                db.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
                db.execute(sql.SQL("SET LOCAL search_path TO {}").format(name))
                (there,) = db.execute("SELECT to_regclass('procrastinate_jobs')").fetchone() or (
                    None,
                )
                if there is None:
                    db.execute(schema.SchemaManager.get_schema())
                db.execute(OURS.encode())
        except psycopg.OperationalError as error:
            raise unavailable(error) from error

    async def check(self) -> None:
        """As in `FleetEngine`."""
        (found,) = await self._database.rows(self._tables.check, {})
        if None in found:
            raise UsageError(
                "procrastinate's tables of this fleet are missing or old; make them with: "
                "triage fleet migrate module:fleet"
            )

    async def declare(self, queues: Sequence[Queue]) -> None:
        """Do nothing: each worker reads the queues' limits from its own fleet."""

    # Jobs -----------------------------------------------------------------------------------------

    async def submit(self, job: Job, connection: Any = None) -> Job | None:
        """As in `FleetEngine`. connection: a Connection or AsyncConnection of psycopg."""
        args = {
            "id": job.id,
            "fleet": self.fleet,
            "payload": job.payload,
            "once": job.deduplication,
        }
        values = {
            "id": job.id,
            "queue": job.queue,
            "priority": -job.priority,
            "args": json.dumps(args),
            "delay_s": job.delay_s,
            "once": job.deduplication,
        }
        query = self._tables.submit
        try:
            if connection is None:
                rows: Sequence[Any] = await self._rows(query, values)
            elif isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
                rows = await rows_from(connection, query, values)
            else:
                raise misuse("enqueue.connection", connection, "a connection of psycopg")
        except psycopg.errors.UniqueViolation as error:
            raise job.deduplicated() from error
        known = rows[0][0]
        return None if known is None else Job.read(job.id, known["payload"])

    async def _rows(self, query: sql.Composed, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        try:
            return await self._database.rows(query, values)
        except (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable) as error:
            raise UsageError(
                "procrastinate's tables of this fleet are missing; make them with: triage fleet migrate "
                "module:fleet"
            ) from error
        except psycopg.errors.InvalidSchemaName as error:
            raise UsageError(
                "the tables of this fleet are missing; make them with: triage fleet migrate module:fleet"
            ) from error

    async def withdraw(self, run_id: str) -> Job | None:
        """As in `FleetEngine`."""
        rows = await self._rows(self._tables.known, {"id": run_id})
        if not rows:
            return None
        job, args, _ = rows[0]
        await self._rows(self._tables.cancel, {"job": job})
        return Job.read(run_id, args["payload"])

    async def requeue(self, tickets: Sequence[Ticket]) -> None:
        """As in `FleetEngine`."""
        await self._rows(self._tables.requeue, {"ids": [ticket.id for ticket in tickets]})

    # Looking --------------------------------------------------------------------------------------

    async def abandoned(self, lease_s: float) -> list[Ticket]:
        """As in `FleetEngine`."""
        values = {"fleet": self.fleet, "lease_s": lease_s}
        return [Ticket(*row) for row in await self._rows(self._tables.abandoned, values)]

    async def answered(self) -> list[Job]:
        """As in `FleetEngine`."""
        rows = await self._rows(self._tables.answered, {"fleet": self.fleet})
        return [
            Job(
                f"{run_id}{WAKE}{events}",
                agent,
                queue,
                deadline=deadline,
                priority=max(1, priority),
            )
            for run_id, events, agent, queue, priority, deadline in rows
        ]

    async def places(self, run_ids: Sequence[str] | None = None) -> list[Place]:
        """As in `FleetEngine`."""
        query = self._tables.living if run_ids is None else self._tables.places
        ids = None if run_ids is None else list(run_ids)
        return [
            Place(run_id, self.name, queue, state, worker, max(0.0, float(waited_s or 0)), None)
            for run_id, queue, state, worker, waited_s in await self._rows(
                query, {"fleet": self.fleet, "ids": ids}
            )
        ]

    async def schedule(self, name: str, cron: str, entry: Mapping[str, Any], zone: str) -> None:
        """Raise UsageError: procrastinate declares schedules in code, not in its database."""
        raise UsageError("procrastinate keeps no schedules; enqueue by a cron job of the machine")

    async def unschedule(self, name: str) -> None:
        """Do nothing: there are no schedules to remove."""

    # Working --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serve(
        self, worker: str, queues: Sequence[Queue], carry: Carry, due: Due
    ) -> AsyncGenerator[Callable[[], None]]:
        """As in `FleetEngine`."""
        connector = procrastinate.PsycopgConnector(
            conninfo=self.url,
            kwargs={"options": f"-c search_path={self.schema}"},
            min_size=1,
            max_size=4 + 2 * len(queues),
        )
        app = procrastinate.App(connector=connector)
        app.job_manager = _Manager(connector, self._database, self._tables)
        carried: set[asyncio.Task[Any]] = set()

        @app.task(name=RUN, pass_context=True)
        async def run(context: Any, /, id: str, payload: dict[str, Any], **_: Any) -> None:
            await self._rows(self._tables.taken, {"job": context.job.id, "worker": worker})
            task = asyncio.ensure_future(carry(Job.read(id, payload)))
            carried.add(task)
            task.add_done_callback(carried.discard)
            await task

        serving: list[Any] = [  # its methods have no types
            Worker(
                app,
                queues=[queue.name],
                concurrency=queue.worker_concurrency or UNLIMITED,
                fetch_job_polling_interval=queue.polling_s,
                install_signal_handlers=False,
            )
            for queue in queues
        ]
        left = asyncio.Event()

        def leave() -> None:
            """Take no more jobs, without waiting for those that have begun."""
            left.set()
            for one in serving:
                one.stop()

        async with app.open_async():
            tasks = [asyncio.ensure_future(_steadily(one, left)) for one in serving]
            try:
                yield leave
            finally:
                leave()
                for task in list(carried):
                    task.cancel()
                await asyncio.gather(*tasks)

    async def close(self) -> None:
        """As in `FleetEngine`."""
        await self._database.close()


async def _steadily(worker: Any, left: asyncio.Event) -> None:
    """Run a procrastinate worker until it should leave, restarting it when it fails."""
    while not left.is_set():
        try:
            await worker.run()
        except Exception as error:
            _log.warning("procrastinate's worker has ended (%s); it begins again", error)
        with suppress(TimeoutError):
            await asyncio.wait_for(left.wait(), AGAIN_S)


class _Manager(manager.JobManager):
    """Records how a job ended only if this worker still has it, in the attempt that it fetched."""

    def __init__(self, connector: Any, database: Database, tables: Tables) -> None:
        super().__init__(connector)
        self._ours = database
        self._tables = tables

    async def finish_job(self, job: jobs.Job, status: jobs.Status, delete_job: bool) -> None:  # noqa: FBT001 - theirs
        values = {
            "job": job.id,
            "status": status.value,
            "worker": job.worker_id,
            "attempts": job.attempts,
        }
        while True:
            try:
                await self._ours.rows(self._tables.finish, values)
            except StoreUnavailable as error:
                _log.warning("the end of job %s is not written down yet: %s", job.id, error)
                await asyncio.sleep(AGAIN_S)
            else:
                return
