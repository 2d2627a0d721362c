"""Stop repeating what keeps failing for everybody: `CircuitBreaker` and its strategy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, cast

from triage._options import check_count, check_number, misuse
from triage.actions import Action, Escalate, Replan, Resume, Retry, Rollback

from ._base import Answer, Strategy, Written, as_strategy, then

if TYPE_CHECKING:
    from triage.failures import FailureContext


class CircuitBreaker:
    """Counts failures of one service over all runs of this process. Thread-safe; nothing is stored.

    closed: failures are counted. After `failures` of them in a row it opens. open: nothing may be
    repeated for `cooldown_s` seconds. half_open: one run may probe. If the probe fails it opens
    again; if `success()` is reported it closes. A probe that is silent for `cooldown_s` gives its
    place to another.

    failures: 5 by default. cooldown_s: seconds, 30 by default. clock: seconds, rising. Failures are
    in a row while no success is reported and no `cooldown_s` pass without one. Share one breaker
    between the policies of all agents that use the service. Raises UsageError for a wrong value.
    """

    def __init__(
        self,
        failures: int = 5,
        cooldown_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_count("CircuitBreaker.failures", failures, 1)
        check_number("CircuitBreaker.cooldown_s", cooldown_s, "seconds", above=True)
        if not callable(clock):
            raise misuse("CircuitBreaker.clock", clock, "a function that returns seconds")
        self.failures = failures
        self.cooldown_s = cooldown_s
        self._clock = clock
        self._lock = Lock()
        self._count = 0
        self._last = 0.0
        # While closed None; else when the next probe may start.
        self._until: float | None = None
        self._prober: str | None = None

    @property
    def state(self) -> str:
        """What it is now: `"closed"`, `"open"` or `"half_open"`."""
        with self._lock:
            if self._until is None:
                return "closed"
            probing = self._prober is not None or self._clock() >= self._until
            return "half_open" if probing else "open"

    def failure(self, by: str) -> float | None:
        """Report a failure and ask whether `by`, a run's id, may try again.

        None: it may. Otherwise the seconds until a probe is allowed.
        """
        with self._lock:
            now = self._clock()
            if self._until is None:
                quiet = now - self._last >= self.cooldown_s
                self._count = 1 if quiet else self._count + 1
                self._last = now
                return self._open(now) if self._count >= self.failures else None
            if self._prober == by:
                return self._open(now)
            if now < self._until:
                return self._until - now
            # The cooldown is over, or the probe has been silent for as long: this one probes.
            self._prober = by
            self._until = now + self.cooldown_s
            return None

    def success(self) -> None:
        """Report that the service answered: close, and forget the failures."""
        with self._lock:
            self._count = 0
            self._until = None
            self._prober = None

    def give_up(self, by: str) -> None:
        """Say that `by` does not probe after all: the next to ask may."""
        with self._lock:
            if self._until is not None and self._prober == by:
                self._prober = None
                self._until = self._clock()

    def _open(self, now: float) -> float:
        self._prober = None
        self._until = now + self.cooldown_s
        return self.cooldown_s

    def __repr__(self) -> str:
        return f"CircuitBreaker(failures={self.failures}, cooldown_s={self.cooldown_s})"


@dataclass(frozen=True, eq=False, repr=False)
class circuit_breaker(Written):  # noqa: N801 - strategies are written like functions
    """`inner` while the breaker is closed, Escalate while it is open.

    Every failure this strategy is asked about counts, so give it to the failure types or causes of
    an outage. The reason says when the next probe is allowed. When the cooldown is over, the first
    run that fails may do what `inner` says, as the probe. The breaker hears of failures only:
    call `breaker.success()` where the service answers.

    breaker: shared by all policies for the same service. inner: a strategy, sync or async, or an
    action.
    """

    breaker: CircuitBreaker
    inner: Strategy | Action

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.breaker), CircuitBreaker):
            raise misuse("circuit_breaker.breaker", self.breaker, "a CircuitBreaker")
        object.__setattr__(self, "inner", as_strategy("circuit_breaker.inner", self.inner))

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""
        wait = self.breaker.failure(context.run_id)
        if wait is not None:
            when = f"a probe is allowed in {wait:.3g} s"
            return Escalate(
                f"the circuit is open, opened by {self.breaker.failures} failures in a row; {when}"
            )

        def release(action: Action) -> Action:
            if not isinstance(action, Retry | Replan | Rollback | Resume):
                self.breaker.give_up(context.run_id)
            return action

        # An inner that raises keeps the probe's place no longer than a silent probe would.
        return then(cast("Strategy", self.inner)(context), release)
