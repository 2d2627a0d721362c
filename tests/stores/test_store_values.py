"""Large values kept apart from their events: there while a run uses them, and no longer."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import pytest
from store_kinds import DURABLE, Opened, opening

from stores.store_runs import created, started
from triage import Step
from triage.core.errors import StaleWriter
from triage.core.events import Event, RunFinished, StepRecorded

pytestmark = pytest.mark.anyio
opened = opening(*DURABLE)
LARGE = {"rows": [f"row {number}" for number in range(5_000)]}


async def kept(store: Any) -> int:
    """How many large values the store has."""

    def count() -> int:
        connection = store.connect(writes=False)
        try:
            [(found,)] = connection.raw.execute("SELECT count(*) FROM blobs").fetchall()
            return int(found)
        finally:
            connection.close()

    return await anyio.to_thread.run_sync(count)


def large_step(run_id: str, more: str = "") -> Event:
    return StepRecorded(
        run_id, 1, 1.0, 1, 1, Step(action="look", tool_output={**LARGE, "in": more})
    )


def ended(run_id: str) -> Event:
    return RunFinished(run_id, 2, 2.0, "done", "result")


async def test_a_value_goes_with_the_last_runs_that_have_it(opened: Opened) -> None:
    store = opened.new()
    for run_id in ("first", "second", "third"):
        await store.append(run_id, [started(run_id), large_step(run_id)], at=0, epoch=0)
    for run_id in ("first", "second"):
        await store.append(run_id, [ended(run_id)], at=2, epoch=0)
    assert await kept(store) == 1
    assert await store.prune(keep=0) == 2
    assert await kept(store) == 1
    assert (await store.read("third"))[1] == large_step("third")
    await store.append("third", [ended("third")], at=2, epoch=0)
    await store.append("fourth", [started("fourth"), large_step("fourth")], at=0, epoch=0)
    await store.append("fourth", [ended("fourth")], at=2, epoch=0)
    assert await store.prune(keep=0) == 2
    assert await kept(store) == 0
    await store.close()


async def test_a_refused_append_leaves_no_value_behind(opened: Opened) -> None:
    store = opened.new()
    await created(store, "r")
    await store.claim("r", lease_s=30.0, force=True)
    with pytest.raises(StaleWriter):
        await store.append("r", [large_step("r", "late")], at=1, epoch=0)
    assert await kept(store) == 0
    await store.close()
