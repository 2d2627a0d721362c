"""The facts of a failure as plain values, and their part for the person who asked."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from triage.core.constructors import Struct
from triage.core.quoting import counted


class StepFacts(Struct, frozen=True):
    """One step, of a run or of a plan.

    number: from 1, within its attempt or plan. name: the tool or capability. outcome: `"done"`,
    `"failed"`, `"reused"` (an earlier result was used), `"skipped"` or `"open"` (not reached).
    objective: its goal. criteria: of its success. given, result: input and output, any values. error: in
    words. attempt: the attempt or version of the plan, from 1; 0 if there is only one. seconds: its
    duration, None if not known. decisive: it decided the failure.
    """

    number: int = 0
    name: str = ""
    outcome: str = "open"
    objective: str = ""
    criteria: str = ""
    given: Any = None
    result: Any = None
    error: str = ""
    attempt: int = 0
    seconds: float | None = None
    decisive: bool = False


class AttemptFacts(Struct, frozen=True):
    """One attempt, and the action after its failure.

    number: from 1. failure: the failure type and cause. user_message: for a person. error: in words.
    action: an action's kind (`"retry"`), empty for the last. hint: for the next attempt. delay_s: the
    wait before that. steps, failed_steps: their number. seconds: its duration, None if not known.
    """

    number: int = 0
    failure: str = ""
    user_message: str = ""
    error: str = ""
    action: str = ""
    hint: str = ""
    delay_s: float = 0.0
    steps: int = 0
    failed_steps: int = 0
    seconds: float | None = None


class CounterFacts(Struct, frozen=True):
    """A used amount. limit: the maximum, None for no limit."""

    name: str = ""
    used: float = 0.0
    limit: float | None = None


class CapabilityFacts(Struct, frozen=True):
    """A tool or capability, with its purpose."""

    name: str = ""
    description: str = ""


class Facts(Struct, frozen=True):
    """The facts of a failure. Every field is optional; texts may be any values.

    task: of the run. failed: the step, operation or capability that failed. where: more precisely.
    failure_type, cause, severity, level, recovery, confidence, user_message, technical_details, hint,
    suggestions, evidence, classifier: of the diagnosis, evidence in words. error: in words; chain: the
    error and its related errors, one text each; classes: the names of their classes; frames: the places in
    the code, outermost first. status_code, code: of an answer. ended: the end of the run (`"escalated"`,
    `"suspended"` …), empty until then. reason: of that end. question: for a person. run_id, agent,
    attempt: of the run. steps: oldest first. attempts: oldest first, the failed one last. counters: used
    amounts. capabilities: the available tools. partial: the partial result. not_undone: effects that could
    not be undone, each with the reason. elapsed_s: seconds. next_steps: for a person, listed before
    suggestions. left_out: facts that could not be read or were too many, in words.
    """

    task: Any = None
    failed: str = ""
    where: str = ""
    failure_type: str = ""
    cause: str = ""
    severity: str = ""
    level: str = ""
    recovery: str = ""
    confidence: float | None = None
    user_message: str = ""
    technical_details: str = ""
    hint: str = ""
    suggestions: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    classifier: str = ""
    error: str = ""
    chain: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    status_code: int | None = None
    code: str = ""
    ended: str = ""
    reason: str = ""
    question: str = ""
    run_id: str = ""
    agent: str = ""
    attempt: int = 0
    steps: tuple[StepFacts, ...] = ()
    attempts: tuple[AttemptFacts, ...] = ()
    counters: tuple[CounterFacts, ...] = ()
    capabilities: tuple[CapabilityFacts, ...] = ()
    partial: Any = None
    not_undone: tuple[str, ...] = ()
    elapsed_s: float | None = None
    next_steps: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def for_a_person(facts: Facts) -> Facts:
    """Keep the facts for the person who asked: no ids, and no words of code, tools or errors."""
    kept: Facts = _only(facts, _FOR_PERSONS)
    last = facts.steps[-1].attempt if facts.steps else 0
    effects = counted(len(facts.not_undone), "effect")
    undo = f"Before it is tried again: {effects} could not be undone. Ask whoever runs this."
    return replace(
        kept,
        next_steps=(undo, *kept.next_steps) if facts.not_undone else kept.next_steps,
        user_message=without_internals(facts.user_message, facts),
        # Earlier attempts show their failures without their steps.
        steps=tuple(_only(one, _OF_STEPS) for one in facts.steps if one.attempt == last),
        attempts=tuple(
            replace(
                _only(one, _OF_ATTEMPTS), user_message=without_internals(one.user_message, facts)
            )
            for one in facts.attempts
        ),
    )


def without_internals(text: str, facts: Facts) -> str:
    """Remove the class names of this failure and the id of its run from a text."""
    names = [name for name in (*facts.classes, facts.run_id) if len(name) >= _LEAST_NAME]
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?:\w+\.)*(?<!\w){re.escape(name)}(?!\w)", "…", text)
    return text


_FOR_PERSONS = (
    "task", "failed", "level", "user_message", "suggestions", "ended", "question", "attempt",
    "counters", "elapsed_s", "next_steps",
)  # fmt: skip
_OF_STEPS = ("number", "name", "outcome", "objective", "attempt", "seconds")
_OF_ATTEMPTS = ("number", "action", "delay_s", "seconds")
_LEAST_NAME = 4


def _only(record: Any, names: tuple[str, ...]) -> Any:
    return type(record)(**{name: getattr(record, name) for name in names})
