"""The type of a strategy, and helpers that the ready-made strategies share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable, signature
from typing import Any, TypeAlias, cast

from msgspec import Struct

from triage.core import (
    ACTIONS,
    Action,
    Escalate,
    FailureContext,
    Retry,
    Severity,
    Step,
    UsageError,
    misuse,
)

Answer: TypeAlias = Action | Awaitable[Action]
Strategy: TypeAlias = Callable[[FailureContext], Answer]
"""Decides what to do about a failure: takes its context and returns an action. May be async."""


class always(Struct, frozen=True):
    """Answers every failure with the same action: what an action given as a strategy becomes."""

    action: Action

    def __post_init__(self) -> None:
        if not isinstance(self.action, ACTIONS):
            raise misuse("always.action", self.action, "an action, such as Retry()")

    def __call__(self, context: FailureContext) -> Action:
        """Return the action."""
        return self.action

    def __repr__(self) -> str:
        return repr(self.action)


def as_strategy(field: str, value: object) -> Strategy:
    """Return `value` as a strategy; an action becomes `always(action)`. Raises UsageError otherwise."""
    if isinstance(value, ACTIONS):
        return always(value)
    wanted = "a strategy (a function of the FailureContext) or an action"
    if isinstance(value, type):
        remedy = f"make one: {value.__name__}(…)"
        raise UsageError(f"{field} must be {wanted}, not the class {value.__name__}; {remedy}")
    if not callable(value):
        raise misuse(field, value, wanted)
    try:
        accepted = signature(value)
    except (TypeError, ValueError):  # a builtin without a signature is trusted
        return cast("Strategy", value)
    try:
        accepted.bind(None)
    except TypeError as error:
        remedy = f"it must take one argument, the context ({error})"
        raise misuse(field, value, wanted, remedy) from None
    return cast("Strategy", value)


def then(answer: Answer, go_on: Callable[[Action], Answer]) -> Answer:
    """Return `go_on(action)` for the action that `answer` is, or becomes once awaited."""
    if isawaitable(answer):
        return _awaited(answer, go_on)
    return go_on(answer)


async def _awaited(answer: Awaitable[Action], go_on: Callable[[Action], Answer]) -> Action:
    final: Any = go_on(await answer)
    if isawaitable(final):
        final = await final
    return cast("Action", final)


def used_up(context: FailureContext, what: str, times: int, most: int) -> Escalate | None:
    """Escalate once `what` was done `most` times for this failure type; None before that."""
    if times < most:
        return None
    done = "never allowed" if most == 0 else f"already {what} {counted(times)} (the most is {most})"
    return Escalate(f"{named(context)}: {done}")


def needs_a_person(context: FailureContext) -> Escalate | None:
    """Escalate a diagnosis that repeating cannot fix; None for any other."""
    severity = context.diagnosis.severity
    if severity is not Severity.CRITICAL and severity is not Severity.FATAL:
        return None
    return Escalate(f"{named(context)}: {severity}, a person must act; repeating it cures nothing")


def no_retry(context: FailureContext, most: int) -> Escalate | None:
    """Escalate if a retry fixes nothing, or `most` were made for this failure type; None otherwise."""
    return needs_a_person(context) or used_up(context, "retried", context.tried(Retry), most)


def last_failed(context: FailureContext) -> Step | None:
    """Return the last failed step of this attempt, None without one."""
    return next(
        (step for step in reversed(context.trajectory.steps) if step.error is not None), None
    )


def named(context: FailureContext) -> str:
    """Name the failure in two words: `external_fault (timeout)`."""
    diagnosis = context.diagnosis
    cause = f" ({diagnosis.cause})" if diagnosis.cause else ""
    return f"{diagnosis.failure_type}{cause}"


def counted(times: int) -> str:
    """Write a number of times: `once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(times, f"{times} times")


def sentences(*texts: str | None) -> str:
    """Join the texts that are not empty."""
    return " ".join(text.strip() for text in texts if text and text.strip())
