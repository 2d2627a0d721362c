"""What a fleet must do, as checks of fleets that `make` makes; they take a few seconds each."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import triage
from triage import Agent, Suspend
from triage.adapters.fleet import Deduplicated, Fleet, Job, Queue, Ticket, Worker
from triage.core import RunOver, UnknownRun, UsageError
from triage.strategies import FailurePolicy

Make = Callable[[Sequence[Agent[Any]], Sequence[Queue], float], Fleet]
Check = Callable[[Make], Awaitable[None]]
_checks: list[Check] = []
POLL_S = 0.1
PATIENCE_S = 30.0
"""Seconds to wait for something that must happen before the check fails."""
LEASE_S = 1.5


def check(function: Check) -> Check:
    """Register a check that every engine must pass."""
    _checks.append(function)
    return function


def promise(kept: object, text: str) -> None:
    """Raise AssertionError naming the broken promise, even when `assert` is switched off."""
    if not kept:
        raise AssertionError(text)


async def until(true: Callable[[], Any], text: str) -> None:
    """Wait until a condition, plain or async, is true; fail with the text after `PATIENCE_S`."""
    ends = time.monotonic() + PATIENCE_S
    while True:
        found = true()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        promise(time.monotonic() < ends, text)
        await asyncio.sleep(0.02)


def name() -> str:
    """Return a unique name."""
    return f"n{uuid.uuid4().hex[:12]}"


class Log:
    """Carries out jobs, and records when each began and how many executed at once.

    seconds: how long each takes. since: when it was made, as the times of `began` by the monotonic clock.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.since = time.monotonic()
        self.began: list[tuple[str, float]] = []
        self.jobs: dict[str, Job] = {}
        self.most = 0
        self.most_of: Counter[str | None] = Counter()
        self._seconds = seconds
        self._now: Counter[str | None] = Counter()
        self.hangs: set[str] = set()

    async def carry(self, job: Job) -> dict[str, Any]:
        """Record a job and work on it for a while, or for an hour if its id is in `hangs`."""
        self.began.append((job.id, time.monotonic()))
        self.jobs[job.id] = job
        part = str(job.task)
        self._now[part] += 1
        self.most = max(self.most, self._now.total())
        self.most_of[part] = max(self.most_of[part], self._now[part])
        try:
            if job.id in self.hangs:
                await asyncio.sleep(3600)
            await asyncio.sleep(self._seconds)
        finally:
            self._now[part] -= 1
        return {"status": "done"}

    def times(self, id: str) -> int:
        """Return how many times a job was begun."""
        return sum(began == id for began, _ in self.began)


async def _nothing_due(entry: Mapping[str, Any], moment: float) -> None:
    raise AssertionError((entry, moment))


async def idle(task: Any) -> Any:
    """Return the task."""
    return task


@asynccontextmanager
async def closing(fleet: Fleet) -> AsyncGenerator[Fleet]:
    """Close a fleet when the context ends."""
    try:
        yield fleet
    finally:
        await fleet.close()


