"""What a fleet on procrastinate does beside the contract: migrations, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from fleets import idle, procrastinate_fleet

from triage import Agent
from triage.adapters.fleet import Queue
from triage.adapters.procrastinate import Fleet
from triage.core import Deduplicated, UsageError

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


@pytest.fixture(scope="module")
def kind() -> Any:
    """procrastinate alone."""
    return procrastinate_fleet


async def test_migrating_twice_changes_nothing(fleet: Fleet) -> None:
    first = await fleet.enqueue("idle", 1, deduplication="text", delay_s=60)
    await fleet.migrate()
    await fleet.engine.check()
    assert await fleet.status(first) == "delayed"
    with pytest.raises(Deduplicated):
        await fleet.enqueue("idle", 2, deduplication="text")


@pytest.mark.parametrize(
    "queue",
    [Queue("a", concurrency=1), Queue("a", rate=(1, 1.0)), Queue("a", partition_concurrency=1)],
)
def test_a_limit_that_it_cannot_hold_is_refused(queue: Queue) -> None:
    with pytest.raises(UsageError, match="procrastinate cannot hold this limit of a"):
        procrastinate_fleet("postgresql://postgres@127.0.0.1/test", [Agent(idle)], [queue])


async def test_what_it_cannot_do_is_refused(fleet: Fleet) -> None:
    with pytest.raises(UsageError, match="cannot hold this: schedule"):
        await fleet.schedule("* * * * *", "idle", 1)
