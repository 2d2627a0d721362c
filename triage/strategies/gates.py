"""What runs share about a service: how often it may be called, when, and whether at all.

    gate, breaker = RateGate(concurrency=20), CircuitBreaker()

    async with gate.through("openai"), breaker.through():
        answer = await client.responses.create(...)

Each gate is a plain object in memory, for all threads and event loops of the process. Strategies use
them through the protocols `Budget`, `Gate` and `Breaker`, which a gate shared between processes can
implement as well.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import ClassVar, Final, Protocol, cast, runtime_checkable

from msgspec.structs import force_setattr, replace

from triage.core.actions import DELAYED, PROCEEDING, Action, Escalate
from triage.core.constructors import Struct
from triage.core.environment import Environment
from triage.core.errors import CircuitOpen, RetryBudgetSpent, check_count, check_number, misuse
from triage.core.failures import FailureContext
from triage.core.foreign import attributes_of
from triage.core.observers import child_logger
from triage.core.quoting import quote
from triage.core.waiting import Waits

from .base import Answer, Strategy, answer_of, as_strategy, named, nothing_new, then
from .passage import Passage, Turn, Verdict, delay_after, environment_of, key_of, verdict_of

__all__ = [
    "Breaker",
    "Budget",
    "CircuitBreaker",
    "Gate",
    "RateGate",
    "RetryBudget",
    "circuit_breaker",
]


# `CircuitBreaker`: a service that fails for everybody is left alone until it may have recovered.


_HEARD: Final = "_triage_heard_by"
_MOST_CAUSES = 12
_numbers = itertools.count(1)
_log = child_logger("strategies.gates")


class CircuitBreaker:
    """Counts the failures of one service over all runs of this process. Thread-safe, in memory.

    closed: calls go through and failures are counted; `failures` in a row open it. open: no call goes
    through for `cooldown_s` seconds; `through()` raises `CircuitOpen`, and the strategy
    `circuit_breaker` repeats nothing. half_open: one probe may go. If it fails, the breaker opens
    again; if it succeeds, it closes. After `cooldown_s` without an outcome, another probe may go.

    failures: 5 by default. cooldown_s: seconds, 30 by default. name: of the service, for messages.
    counts: takes the exception of a call and says whether the service is down; None counts answers 5xx
    and 408, requests not sent or not answered, and timeouts as failures, every other answer as a
    success, and nothing else. environment: the clock; None: the machine's. Failures are in a row if
    there is no success and less than `cooldown_s` between them. Share one breaker between all users of
    the service. Raises UsageError for a wrong value.
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
        # When the next probe may start; None while closed.
        self._until: float | None = None
        # The id of the run that may probe next, or the passage of the call that probes.
        self._prober: str | Passage | None = None

    @property
    def state(self) -> str:
        """The current state: `"closed"`, `"open"` or `"half_open"`."""
        with self._lock:
            if self._until is None:
                return "closed"
            probing = self._prober is not None or self._env.monotonic() >= self._until
            return "half_open" if probing else "open"

    def through(self) -> Passage:
        """Let one call through: an `async with`, `with` or decorator that counts what the call raises.

        Raises CircuitOpen on entering while the breaker is open or another call probes.
        """
        return _Call(self, self._env)

    def failure(self, by: str) -> float | None:
        """Report a failure and ask whether `by`, a run's id, may try again.

        Returns None if it may, else the seconds until a probe is allowed.
        """
        with self._lock:
            now = self._env.monotonic()
            if self._until is None:
                return self._counted(now)
            if self._prober == by:
                return self._open(now)
            return self._claim(by, now)

    def ask(self, by: str) -> float | None:
        """Ask whether `by`, a run's id, may try, without reporting a failure. Returns as `failure`."""
        with self._lock:
            return None if self._until is None else self._claim(by, self._env.monotonic())

    def success(self) -> None:
        """Report that the service answered: close, and forget the failures."""
        with self._lock:
            self._count = 0
            self._until = None
            self._prober = None

    def give_up(self, by: str | Passage) -> None:
        """Say that `by` will not probe after all, so that the next to ask may."""
        with self._lock:
            if self._until is not None and self._prober == by:
                self._prober = None
                self._until = self._env.monotonic()

    def heard(self, error: BaseException | None) -> bool:
        """Whether this exception, or a cause of it, was already counted by this breaker."""
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
                # The run that may probe, or another in its place, now makes its call.
                self._prober, self._until = call, now + self.cooldown_s
                return
            wait = self._claim(call, now)
        if wait is not None:
            of = f" {self.name}" if self.name else ""
            message = f"the circuit{of} is open; a probe is allowed in {wait:.3g} s"
            refusal = CircuitOpen(message, name=self.name, retry_after_s=wait)
            self._mark(refusal)
            raise refusal

    def ended(self, call: Passage, error: BaseException | None) -> None:
        """Count the outcome of a call that was let through."""
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
                    self.give_up(call)

    def _judged(self, error: BaseException) -> Verdict:
        if self._counts is None or not isinstance(error, Exception):
            return verdict_of(error)
        try:
            return "down" if self._counts(error) else "unknown"
        except Exception as own:
            _log.warning(
                "CircuitBreaker.counts raised %s; the error is not counted", type(own).__name__
            )
            return "unknown"

    def _mark(self, error: BaseException) -> None:
        own = attributes_of(error)
        own[_HEARD] = (*own.get(_HEARD, ()), self._number)

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
        # The cooldown is over, or the earlier probe has been silent for as long.
        self._prober = by
        self._until = now + self.cooldown_s
        return None

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

    def _ask(self, turn: Callable[[], Turn]) -> float | Turn | None:
        self._breaker.admit(self)
        return None

    def _left(self, error: BaseException | None) -> None:
        self._breaker.ended(self, error)

    def _another(self) -> Passage:
        return self._breaker.through()


