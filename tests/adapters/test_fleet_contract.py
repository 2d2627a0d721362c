"""Every engine of a fleet keeps the contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fleets import dbos_fleet, migrated, procrastinate_fleet

from triage import Agent
from triage.adapters.fleet import Fleet, Queue
from triage.testing.fleet_contract import fleet_checks

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

KINDS: dict[str, Any] = {"dbos": dbos_fleet, "procrastinate": procrastinate_fleet}


@pytest.fixture
def anyio_backend() -> str:
    """Workers need asyncio."""
    return "asyncio"


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind: Any = KINDS[request.param]
    with migrated(kind) as url:

        def make(agents: Sequence[Agent[Any]], queues: Sequence[Queue], lease_s: float) -> Fleet:
            fleet: Fleet = kind(url, agents, queues, lease_s=lease_s)
            return fleet

        yield make


@pytest.mark.parametrize("check", fleet_checks, ids=lambda check: check.__name__)
async def test_an_engine_keeps_its_promises(check: Any, made: Any) -> None:
    await check(made)
