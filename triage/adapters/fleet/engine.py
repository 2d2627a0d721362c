"""`FleetEngine`, the protocol between a fleet and the system that keeps its queues, and its values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from triage.core.errors import Deduplicated, UsageError, check_count, check_number
from triage.core.quoting import one_line, span

ABILITIES = (
    "worker_concurrency", "concurrency", "rate", "partition", "priority", "deduplication", "delay",
    "transaction", "schedule",
)  # fmt: skip
"""The optional features of an engine; each engine declares those it supports."""

WAKE = "~"
"""Separates the run's id from a number in the id of a job that wakes a run. No run id contains it."""


@dataclass(frozen=True)
class Queue:
    """A queue of a fleet and its limits.

    concurrency: how many runs of this queue may execute at once across all workers; None (default) for no
    limit. worker_concurrency: the same within one worker, 10 by default, None for no limit. rate: `(count,
    seconds)`, at most `count` runs are started in any such span; None (default) for no limit.
    partition_concurrency: how many runs with the same `partition` may execute at once; every run of this
    queue must then name a partition. None (default): the queue has no partitions. polling_s: seconds
    between two checks of a worker for new runs, 0.5 by default.

    Raises UsageError naming the field for an invalid value.
    """

    name: str
    concurrency: int | None = None
    worker_concurrency: int | None = 10
    rate: tuple[int, float] | None = None
    partition_concurrency: int | None = None
    polling_s: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or self.name.startswith("_"):
            raise UsageError(
                f"Queue.name must be a text that does not begin with _, not {self.name!r}"
            )
        for field in ("concurrency", "worker_concurrency", "partition_concurrency"):
            value = getattr(self, field)
            if value is not None:
                check_count(f"Queue.{field}", value, 1, "None for any number")
        check_number("Queue.polling_s", self.polling_s, "seconds", above=True)
        if self.rate is not None:
            count, seconds = self.rate
            check_count("Queue.rate[0]", count, 1)
            check_number("Queue.rate[1]", seconds, "seconds", above=True)

    @property
    def needs(self) -> frozenset[str]:
        """The abilities that an engine must have to enforce this queue's limits."""
        limits = {
            "concurrency": self.concurrency,
            "rate": self.rate,
            "partition": self.partition_concurrency,
        }
        return frozenset(name for name, value in limits.items() if value is not None)


@dataclass(frozen=True)
class Job:
    """A queued request to begin a run, or to wake a run that was answered.

    id: the run's id; to wake a run, its id followed by `~` and a number that differs for each answer.
    task, args: JSON values. deadline: seconds since the epoch, on the store's clock, after which the run is
    cancelled; None for no deadline. The other fields are as in `Fleet.enqueue`.
    """

    id: str
    agent: str
    queue: str
    task: Any = None
    args: Mapping[str, Any] | None = None
    deadline: float | None = None
    priority: int = 1
    delay_s: float | None = None
    partition: str | None = None
    deduplication: str | None = None

    @property
    def run_id(self) -> str:
        """The id of the run to begin or wake."""
        return self.id.partition(WAKE)[0]

    @property
    def payload(self) -> dict[str, Any]:
        """The JSON value that an engine keeps for the worker; equal jobs have equal payloads."""
        return {
            "agent": self.agent,
            "queue": self.queue,
            "task": self.task,
            "args": dict(self.args or {}),
            "deadline": self.deadline,
        }

    @staticmethod
    def read(id: str, payload: Mapping[str, Any]) -> Job:
        """Return the job with this id and payload."""
        return Job(id, **payload)

    def deduplicated(self) -> Deduplicated:
        """Make the error of a job whose deduplication another run of its queue holds."""
        return Deduplicated(
            f"a run with the deduplication {self.deduplication!r} waits or goes on in the queue "
            f"{self.queue}"
        )

    def is_same(self, other: Job) -> bool:
        """Return whether both jobs have the same agent, task and arguments."""
        return (self.agent, self.task, dict(self.args or {})) == (
            other.agent, other.task, dict(other.args or {}),
        )  # fmt: skip


