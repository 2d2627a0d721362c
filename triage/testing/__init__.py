"""Tools for tests: scripted agents, injected faults, virtual time, assertions, and contracts.

    plan = FaultPlan({("charge", 1): faults.rate_limit(retry_after=2)})
    monkeypatch.setattr(shop, "charge", plan.wrap_tool(shop.charge))
    await assert_recovers(agent, "order 17", plan, result="paid", effects={"charge": 1})

See docs/testing.md.
"""

from __future__ import annotations

from triage.core.constructors import check_constructors

from . import faults
from .agents import (
    LAST,
    ScriptedAgent,
    calls,
    completes,
    fails,
    gives,
    sets,
    subgoals,
    waits,
    when_told,
)
from .asserts import (
    ANYTHING,
    Account,
    assert_escalates,
    assert_escalates_sync,
    assert_recovers,
    assert_recovers_sync,
)
from .faults import Crash
from .plans import FaultPlan, Injected, at
from .stores import store_checks, store_contract
from .time import VirtualTime

__all__ = [
    "ANYTHING",
    "LAST",
    "Account",
    "Crash",
    "FaultPlan",
    "Injected",
    "ScriptedAgent",
    "VirtualTime",
    "assert_escalates",
    "assert_escalates_sync",
    "assert_recovers",
    "assert_recovers_sync",
    "at",
    "calls",
    "completes",
    "fails",
    "faults",
    "gives",
    "sets",
    "store_checks",
    "store_contract",
    "subgoals",
    "waits",
    "when_told",
]

check_constructors(globals())
