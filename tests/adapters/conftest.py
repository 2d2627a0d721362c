"""Frameworks and their clients leave connections open: that is theirs, and no later test answers for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore what is said of them when they are collected."""
    for item in items:
        if _HERE in item.path.parents:
            ignored = "ignore::pytest.PytestUnraisableExceptionWarning"
            item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(autouse=True, scope="module")
def _closed() -> Iterator[None]:
    """Collect them before the tests of another file run."""
    yield
    gc.collect()