# `RetryBudget`: a token bucket for each service, which keeps retries a small share of the calls.


_MANY_KEYS = 1_024
_ALMOST = 1e-9
"""Tolerance for rounding: ten tenths of a token are a token."""


class _Bucket(Struct):
    """The tokens at the time `at`, on the monotonic clock."""

    tokens: float
    at: float


class RetryBudget:
    """How often calls may be repeated, over all runs of this process. Thread-safe, in memory.

    Each key has a bucket. A retry takes a token from it, and is refused if there is none; first calls
    take nothing. While a service is healthy, successes refill the bucket and every retry finds a token.
    When it fails for everybody the bucket is soon empty, and retries no longer multiply the load.

    retries: tokens in a full bucket, from 1, 10 by default; it starts full. per_success: tokens added
    by a success, 0.1 by default: one retry for ten successes. per_second: tokens added by time, 0.1 by
    default. environment: the clock; None: the machine's. Raises UsageError for a wrong value.

    >>> budget = RetryBudget(retries=1, per_second=0)
    >>> budget.take("openai"), budget.take("openai"), budget.take("anthropic")
    (None, inf, None)
    """

    takes_no_time: ClassVar[bool] = True
    """A strategy may ask it in the event loop: it calls nothing of a user's but the clock."""

    def __init__(
        self,
        retries: float = 10,
        *,
        per_success: float = 0.1,
        per_second: float = 0.1,
        environment: Environment | None = None,
    ) -> None:
        check_number("RetryBudget.retries", retries, "tokens", least=1.0)
        check_number("RetryBudget.per_success", per_success, "tokens")
        check_number("RetryBudget.per_second", per_second, "tokens")
        self.retries = retries
        self.per_success = per_success
        self.per_second = per_second
        self._env = environment_of("RetryBudget.environment", environment)
        self._lock = RLock()
        self._buckets: dict[str, _Bucket] = {}

    def through(self, key: str = "", *, retry: bool = False) -> Passage:
        """Let one call through: an `async with`, `with` or decorator. A success adds to the bucket.

        retry: True for a repeated call, which takes a token; without one, entering raises
        RetryBudgetSpent. It never waits.
        """
        if not isinstance(retry, bool):
            raise misuse("RetryBudget.through retry", retry, "True or False")
        return _BudgetCall(self, self._env, key_of("RetryBudget.through key", key), retry=retry)

    def take(self, key: str = "") -> float | None:
        """Take the token for one retry. Returns None if taken, else the seconds until there is one.

        `inf` means that time alone brings none; a success still may.
        """
        with self._lock:
            bucket = self._bucket(key_of("RetryBudget.take key", key))
            missing = 1.0 - bucket.tokens
            if missing <= _ALMOST:
                bucket.tokens = max(0.0, bucket.tokens - 1.0)
                return None
        return missing / self.per_second if self.per_second else math.inf

    def success(self, key: str = "") -> None:
        """Report a successful call, which adds `per_success` tokens to the bucket of its key."""
        key_of("RetryBudget.success key", key)
        with self._lock:
            if key in self._buckets:  # a bucket that was never used is full
                bucket = self._bucket(key)
                bucket.tokens = min(self.retries, bucket.tokens + self.per_success)

    def left(self, key: str = "") -> float:
        """Return the tokens in the bucket of this key."""
        with self._lock:
            key_of("RetryBudget.left key", key)
            return self._bucket(key).tokens if key in self._buckets else float(self.retries)

    def _bucket(self, key: str) -> _Bucket:
        now = self._env.monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MANY_KEYS:
                for known, other in list(self._buckets.items()):
                    self._fill(other, now)
                    if other.tokens >= self.retries:  # as good as a new one
                        del self._buckets[known]
            bucket = self._buckets[key] = _Bucket(tokens=float(self.retries), at=now)
        self._fill(bucket, now)
        return bucket

    def _fill(self, bucket: _Bucket, now: float) -> None:
        grown = bucket.tokens + max(0.0, now - bucket.at) * self.per_second
        bucket.tokens = min(float(self.retries), grown)
        bucket.at = now

    def __repr__(self) -> str:
        return (
            f"RetryBudget(retries={self.retries}, per_success={self.per_success}, "
            f"per_second={self.per_second})"
        )


