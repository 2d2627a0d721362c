"""Every adapter keeps the contract, and the page says which scenarios each of them can do."""

from __future__ import annotations

from pathlib import Path

import pytest
from blockbuster import BlockBuster

import triage
from triage.core import capture
from triage.testing.adapter_contract import (
    CAPABILITIES,
    Bench,
    Scenario,
    adapter_scenarios,
    benches_in,
    check_adapter,
    matrix,
    taken_from,
)

# OpenAI's client stops at the last piece, and leaves the rest of its stream to the garbage collector.
LEFT_BEHIND = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
pytestmark = [pytest.mark.anyio, LEFT_BEHIND]

# The first exception that is read looks where packages are installed, which no test's loop may do.
capture(triage.UsageError())

BENCHES = benches_in("benches")
PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
CASES = [
    pytest.param(bench, scenario, backend, id=f"{bench.name}-{scenario.__name__}-{backend}")
    for bench in BENCHES
    for scenario in adapter_scenarios
    for backend in bench.backends
]


@pytest.mark.parametrize(("bench", "scenario", "anyio_backend"), CASES)
async def test_an_adapter_keeps_the_contract(
    bench: Bench, scenario: Scenario, never_blocked: BlockBuster
) -> None:
    # Frameworks look at files and clocks in the event loop; that is theirs.
    never_blocked.deactivate()
    missing = await check_adapter(bench, scenario)
    if missing is not None:
        pytest.skip(f"{bench.name}: {missing}")


def test_the_page_says_what_each_adapter_offers() -> None:
    assert taken_from(PAGE) == matrix(BENCHES), (
        "write it anew: python -m triage.testing.adapter_contract tests.benches --write docs/adapters.md"
    )


def test_the_page_tells_every_capability() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [
        name for name, said in CAPABILITIES.items() if f"| `{name}` | {said} |" not in page
    ] == []
