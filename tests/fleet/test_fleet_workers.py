"""Workers that leave: their runs are in the queue before the engine hears of an end, and go on at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from triage import Agent
from triage.adapters.dbos import DBOSEngine
from triage.adapters.fleet import Carry, Due, Fleet, Queue, Ticket, Worker
from triage.stores import PostgresStore

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

WAIT_S = 30.0


class SlowDBOS(DBOSEngine):
    """An engine whose database takes its time to put a job back."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.told: list[str] = []
        self.asked = asyncio.Event()
        self.ready = asyncio.Event()

    async def requeue(self, tickets: Sequence[Ticket]) -> None:
        """Put jobs back once `ready` is set."""
        self.asked.set()
        await self.ready.wait()
        await super().requeue(tickets)
        self.told.append("put back")

    @asynccontextmanager
    async def serve(
        self, worker: str, queues: Sequence[Queue], carry: Carry, due: Due
    ) -> AsyncGenerator[Callable[[], None]]:
        """Note when the engine hears how a job ended."""

        async def heard(job: Any) -> dict[str, Any]:
            try:
                return await carry(job)
            finally:
                self.told.append("ended")

        async with super().serve(worker, queues, heard, due) as leave:
            yield leave


async def test_a_run_is_back_in_its_queue_before_the_engine_hears_that_its_worker_dropped_it(
    url: str,
) -> None:
    begun = asyncio.Event()

    async def desk(task: Any) -> None:
        begun.set()
        await asyncio.sleep(3600)

    store = PostgresStore(url)
    engine = SlowDBOS(store, name="slow")
    fleet = Fleet(
        [Agent(desk, name="desk")], store, engine=engine, queues=[Queue("desk", polling_s=0.1)]
    )
    run_id = await fleet.enqueue("desk", 1)
    worker = Worker(fleet)
    working = asyncio.ensure_future(worker.run())
    await asyncio.wait_for(begun.wait(), WAIT_S)
    worker.stop(at_once=True)
    await asyncio.wait_for(engine.asked.wait(), WAIT_S)
    for _ in range(100):  # the cancelled run has ended long since, and yet the engine is not told
        await asyncio.sleep(0)
    assert worker.runs.in_hand == []
    assert engine.told == []
    engine.ready.set()
    await asyncio.wait_for(working, WAIT_S)
    assert engine.told == ["put back", "ended"]
    assert [place.state for place in await fleet.places([run_id])] == ["queued"]
    await fleet.close()
