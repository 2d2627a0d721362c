"""`Runs`: the runs that a worker is carrying out, whether new or taken over from another worker."""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from triage.core import errors
from triage.core.capture import capture
from triage.core.events import RunFinished, RunStarted
from triage.core.observers import child_logger
from triage.core.quoting import quote
from triage.core.waiting import LONG_WAIT_S, Waits
from triage.engine.agents import Agent
from triage.engine.outside import cancel
from triage.stores.base import Store

from .engine import Job, Ticket

SHORTEST_S, LONGEST_S = 0.05, 1.0
"""The shortest and longest pause in seconds between two checks of a run that another worker holds."""
GRACE_S = 10.0
"""Seconds that runs get to stop after being cancelled, before the worker leaves without them."""
STRANGER_S = 2.0
"""Average delay in seconds before a job for an agent unknown to this worker is requeued."""

MOVED = (errors.StaleWriter, errors.DeadLetter, errors.RunOver, errors.UnknownRun)
"""Errors that mean the run has changed hands or ended: read its status again to find out."""
PASSING = (errors.StoreUnavailable, errors.StoreFull, errors.StoreReadOnly)
"""Store errors that may pass: the operation is retried."""

_log = child_logger("fleet")


class Runs:
    """Carries out jobs, with at most one task per run in this process.

    agents: the agents by name and alias, each already using the fleet's store. put_back: returns jobs to
    their queues.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent[Any]],
        store: Store,
        put_back: Callable[[Sequence[Ticket]], Awaitable[None]],
    ) -> None:
        self._agents = agents
        self._store = store
        self._put_back = put_back
        self._context = contextvars.copy_context()
        self._tasks: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._jobs: dict[str, Job] = {}
        self._leaving = asyncio.Event()
        self._given_back = asyncio.Event()

    async def carry(self, job: Job) -> dict[str, Any]:
        """Carry out a job and return how it ended, as `Carry` describes.

        If the run is already being carried out here, because its first job was taken for abandoned, wait
        for that task instead of starting another.
        """
        if self._leaving.is_set():
            await self._put_back([Ticket(job.id, job.queue)])
            raise asyncio.CancelledError
        if job.agent not in self._agents:
            _log.warning("run %s: no agent %s here; put back for another worker", job.id, job.agent)
            await asyncio.sleep(STRANGER_S * random.uniform(0.5, 1.5))  # noqa: S311 - spreads load
            await self._put_back([Ticket(job.id, job.queue)])
            raise asyncio.CancelledError
        task = self._tasks.get(job.run_id)
        if task is None:
            # A context of its own keeps the engine's context variables out of the agent.
            task = self._context.copy().run(asyncio.ensure_future, self._go(job))
            self._tasks[job.run_id] = task
            self._jobs[job.run_id] = job
            task.add_done_callback(lambda _done: self._forget(job.run_id))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._leaving.is_set() and task.cancelled():
                # The engine must not record an end of this job before the job is back in its queue.
                await self._given_back.wait()
            raise

    def _forget(self, run_id: str) -> None:
        del self._tasks[run_id]
        del self._jobs[run_id]

    @property
    def in_hand(self) -> list[str]:
        """The ids of the runs being carried out."""
        return list(self._tasks)

    async def idle(self) -> None:
        """Wait until no run is being carried out."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def give_back(self) -> int:
        """Cancel all runs, requeue those that stopped and refuse new jobs; return how many."""
        self._leaving.set()
        jobs, tasks = list(self._jobs.values()), list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        stopped = [job for job, task in zip(jobs, tasks, strict=True) if task.cancelled()]
        try:
            if stopped:
                await self._put_back([Ticket(job.id, job.queue) for job in stopped])
        finally:
            self._given_back.set()
        return len(stopped)

    # One run --------------------------------------------------------------------------------------

    async def _go(self, job: Job) -> dict[str, Any]:
        if job.deadline is None:
            return await self._go_on(job)
        ender = asyncio.ensure_future(self._end_at(job.run_id, job.deadline))
        try:
            return await self._go_on(job)
        finally:
            ender.cancel()

    async def _go_on(self, job: Job) -> dict[str, Any]:
        """Begin or continue the run until it ends or suspends, waiting while another worker holds it."""
        waits, since = Waits(), time.monotonic()
        while True:
            try:
                return {"status": await self._tried(job)}
            except errors.RunBusy as busy:
                why = "another worker holds its lease"
                most = "until that lease is over or the run has ended"
                remedy = "Durability(lease_s=…)"
                pause = min(LONGEST_S, max(SHORTEST_S, busy.wait_s))
            except MOVED:
                why = "another process has taken the run on"
                most, remedy = "until the run has ended", "one worker or process for each run"
                pause = SHORTEST_S
            except PASSING as error:
                why = f"the store failed with {type(error).__name__} {quote(str(error))}"
                most, remedy = "until the store answers or the worker is stopped", "triage worker"
                pause = LONGEST_S
            if time.monotonic() - since > LONG_WAIT_S:
                waits.say(why, f"run {job.run_id[:8]}", None, why, most, remedy)
            await asyncio.sleep(pause)

    async def _tried(self, job: Job) -> str:
        """Begin or continue the run; return its status, or `stuck` if it needs a person's attention."""
        agent, run_id, store = self._agents[job.agent], job.run_id, self._store
        info = await store.info(run_id)
        if info is not None and info.status != "running":
            return info.status
        if info is None and job.deadline is not None and await store.now() >= job.deadline:
            await end_unbegun(store, job)
            return "cancelled"
        try:
            if info is None:
                await agent.run(job.task, run_id=run_id, **(job.args or {}))
            else:
                await agent.recover(run_id, at_once=False)
        except (errors.RunBusy, *MOVED, *PASSING):
            raise
        except Exception as error:
            info = await store.info(run_id)
            if info is None:
                await end_unbegun(store, job, error)
                return "error"
            if info.status != "running":
                return info.status
            left = 0.0 if info.lease_until is None else info.lease_until - await store.now()
            if left > 0:
                raise errors.RunBusy(f"run {run_id} goes on elsewhere", wait_s=left) from error
            _log.error("run %s cannot go on by itself: %s", run_id, error)
            return "stuck"
        return "done"

    async def _end_at(self, run_id: str, deadline: float) -> None:
        while True:
            with suppress(errors.StoreError):
                left = deadline - await self._store.now()
                if left <= 0:
                    with suppress(errors.UnknownRun, errors.RunOver):
                        await cancel(self._store, run_id, now=deadline)
                    return
                await asyncio.sleep(left)
            await asyncio.sleep(SHORTEST_S)


async def end_unbegun(
    store: Store, job: Job, error: Exception | None = None, *, by: str = ""
) -> None:
    """Record the end of a run that never began; if it has begun after all, cancel it.

    error: why the run cannot begin, recorded with status `error`. None records status `cancelled`. by: who
    cancelled the run.
    """
    now, run_id = await store.now(), job.run_id
    args = dict(job.args or {})
    started = RunStarted(run_id=run_id, seq=0, time=now, agent=job.agent, task=job.task, args=args)
    ended = RunFinished(
        run_id=run_id,
        seq=1,
        time=now,
        status="cancelled" if error is None else "error",
        error=None if error is None else capture(error),
        by=by,
    )
    try:
        await store.append(run_id, [started, ended], at=0, epoch=0)
    except errors.StaleWriter:
        await cancel(store, run_id, now=now, by=by)
