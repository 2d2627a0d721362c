"""All stores wait in one way, which the contract shows on both event loops: elsewhere one is enough."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
