"""A worker: takes runs from a fleet's queues until told to stop, and looks after those of dead workers."""

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

from triage.core import UsageError, check_count, check_number, child_logger

from .carrying import Runs
from .engine import Queue
from .fleet import Fleet

LOOK_S = 1.0
"""Seconds between two looks of a worker for runs whose lease is over, or that were answered."""
AT_ONCE = 50
"""Runs that a worker takes from dead ones in one look, so that not all come at the same moment."""
DRAIN_S = 30.0
"""Seconds that runs have to end once their worker was told to stop."""

_log = child_logger("fleet")


class Worker:
    """Carries out the runs of a fleet, on asyncio.

    queues: names of those it takes from, all by default. concurrency: how many runs of each queue go on in
    one worker at once; it stands with the queue, so all workers have that of the last that started. None
    takes what the queues say. drain_s: seconds that runs have to end once it was told to stop; those that
    have not are given back. look_s: seconds between two looks for runs of dead workers.
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
        """Take no more runs, and end once those in hand have ended or were given back.

        at_once: give them back now.
        """
        self._stopped.set()
        if at_once:
            self._hurried.set()

    async def run(self) -> None:
        """Work until `stop`. Raises UsageError where the fleet's tables are missing."""
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
        """Stop at SIGTERM and SIGINT, at once at the second, inside this context."""
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
        """Put runs whose lease is over back into their queues, and wake those that were answered."""
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
        """Look once; how many runs it took from dead workers."""
        engine = self._fleet.engine
        abandoned = (await engine.abandoned(self._fleet.lease_s))[:AT_ONCE]
        if abandoned:
            _log.warning("runs %s: their lease is over", ", ".join(each.id for each in abandoned))
            await engine.requeue(abandoned)
        await self._fleet.wake()
        return len(abandoned)
