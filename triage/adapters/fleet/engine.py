"""What a fleet needs of the system that keeps its queues: `FleetEngine`, and the values they exchange."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from triage.core import UsageError, check_count, check_number

ABILITIES = (
    "worker_concurrency", "concurrency", "rate", "partition", "priority", "deduplication", "delay",
    "transaction", "schedule",
)  # fmt: skip
"""What an engine may be able to do beyond queueing runs; each engine declares its own."""

WAKE = "~"
"""Stands in the id of a job between the run's id, in which it cannot be, and what woke the run."""


@dataclass(frozen=True)
class Queue:
    """A queue of a fleet, and its limits.

    concurrency: how many of its runs go on at once in all workers, None (default) for any number.
    worker_concurrency: in each worker, 10 by default, None for any number. rate: `(count, seconds)`: no
    more runs start in any such span. partition_concurrency: how many go on at once of those with the same
    `partition`, which every run of this queue then has. polling_s: seconds between two looks of a worker
    for new runs, 0.5 by default.

    Raises UsageError, which names the field, for any other value.
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
        """The abilities an engine must have to hold this queue's limits."""
        limits = {
            "concurrency": self.concurrency,
            "rate": self.rate,
            "partition": self.partition_concurrency,
        }
        return frozenset(name for name, value in limits.items() if value is not None)


@dataclass(frozen=True)
class Job:
    """A run as a queue keeps it, or what wakes a run that was answered.

    id: the run's, or for a run that is woken its id, `~` and a number that is another for each answer.
    task, args: as JSON. deadline: seconds since the epoch, on the store's clock, after which the run is
    cancelled; None for no limit. The rest is as in `Fleet.enqueue`.
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
        """The run that is begun or woken."""
        return self.id.partition(WAKE)[0]

    @property
    def payload(self) -> dict[str, Any]:
        """What an engine keeps for the worker: JSON, the same for equal runs."""
        return {
            "agent": self.agent,
            "queue": self.queue,
            "task": self.task,
            "args": dict(self.args or {}),
            "deadline": self.deadline,
        }

    @staticmethod
    def read(id: str, payload: Mapping[str, Any]) -> Job:
        """Return the job that has this payload."""
        return Job(id, **payload)

    def is_same(self, other: Job) -> bool:
        """Return whether both ask for the same work; when it is due does not matter."""
        return (self.agent, self.task, dict(self.args or {})) == (
            other.agent, other.task, dict(other.args or {}),
        )  # fmt: skip


class Ticket(NamedTuple):
    """A job that is put back into its queue."""

    id: str
    queue: str


class Place(NamedTuple):
    """Where a run is in its fleet.

    state: `delayed`, `queued`, `running` on a worker, or `ended`, which a run that waits for an answer is
    too. worker: which has it or had it, None for none yet. waited_s: seconds it was in the queue. version:
    of the fleet that alone takes it.
    """

    run_id: str
    engine: str
    queue: str | None
    state: Literal["delayed", "queued", "running", "ended"]
    worker: str | None
    waited_s: float
    version: str | None


Carry: TypeAlias = Callable[[Job], Awaitable[dict[str, Any]]]
"""Carries out a job, and gives the small JSON that the engine may keep of how it ended.

Cancelled where the job was put back into its queue: then the engine notes no end.
"""
Due: TypeAlias = Callable[[Mapping[str, Any], float], Awaitable[None]]
"""Enqueues the run of a schedule. Given what was scheduled, and for when (seconds since the epoch)."""


class FleetEngine(Protocol):
    """Keeps a fleet's queues in the database in which the journals are, and hands jobs to workers.

    An engine may hand out a job more than once: who goes on with a run is decided by its lease alone. It
    never decides that a worker is dead. Every method but `serve` may be called on asyncio and trio, and
    raises StoreUnavailable when the database does not answer.
    """

    name: str
    abilities: frozenset[str]

    async def migrate(self) -> None:
        """Make or update the engine's tables."""
        ...

    async def check(self) -> None:
        """Raise UsageError, with the remedy, where the tables are not there or too old."""
        ...

    async def declare(self, queues: Sequence[Queue]) -> None:
        """Write down the queues and their limits, for all workers."""
        ...

    async def submit(self, job: Job, connection: Any = None) -> Job | None:
        """Put a job into its queue; the job that has the same id already, None where it is new.

        connection: of the caller, in whose transaction it is done. Raises Deduplicated.
        """
        ...

    async def withdraw(self, run_id: str) -> Job | None:
        """Take a run that no worker has begun out of its queue.

        Gives its job, begun or not, and None where the engine knows none.
        """
        ...

    async def places(self, run_ids: Sequence[str] | None = None) -> list[Place]:
        """Return where these runs are; None: all that wait or go on."""
        ...

    async def requeue(self, tickets: Sequence[Ticket]) -> None:
        """Put jobs that a worker had back into their queues. Doing so twice does no harm."""
        ...

    async def abandoned(self, lease_s: float) -> list[Ticket]:
        """Return the jobs that a worker has taken and whose runs' leases are over."""
        ...

    async def answered(self) -> list[Job]:
        """Return a job for each run that may go on and of which no job is left."""
        ...

    async def schedule(self, name: str, cron: str, entry: Mapping[str, Any], zone: str) -> None:
        """Have `entry` given to `Due` at these times, once for all workers. Replaces one of the name."""
        ...

    async def unschedule(self, name: str) -> None:
        """Remove a schedule, if there is one of the name."""
        ...

    def serve(
        self, worker: str, queues: Sequence[Queue], carry: Carry, due: Due
    ) -> AbstractAsyncContextManager[Callable[[], None]]:
        """Take jobs from these queues while the context is open; gives what stops that.

        worker: its name, which no other process has or had.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