class _BudgetCall(Passage):
    def __init__(
        self, budget: RetryBudget, environment: Environment, key: str, *, retry: bool
    ) -> None:
        super().__init__(environment)
        self._budget = budget
        self._key = key
        self._retry = retry

    def _ask(self, turn: Callable[[], Turn]) -> float | Turn | None:
        wait = self._budget.take(self._key) if self._retry else None
        if wait is not None:
            of = f" of {self._key}" if self._key else ""
            never = math.isinf(wait)
            when = "a success must come first" if never else f"one is allowed in {wait:.3g} s"
            message = f"the retry budget{of} is spent; {when}"
            raise RetryBudgetSpent(message, key=self._key, retry_after_s=wait)
        return None

    def _left(self, error: BaseException | None) -> None:
        if error is None:
            self._budget.success(self._key)

    def _another(self) -> Passage:
        return self._budget.through(self._key, retry=self._retry)


# `RateGate`: a delay asked of one call holds all of them back; first come, first served.

_NOW = 1e-6
"""Seconds that are not worth waiting for, as they may be only rounding."""
_RAMP_S = 10.0
"""Seconds after a hold during which calls start at a growing pace."""
_SLOWLY_S = 10.0
"""Seconds in which the pace doubles, where the earlier pace is known."""
_KNOWN = 8
"""Starts in one second from which the pace of a service counts as known."""


