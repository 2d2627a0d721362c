"""What every adapter to a framework must do, as scenarios that run on a bench of yours.

    @pytest.mark.parametrize("scenario", adapter_scenarios, ids=lambda scenario: scenario.__name__)
    async def test_my_adapter_keeps_the_contract(scenario):
        await check_adapter(MyBench(), scenario)

A bench builds the framework's agent around a scripted model and two tools; a scenario plays one way in
which agents fail, and looks at the journal, the requests and the outcome. Every adapter owes the
`owed_scenarios`; each of the others needs something of the framework that not all have, and is played
where the bench offers it. `python -m triage.testing.adapter_contract <package of benches>` runs them all
and prints who can do what.
"""

from .bench import (
    CRASHES,
    HANGS,
    After,
    Asks,
    Bench,
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
from .matrices import benches_in, matrix, taken_from
from .playing import CAPABILITIES, Played, Scenario, check_adapter, needs_of, not_offered, play
from .providers import check_wire, loopback, provider, results_in
from .questions import QUESTIONS
from .scenarios import SCENARIOS
from .wrong_once import WRONG_ONCE

__all__ = [
    "CAPABILITIES",
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
    "Played",
    "Request",
    "Rule",
    "Says",
    "Scenario",
    "Script",
    "World",
    "adapter_scenarios",
    "asks",
    "benches_in",
    "call",
    "check_adapter",
    "check_wire",
    "loopback",
    "matrix",
    "needs_of",
    "not_offered",
    "owed_scenarios",
    "play",
    "provider",
    "results_in",
    "says",
    "taken_from",
]

adapter_scenarios: tuple[Scenario, ...] = (*SCENARIOS, *QUESTIONS, *WRONG_ONCE)
"""All scenarios, each named for what happens in it."""
owed_scenarios: tuple[Scenario, ...] = tuple(one for one in adapter_scenarios if not needs_of(one))
"""Those that every adapter owes, whatever its framework offers."""
