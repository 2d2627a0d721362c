"""Stop repeating what keeps failing for everybody: the strategy of a `CircuitBreaker`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from triage._options import misuse
from triage._written import Written
from triage.actions import PROCEEDING, Action, Escalate
from triage.gates import Breaker, CircuitBreaker

from ._base import Answer, Strategy, as_strategy, then

if TYPE_CHECKING:
    from triage.failures import FailureContext

__all__ = ["CircuitBreaker", "circuit_breaker"]


@dataclass(frozen=True, eq=False, repr=False)
class circuit_breaker(Written):  # noqa: N801 - strategies are written like functions
    """`inner` while the breaker is closed, Escalate while it is open.

    Every failure this strategy is asked about counts, so give it to the failure types or causes of
    an outage; one that was counted where the call was made (`breaker.through()`) does not count
    again. The reason says when the next probe is allowed. When the cooldown is over, the first
    run that fails may do what `inner` says, as the probe. A breaker whose calls do not go through
    it hears of failures only: call `breaker.success()` where the service answers.

    breaker: shared by all policies for the same service. inner: a strategy, sync or async, or an
    action.
    """

    breaker: Breaker
    inner: Strategy | Action

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.breaker), Breaker):
            raise misuse("circuit_breaker.breaker", self.breaker, "a CircuitBreaker")
        object.__setattr__(self, "inner", as_strategy("circuit_breaker.inner", self.inner))

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""
        heard = self.breaker.heard(context.exception)
        ask = self.breaker.ask if heard else self.breaker.failure
        wait = ask(context.run_id)
        if wait is not None:
            when = f"a probe is allowed in {wait:.3g} s"
            often = f"opened by {self.breaker.failures} failures in a row"
            return Escalate(f"the circuit is open, {often}; {when}")

        def release(action: Action) -> Action:
            if not isinstance(action, PROCEEDING):
                self.breaker.give_up(context.run_id)
            return action

        # An inner that raises keeps the probe's place no longer than a silent probe would.
        return then(cast("Strategy", self.inner)(context), release)
