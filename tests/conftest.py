"""What all tests share: both async backends, and an event loop that nothing of ours may block."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Every async test runs on both."""
    return str(request.param)


@pytest.fixture(autouse=True)
def agents_as_before() -> Iterator[None]:
    """Tests of commands write a module `agents`, and so is an SDK called that other tests need."""
    before = sys.modules.get("agents")
    yield
    after = sys.modules.get("agents")
    if after is before or hasattr(after, "__path__"):
        return
    sys.modules.pop("agents", None)
    if before is not None:
        sys.modules["agents"] = before


@pytest.fixture(autouse=True)
def never_blocked() -> Iterator[BlockBuster]:
    """A blocking call of the package inside the event loop is an error."""
    with blockbuster_ctx(scanned_modules=["triage"]) as guard:
        # Runs share a few locks, which are held for some instructions and never across a wait: event
        # loops of several threads may meet there.
        held_shortly = guard.functions["threading.Lock.acquire"]
        held_shortly.can_block_in("triage/_session.py", {"put"})
        held_shortly.can_block_in("triage/_recorder.py", {"record_step"})
        yield guard
