"""Strategies that consult what runs share: a `RetryBudget`, a `RateGate`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from triage._options import misuse
from triage._written import Written
from triage.actions import DELAYED, PROCEEDING, Action, Escalate
from triage.gates import Budget, Gate

from ._base import Answer, Strategy, as_strategy, named, then

if TYPE_CHECKING:
    from triage.failures import FailureContext

_SPREAD = 0.25


@dataclass(frozen=True, eq=False, repr=False)
class within_budget(Written):  # noqa: N801 - strategies are written like functions
    """What `inner` says, as long as the budget shared with all other runs has a token for it.

    Retry, Replan, Rollback and Resume take a token each, as they call the function again; other
    actions are free. Without a token: `otherwise`, or Escalate with the reason if it is None.

    inner: a strategy or an action. budget: a `RetryBudget`. key: the bucket, such as the service's
    name; empty by default. otherwise: a strategy or an action, such as `Suspend("Go on later?")`.
    """

    inner: Strategy | Action
    budget: Budget
    key: str = ""
    otherwise: Strategy | Action | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner", as_strategy("within_budget.inner", self.inner))
        if not isinstance(cast("object", self.budget), Budget):
            raise misuse("within_budget.budget", self.budget, "a RetryBudget")
        _check_key("within_budget.key", self.key)
        if self.otherwise is not None:
            kept = as_strategy("within_budget.otherwise", self.otherwise)
            object.__setattr__(self, "otherwise", kept)

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""

        def pay(action: Action) -> Answer:
            if not isinstance(action, PROCEEDING):
                return action
            wait = self.budget.take(self.key)
            if wait is None:
                return action
            if self.otherwise is not None:
                return cast("Strategy", self.otherwise)(context)
            of = f" of {self.key}" if self.key else ""
            when = (
                "a call must succeed first" if math.isinf(wait) else f"one is due in {wait:.3g} s"
            )
            return Escalate(f"{named(context)}: the retry budget{of} is spent; {when}")

        return then(cast("Strategy", self.inner)(context), pay)


@dataclass(frozen=True, eq=False, repr=False)
class behind_gate(Written):  # noqa: N801 - strategies are written like functions
    """What `inner` says, and not before the gate shared with all other runs opens.

    A delay the diagnosis names (`retry_after_s`) holds the gate for everybody. While it is held, a
    Retry or Replan waits until it opens, and up to a quarter of that longer, by `context.draw`, so
    that not all come back together. Where the calls themselves go through the gate, they wait there.

    inner: a strategy or an action. gate: a `RateGate`. key: the service's name; empty by default.
    """

    inner: Strategy | Action
    gate: Gate
    key: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner", as_strategy("behind_gate.inner", self.inner))
        if not isinstance(cast("object", self.gate), Gate):
            raise misuse("behind_gate.gate", self.gate, "a RateGate")
        _check_key("behind_gate.key", self.key)

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""
        asked = context.diagnosis.retry_after_s
        if asked is not None:
            self.gate.hold(self.key, asked)

        def wait_for_it(action: Action) -> Action:
            wait = self.gate.wait_s(self.key) * (1 + _SPREAD * context.draw)
            if isinstance(action, DELAYED) and action.delay < wait:
                return replace(action, delay=wait)
            return action

        return then(cast("Strategy", self.inner)(context), wait_for_it)


def _check_key(field: str, key: object) -> None:
    if not isinstance(key, str):
        raise misuse(field, key, "text", 'name the service, such as "openai"')