class _Line:
    """The state of one key.

    active: calls inside. queue: waiting calls, oldest first. until: when the hold ends. next_at: when
    the pace allows the next call. ramp: how calls start after a hold, None once that is over.
    """

    __slots__ = (
        "_before", "_count", "_second", "active", "next_at", "queue", "ramp", "until", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.active = 0
        self.queue: deque[_RateCall] = deque()
        self.until = -math.inf
        self.next_at = -math.inf
        self.ramp: _Ramp | None = None
        self.waits = Waits()
        # Starts in the current second, and in the one before.
        self._second = 0
        self._count = 0
        self._before = 0

    def wake(self) -> None:
        """Make the first call in the queue ask again."""
        while self.queue:
            turn = self.queue[0].turn
            if turn is None or turn.wake():  # without a turn, it is sleeping and asks by itself
                return
            self.queue.popleft().queued = False  # its event loop is gone

    def hold(self, now: float, seconds: float) -> None:
        """Let no call start for so many seconds."""
        self.until = max(self.until, now + seconds)
        if self.ramp is None or self.ramp.opened is not None:
            self._roll(now)
            self.ramp = _Ramp(max(self._count, self._before))

    def start(self, now: float, gap: float) -> None:
        """Start a call. The next may start after `gap` seconds, or later if a hold has just ended."""
        self.active += 1
        self._roll(now)
        self._count += 1
        self.next_at = max(self.next_at, now) + gap if gap else now
        if self.ramp is not None:
            self.next_at = max(self.next_at, self.ramp.next_at(now))
            if self.ramp.over:
                self.ramp = None

    def _roll(self, now: float) -> None:
        second = math.floor(now)
        if second != self._second:
            self._before = self._count if second == self._second + 1 else 0
            self._second, self._count = second, 0


class _Ramp:
    """The pace after a hold, which grows back to the old one.

    pace: starts per second before the hold. If that is known, the new pace begins at half of it and
    doubles in ten seconds; else with one start in the first second, two in the next, then four.
    """

    __slots__ = ("_doubles_s", "_first", "_started", "opened", "over")

    def __init__(self, pace: int) -> None:
        known = pace >= _KNOWN
        self._doubles_s = _SLOWLY_S if known else 1.0
        self._first = pace / 2 * _SLOWLY_S / math.log(2) if known else 1.0
        self._started = 0
        self.opened: float | None = None
        self.over = False

    def next_at(self, now: float) -> float:
        """Count a start now, and return when the next may follow."""
        if self.opened is None:
            self.opened = now
        self._started += 1
        doublings = math.log2(1 + self._started / self._first)
        self.over = now - self.opened >= _RAMP_S
        return self.opened + self._doubles_s * doublings


class RateGate:
    """Starts calls of a service as fast as it accepts them, over all runs of this process.

    A call that is refused with a delay (such as `Retry-After`) holds back all others of its key for
    that long; one refused with 429 or 529 and no delay, for a second. After a hold, calls start at half
    their earlier pace, or one by one where there were few, and then faster every second, so that the
    waiting calls do not all come back at once. Calls wait in order of arrival; a cancelled one leaves
    no gap. One gate serves asyncio, trio and threads alike.

    concurrency: calls of one key at a time, None for any number. per_second: calls of one key that may
    start per second, evenly spaced; None for any number. longest_s: the maximum seconds of a hold, 300
    by default; a longer one is cut. environment: clock and sleep; None: the machine's. Raises
    UsageError for a wrong value.
    """

    def __init__(
        self,
        concurrency: int | None = None,
        *,
        per_second: float | None = None,
        longest_s: float = 300.0,
        environment: Environment | None = None,
    ) -> None:
        if concurrency is not None:
            check_count("RateGate.concurrency", concurrency, 1, "None for any number")
        if per_second is not None:
            remedy = "None for any number"
            check_number("RateGate.per_second", per_second, "calls", above=True, remedy=remedy)
        check_number("RateGate.longest_s", longest_s, "seconds")
        self.concurrency = concurrency
        self.per_second = per_second
        self.longest_s = longest_s
        self._env = environment_of("RateGate.environment", environment)
        self._lock = RLock()
        self._lines: dict[str, _Line] = {}

    def through(self, key: str = "") -> Passage:
        """Let one call through: an `async with`, `with` or decorator, which waits its turn on entering.

        A delay named by what the call raises holds the key.
        """
        return _RateCall(self, self._env, key_of("RateGate.through key", key))

    def hold(self, key: str, seconds: float) -> None:
        """Let no call of this key start for so many seconds, at most `longest_s`. A longer hold stays.

        Calls already inside go on. Raises UsageError for a negative or infinite number.
        """
        key_of("RateGate.hold key", key)
        check_number("RateGate.hold seconds", seconds, "seconds")
        with self._lock:
            self._line(key).hold(self._env.monotonic(), min(seconds, self.longest_s))

    def wait_s(self, key: str = "") -> float:
        """Return the seconds left of this key's hold, 0 without one; time in the queue is not included."""
        with self._lock:
            line = self._lines.get(key_of("RateGate.wait_s key", key))
            return 0.0 if line is None else max(0.0, line.until - self._env.monotonic())

    def waiting(self, key: str = "") -> int:
        """Count the calls that wait for their turn."""
        with self._lock:
            line = self._lines.get(key_of("RateGate.waiting key", key))
            return 0 if line is None else len(line.queue)

    # What a call does -----------------------------------------------------------------------------

    def ask(self, call: _RateCall, turn: Callable[[], Turn]) -> float | Turn | None:
        """Return None if the call is now inside, else what it must wait for before it asks again."""
        with self._lock:
            line = self._line(call.key)
            first = not line.queue or line.queue[0] is call
            wait = 0.0
            if first:
                now = self._env.monotonic()
                wait = float(max(line.until, line.next_at) - now)
                if wait <= _NOW and (self.concurrency is None or line.active < self.concurrency):
                    line.start(now, 1.0 / self.per_second if self.per_second is not None else 0.0)
                    if call.queued:
                        call.queued = False
                        line.queue.popleft()
                        line.wake()
                    return None
            if not call.queued:
                call.queued = True
                line.queue.append(call)
            if wait > _NOW:
                call.turn = None
                return wait
            call.turn = turn()
            return call.turn

    def say(self, key: str, seconds: float | None) -> None:
        """Log that calls of this key wait, once until none does. seconds: None in the queue."""
        with self._lock:
            waits = self._line(key).waits
        of = f" for {quote(key)}" if key else ""
        if seconds is None:
            why, kind = f"{self.concurrency} calls are inside, and others wait in line", "queue"
            most, remedy = "until one of them ends", "RateGate(concurrency=…)"
        else:
            why, kind = "the other side asked to wait, or calls are spaced", "hold"
            most = f"at most {self.longest_s:g} s for a hold"
            remedy = "RateGate(longest_s=…, per_second=…)"
        waits.say(kind, f"a call through a RateGate{of}", seconds, why, most, remedy)

    def withdraw(self, call: _RateCall) -> None:
        """Take a call out of the queue."""
        with self._lock:
            line = self._lines.get(call.key)
            if line is None or not call.queued:
                return
            call.queued = False
            first = line.queue[0] is call
            line.queue.remove(call)
            if first:
                line.wake()
            self._forget_idle(call.key, line)

    def leave(self, call: _RateCall, error: BaseException | None) -> None:
        """End a call that was inside."""
        delay = None if error is None else delay_after(error)
        with self._lock:
            line = self._line(call.key)
            line.active -= 1
            if delay is not None:
                line.hold(self._env.monotonic(), min(delay, self.longest_s))
            line.wake()
            self._forget_idle(call.key, line)

    # Under the lock -------------------------------------------------------------------------------

    def _line(self, key: str) -> _Line:
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= _MANY_KEYS:
                for known, other in list(self._lines.items()):
                    if self._idle(other):
                        del self._lines[known]
            line = self._lines[key] = _Line()
        return line

    def _forget_idle(self, key: str, line: _Line) -> None:
        if line.ramp is None and self._idle(line):
            self._lines.pop(key, None)

    def _idle(self, line: _Line) -> bool:
        busy = line.active or line.queue
        return not busy and max(line.until, line.next_at) <= self._env.monotonic()

    def __repr__(self) -> str:
        return f"RateGate(concurrency={self.concurrency}, per_second={self.per_second})"


class _RateCall(Passage):
    def __init__(self, gate: RateGate, environment: Environment, key: str) -> None:
        super().__init__(environment)
        self.gate = gate
        self.key = key
        self.queued = False
        self.turn: Turn | None = None

    def _ask(self, turn: Callable[[], Turn]) -> float | Turn | None:
        return self.gate.ask(self, turn)

    def _say(self, seconds: float | None = None) -> None:
        self.gate.say(self.key, seconds)

    def _withdraw(self) -> None:
        self.gate.withdraw(self)

    def _left(self, error: BaseException | None) -> None:
        self.gate.leave(self, error)

    def _another(self) -> Passage:
        return self.gate.through(self.key)


# What strategies need of a gate: three small protocols, in which no method waits or does I/O.


@runtime_checkable
class Budget(Protocol):
    """How many calls may be repeated. `RetryBudget` implements it in memory."""

    def take(self, key: str = "") -> float | None:
        """Pay for one retry. Returns None if paid, else the seconds until it can be, `inf` for never."""
        ...

    def success(self, key: str = "") -> None:
        """Report a successful call."""
        ...


@runtime_checkable
class Gate(Protocol):
    """When a call may be made. `RateGate` implements it in memory."""

    def hold(self, key: str, seconds: float) -> None:
        """Hold back all calls for so many seconds."""
        ...

    def wait_s(self, key: str = "") -> float:
        """Return the seconds for which calls are still held back, 0 for none."""
        ...

    def through(self, key: str = "") -> Passage:
        """One call's way through: `async with`, `with` or a decorator."""
        ...


@runtime_checkable
class Breaker(Protocol):
    """Whether a service is called at all. `CircuitBreaker` implements it in memory."""

    @property
    def failures(self) -> int:
        """Failures in a row that open it."""
        ...

    @property
    def cooldown_s(self) -> float:
        """Seconds until a probe."""
        ...

    def ask(self, by: str) -> float | None:
        """Return None if `by`, a run's id, may try, else the seconds until a probe is allowed."""
        ...

    def failure(self, by: str) -> float | None:
        """Count a failure, then answer as `ask`."""
        ...

    def success(self) -> None:
        """Say that the service answered."""
        ...

    def give_up(self, by: str) -> None:
        """Say that `by` will not probe after all."""
        ...

    def heard(self, error: BaseException | None) -> bool:
        """Whether this failure was already counted where the call was made."""
        ...

    def through(self) -> Passage:
        """One call's way through: `async with`, `with` or a decorator."""
        ...


# The strategy of a `CircuitBreaker`.


class circuit_breaker(Struct, frozen=True):
    """Answer as `inner` while the breaker is closed, and escalate while it is open.

    Every failure this strategy is given counts, so use it for the failure types or causes of an outage.
    A failure already counted where the call was made (`breaker.through()`) does not count again. The
    reason says when the next probe is allowed. After the cooldown, the first run that fails may do what
    `inner` says, as the probe. If calls do not go through the breaker, it learns only of failures: call
    `breaker.success()` where the service answers.

    breaker: shared by all policies for the same service. inner: a strategy, sync or async, or an
    action.
    """

    is_composite: ClassVar[bool] = True
    breaker: Breaker
    inner: Strategy | Action

    def __post_init__(self) -> None:
        if not isinstance(self.breaker, Breaker):
            raise misuse("circuit_breaker.breaker", self.breaker, "a CircuitBreaker")
        force_setattr(self, "inner", as_strategy("circuit_breaker.inner", self.inner))

    @property
    def same_again(self) -> bool:
        """Whether inner only tries again."""
        return nothing_new((self.inner,))

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""
        heard = self.breaker.heard(context.exception)
        ask = self.breaker.ask if heard else self.breaker.failure
        wait = ask(context.run_id)
        context.note(f"breaker:{getattr(self.breaker, 'name', '')}", wait)
        if wait is not None:
            when = f"a probe is allowed in {wait:.3g} s"
            often = f"opened by {self.breaker.failures} failures in a row"
            return Escalate(f"the circuit is open, {often}; {when}")

        def release(action: Action) -> Action:
            if not isinstance(action, PROCEEDING):
                self.breaker.give_up(context.run_id)
            return action

        # If `inner` raises, its place as the probe expires as that of a silent probe does.
        return then(answer_of(cast("Strategy", self.inner), context), release)


# The strategies of a `RetryBudget` and a `RateGate`.


_SPREAD = 0.25


class within_budget(Struct, frozen=True):
    """Answer as `inner` while the budget, which all runs share, has a token for it.

    Retry, Replan, Rollback and Resume each take a token, because they call the function again; other
    actions are free. Without a token: `otherwise`, or Escalate with the reason if it is None.

    inner: a strategy or an action. budget: a `RetryBudget`. key: the bucket, such as the service's
    name; empty by default. otherwise: a strategy or an action, such as `Suspend("Go on later?")`.
    """

    is_composite: ClassVar[bool] = True
    inner: Strategy | Action
    budget: Budget
    key: str = ""
    otherwise: Strategy | Action | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "inner", as_strategy("within_budget.inner", self.inner))
        if not isinstance(self.budget, Budget):
            raise misuse("within_budget.budget", self.budget, "a RetryBudget")
        key_of("within_budget.key", self.key)
        if self.otherwise is not None:
            kept = as_strategy("within_budget.otherwise", self.otherwise)
            force_setattr(self, "otherwise", kept)

    @property
    def same_again(self) -> bool:
        """Whether inner and otherwise only try again."""
        return nothing_new((self.inner, self.otherwise))

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""

        def pay(action: Action) -> Answer:
            if not isinstance(action, PROCEEDING):
                return action
            wait = self.budget.take(self.key)
            context.note(f"budget:{self.key}", "never" if wait == math.inf else wait)
            if wait is None:
                return action
            if self.otherwise is not None:
                return answer_of(cast("Strategy", self.otherwise), context)
            of = f" of {self.key}" if self.key else ""
            when = (
                "a call must succeed first" if math.isinf(wait) else f"one is due in {wait:.3g} s"
            )
            return Escalate(f"{named(context)}: the retry budget{of} is spent; {when}")

        return then(answer_of(cast("Strategy", self.inner), context), pay)


