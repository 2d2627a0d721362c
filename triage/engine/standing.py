"""Where a run stands: what it waits for, what it may be answered with, and who has it."""

from __future__ import annotations

from collections.abc import Sequence

from triage.core import ApprovalAsked, Cause, Event, span
from triage.stores import RunInfo

from .approvals import question_at, waits_for
from .returning import WAITS

WAITING = (Cause.NEEDS_APPROVAL, WAITS, "approval")
"""Causes of an attempt's end that is no failure: a person is asked, and nothing is in doubt. The last one
is that of plans."""
_ANSWERS = {
    "approval": ("approve", "reject", "edit", "abort"),
    "answer": ("happened", "approve", "reject", "abort"),
    "call in doubt": ("happened", "rerun", "abort"),
}
"""What `resolve` takes, by what a run waits for."""


def asks_of(events: Sequence[Event]) -> str:
    """What a run waits for, in a word or two: an approval, a call in doubt, an answer; empty for none."""
    asked = waits_for(events)
    if asked is None:
        return ""
    if asked.doubt:
        return "call in doubt"
    question = question_at(events)
    approval = question is not None and question.not_begun
    plan = any(isinstance(event, ApprovalAsked) and event.kind != "call" for event in events[-4:])
    return "approval" if approval or plan else "answer"


def answers_to(events: Sequence[Event]) -> tuple[str, ...]:
    """What the question that a run waits with may be answered with, the most usual first."""
    asked = waits_for(events)
    if asked is None or asked.call is None:
        return ("approve", "reject", "retry", "replan", "abort", "escalate")
    return _ANSWERS[asks_of(events)]


def lease_of(info: RunInfo, time: float) -> str:
    """What there is to say of a run's lease; empty without one."""
    if info.lease_until is None:
        return ""
    left = info.lease_until - time
    return f"{span(left)} left" if left > 0 else f"ended {span(-left)} ago"
