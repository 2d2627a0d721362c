"""Policies, limits and prices answer without waiting: one event loop is enough. Gates have both."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
