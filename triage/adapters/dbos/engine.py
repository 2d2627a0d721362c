"""`DBOSEngine`: a fleet's queues in DBOS."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import exc as alchemy_errors
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from triage.adapters.fleet.database import Database, in_thread, rows_from, unavailable
from triage.adapters.fleet.engine import WAKE, Carry, Due, Job, Place, Queue, Ticket
from triage.core.errors import UsageError, misuse
from triage.core.redaction import redact
from triage.stores.postgres import PostgresStore

from .serving import DUE, RUN, serving
from .tables import Tables

try:
    from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer, EnqueueOptions
    from dbos import error as errors
except ImportError as error:
    raise UsageError(
        f"this fleet needs DBOS ({error}): pip install 'triage-recovery[dbos]'"
    ) from error


T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_STATES = {"DELAYED": "delayed", "ENQUEUED": "queued", "PENDING": "running"}
FIRST = 0
"""Priority of an answered run, before all that `enqueue` takes; DBOS gives it to jobs that name none."""
POOL = 4
"""Size of the connection pool for enqueueing and reading."""


class DBOSEngine:
    """Keeps queues in DBOS, in a schema of its own in the store's database.

    name: the fleet's name, which is DBOS' application name. version: the fleet's version; DBOS' application
    version is `name:version`. Raises UsageError if either is not a word of up to 63 characters.
    """

    name = "dbos"
    abilities = frozenset(
        ("worker_concurrency", "concurrency", "rate", "partition", "priority", "deduplication", "delay")
    ) | {"transaction", "schedule"}  # fmt: skip

    def __init__(self, store: PostgresStore, *, name: str = "triage", version: str = "1") -> None:
        for field, value in (("name", name), ("version", version)):
            if not isinstance(value, str) or not _NAME.fullmatch(value):
                raise misuse(f"Fleet.{field}", value, "up to 63 of the characters A-Z a-z 0-9 _ -")
        self.fleet = name
        self.version = f"{name}:{version}"
        self.schema = f"{store.schema}_dbos"
        self.url = url_of(store.url)
        self._tables = Tables(self.schema, store.schema)
        self._database = Database(store.url)
        self._client: DBOSClient | None = None

    @property
    def client(self) -> DBOSClient:
        """DBOS' own client, created on first use."""
        if self._client is None:
            self._client = DBOSClient(
                system_database_url=self.url,
                dbos_system_schema=self.schema,
                serializer=DBOSPortableJSONSerializer(),
                system_database_pool_size=POOL,
                application_name=self.fleet,
                lazy=True,
                # A web request must not wait for ever for a lost database.
                retry_connection_errors=False,
            )
        return self._client

    # Tables ---------------------------------------------------------------------------------------

    async def migrate(self) -> None:
        """As in `FleetEngine`."""
        await self._asked(partial(DBOS.migrate, self.url, schema=self.schema))

    async def check(self) -> None:
        """As in `FleetEngine`."""
        try:
            await self._asked(self.client._sys_db.verify_migrations)
        except errors.DBOSInitializationError as error:
            raise UsageError(
                f"DBOS' tables of this fleet are missing or old ({redact(error.detail)}); make them with: "
                "triage fleet migrate module:fleet"
            ) from error

    async def declare(self, queues: Sequence[Queue]) -> None:
        """As in `FleetEngine`."""
        for queue in queues:
            rate = queue.rate
            await self._asked(
                partial(
                    self.client.register_queue,
                    queue.name,
                    global_concurrency=queue.concurrency,
                    worker_concurrency=_within(queue.worker_concurrency, queue.concurrency),
                    limiter=None if rate is None else {"limit": rate[0], "period": rate[1]},
                    partition_concurrency=queue.partition_concurrency,
                    polling_interval_sec=queue.polling_s,
                )
            )

    # Jobs -----------------------------------------------------------------------------------------

    async def submit(self, job: Job, connection: Any = None) -> Job | None:
        """As in `FleetEngine`.

        connection: a Connection, Session, AsyncConnection or AsyncSession of SQLAlchemy, or a Connection or
        AsyncConnection of psycopg.
        """
        if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            return await self._submit_by_function(job, connection)
        options = self._options(job)
        client = self.client
        try:
            if connection is None:
                await self._asked(partial(client.enqueue, options, job.payload))
            elif isinstance(connection, AsyncConnection | AsyncSession):
                await connection.run_sync(_in_transaction(client, options, job))
            elif isinstance(connection, sa.Connection | Session):
                await in_thread(partial(_in_transaction(client, options, job), connection))
            else:
                wanted = "a connection or session of SQLAlchemy, or a connection of psycopg"
                raise misuse("enqueue.connection", connection, wanted)
        except errors.DBOSWorkflowIDInUseError:
            return await self._known(job.id, connection)
        except errors.DBOSQueueDeduplicatedError as error:
            raise job.deduplicated() from error
        return None

    def _options(self, job: Job) -> EnqueueOptions:
        options: EnqueueOptions = {
            "workflow_name": RUN,
            "queue_name": job.queue,
            "workflow_id": job.id,
            "workflow_id_reuse_policy": "reject",
            "app_version": self.version,
        }
        if job.priority != FIRST:
            options["priority"] = job.priority
        if job.delay_s is not None:
            options["delay_seconds"] = job.delay_s
        if job.partition is not None:
            options["queue_partition_key"] = job.partition
        if job.deduplication is not None:
            options["deduplication_id"] = job.deduplication
        return options

    async def _submit_by_function(
        self, job: Job, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
    ) -> Job | None:
        """Enqueue with DBOS' SQL function, which silently ignores a job whose id is taken."""
        known = await self._known(job.id, connection)
        if known is not None:
            return known
        values = {
            "name": RUN,
            "queue": job.queue,
            "payload": json.dumps(job.payload),
            "id": job.id,
            "version": self.version,
            "deduplication": job.deduplication,
            "priority": job.priority,
            "partition": job.partition,
            "delay_ms": None if job.delay_s is None else job.delay_s * 1000,
            "fleet": self.fleet,
        }
        try:
            await rows_from(connection, self._tables.enqueue, values)
        except psycopg.errors.UniqueViolation as error:
            raise job.deduplicated() from error
        # The job there now is ours, or one that another connection has committed meanwhile.
        return await self._known(job.id, connection)

    async def _known(self, id: str, connection: Any = None) -> Job | None:
        """Return the job with this id as the connection's transaction sees it, or None."""
        query, values = self._tables.known, {"id": id}
        rows: Sequence[Any]
        if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            rows = await rows_from(connection, query, values)
        elif connection is None:
            rows = await self._database.rows(query, values)
        else:
            rows = await self._known_by_alchemy(id, connection)
        return None if not rows else _job_of(id, rows[0][0])

    async def _known_by_alchemy(self, id: str, connection: Any) -> Sequence[Any]:
        table = sa.table(
            "workflow_input", sa.column("workflow_uuid"), sa.column("inputs"), schema=self.schema
        )
        query = sa.select(table.c.inputs).where(table.c.workflow_uuid == id)
        if isinstance(connection, AsyncConnection | AsyncSession):
            return (await connection.execute(query)).fetchall()
        return await in_thread(lambda: connection.execute(query).fetchall())

    async def withdraw(self, run_id: str) -> Job | None:
        """As in `FleetEngine`."""
        rows = await self._database.rows(self._tables.known, {"id": run_id})
        if not rows:
            return None
        inputs, status = rows[0]
        if status in ("ENQUEUED", "DELAYED"):
            await self._asked(partial(self.client.cancel_workflow, run_id))
        return _job_of(run_id, inputs)

    async def requeue(self, tickets: Sequence[Ticket]) -> None:
        """As in `FleetEngine`."""
        by_queue: dict[str, list[str]] = {}
        for ticket in tickets:
            by_queue.setdefault(ticket.queue, []).append(ticket.id)
        for queue, ids in by_queue.items():
            await self._asked(partial(self.client.resume_workflows, ids, queue_name=queue))

    # Looking --------------------------------------------------------------------------------------

    async def abandoned(self, lease_s: float) -> list[Ticket]:
        """As in `FleetEngine`."""
        values = {"fleet": self.fleet, "run": RUN, "due": DUE, "lease_s": lease_s}
        return [Ticket(*row) for row in await self._database.rows(self._tables.abandoned, values)]

    async def answered(self) -> list[Job]:
        """As in `FleetEngine`."""
        rows = await self._database.rows(self._tables.answered, {"fleet": self.fleet})
        return [
            Job(
                f"{run_id}{WAKE}{events}",
                agent,
                queue,
                deadline=_job_of(run_id, inputs).deadline,
                priority=FIRST,
                partition=partition,
            )
            for run_id, events, agent, queue, partition, inputs in rows
        ]

    async def places(self, run_ids: Sequence[str] | None = None) -> list[Place]:
        """As in `FleetEngine`."""
        query = self._tables.living if run_ids is None else self._tables.places
        ids = None if run_ids is None else list(run_ids)
        rows = await self._database.rows(query, {"fleet": self.fleet, "run": RUN, "ids": ids})
        return [
            Place(
                run_id,
                self.name,
                queue,
                _STATES.get(status, "ended"),  # type: ignore[arg-type] # one of the three
                worker,
                max(0.0, float(waited_ms) / 1000),
                version,
            )
            for run_id, queue, status, worker, waited_ms, version in rows
        ]

    # Schedules ------------------------------------------------------------------------------------

    async def schedule(self, name: str, cron: str, entry: Mapping[str, Any], zone: str) -> None:
        """As in `FleetEngine`."""
        await self._asked(
            partial(
                self.client.apply_schedules,
                [
                    {
                        "schedule_name": f"{self.fleet}.{name}",
                        "workflow_name": DUE,
                        "schedule": cron,
                        "context": dict(entry),
                        "cron_timezone": zone,
                    }
                ],
            )
        )

    async def unschedule(self, name: str) -> None:
        """As in `FleetEngine`."""
        await self._asked(partial(self.client.delete_schedule, f"{self.fleet}.{name}"))

    # Working --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serve(
        self, worker: str, queues: Sequence[Queue], carry: Carry, due: Due
    ) -> AsyncGenerator[Callable[[], None]]:
        """As in `FleetEngine`."""
        names = [queue.name for queue in queues]
        config = {
            "name": self.fleet,
            "system_database_url": self.url,
            "dbos_system_schema": self.schema,
            "executor_id": worker,
            "application_version": self.version,
        }
        async with serving(config, names, carry, due) as leave:
            yield leave

    async def close(self) -> None:
        """As in `FleetEngine`."""
        client, self._client = self._client, None
        if client is not None:
            await in_thread(client.destroy)
        await self._database.close()

    async def _asked(self, ask: Callable[[], T]) -> T:
        """Call DBOS in a thread.

        Raises StoreUnavailable if the database does not answer, and UsageError if DBOS refuses the call.
        """
        try:
            return await in_thread(ask)
        except alchemy_errors.OperationalError as error:
            raise unavailable(error.orig or error) from error
        except alchemy_errors.InterfaceError as error:
            raise unavailable(error) from error
        except alchemy_errors.ProgrammingError as error:
            if isinstance(
                error.orig, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName
            ):
                raise UsageError(
                    "DBOS' tables of this fleet are missing; make them with: triage fleet migrate "
                    "module:fleet"
                ) from error
            raise
        except (
            errors.DBOSInitializationError,
            errors.DBOSWorkflowIDInUseError,
            errors.DBOSQueueDeduplicatedError,
        ):
            raise
        except (errors.DBOSException, ValueError) as error:
            raise UsageError(f"DBOS refuses it: {redact(str(error))}") from error


def url_of(conninfo: str) -> str:
    """Convert a libpq connection string to a SQLAlchemy URL, with hosts and options in its query."""
    given = conninfo_to_dict(conninfo)
    user, password = given.pop("user", None), given.pop("password", None)
    database = given.pop("dbname", None)
    url = sa.URL.create(
        "postgresql",
        username=None if user is None else str(user),
        password=None if password is None else str(password),
        database=None if database is None else str(database),
        query={name: str(value) for name, value in given.items() if value is not None},
    )
    return url.render_as_string(hide_password=False)


def _in_transaction(client: DBOSClient, options: EnqueueOptions, job: Job) -> Callable[[Any], None]:
    def enqueue(connection: Any) -> None:
        client.enqueue_in_transaction(connection, options, job.payload)

    return enqueue


def _job_of(id: str, inputs: str) -> Job:
    return Job.read(id, json.loads(inputs)["positionalArgs"][0])


def _within(worker: int | None, all_workers: int | None) -> int | None:
    """Cap the limit per worker at the limit over all workers, since DBOS refuses a higher one."""
    if worker is None or all_workers is None:
        return worker
    return min(worker, all_workers)
