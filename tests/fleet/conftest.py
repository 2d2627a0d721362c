"""Fleets, each of a name of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from fleet.fleets import dbos_fleet, migrated
from triage.adapters.fleet import Fleet


@pytest.fixture
def anyio_backend() -> str:
    """Workers need asyncio."""
    return "asyncio"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A database with the tables of the fleet."""
    with migrated() as made:
        yield made


@pytest.fixture
async def fleet(url: str) -> AsyncIterator[Fleet]:
    """A fleet of the agent `idle`."""
    made = dbos_fleet(url)
    yield made
    await made.close()
