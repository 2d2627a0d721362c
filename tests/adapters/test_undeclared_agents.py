"""An agent is saved as it was written, in any framework, with and without an adapter."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster

from .undeclared_agents import ASKS, FAILURES, RECOVERED, TELLS, WAYS, Way, outcome

pytestmark = [
    pytest.mark.anyio,
    # OpenAI's client stops at the last piece, and leaves its stream to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # Google's makes a class of aiohttp's session.
    pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning"),
]
PAID = "tool fails after a payment"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _theirs(never_blocked: BlockBuster) -> Iterator[None]:
    """Frameworks look at files and clocks in the event loop, and leave connections open; that is theirs."""
    never_blocked.deactivate()
    yield
    gc.collect()


@pytest.mark.parametrize("way", WAYS, ids=[f"{way.name}-{way.wrapped}" for way in WAYS])
async def test_an_agent_is_saved_with_nothing_declared(way: Way) -> None:
    found = {name: await outcome(way, failure) for name, failure in FAILURES.items()}
    paid = found.pop(PAID)
    assert found == dict.fromkeys(found, RECOVERED)
    assert paid in (RECOVERED, ASKS, TELLS)
