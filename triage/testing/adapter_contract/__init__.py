"""What every adapter to a framework must do, as scenarios that run on a bench of yours.

    @pytest.mark.parametrize("scenario", adapter_scenarios, ids=lambda scenario: scenario.__name__)
    async def test_my_adapter_keeps_the_contract(scenario):
        await check_adapter(MyBench(), scenario)

A bench builds the framework's agent around a scripted model and two tools; a scenario plays one way in
which agents fail, and looks at the journal, the requests and the outcome. `python -m
triage.testing.adapter_contract <package of benches>` runs them all and prints who can do what.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ._bench import Bench
from ._loopback import loopback, provider
from ._rows import SCENARIOS
from ._script import (
    CRASHES,
    HANGS,
    After,
    Asks,
    Call,
    Cut,
    Fails,
    Hangs,
    Helper,
    Request,
    Rule,
    Says,
    Script,
    World,
    asks,
    call,
    says,
)
from ._wire import check_wire

Scenario = Callable[[Bench], Awaitable[None]]

adapter_scenarios: tuple[Scenario, ...] = SCENARIOS
"""All scenarios, each named for what happens in it."""

__all__ = [
    "CRASHES",
    "HANGS",
    "After",
    "Asks",
    "Bench",
    "Call",
    "Cut",
    "Fails",
    "Hangs",
    "Helper",
    "Request",
    "Rule",
    "Says",
    "Scenario",
    "Script",
    "World",
    "adapter_scenarios",
    "asks",
    "call",
    "check_adapter",
    "check_wire",
    "loopback",
    "provider",
    "reason_against",
    "says",
]


def reason_against(bench: Bench, scenario: Scenario) -> str | None:
    """Why an adapter cannot do a scenario, as its bench declares it; None where it can."""
    return bench.cannot.get(name_of(scenario))


def name_of(scenario: Scenario) -> str:
    """A scenario's name."""
    return getattr(scenario, "__name__", "")


async def check_adapter(bench: Bench, scenario: Scenario) -> str | None:
    """Play a scenario on a bench. The declared reason where the adapter cannot do it, else None.

    Raises AssertionError, with the scenario's name, for what the adapter gets wrong, and for a
    declaration that names no scenario.
    """
    unknown = set(bench.cannot) - {name_of(one) for one in adapter_scenarios}
    if unknown:
        raise AssertionError(f"{bench.name}.cannot names no scenario: {', '.join(sorted(unknown))}")
    reason = reason_against(bench, scenario)
    if reason is not None:
        return reason
    try:
        await scenario(bench)
    except AssertionError as error:
        raise AssertionError(f"{bench.name}, {name_of(scenario)}: {error}") from error
    return None