@asynccontextmanager
async def working(fleet: Fleet, **options: Any) -> AsyncGenerator[Worker]:
    """Run a worker of the fleet while the context is open."""
    worker = Worker(fleet, look_s=0.2, **options)
    task = asyncio.ensure_future(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


# The engine ---------------------------------------------------------------------------------------
@check
async def every_job_is_carried_out_with_what_it_was_given(make: Make) -> None:
    """Submit jobs, one of them twice, withdraw one, and let a worker carry them out."""
    queue = Queue(name(), polling_s=POLL_S)
    async with closing(make([Agent(idle, name=name())], [queue], LEASE_S)) as fleet:
        engine, log = fleet.engine, Log()
        jobs = [
            Job(
                name(),
                "agent",
                queue.name,
                {"task": number, "text": "é 'x' \n"},
                {"a": [1, None]},
                2e9,
            )
            for number in range(5)
        ]
        await engine.declare([queue])
        for job in jobs:
            promise(await engine.submit(job) is None, "a new job was said to be known")
        known = await engine.submit(Job(jobs[0].id, "agent", queue.name, "another task"))
        promise(known == jobs[0], "a job whose id is taken was not given the one that has it")
        places = await engine.places([job.id for job in jobs])
        promise({place.state for place in places} == {"queued"}, "a job does not wait in its queue")
        promise({place.queue for place in places} == {queue.name}, "a job waits in another queue")
        promise(await engine.withdraw(jobs[4].id) == jobs[4], "what was withdrawn is another job")
        promise(await engine.withdraw(name()) is None, "a job that nobody submitted was withdrawn")
        log.hangs.add(jobs[3].id)
        async with engine.serve("worker-1", [queue], log.carry, _nothing_due):
            await until(lambda: len(log.jobs) == 4, "a job was not carried out")
            promise(
                [log.jobs[job.id] for job in jobs[:4]] == jobs[:4], "a job has changed on its way"
            )

            async def placed() -> bool:
                found = {
                    place.run_id: place for place in await engine.places([job.id for job in jobs])
                }
                return (
                    found[jobs[0].id].state == "ended"
                    and found[jobs[3].id].state == "running"
                    and found[jobs[3].id].worker == "worker-1"
                )

            await until(placed, "a job is not where it should be")
        promise(log.times(jobs[0].id) == 1, "a job was carried out twice")
        promise(log.times(jobs[4].id) == 0, "a job was carried out that had been withdrawn")


@check
async def a_job_that_its_worker_has_lost_comes_back(make: Make) -> None:
    """Requeue two jobs: one whose worker went silent, and one that its worker gives back itself."""
    queue = Queue(name(), polling_s=POLL_S)
    async with closing(make([Agent(idle, name=name())], [queue], LEASE_S)) as fleet:
        engine, log = fleet.engine, Log()
        lost, given = Job(name(), "agent", queue.name), Job(name(), "agent", queue.name)
        log.hangs.add(lost.id)
        back: list[str] = []

        async def carry(job: Job) -> dict[str, Any]:
            if job.id == given.id and not back:
                back.append(job.id)
                await engine.requeue([Ticket(job.id, job.queue)])
                raise asyncio.CancelledError
            return await log.carry(job)

        await engine.declare([queue])
        async with engine.serve("worker-1", [queue], carry, _nothing_due):
            await engine.submit(lost)
            await until(lambda: log.times(lost.id) == 1, "a job was not carried out")
            promise(
                lost.id not in {t.id for t in await engine.abandoned(3600)}, "lost before its time"
            )

            async def abandoned() -> bool:
                return lost.id in {ticket.id for ticket in await engine.abandoned(LEASE_S)}

            await until(abandoned, "a job without a lease is not seen to be abandoned")
            for _ in range(2):
                await engine.requeue([Ticket(lost.id, queue.name)])
            log.hangs.clear()
            await until(
                lambda: log.times(lost.id) >= 2, "a job that was put back was not carried out"
            )
            await engine.submit(given)
            await until(
                lambda: log.times(given.id) == 1, "a job that was given back did not come again"
            )


@check
async def a_worker_that_leaves_takes_no_more(make: Make) -> None:
    """Submit a job after the worker was told to leave; the next worker takes it."""
    queue = Queue(name(), polling_s=POLL_S)
    async with closing(make([Agent(idle, name=name())], [queue], LEASE_S)) as fleet:
        engine, log = fleet.engine, Log()
        job = Job(name(), "agent", queue.name)
        await engine.declare([queue])
        async with engine.serve("worker-1", [queue], log.carry, _nothing_due) as leave:
            leave()
            await asyncio.sleep(3 * POLL_S)
            await engine.submit(job)
            await asyncio.sleep(5 * POLL_S)
        promise(not log.began, "a worker that leaves has taken a job")
        async with engine.serve("worker-2", [queue], log.carry, _nothing_due):
            await until(lambda: log.times(job.id) == 1, "the next worker did not take the job")


@check
async def limits_hold(make: Make) -> None:
    """Submit more jobs than each limit allows, each in a queue of its own, and count."""
    async with closing(make([Agent(idle, name=name())], [], LEASE_S)) as fleet:
        engine = fleet.engine
        able = engine.abilities
        tests = [test for ability, test in _LIMITS.items() if ability in able]
        made = [test(engine) for test in tests]
        queues = [queue for queue, *_ in made]
        logs = {queue.name: log for queue, log, _, _ in made}

        async def carry(job: Job) -> dict[str, Any]:
            log: Log = logs[job.queue]
            return await log.carry(job)

        await engine.declare(queues)
        for _, _, jobs, _ in made:
            for job in jobs:
                await engine.submit(job)
        async with engine.serve("worker-1", queues, carry, _nothing_due):
            for _, log, jobs, _ in made:
                await until(partial(_all_began, log, jobs), "a job was forgotten")
        for _, log, jobs, judge in made:
            judge(log, jobs)


def _all_began(log: Log, jobs: Sequence[Job]) -> bool:
    return len(log.began) >= len(jobs)


def _concurrency(_engine: Any) -> Any:
    queue = Queue(name(), concurrency=2, polling_s=POLL_S)
    jobs = [Job(name(), "agent", queue.name) for _ in range(6)]

    def judge(log: Log, _jobs: Any) -> None:
        promise(log.most <= 2, f"{log.most} runs went on where 2 may")

    return queue, Log(0.2), jobs, judge


def _worker_concurrency(_engine: Any) -> Any:
    queue = Queue(name(), worker_concurrency=3, polling_s=POLL_S)
    jobs = [Job(name(), "agent", queue.name) for _ in range(9)]

    def judge(log: Log, _jobs: Any) -> None:
        promise(log.most == 3, f"{log.most} runs went on in a worker where 3 may")

    return queue, Log(0.3), jobs, judge


def _rate(_engine: Any) -> Any:
    count, seconds = 3, 1.5
    queue = Queue(name(), rate=(count, seconds), polling_s=POLL_S)
    jobs = [Job(name(), "agent", queue.name) for _ in range(7)]

    def judge(log: Log, _jobs: Any) -> None:
        for number, (_, at) in enumerate(log.began):
            # A start may be recorded long after the engine has counted it, never before.
            after = at - log.since
            promise(after >= number // count * seconds, f"run {number} started in {after:.2f} s")

    return queue, Log(), jobs, judge


def _partition(_engine: Any) -> Any:
    queue = Queue(name(), partition_concurrency=1, polling_s=POLL_S)
    jobs = [
        Job(name(), "agent", queue.name, partition, partition=partition)
        for _ in range(3)
        for partition in ("a", "b")
    ]

    def judge(log: Log, _jobs: Any) -> None:
        promise(max(log.most_of.values()) == 1, "two runs of one partition went on at once")
        promise(log.most == 2, "two partitions did not go on at once")

    return queue, Log(0.3), jobs, judge


def _priority(_engine: Any) -> Any:
    queue = Queue(name(), worker_concurrency=1, polling_s=POLL_S)
    jobs = [Job(name(), "agent", queue.name, priority=priority) for priority in (3, 1, 2, 1)]

    def judge(log: Log, jobs: Sequence[Job]) -> None:
        by_id = {job.id: job.priority for job in jobs}
        order = [by_id[run_id] for run_id, _ in log.began]
        promise(order == sorted(order), f"runs began by their priorities in the order {order}")

    return queue, Log(0.05), jobs, judge


def _delay(_engine: Any) -> Any:
    delay_s = 1.5
    queue = Queue(name(), polling_s=POLL_S)
    jobs = [Job(name(), "agent", queue.name, delay_s=given) for given in (delay_s, None)]

    def judge(log: Log, jobs: Sequence[Job]) -> None:
        after = dict(log.began)[jobs[0].id] - log.since
        promise(after >= delay_s, f"a run that was delayed {delay_s} s began in {after:.2f} s")

    return queue, Log(), jobs, judge


_LIMITS: dict[str, Callable[[Any], Any]] = {
    "concurrency": _concurrency,
    "worker_concurrency": _worker_concurrency,
    "rate": _rate,
    "partition": _partition,
    "priority": _priority,
    "delay": _delay,
}


@check
async def of_runs_with_the_same_deduplication_one_is_enqueued(make: Make) -> None:
    """Enqueue two runs with the same text, and a third when the first has ended."""
    agent, queue = Agent(idle, name=name()), Queue(name(), polling_s=POLL_S)
    async with closing(make([agent], [queue], LEASE_S)) as fleet:
        if "deduplication" not in fleet.engine.abilities:
            return
        options: dict[str, Any] = {"queue": queue.name, "deduplication": "text"}
        first = await fleet.enqueue(agent.name, 1, **options)
        try:
            await fleet.enqueue(agent.name, 2, **options)
        except Deduplicated:
            pass
        else:
            raise AssertionError("two runs of the same deduplication were enqueued")
        async with working(fleet):
            promise(await fleet.result(first, timeout_s=PATIENCE_S) == 1, "another result")

            async def free() -> bool:
                try:
                    await fleet.enqueue(agent.name, 3, run_id="third" + first, **options)
                except Deduplicated:
                    return False
                return True

            await until(free, "the text of a run that has ended is still taken")


@check
async def a_schedule_enqueues_a_run_at_each_time_once(make: Make) -> None:
    """Schedule a run every second, for a few seconds."""
    agent = Agent(idle, name=name())
    async with closing(make([agent], [Queue(agent.name, polling_s=POLL_S)], LEASE_S)) as fleet:
        if "schedule" not in fleet.engine.abilities:
            return
        made = await fleet.schedule("* * * * * *", agent.name, {"a": 1})
        again = await fleet.schedule("* * * * * *", agent.name, {"a": 1})
        promise(made == again, "a schedule that was written down twice is two")
        async with working(fleet):

            async def begun() -> bool:
                return len(await fleet.store.runs("done", agent=agent.name)) >= 3

            await until(begun, "a schedule did not enqueue its runs")
            await fleet.unschedule(made)
        ids = [info.run_id for info in await fleet.store.runs(agent=agent.name)]
        promise(len(set(ids)) == len(ids), "a run was begun twice")
        promise(all(run_id.startswith(f"{made}-2") for run_id in ids), f"runs are called {ids[0]}")


# The fleet ----------------------------------------------------------------------------------------
@check
async def a_run_is_enqueued_once_and_gives_its_result(make: Make) -> None:
    """Enqueue valid and invalid runs, and wait for the results of the valid ones."""

    async def works(task: Any, *, more: int = 0) -> Any:
        if task == "fail":
            raise ValueError("no such thing")
        return [task, more]

    policy = FailurePolicy(default=triage.Abort("enough"))
    agent = Agent(works, policy, name=name())
    async with closing(make([agent], [Queue(agent.name, polling_s=POLL_S)], LEASE_S)) as fleet:
        first = await fleet.enqueue(agent.name, {"a": [1, "é"]}, run_id=name(), more=2)
        promise(
            await fleet.enqueue(agent, {"a": [1, "é"]}, run_id=first, more=2) == first, "another id"
        )
        refused: list[tuple[Any, dict[str, Any]]] = [
            ({"a": 2}, {"run_id": first}),
            ({"a": [1, "é"]}, {"run_id": first, "more": 3}),
            (object(), {}),
            ({"password": "hunter2hunter2"}, {}),
            ("task", {"other": 1}),
            ("task", {"run_id": "no such~id"}),
            ("task", {"queue": "nowhere"}),
            ("task", {"priority": 0}),
            ("task", {"deadline": -1}),
            ("task", {"partition": "p"}),
        ]
        for task, options in refused:
            try:
                await fleet.enqueue(agent.name, task, **options)
            except UsageError:
                continue
            raise AssertionError(f"{task!r} with {options} was enqueued")
        promise(await fleet.status(first) == "queued", "a run that waits is not said to")
        failing = await fleet.enqueue(agent.name, "fail")
        late = await fleet.enqueue(agent.name, "late", deadline=0.001)
        async with working(fleet):
            promise(
                await fleet.result(first, timeout_s=PATIENCE_S) == [{"a": [1, "é"]}, 2],
                "another result",
            )
            for run_id, kind in ((failing, triage.TriageAbortError), (late, RunOver)):
                try:
                    await fleet.result(run_id, timeout_s=PATIENCE_S)
                except kind:
                    continue
                raise AssertionError(f"run {run_id} did not end with {kind.__name__}")
        promise(await fleet.status(first) == "done", "a run that has ended is not said to")
        await agent.stored_in(fleet.store).run("task", run_id=(outside := name()))
        for call in (fleet.enqueue(agent.name, "task", run_id=outside), fleet.result(name())):
            try:
                await call
            except (UsageError, UnknownRun):
                continue
            raise AssertionError("a run of somebody else was taken for the fleet's")


@check
async def a_run_that_waits_holds_no_place_and_goes_on_when_it_is_answered(make: Make) -> None:
    """Let two runs ask in a queue with one place; answer one through the fleet, one through the store."""

    async def asks(task: Any, *, run: triage.Run) -> Any:
        if run.attempt == 1:
            raise PermissionError("may I?")
        return task

    policy = FailurePolicy(default=Suspend("may I?"))
    agent = Agent(asks, policy, name=name())
    queue = Queue(agent.name, worker_concurrency=1, polling_s=POLL_S)
    async with closing(make([agent], [queue], LEASE_S)) as fleet:
        ids = [await fleet.enqueue(agent.name, number) for number in range(2)]
        async with working(fleet):

            async def asked() -> bool:
                return [await fleet.status(run_id) for run_id in ids] == ["suspended", "suspended"]

            await until(asked, "a run that waits for an answer keeps the others waiting")
            await fleet.answer(ids[0], triage.Retry(), by="ann")
            # As the command line does, which has only the store.
            await agent.stored_in(fleet.store).answer(ids[1], triage.Retry())
            for number, run_id in enumerate(ids):
                promise(
                    await fleet.result(run_id, timeout_s=PATIENCE_S) == number, "another result"
                )


@check
async def a_deadline_holds_for_a_run_that_was_answered(make: Make) -> None:
    """Answer a run that has a deadline, and let it go on for longer."""

    async def asks(task: Any, *, run: triage.Run) -> Any:
        if run.attempt == 1:
            raise PermissionError("may I?")
        await asyncio.sleep(3600)
        return task

    agent = Agent(asks, FailurePolicy(default=Suspend("may I?")), name=name())
    async with closing(make([agent], [Queue(agent.name, polling_s=POLL_S)], LEASE_S)) as fleet:
        run_id = await fleet.enqueue(agent.name, 1, deadline=4 * LEASE_S)
        async with working(fleet):

            async def asked() -> bool:
                return await fleet.status(run_id) == "suspended"

            await until(asked, "a run does not ask")
            await fleet.answer(run_id, triage.Retry())
            try:
                await fleet.result(run_id, timeout_s=PATIENCE_S)
            except RunOver:
                return
            raise AssertionError("a run that was answered has no deadline any more")


@check
async def a_run_is_cancelled_wherever_it_is(make: Make) -> None:
    """Cancel a queued run and a running one."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def works(task: Any) -> Any:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return task

    agent = Agent(works, name=name())
    async with closing(make([agent], [Queue(agent.name, polling_s=POLL_S)], LEASE_S)) as fleet:
        waiting = await fleet.enqueue(agent.name, 1)
        await fleet.cancel(waiting)
        running = await fleet.enqueue(agent.name, 2)
        async with working(fleet):
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
            await fleet.cancel(running)
            await asyncio.wait_for(ended.wait(), PATIENCE_S)
            for run_id in (waiting, running):
                promise(
                    await fleet.status(run_id) == "cancelled",
                    "a run that was cancelled is not said to be",
                )
                try:
                    await fleet.cancel(run_id)
                except RunOver:
                    continue
                raise AssertionError("a run was cancelled twice")

            async def free() -> bool:
                return not await fleet.places()

            await until(free, "a run that was cancelled keeps its place")
        recovered = await agent.stored_in(fleet.store).recover_all()
        promise(not recovered, "a run that was cancelled was recovered")


@check
async def a_worker_that_stops_gives_its_runs_to_the_next(make: Make) -> None:
    """Stop a worker in the middle of a run, and let another continue the run."""
    begun, told = asyncio.Event(), asyncio.Event()
    done: list[int] = []

    @triage.tool(effect="once")
    async def pay(cents: int) -> str:
        done.append(cents)
        return f"paid {cents}"

    async def works(task: Any) -> Any:
        first = await pay(1)
        begun.set()
        if not told.is_set():
            await asyncio.sleep(3600)
        return [task, first, await pay(2)]

    agent = Agent(works, name=name())
    async with closing(make([agent], [Queue(agent.name, polling_s=POLL_S)], 30.0)) as fleet:
        run_id = await fleet.enqueue(agent.name, "task")
        async with working(fleet, drain_s=0.1):
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
        told.set()
        places = await fleet.places([run_id])
        promise(
            [place.state for place in places] == ["queued"], "a run was not put back into its queue"
        )
        async with working(fleet):  # long before the lease of 30 s expires
            promise(
                await fleet.result(run_id, timeout_s=15) == ["task", "paid 1", "paid 2"],
                "another result",
            )
        promise(done == [1, 2], f"effects happened as {done}")
        info = await fleet.store.info(run_id)
        promise(info is not None and info.claims == 0, "a worker that left counts as dead")


fleet_checks: tuple[Check, ...] = tuple(_checks)
