"""A fleet: agents whose runs are queued in Postgres and carried out by workers on any machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import anyio

from triage.core import errors
from triage.core.actions import Action, Reply
from triage.core.environment import SYSTEM
from triage.core.json_values import digest
from triage.engine.agents import Agent, AgentLike, underlying_agent
from triage.engine.config import check_run_id
from triage.engine.outside import cancel
from triage.stores.base import Store
from triage.stores.opening import open_store
from triage.stores.postgres import PostgresStore

from .carrying import end_unbegun
from .engine import ABILITIES, FleetEngine, Job, Place, Queue

LEASE_S = 10.0
"""Default time in seconds after which the runs of a silent worker are taken over."""
TRIES, PAUSE_S = 5, 0.2
"""Attempts to submit a job when the connection is lost, and the pause between them in seconds."""
SHORTEST_S, LONGEST_S = 0.05, 1.0
"""The shortest and longest pause in seconds between two checks of a run whose result is awaited."""
OPEN = ("running", "suspended", "dead_letter")


def postgres_of(store: Store | str) -> PostgresStore:
    """Open the store of a fleet. Raises UsageError for a store that is not in Postgres."""
    opened = open_store(store)
    if not isinstance(opened, PostgresStore):
        raise errors.UsageError(
            f'a fleet keeps its runs in Postgres, not in {type(opened).__name__}; write store="postgresql://…"'
        )
    return opened


class Fleet:
    """Agents whose runs are queued in Postgres and carried out by workers on any machine.

    agents: the agents to run, each with a name of its own and no store of its own. store: a `PostgresStore`
    or the URL of a Postgres database, for the journals and the engine's tables. engine: keeps the queues.
    queues: the queues and their limits; each agent also gets a queue of its own name with the default
    limits, unless one is given. lease_s: seconds after which the runs of a silent worker are taken over,
    10 by default.

    Raises UsageError for two agents of the same name, an agent with another durable store, a store that is
    not in Postgres, and a limit that the engine cannot enforce.
    """

    def __init__(
        self,
        agents: Iterable[AgentLike],
        store: Store | str,
        *,
        engine: FleetEngine,
        queues: Iterable[Queue] = (),
        lease_s: float = LEASE_S,
    ) -> None:
        errors.check_number("Fleet.lease_s", lease_s, "seconds", above=True)
        self.store = postgres_of(store)
        self.engine = engine
        self.lease_s = lease_s
        self.agents = _by_name(agents, self.store, lease_s)
        declared = _by_queue(queues, engine)
        own = {agent.name: Queue(agent.name) for agent in self.agents.values()}
        self.queues: Mapping[str, Queue] = {**own, **declared}

    # Beginning runs -------------------------------------------------------------------------------

    async def enqueue(
        self,
        agent: str | AgentLike,
        task: Any,
        *,
        run_id: str | None = None,
        queue: str | None = None,
        priority: int = 1,
        delay_s: float | None = None,
        deadline: float | datetime | None = None,
        partition: str | None = None,
        deduplication: str | None = None,
        connection: Any = None,
        **kwargs: Any,
    ) -> str:
        """Enqueue a run of an agent on a task, and return the run's id.

        run_id: as in `Agent.run`; enqueueing the same task again under its id changes nothing. queue: the
        name of a queue, by default the agent's own. priority: lower numbers go first, 1 by default.
        delay_s: seconds before the run may begin. deadline: when the run is cancelled, in seconds from now
        or as a `datetime` with a time zone; None for no deadline. One that waits, in its queue or for an
        answer, is cancelled when a worker gets to it. partition: required for a queue with
        `partition_concurrency`, refused for any other. deduplication: a text; enqueueing is refused while
        another run of the queue with the same text is queued or running. connection: your own connection,
        of a kind that the engine supports, in whose transaction the run is enqueued; if it is rolled back,
        the run is not enqueued. kwargs: arguments for the agent's function.

        Raises UsageError for a task or argument that has no JSON form or holds a secret, for a `run_id`
        that another task has, and for an option that the queue or the engine does not support; Deduplicated
        if another run has the same `deduplication`; StoreUnavailable if the database does not answer.
        """
        known = self._agent(agent)
        shown, args = known.portable(task, **kwargs)
        place = self._queue(known.name if queue is None else queue)
        if run_id is not None:
            check_run_id(run_id)
        ends = None if deadline is None else await self._moment(deadline)
        job = Job(
            id=SYSTEM.new_id() if run_id is None else run_id,
            agent=known.name,
            queue=place.name,
            task=shown,
            args=args,
            deadline=ends,
            priority=priority,
            delay_s=delay_s,
            partition=partition,
            deduplication=deduplication,
        )
        self._check(job, place, in_transaction=connection is not None)
        if run_id is not None:
            await self._check_unknown(job)
        await self._submit(job, connection)
        return job.id

    def _agent(self, agent: str | AgentLike) -> Agent[Any]:
        name = agent if isinstance(agent, str) else agent.name
        found = self.agents.get(name)
        if found is None:
            guess = errors.nearest(name, self.agents)
            known = ", ".join(sorted({one.name for one in self.agents.values()}))
            raise errors.UsageError(
                f"this fleet has no agent {name!r}{guess and f'; {guess}'}; it has {known}"
            )
        return found

    def _queue(self, name: str) -> Queue:
        found = self.queues.get(name)
        if found is None:
            guess = errors.nearest(name, self.queues)
            raise errors.UsageError(
                f"this fleet has no queue {name!r}{guess and f'; {guess}'}; name it in Fleet(queues=[…])"
            )
        return found

    def _check(self, job: Job, queue: Queue, *, in_transaction: bool) -> None:
        """Raise UsageError for an option that the engine or the queue does not support."""
        errors.check_count("enqueue.priority", job.priority, 1, "lower ones go first")
        if job.delay_s is not None:
            errors.check_number("enqueue.delay_s", job.delay_s, "seconds")
        wanted = {
            "priority": job.priority != 1,
            "delay": job.delay_s is not None,
            "partition": job.partition is not None,
            "deduplication": job.deduplication is not None,
            "transaction": in_transaction,
        }
        for ability, is_wanted in wanted.items():
            if is_wanted:
                self._check_able(ability)
        if (queue.partition_concurrency is None) != (job.partition is None):
            which = "has no partition_concurrency, so its runs have no"
            if job.partition is None:
                which = "has a partition_concurrency, so each of its runs needs a"
            raise errors.UsageError(f"the queue {queue.name} {which} partition")
        if job.partition is not None and job.deduplication is not None:
            raise errors.UsageError(
                "a run in a partition cannot be deduplicated; give it a run_id instead"
            )

    def _check_able(self, ability: str) -> None:
        if ability not in self.engine.abilities:
            raise errors.UsageError(
                f"{self.engine.name} cannot hold this: {ability}; see docs/fleet.md"
            )

    async def _moment(self, deadline: float | datetime) -> float:
        if isinstance(deadline, datetime):
            if deadline.tzinfo is None:
                raise errors.UsageError(
                    "enqueue.deadline must have its time zone: datetime(…, tzinfo=UTC)"
                )
            return deadline.timestamp()
        errors.check_number("enqueue.deadline", deadline, "seconds", above=True)
        return await self.store.now() + deadline

    async def _check_unknown(self, job: Job) -> None:
        """Raise UsageError if a run that this fleet did not enqueue has this id."""
        if await self.store.info(job.run_id) is None:
            return
        if not await self.engine.places([job.run_id]):
            raise errors.UsageError(f"run_id {job.run_id} is taken by a run outside this fleet")

    async def _submit(self, job: Job, connection: Any = None) -> None:
        """Enqueue a job, retrying if the connection is lost: a job that arrived is not enqueued twice."""
        tries = 1 if connection is not None else TRIES
        while True:
            tries -= 1
            try:
                known = await self.engine.submit(job, connection)
            except errors.StoreUnavailable:
                if not tries:
                    raise
                await anyio.sleep(PAUSE_S)
            else:
                break
        if known is not None and not known.is_same(job):
            raise errors.UsageError(f"run_id {job.id} is taken by another task; choose another")

    async def schedule(
        self, cron: str, agent: str | AgentLike, task: Any, *, name: str | None = None,
        queue: str | None = None, zone: str = "UTC", **kwargs: Any,
    ) -> str:  # fmt: skip
        """Enqueue a run at each of these times, once for all workers; return the schedule's name.

        cron: minute, hour, day, month and weekday, or six fields beginning with the second. name: the id of
        each run is this name and the time, and a schedule of the same name is replaced; None (default)
        derives the name from the agent, task and queue. zone: the time zone of `cron`, such as
        `Europe/Lisbon`; UTC by default. Raises as `enqueue` does, and UsageError if the engine has no
        schedules.
        """
        self._check_able("schedule")
        known = self._agent(agent)
        shown, args = known.portable(task, **kwargs)
        place = self._queue(known.name if queue is None else queue)
        entry = Job("", known.name, place.name, shown, args).payload
        if name is None:
            name = f"{known.name[:80]}-{digest('schedule', repr(entry))[:12]}"
        check_run_id(name)
        await self.engine.schedule(name, cron, {**entry, "name": name}, zone)
        return name

    async def unschedule(self, name: str) -> None:
        """Remove a schedule. Runs that it has already enqueued stay."""
        await self.engine.unschedule(name)

    async def due(self, entry: Mapping[str, Any], moment: float) -> None:
        """Enqueue a scheduled run for this time, as `Due`. Repeating the call does nothing."""
        payload = dict(entry)
        name = payload.pop("name")
        at = datetime.fromtimestamp(moment, UTC).strftime("%Y%m%dT%H%M%SZ")
        await self._submit(Job.read(f"{name}-{at}", payload))

    # What becomes of them ---------------------------------------------------------------------------

    async def result(self, run_id: str, *, timeout_s: float | None = None) -> Any:
        """Wait until a run has ended, and return its result or raise its error, as `Agent.run` does.

        A suspended run is waited for too. timeout_s: seconds to wait before raising TimeoutError; None
        (default) waits for ever. Raises UnknownRun if this fleet does not know the run.
        """
        pause = SHORTEST_S
        with anyio.fail_after(timeout_s):
            while True:
                info = await self.store.info(run_id)
                if info is not None and info.status not in OPEN:
                    return await self._agent(info.agent).recover(run_id)
                if info is None and not await self.engine.places([run_id]):
                    raise errors.UnknownRun(f"this fleet knows no run {run_id}")
                await anyio.sleep(pause)
                pause = min(2 * pause, LONGEST_S)

    async def status(self, run_id: str) -> str:
        """Return a run's status in its journal, or `queued` or `delayed` before it begins.

        Raises UnknownRun if this fleet does not know the run.
        """
        info = await self.store.info(run_id)
        if info is not None:
            return info.status
        places = await self.engine.places([run_id])
        if not places:
            raise errors.UnknownRun(f"this fleet knows no run {run_id}")
        return "delayed" if places[0].state == "delayed" else "queued"

    async def places(self, run_ids: Sequence[str] | None = None) -> list[Place]:
        """Return the queue, state, worker and wait of these runs; None for all that have not ended."""
        return await self.engine.places(run_ids)

    async def answer(self, asked: str, answer: Reply, *, by: str = "") -> Action:
        """Record the answer to a run's question, wake the run, and return the action that follows.

        Takes and raises what `Agent.answer` does. A run that was answered in another way is woken too,
        usually within a second.
        """
        run_id = asked.partition("~")[0]
        info = await self.store.info(run_id)
        if info is None:
            raise errors.UnknownRun(f"this fleet knows no run {run_id}")
        action = await self._agent(info.agent).answer(asked, answer, by=by)
        with suppress(errors.StoreUnavailable):  # workers also look for answered runs every second
            await self.wake()
        return action

    async def wake(self) -> None:
        """Enqueue every run that may continue but is in no queue and with no worker."""
        for job in await self.engine.answered():
            await self.engine.submit(job)

    async def cancel(self, run_id: str, *, by: str = "") -> None:
        """Cancel a run, queued or begun, on whichever worker it is; raise as `Agent.cancel` does.

        A running agent function is cancelled within a third of the lease. by: who cancels the run, for the
        journal.
        """
        info = await self.store.info(run_id)
        if info is None:
            job = await self.engine.withdraw(run_id)
            if job is None:
                raise errors.UnknownRun(f"this fleet knows no run {run_id}")
            await end_unbegun(self.store, job, by=by)
            return
        if info.status not in OPEN:
            raise errors.RunOver(f"run {run_id} has ended as {info.status}")
        await cancel(self.store, run_id, now=await self.store.now(), by=by)
        await self.engine.withdraw(run_id)

    # The fleet itself -------------------------------------------------------------------------------

    async def migrate(self) -> None:
        """Create or update the tables of the store and the engine, if needed."""
        await self.store.now()
        await self.engine.migrate()

    async def close(self) -> None:
        """Close all connections. Using the fleet afterwards opens them again."""
        await self.engine.close()
        await self.store.close()

    def __repr__(self) -> str:
        names = ", ".join(sorted({agent.name for agent in self.agents.values()}))
        return f"<Fleet of {names} on {self.engine.name}>"


def _by_name(
    agents: Iterable[AgentLike], store: PostgresStore, lease_s: float
) -> dict[str, Agent[Any]]:
    """Give the agents the fleet's store, and return them by name and alias."""
    found: dict[str, Agent[Any]] = {}
    for given in agents:
        agent = underlying_agent(given)
        if agent is None:
            raise errors.UsageError(f"Fleet.agents must be agents, not {type(given).__name__}")
        if agent.store is not store and getattr(agent.store, "durable", True):
            raise errors.UsageError(
                f"the agent {agent.name} keeps its runs in {agent.store!r}; leave its store out: a fleet "
                "keeps them in its own"
            )
        kept = agent.stored_in(store, lease_s=lease_s)
        for name in (kept.name, *kept.aliases):
            if name in found:
                raise errors.UsageError(
                    f"two agents of this fleet are called {name}; give each a name of its own"
                )
            found[name] = kept
    if not found:
        raise errors.UsageError("a fleet needs an agent: Fleet(agents=[…], …)")
    return found


def _by_queue(queues: Iterable[Queue], engine: FleetEngine) -> dict[str, Queue]:
    found: dict[str, Queue] = {}
    for queue in queues:
        if not isinstance(queue, Queue):
            raise errors.UsageError(f"Fleet.queues must be Queue(…), not {type(queue).__name__}")
        if queue.name in found:
            raise errors.UsageError(f"two queues of this fleet are called {queue.name}")
        for ability in sorted(queue.needs - engine.abilities, key=ABILITIES.index):
            raise errors.UsageError(
                f"{engine.name} cannot hold this limit of {queue.name}: {ability}"
            )
        found[queue.name] = queue
    return found