class Ticket(NamedTuple):
    """A job to requeue: its id, and the queue it goes back to."""

    id: str
    queue: str


class Place(NamedTuple):
    """Where a run is in its fleet.

    queue: the queue of its last job. state: `delayed`, `queued`, `running` on a worker, or `ended`; a
    suspended run's job has ended too. worker: the worker that last took the run, None if none has.
    waited_s: seconds the run spent in the queue. version: the fleet version whose workers may take the run;
    None if the engine has no versions.
    """

    run_id: str
    engine: str
    queue: str | None
    state: Literal["delayed", "queued", "running", "ended"]
    worker: str | None
    waited_s: float
    version: str | None

    def summary(self) -> str:
        """Describe the place in one line: its queue, its worker or what it waits for, and the wait."""
        waits = {"queued": "waits for a worker", "delayed": "delayed"}.get(self.state)
        parts = (self.queue, waits or self.worker, f"waited {span(self.waited_s)}")
        return one_line(", ".join(part for part in parts if part), 200)


Carry: TypeAlias = Callable[[Job], Awaitable[dict[str, Any]]]
"""Carries out a job, and returns a small JSON object about how it ended, which the engine may keep.

Raises CancelledError if the job was requeued; the engine then records no end for it.
"""
Due: TypeAlias = Callable[[Mapping[str, Any], float], Awaitable[None]]
"""Enqueues a scheduled run. Takes the schedule's entry and the due time, in seconds since the epoch."""


class FleetEngine(Protocol):
    """Keeps a fleet's queues in the same database as the journals, and hands jobs to workers.

    An engine may hand out a job more than once, and must not decide that a worker is dead: the run's lease
    alone decides which worker may continue it. Every method except `serve` works on asyncio and trio, and
    raises StoreUnavailable if the database does not answer.
    """

    name: str
    abilities: frozenset[str]

    async def migrate(self) -> None:
        """Create or update the engine's tables."""
        ...

    async def check(self) -> None:
        """Raise UsageError, with the remedy, if the tables are missing or too old."""
        ...

    async def declare(self, queues: Sequence[Queue]) -> None:
        """Record the queues and their limits for all workers."""
        ...

    async def submit(self, job: Job, connection: Any = None) -> Job | None:
        """Enqueue a job if its id is new and return None, else return the job that has the id.

        connection: a connection of the caller's, in whose transaction the job is enqueued. None enqueues it
        in a transaction of its own. Raises Deduplicated if an unfinished job of the queue has the same
        `deduplication`.
        """
        ...

    async def withdraw(self, run_id: str) -> Job | None:
        """Remove a run from its queue, unless a worker has begun it.

        Returns the run's job, whether begun or not, or None if the engine knows no such run.
        """
        ...

    async def places(self, run_ids: Sequence[str] | None = None) -> list[Place]:
        """Return the places of these runs; None for every run that is delayed, queued or running."""
        ...

    async def requeue(self, tickets: Sequence[Ticket]) -> None:
        """Put jobs that a worker had taken back into their queues. Repeating the call is harmless."""
        ...

    async def abandoned(self, lease_s: float) -> list[Ticket]:
        """Return the jobs that a worker has taken and whose runs' leases have expired.

        lease_s: also the time in seconds that a worker has to claim a run after taking its job.
        """
        ...

    async def answered(self) -> list[Job]:
        """Return a job for each run that may continue but has no unfinished job."""
        ...

    async def schedule(self, name: str, cron: str, entry: Mapping[str, Any], zone: str) -> None:
        """Pass `entry` to `Due` at each time, on one worker only. Replaces a schedule of the same name."""
        ...

    async def unschedule(self, name: str) -> None:
        """Remove the schedule of this name, if there is one."""
        ...

    def serve(
        self, worker: str, queues: Sequence[Queue], carry: Carry, due: Due
    ) -> AbstractAsyncContextManager[Callable[[], None]]:
        """Take jobs from these queues while the context is open.

        Yields a function that makes the worker take no more jobs. worker: the worker's name, never used by
        another process.
        """
        ...

    async def close(self) -> None:
        """Close the engine's connections."""
        ...
