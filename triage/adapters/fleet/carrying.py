"""The runs that a worker has in hand: begun, or gone on with once their lease is free."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from triage.core import (
    DeadLetter,
    RunBusy,
    RunFinished,
    RunOver,
    RunStarted,
    StaleWriter,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    UnknownRun,
    capture,
    child_logger,
)
from triage.engine import Agent, cancel
from triage.stores import Store

from .engine import Job, Ticket

SHORTEST_S, LONGEST_S = 0.05, 1.0
"""Seconds between two looks at a run that somebody else has."""
GRACE_S = 10.0
"""Seconds that runs have to stop when they are given back."""
STRANGER_S = 2.0
"""Seconds after which a job of an agent that is not known here is put back for another worker."""

MOVED = (StaleWriter, DeadLetter, RunOver, UnknownRun)
"""Errors after which the run's status tells what has become of it."""
PASSING = (StoreUnavailable, StoreFull, StoreReadOnly)
"""Errors of a store that may work again."""

_log = child_logger("fleet")


class Runs:
    """Carries out jobs, each run at most once at a time in this process.

    agents: by name and alias, with the fleet's store. put_back: puts jobs into their queues again.
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
        self._closed = False

    async def carry(self, job: Job) -> dict[str, Any]:
        """Carry out a job as `Carry` says.

        A job whose run is in hand already, since its first job was taken for abandoned, waits for it.
        """
        if self._closed:
            await self._put_back([Ticket(job.id, job.queue)])
            raise asyncio.CancelledError
        if job.agent not in self._agents:
            _log.warning("run %s: no agent %s here; put back for another worker", job.id, job.agent)
            await asyncio.sleep(STRANGER_S * random.uniform(0.5, 1.5))  # noqa: S311 - spreads load
            await self._put_back([Ticket(job.id, job.queue)])
            raise asyncio.CancelledError
        task = self._tasks.get(job.run_id)
        if task is None:
            # In a context of its own: what the engine keeps in the caller's is not the agent's.
            task = self._context.copy().run(asyncio.ensure_future, self._go(job))
            self._tasks[job.run_id] = task
            self._jobs[job.run_id] = job
            task.add_done_callback(lambda _done: self._forget(job.run_id))
        return await asyncio.shield(task)

    def _forget(self, run_id: str) -> None:
        del self._tasks[run_id]
        del self._jobs[run_id]

    @property
    def in_hand(self) -> list[str]:
        """The runs that are in hand."""
        return list(self._tasks)

    async def idle(self) -> None:
        """Wait until no run is in hand."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def give_back(self) -> int:
        """Hand all runs back to their store and their queues, and take no more; how many."""
        self._closed = True
        jobs, tasks = list(self._jobs.values()), list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        stopped = [job for job, task in zip(jobs, tasks, strict=True) if task.cancelled()]
        if stopped:
            await self._put_back([Ticket(job.id, job.queue) for job in stopped])
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
        """Begin the run or go on with it, whoever else has it in between, until it ends or waits."""
        while True:
            try:
                return {"status": await self._tried(job)}
            except RunBusy as busy:
                pause = min(LONGEST_S, max(SHORTEST_S, busy.wait_s))
            except MOVED:
                pause = SHORTEST_S
            except PASSING as error:
                _log.warning("run %s: the store failed (%s); tried again", job.run_id, error)
                pause = LONGEST_S
            await asyncio.sleep(pause)

    async def _tried(self, job: Job) -> str:
        """Begin the run or go on with it; its status afterwards, or `stuck` where a person must look."""
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
        except (RunBusy, *MOVED, *PASSING):
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
                raise RunBusy(f"run {run_id} goes on elsewhere", wait_s=left) from error
            _log.error("run %s cannot go on by itself: %s", run_id, error)
            return "stuck"
        return "done"

    async def _end_at(self, run_id: str, deadline: float) -> None:
        while True:
            with suppress(StoreError):
                left = deadline - await self._store.now()
                if left <= 0:
                    with suppress(UnknownRun, RunOver):
                        await cancel(self._store, run_id, now=deadline)
                    return
                await asyncio.sleep(left)
            await asyncio.sleep(SHORTEST_S)


async def end_unbegun(store: Store, job: Job, error: Exception | None = None) -> None:
    """Write down the end of a run that was never begun; one that has begun is cancelled.

    error: why it cannot begin; None: it is cancelled.
    """
    now, run_id = await store.now(), job.run_id
    args = dict(job.args or {})
    started = RunStarted(run_id=run_id, seq=0, time=now, agent=job.agent, task=job.task, args=args)
    end = partial(RunFinished, run_id=run_id, seq=1, time=now)
    ended = end(status="cancelled") if error is None else end(status="error", error=capture(error))
    try:
        await store.append(run_id, [started, ended], at=0, epoch=0)
    except StaleWriter:
        await cancel(store, run_id, now=now)
