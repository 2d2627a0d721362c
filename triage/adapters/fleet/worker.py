"""`Worker`: takes runs from a fleet's queues, and requeues the runs of dead workers."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from triage.core.errors import UsageError, check_count, check_number
from triage.core.observers import child_logger

from .carrying import Runs
from .engine import Queue
from .fleet import Fleet

LOOK_S = 1.0
"""Default time in seconds between two checks for runs that were answered or whose lease has expired."""
AT_ONCE = 50
"""How many runs of dead workers are requeued in one check, so that they do not all begin at once."""
DRAIN_S = 30.0
"""Default time in seconds that runs have to end after their worker was told to stop."""

_log = child_logger("fleet")


class Worker:
    """Carries out the runs of a fleet, on asyncio.

    queues: names of the queues to take from, all by default. concurrency: how many runs of each queue this
    worker executes at once; None (default) uses the queue's own limit. An engine may keep the value with
    the queue, so that the worker started last sets it for all. drain_s: seconds that runs have to end after
    the worker was told to stop, 30 by default; the rest are requeued. look_s: seconds between two checks
    for runs that were answered or left by dead workers, 1 by default.

    Raises UsageError for a queue that the fleet does not have, and for a number out of range.
    """

    def __init__(
        self,
        fleet: Fleet,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        drain_s: float = DRAIN_S,
        look_s: float = LOOK_S,
    ) -> None:
        check_number("Worker.drain_s", drain_s, "seconds")
        check_number("Worker.look_s", look_s, "seconds", above=True)
        names = list(fleet.queues) if not queues else list(queues)
        unknown = [name for name in names if name not in fleet.queues]
        if unknown:
            known = ", ".join(sorted(fleet.queues))
            raise UsageError(f"this fleet has no queue {unknown[0]!r}; it has {known}")
        self.queues: list[Queue] = [fleet.queues[name] for name in names]
        if concurrency is not None:
            check_count("Worker.concurrency", concurrency, 1)
            self.queues = [replace(queue, worker_concurrency=concurrency) for queue in self.queues]
        self.name = f"{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.drain_s = drain_s
        self._fleet = fleet
        self._look_s = look_s
        self._stopped = asyncio.Event()
        self._hurried = asyncio.Event()
        self._troubled = False
        self.runs = Runs(fleet.agents, fleet.store, fleet.engine.requeue)

    def stop(self, *, at_once: bool = False) -> None:
        """Take no more runs, and leave once the current ones have ended or `drain_s` is over.

        at_once: requeue the current runs now instead of waiting for them.
        """
        self._stopped.set()
        if at_once:
            self._hurried.set()

    async def run(self) -> None:
        """Work until `stop` is called. Raises UsageError if the fleet's tables are missing or old."""
        engine = self._fleet.engine
        await engine.check()
        await engine.declare(self.queues)
        async with engine.serve(self.name, self.queues, self.runs.carry, self._fleet.due) as leave:
            _log.info("worker %s takes from %s", self.name, ", ".join(q.name for q in self.queues))
            looking = asyncio.ensure_future(self._look_after())
            try:
                await self._stopped.wait()
                leave()
                idle, hurried = map(asyncio.ensure_future, (self.runs.idle(), self._hurried.wait()))
                first = asyncio.FIRST_COMPLETED
                await asyncio.wait((idle, hurried), timeout=self.drain_s, return_when=first)
                idle.cancel()
                hurried.cancel()
            finally:
                looking.cancel()
                given = await self.runs.give_back()
                _log.info("worker %s has left, and gave back %d runs", self.name, given)

    @contextmanager
    def signals(self) -> Generator[None]:
        """While the context is open, stop on SIGTERM or SIGINT, and at once on the second signal."""
        loop = asyncio.get_running_loop()

        def told() -> None:
            self.stop(at_once=self._stopped.is_set())

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    # Looking after others' runs ---------------------------------------------------------------------

    async def _look_after(self) -> None:
        """Call `look` at intervals; log the first of several failures in a row."""
        while True:
            await asyncio.sleep(self._look_s * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load
            try:
                await self.look()
            except Exception as error:
                if not self._troubled:
                    _log.warning("worker %s cannot look after others' runs: %s", self.name, error)
                self._troubled = True
            else:
                self._troubled = False

    async def look(self) -> int:
        """Requeue the runs of dead workers and wake answered runs; return how many were requeued."""
        engine = self._fleet.engine
        abandoned = (await engine.abandoned(self._fleet.lease_s))[:AT_ONCE]
        if abandoned:
            _log.warning("runs %s: their lease is over", ", ".join(each.id for each in abandoned))
            await engine.requeue(abandoned)
        await self._fleet.wake()
        return len(abandoned)
