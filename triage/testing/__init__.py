"""For tests: scripted agents, faults on purpose, time that takes no time, and the contract of stores.

    plan = FaultPlan({("charge", 1): faults.rate_limit(retry_after=2)})
    monkeypatch.setattr(shop, "charge", plan.wrap_tool(shop.charge))
    await assert_recovers(agent, "order 17", plan, result="paid", effects={"charge": 1})

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triage._lazy import lazily as _lazily

if TYPE_CHECKING:
    from . import faults
    from ._account import Account
    from ._asserts import (
        ANYTHING,
        assert_escalates,
        assert_escalates_sync,
        assert_recovers,
        assert_recovers_sync,
    )
    from ._crash import Crash
    from ._plan import FaultPlan, Injected, at
    from ._scripted import (
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
    from ._store_contract import store_checks, store_contract
    from ._time import VirtualTime

_HOMES = {
    "_account": ("Account",),
    "_asserts": (
        "ANYTHING", "assert_escalates", "assert_escalates_sync", "assert_recovers",
        "assert_recovers_sync",
    ),
    "_crash": ("Crash",),
    "_plan": ("FaultPlan", "Injected", "at"),
    "_scripted": (
        "LAST", "ScriptedAgent", "calls", "completes", "fails", "gives", "sets", "subgoals", "waits",
        "when_told",
    ),
    "_time": ("VirtualTime",),
    "_store_contract": ("store_checks", "store_contract"),
}  # fmt: skip

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

__getattr__, __dir__ = _lazily(__name__, _HOMES, modules=("faults",))
