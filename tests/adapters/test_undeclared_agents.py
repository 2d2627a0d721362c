"""An agent is saved as it was written, in any framework, with and without an adapter."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster

from .undeclared_agents import ASKS, FAILURES, RECOVERED, TELLS, WAYS, Way, outcome, row_of, shown

pytestmark = [pytest.mark.anyio]
PAID = "tool fails after a payment"


@pytest.fixture(autouse=True)
def _theirs(never_blocked: BlockBuster) -> Iterator[None]:
    """Frameworks look at files and clocks in the event loop, and leave connections open; that is theirs."""
    never_blocked.deactivate()
    yield
    gc.collect()


@pytest.mark.parametrize("way", WAYS, ids=[f"{way.name}-{way.wrapped}" for way in WAYS])
async def test_an_agent_is_saved_with_nothing_declared(way: Way) -> None:
    found = {name: await outcome(way, failure) for name, failure in FAILURES.items()}
    page = dict(zip(FAILURES, shown()[row_of(way)], strict=True))
    assert [name for name in FAILURES if found[name] not in page[name].split(" or ")] == [], (
        "write the page anew: python docs/generate_saved.py"
    )
    paid = found.pop(PAID)
    assert found == dict.fromkeys(found, RECOVERED)
    assert paid in (RECOVERED, ASKS, TELLS)


def test_the_page_has_a_row_for_each_agent_and_no_other() -> None:
    assert list(shown()) == list(dict.fromkeys(map(row_of, WAYS)))
