"""Failures to ask strategies about, and what they answer."""

from __future__ import annotations

from typing import Any

from triage.core import (
    Abort,
    Action,
    Attempt,
    Cause,
    Diagnosis,
    Escalate,
    FailureContext,
    FailureType,
    Replan,
    Resume,
    Retry,
    Rollback,
    Suspend,
    Trajectory,
)
from triage.core.steps import NO_USAGE
from triage.strategies import Strategy

TIMED_OUT = Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.TIMEOUT, hint="Ask for less.")
WRONG_KEY = Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.AUTH)


def context(*past: Action, diagnosis: Diagnosis = TIMED_OUT, **changes: Any) -> FailureContext:
    """A failure after attempts that failed in the same way and ended with these actions."""
    history = tuple(
        Attempt(n, Trajectory(), {}, None, diagnosis, action, NO_USAGE, 0.0, 0.0)
        for n, action in enumerate(past, start=1)
    )
    given: dict[str, Any] = {
        "run_id": "run",
        "task": "t",
        "attempt": len(past) + 1,
        "diagnosis": diagnosis,
        "attempt_history": history,
        "checkpoint_id": 4,
        "open_subgoals": ("pay", "send"),
        "tools": ("search", "book"),
    }
    return FailureContext(**(given | changes))


def answer(strategy: Strategy, failure: FailureContext) -> Action:
    found = strategy(failure)
    assert isinstance(found, Retry | Replan | Rollback | Resume | Suspend | Escalate | Abort)
    return found


def delay_of(action: Action) -> float:
    assert isinstance(action, Retry)
    return action.delay


def reason_of(action: Action) -> str:
    assert isinstance(action, Escalate)
    return action.reason or ""
