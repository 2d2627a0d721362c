"""`CircuitBreaker`: a service that fails for everybody is not asked until it may be well again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from logging import getLogger
from threading import RLock
from typing import TYPE_CHECKING, Final

from triage._capture._trust import attributes_of
from triage._options import check_count, check_number, misuse
from triage.errors import CircuitOpen

from ._heard import Verdict, verdict_of
from ._passage import Passage, environment_of, key_of

if TYPE_CHECKING:
    from triage._env import Environment

    from ._turn import Turn

_HEARD: Final = "_triage_heard_by"
_MOST_CAUSES = 12
_numbers = itertools.count(1)
_log = getLogger("triage.gates")


class CircuitBreaker:
    """Counts the failures of one service over all runs of this process. Thread-safe, in memory.

    closed: calls go through, failures are counted. After `failures` of them in a row it opens.
    open: no call goes through for `cooldown_s` seconds; `through()` raises `CircuitOpen`, and the
    strategy `circuit_breaker` repeats nothing. half_open: one probe may go. If it fails the breaker
    opens again, if it succeeds it closes. A probe that is silent for `cooldown_s` gives its place
    to another.

    failures: 5 by default. cooldown_s: seconds, 30 by default. name: of the service, for messages.
    counts: takes the exception that left a call and says whether the service is down; None: answers
    5xx and 408, requests not sent or not answered, and timeouts are failures, every other answer is
    a success, and anything else says nothing. environment: the clock; None: the machine's. Failures
    are in a row while no success comes and no `cooldown_s` pass between two. Share one breaker
    between all that use the service. Raises UsageError for a wrong value.
    """

    def __init__(
        self,
        failures: int = 5,
        cooldown_s: float = 30.0,
        *,
        name: str = "",
        counts: Callable[[BaseException], bool] | None = None,
        environment: Environment | None = None,
    ) -> None:
        check_count("CircuitBreaker.failures", failures, 1)
        check_number("CircuitBreaker.cooldown_s", cooldown_s, "seconds", above=True)
        if counts is not None and not callable(counts):
            raise misuse("CircuitBreaker.counts", counts, "a function of the exception or None")
        self.failures = failures
        self.cooldown_s = cooldown_s
        self.name = key_of("CircuitBreaker.name", name)
        self._counts = counts
        self._env = environment_of("CircuitBreaker.environment", environment)
        self._lock = RLock()
        self._number = next(_numbers)
        self._count = 0
        self._last = 0.0
        # While closed None; else when the next probe may start.
        self._until: float | None = None
        # A run's id, which has said that it will try, or the passage of a call.
        self._prober: str | Passage | None = None

    @property
    def state(self) -> str:
        """What it is now: `"closed"`, `"open"` or `"half_open"`."""
        with self._lock:
            if self._until is None:
                return "closed"
            probing = self._prober is not None or self._env.monotonic() >= self._until
            return "half_open" if probing else "open"

    def through(self) -> Passage:
        """One call's way through: `async with`, `with` or a decorator; what the call raises counts.

        Raises CircuitOpen on entering while the breaker is open, and while another call probes.
        """
        return _Call(self, self._env)

    def failure(self, by: str) -> float | None:
        """Report a failure and ask whether `by`, a run's id, may try again.

        None: it may. Otherwise the seconds until a probe is allowed.
        """
        with self._lock:
            now = self._env.monotonic()
            if self._until is None:
                return self._counted(now)
            if self._prober == by:
                return self._open(now)
            return self._claim(by, now)

    def ask(self, by: str) -> float | None:
        """Ask whether `by`, a run's id, may try, without reporting anything. As `failure` answers."""
        with self._lock:
            return None if self._until is None else self._claim(by, self._env.monotonic())

    def success(self) -> None:
        """Report that the service answered: close, and forget the failures."""
        with self._lock:
            self._count = 0
            self._until = None
            self._prober = None

    def give_up(self, by: str) -> None:
        """Say that `by` does not probe after all: the next to ask may."""
        self._release(by)

    def heard(self, error: BaseException | None) -> bool:
        """True if this exception, or what caused it, went through this breaker and was counted."""
        seen = 0
        while error is not None and seen < _MOST_CAUSES:
            if self._number in attributes_of(error).get(_HEARD, ()):
                return True
            error = error.__cause__ or error.__context__
            seen += 1
        return False

    # What a call does -----------------------------------------------------------------------------

    def admit(self, call: Passage) -> None:
        """Let a call through. Raises CircuitOpen."""
        with self._lock:
            if self._until is None:
                return
            now = self._env.monotonic()
            if isinstance(self._prober, str):
                # The run that was to probe calls now, or another does so in its place.
                self._prober, self._until = call, now + self.cooldown_s
                return
            wait = self._claim(call, now)
        if wait is not None:
            refusal = self._refusal(wait)
            self._mark(refusal)
            raise refusal

    def ended(self, call: Passage, error: BaseException | None) -> None:
        """A call that was let through has ended."""
        verdict = "up" if error is None else self._judged(error)
        if verdict == "down" and error is not None:
            self._mark(error)
        with self._lock:
            if self._until is None:
                if verdict == "down":
                    self._counted(self._env.monotonic())
                elif verdict == "up":
                    self._count = 0
            elif self._prober is call:
                if verdict == "up":
                    self.success()
                elif verdict == "down":
                    self._open(self._env.monotonic())
                else:
                    self._release(call)

    def _judged(self, error: BaseException) -> Verdict:
        if self._counts is None or not isinstance(error, Exception):
            return verdict_of(error)
        try:
            return "down" if self._counts(error) else "unknown"
        except Exception as own:  # noqa: BLE001 - the call's error must reach its caller
            _log.warning(
                "CircuitBreaker.counts raised %s; the error is not counted", type(own).__name__
            )
            return "unknown"

    def _mark(self, error: BaseException) -> None:
        own = attributes_of(error)
        own[_HEARD] = (*own.get(_HEARD, ()), self._number)

    def _refusal(self, wait: float) -> CircuitOpen:
        named = f" {self.name}" if self.name else ""
        message = f"the circuit{named} is open; a probe is allowed in {wait:.3g} s"
        return CircuitOpen(message, name=self.name, retry_after_s=wait)

    # Under the lock -------------------------------------------------------------------------------

    def _counted(self, now: float) -> float | None:
        quiet = now - self._last >= self.cooldown_s
        self._count = 1 if quiet else self._count + 1
        self._last = now
        return self._open(now) if self._count >= self.failures else None

    def _claim(self, by: str | Passage, now: float) -> float | None:
        assert self._until is not None
        if self._prober == by:
            return None
        if now < self._until:
            return self._until - now
        # The cooldown is over, or the probe has been silent for as long: this one probes.
        self._prober = by
        self._until = now + self.cooldown_s
        return None

    def _release(self, by: str | Passage) -> None:
        with self._lock:
            if self._until is not None and self._prober == by:
                self._prober = None
                self._until = self._env.monotonic()

    def _open(self, now: float) -> float:
        self._prober = None
        self._until = now + self.cooldown_s
        return self.cooldown_s

    def __repr__(self) -> str:
        named = f", name={self.name!r}" if self.name else ""
        return f"CircuitBreaker(failures={self.failures}, cooldown_s={self.cooldown_s}{named})"


class _Call(Passage):
    def __init__(self, breaker: CircuitBreaker, environment: Environment) -> None:
        super().__init__(environment)
        self._breaker = breaker

    def _ask(self, turn: Callable[[], Turn]) -> float | Turn | None:  # noqa: ARG002 - nobody waits here
        self._breaker.admit(self)
        return None

    def _left(self, error: BaseException | None) -> None:
        self._breaker.ended(self, error)

    def _another(self) -> Passage:
        return self._breaker.through()
