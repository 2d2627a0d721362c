"""Fleets on each engine. A module about one engine has a fixture `kind` of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fleets import dbos_fleet, migrated, procrastinate_fleet

from triage.adapters.fleet import Fleet

KINDS: dict[str, Any] = {"dbos": dbos_fleet, "procrastinate": procrastinate_fleet}


@pytest.fixture
def anyio_backend() -> str:
    """Workers need asyncio."""
    return "asyncio"


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    """Makes a fleet of a name of its own: `kind(url, agents, queues, **options)`."""
    return KINDS[request.param]


@pytest.fixture(scope="module")
def url(kind: Any) -> Iterator[str]:
    """A database with the tables of the fleet."""
    with migrated(kind) as made:
        yield made


@pytest.fixture
async def fleet(kind: Any, url: str) -> AsyncIterator[Fleet]:
    """A fleet of the agent `idle`."""
    made = kind(url)
    yield made
    await made.close()
