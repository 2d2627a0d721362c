"""Run DBOS in a worker's process: launch it, register the fleet's two workflows, and shut it down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

from dbos import DBOS, DBOSPortableJSONSerializer, WorkflowSerializationFormat

from triage.adapters.fleet.engine import Carry, Due, Job
from triage.core.errors import UsageError

RUN = "triage.run"
"""Name of the workflow that carries out a run."""
DUE = "triage.due"
"""Name of the workflow that enqueues a scheduled run."""
POOL = 3
"""Size of DBOS' connection pool in a worker, which is no faster with six."""
LISTENING_S = 0.1
"""The longest time in seconds that DBOS' listener, which has nothing to do, delays the shutdown."""
SETTLING_S, PAUSE_S = 2.0, 0.02
"""Seconds that DBOS has to record how its last workflows ended, and seconds between two checks."""

_serving = threading.Lock()


@asynccontextmanager
async def serving(
    config: Mapping[str, Any], queues: Sequence[str], carry: Carry, due: Due
) -> AsyncGenerator[Callable[[], None]]:
    """Have DBOS take workflows from these queues; yield a function that makes it take no more.

    DBOS runs its workflows in an event loop of its own; the agents' runs stay in the caller's loop. Raises
    UsageError if this process already has a worker.
    """
    if not _serving.acquire(blocking=False):
        raise UsageError("one process has one worker; start another process for another")
    try:
        elsewhere = partial(_elsewhere, asyncio.get_running_loop())
        dbos = await asyncio.to_thread(_launch, config, queues, elsewhere, carry, due)

        def leave() -> None:
            """Take no more workflows, without waiting for those that have begun."""
            for event in dbos.background_thread_stop_events:
                event.set()

        try:
            yield leave
        finally:
            leave()
            await _settled(dbos)
            await asyncio.to_thread(DBOS.destroy, destroy_registry=True)
    finally:
        _serving.release()


async def _settled(dbos: DBOS) -> None:
    """Let DBOS begin the workflows it has just claimed, and record the ends of finished ones."""
    for _ in range(int(SETTLING_S / PAUSE_S)):
        claims = any(thread.name.startswith("queue-worker-") for thread in threading.enumerate())
        if not claims and not dbos._active_workflows_set.activeList():
            return
        await asyncio.sleep(PAUSE_S)


def _launch(
    config: Mapping[str, Any],
    queues: Sequence[str],
    elsewhere: Callable[[Coroutine[Any, Any, Any]], Any],
    carry: Carry,
    due: Due,
) -> DBOS:
    dbos = DBOS(
        config={
            **config,  # type: ignore[typeddict-item] # the names of DBOSConfig
            "serializer": DBOSPortableJSONSerializer(),
            "run_migrations": False,
            "sys_db_pool_size": POOL,
            # Nothing here waits for DBOS' notifications, and listening takes a connection of its own.
            "use_listen_notify": False,
            "notification_listener_polling_interval_sec": LISTENING_S,
            "console_log_level": "WARNING",
            "log_level": "WARNING",
            "max_executor_threads": None,
        }
    )

    # The journal limits how often a run is taken over, so DBOS must not count its own attempts.
    @DBOS.workflow(
        name=RUN,
        max_recovery_attempts=None,
        serialization_type=WorkflowSerializationFormat.PORTABLE,
    )
    async def run(payload: dict[str, Any]) -> dict[str, Any]:
        assert DBOS.workflow_id is not None
        return dict(await elsewhere(_carried(carry, Job.read(DBOS.workflow_id, payload))))

    @DBOS.workflow(
        name=DUE,
        max_recovery_attempts=None,
        serialization_type=WorkflowSerializationFormat.PORTABLE,
    )
    async def enqueue(moment: datetime, entry: dict[str, Any]) -> None:
        await elsewhere(_done(due, entry, moment.timestamp()))

    DBOS.listen_queues(list(queues))
    try:
        DBOS.launch()
    except BaseException:
        DBOS.destroy(destroy_registry=True)
        raise
    return dbos


async def _carried(carry: Carry, job: Job) -> dict[str, Any]:
    return await carry(job)


async def _done(due: Due, entry: Mapping[str, Any], moment: float) -> None:
    await due(entry, moment)


async def _elsewhere(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine in another event loop. Cancelling this call cancels the coroutine too."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
