"""Stores and backends of the tests of incidents: each store on one backend, both where it can matter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from incident_desks import World

PLACES = (("memory", "asyncio"), ("sqlite", "trio"), ("postgres", "asyncio"))
"""The stores of `world`, and the backend each is used on."""
BOTH = ("test_incidents_stopping", "test_incidents_recovery", "test_supervisor")
"""Modules about cancelling, deadlines and running side by side: on one store they run on both."""


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The backend of an async test."""
    return str(request.param)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Desks on each kind of store."""
    with World(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def small(tmp_path: Path) -> Iterator[World]:
    """Desks on one kind, where it does not matter which."""
    with World("sqlite", tmp_path) as made:
        yield made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose stores and backends of an async test."""
    names = metafunc.fixturenames
    if "world" in names:
        metafunc.parametrize(("world", "anyio_backend"), PLACES, indirect=True)
    elif "anyio_backend" in names:
        both = metafunc.module.__name__.rpartition(".")[2] in BOTH
        backends = ["asyncio", "trio"] if both else ["asyncio"]
        metafunc.parametrize("anyio_backend", backends, indirect=True)
