"""What strategies ask of a gate: three small protocols. No method waits or does I/O."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ._passage import Passage


@runtime_checkable
class Budget(Protocol):
    """How many calls may be repeated. `RetryBudget` is the one in memory."""

    def take(self, key: str = "") -> float | None:
        """Take what one retry costs. None: taken. Else seconds until it can be, `inf` for never."""
        ...

    def success(self, key: str = "") -> None:
        """Say that a call has succeeded."""
        ...


@runtime_checkable
class Gate(Protocol):
    """When a call may be made. `RateGate` is the one in memory."""

    def hold(self, key: str, seconds: float) -> None:
        """Let no call start for so many seconds."""
        ...

    def wait_s(self, key: str = "") -> float:
        """Seconds for which calls are held back, 0 for none."""
        ...

    def through(self, key: str = "") -> Passage:
        """One call's way through: `async with`, `with` or a decorator."""
        ...


@runtime_checkable
class Breaker(Protocol):
    """Whether a service is asked at all. `CircuitBreaker` is the one in memory."""

    @property
    def failures(self) -> int:
        """Failures in a row that open it."""
        ...

    @property
    def cooldown_s(self) -> float:
        """Seconds until a probe."""
        ...

    def ask(self, by: str) -> float | None:
        """None: `by`, a run's id, may try. Else seconds until a probe is allowed."""
        ...

    def failure(self, by: str) -> float | None:
        """Count a failure and ask."""
        ...

    def success(self) -> None:
        """Say that the service answered."""
        ...

    def give_up(self, by: str) -> None:
        """Say that `by` does not probe after all."""
        ...

    def heard(self, error: BaseException | None) -> bool:
        """True if this failure was counted where the call was made."""
        ...

    def through(self) -> Passage:
        """One call's way through: `async with`, `with` or a decorator."""
        ...
