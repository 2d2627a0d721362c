"""What frameworks and their clients leave behind is theirs, and no later test answers for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from triage import UsageError
from triage.core.capture import capture

_HERE = Path(__file__).parent
_THEIRS = (
    # Connections and generators that are left open, said when they are collected.
    "ignore::pytest.PytestUnraisableExceptionWarning",
    # Google's client makes a class of aiohttp's session.
    "ignore:Inheritance class:DeprecationWarning",
)

# The first exception that is read looks where packages are installed, which no test's loop may do.
capture(UsageError())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            for ignored in _THEIRS:
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture
def anyio_backend() -> str:
    """Most frameworks run on asyncio alone; what is ours for both has both: `on_both_backends`."""
    return "asyncio"


@pytest.fixture(autouse=True, scope="module")
def _closed() -> Iterator[None]:
    """Collect what was left open before the tests of another file run."""
    yield
    gc.collect()