class behind_gate(Struct, frozen=True):
    """Answer as `inner`, but not before the gate, which all runs share, opens.

    A delay named by the diagnosis (`retry_after_s`) holds the gate for everybody. Meanwhile a Retry or
    Replan waits until it opens, plus up to a quarter of that by `context.draw`, so that runs do not all
    come back together. Calls that themselves go through the gate wait there.

    inner: a strategy or an action. gate: a `RateGate`. key: the service's name; empty by default.
    """

    is_composite: ClassVar[bool] = True
    inner: Strategy | Action
    gate: Gate
    key: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "inner", as_strategy("behind_gate.inner", self.inner))
        if not isinstance(self.gate, Gate):
            raise misuse("behind_gate.gate", self.gate, "a RateGate")
        key_of("behind_gate.key", self.key)

    @property
    def same_again(self) -> bool:
        """Whether inner only tries again."""
        return nothing_new((self.inner,))

    def __call__(self, context: FailureContext) -> Answer:
        """What to do about this failure."""
        asked = context.diagnosis.retry_after_s
        if asked is not None:
            self.gate.hold(self.key, asked)

        def wait_for_it(action: Action) -> Action:
            held = self.gate.wait_s(self.key)
            context.note(f"gate:{self.key}", held)
            wait = held * (1 + _SPREAD * context.draw)
            if isinstance(action, DELAYED) and action.delay < wait:
                return replace(action, delay=wait)
            return action

        return then(answer_of(cast("Strategy", self.inner), context), wait_for_it)
