"""`RetryBudget`: a token bucket for each service, so that retries stay a small part of the calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING

from triage._options import check_number, misuse
from triage.errors import RetryBudgetSpent

from ._passage import Passage, environment_of, key_of

if TYPE_CHECKING:
    from triage._env import Environment

    from ._turn import Turn

_MANY_KEYS = 1_024
_ALMOST = 1e-9
"""Ten tenths of a token are a token, whatever floating point makes of them."""


class _Bucket:
    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at


class RetryBudget:
    """How often calls may be repeated, over all runs of this process. Thread-safe, in memory.

    Each key has a bucket. A retry takes one token of it, and is refused where there is none. First
    calls take nothing. While a service is well, successes fill the bucket and each retry finds a
    token; when it fails for everybody the bucket is soon empty, and retries no longer multiply the
    load.

    retries: tokens a full bucket has, from 1, 10 by default; it starts full. per_success: tokens a
    success puts in, 0.1 by default: one retry for ten successes. per_second: tokens that come by
    themselves, 0.1 by default. environment: the clock; None: the machine's. Raises UsageError for a
    wrong value.

    >>> budget = RetryBudget(retries=1, per_second=0)
    >>> budget.take("openai"), budget.take("openai"), budget.take("anthropic")
    (None, inf, None)
    """

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
        """One call's way through: `async with`, `with` or a decorator. A success fills the bucket.

        retry: True for a call that is made again: it takes a token, and RetryBudgetSpent is raised
        on entering where there is none. It never waits.
        """
        if not isinstance(retry, bool):
            raise misuse("RetryBudget.through retry", retry, "True or False")
        return _Call(self, self._env, key_of("RetryBudget.through key", key), retry=retry)

    def take(self, key: str = "") -> float | None:
        """Take the token for one retry. None: taken. Else seconds until there is one, `inf` for never.

        Never counts only time: a success brings tokens too.
        """
        with self._lock:
            bucket = self._bucket(key_of("RetryBudget.take key", key))
            missing = 1.0 - bucket.tokens
            if missing <= _ALMOST:
                bucket.tokens = max(0.0, bucket.tokens - 1.0)
                return None
        return missing / self.per_second if self.per_second else math.inf

    def success(self, key: str = "") -> None:
        """Say that a call has succeeded: its key's bucket gets `per_success` tokens."""
        key_of("RetryBudget.success key", key)
        with self._lock:
            if key in self._buckets:  # one that was never taken from is full
                bucket = self._bucket(key)
                bucket.tokens = min(self.retries, bucket.tokens + self.per_success)

    def left(self, key: str = "") -> float:
        """Tokens in the bucket of this key."""
        with self._lock:
            key_of("RetryBudget.left key", key)
            return self._bucket(key).tokens if key in self._buckets else float(self.retries)

    def _bucket(self, key: str) -> _Bucket:
        now = self._env.monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MANY_KEYS:
                self._drop_full(now)
            bucket = self._buckets[key] = _Bucket(float(self.retries), now)
        self._fill(bucket, now)
        return bucket

    def _fill(self, bucket: _Bucket, now: float) -> None:
        grown = bucket.tokens + max(0.0, now - bucket.at) * self.per_second
        bucket.tokens = min(float(self.retries), grown)
        bucket.at = now

    def _drop_full(self, now: float) -> None:
        """Forget the buckets that are like new ones."""
        for key, bucket in list(self._buckets.items()):
            self._fill(bucket, now)
            if bucket.tokens >= self.retries:
                del self._buckets[key]

    def __repr__(self) -> str:
        return (
            f"RetryBudget(retries={self.retries}, per_success={self.per_success}, "
            f"per_second={self.per_second})"
        )


class _Call(Passage):
    def __init__(
        self, budget: RetryBudget, environment: Environment, key: str, *, retry: bool
    ) -> None:
        super().__init__(environment)
        self._budget = budget
        self._key = key
        self._retry = retry

    def _ask(self, turn: Callable[[], Turn]) -> float | Turn | None:  # noqa: ARG002 - nobody waits here
        wait = self._budget.take(self._key) if self._retry else None
        if wait is not None:
            raise RetryBudgetSpent(spent(self._key, wait), key=self._key, retry_after_s=wait)
        return None

    def _left(self, error: BaseException | None) -> None:
        if error is None:
            self._budget.success(self._key)

    def _another(self) -> Passage:
        return self._budget.through(self._key, retry=self._retry)


def spent(key: str, wait: float) -> str:
    """The sentence that says so."""
    named = f" of {key}" if key else ""
    when = "a success must come first" if math.isinf(wait) else f"one is allowed in {wait:.3g} s"
    return f"the retry budget{named} is spent; {when}"
