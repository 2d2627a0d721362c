"""How long to wait before a retry: `Backoff`, and presets that say how often, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

from triage._options import check_count, check_number, misuse


@dataclass(frozen=True)
class Backoff:
    """Waiting that grows with every retry.

    Before retry n, from 1, `min(cap, base * factor ** (n - 1))` seconds, multiplied by a random
    number from 0 to 1 (full jitter, which keeps many clients from coming back together), and never
    less than what the other side asked for.

    base: seconds, 1 by default; 0 never waits. factor: from 1, 2 by default. cap: seconds, 60 by
    default. jitter: False waits the whole time. Raises UsageError, which names the field.

    With the defaults and no jitter: 1, 2, 4, 8, 16, 32, 60, 60, … seconds.

    >>> [Backoff(jitter=False).delay(n) for n in (1, 2, 3, 7)]
    [1.0, 2.0, 4.0, 60.0]
    >>> Backoff(base=2.0).delay(3, draw=0.25)
    2.0
    >>> Backoff(base=2.0).delay(3, draw=0.25, retry_after_s=90)
    90.0
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 60.0
    jitter: bool = True

    CAPABILITY: ClassVar[Preset]
    INFRA: ClassVar[Preset]
    EXTRACT: ClassVar[Preset]
    CLASSIFY: ClassVar[Preset]
    LLM: ClassVar[Preset]
    WRITE: ClassVar[Preset]

    def __post_init__(self) -> None:
        check_number("Backoff.base", self.base, "seconds")
        check_number("Backoff.factor", self.factor, "", least=1.0)
        check_number("Backoff.cap", self.cap, "seconds")
        if not isinstance(cast("object", self.jitter), bool):
            raise misuse("Backoff.jitter", self.jitter, "True or False")

    def delay(self, n: int, draw: float = 1.0, retry_after_s: float | None = None) -> float:
        """Seconds to wait before retry `n`.

        n: from 1. draw: the random number for this failure, from 0 to 1; `FailureContext.draw` has
        one. Not used without jitter. retry_after_s: what the other side asked for, seconds; the
        delay is never less, whatever the cap. Raises UsageError for an `n` or a `draw` outside.
        """
        check_count("Backoff.delay n", n, 1, "the first retry is 1")
        if not 0 <= draw <= 1:
            raise misuse("Backoff.delay draw", draw, "a number from 0 to 1")
        seconds = min(self.cap, self._grown(n - 1))
        if self.jitter:
            seconds *= draw
        return float(seconds if retry_after_s is None else max(seconds, retry_after_s))

    def _grown(self, times: int) -> float:
        if self.base == 0 or self.factor == 1:
            return self.base
        try:
            return self.base * self.factor**times
        except OverflowError:
            return self.cap


class Preset(NamedTuple):
    """A known way of trying again: how often, and how long to wait.

    attempts: calls altogether, the first one included, so 1 never retries. backoff: what waits
    between them. `backoff_and_retry.preset(Backoff.LLM)` makes a strategy of one.
    """

    attempts: int
    backoff: Backoff

    @property
    def retries(self) -> int:
        """Calls after the first one."""
        return self.attempts - 1


Backoff.CAPABILITY = Preset(3, Backoff(0.5, 1.5))
"""A tool or capability of one's own: 3 attempts, 0.5 s, factor 1.5."""
Backoff.INFRA = Preset(2, Backoff(0.2, 1.2))
"""Local infrastructure, quick to answer: 2 attempts, 0.2 s, factor 1.2."""
Backoff.EXTRACT = Preset(3, Backoff(1.0, 1.5))
"""A small model call, such as extracting a task: 3 attempts, 1 s, factor 1.5."""
Backoff.CLASSIFY = Preset(4, Backoff(1.0, 1.8))
"""Many concurrent model calls: 4 attempts, 1 s, factor 1.8."""
Backoff.LLM = Preset(4, Backoff(2.0, 2.0))
"""A long model call, such as planning: 4 attempts, 2 s, factor 2."""
Backoff.WRITE = Preset(1, Backoff(2.0, 2.0))
"""A write to hardware or to the world: 1 attempt, as it might happen twice."""
