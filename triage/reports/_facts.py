"""What is known of a failure, as plain values: whoever has some fills in `Facts`."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, TypeAlias

Outcome: TypeAlias = Literal["done", "failed", "reused", "skipped", "open"]
OUTCOMES = ("done", "failed", "reused", "skipped", "open")


class StepFacts(NamedTuple):
    """One step, of a run or of a plan.

    number: from 1, within its attempt or plan. name: the tool or capability. outcome: `"done"`,
    `"failed"`, `"reused"` (its earlier result was taken), `"skipped"` or `"open"` (not come to).
    objective: what it was to do. criteria: by what its success is judged. given, result: its data, any
    values. error: in words. attempt: in which attempt or version of the plan, from 1; 0 where there is
    only one. seconds: how long it took, None where not known. decisive: it decided the failure.
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


class AttemptFacts(NamedTuple):
    """One attempt, and what was done about its failure.

    number: from 1. failure: the failure type and cause. user_message: for a person. error: in words.
    action: an action's kind (`"retry"`), empty for the last. hint: what the next attempt was told.
    delay_s: what was waited before it. steps, failed_steps: how many. seconds: how long it took.
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


class CounterFacts(NamedTuple):
    """How much of something was used. limit: how much there might be, None for any."""

    name: str = ""
    used: float = 0.0
    limit: float | None = None


class CapabilityFacts(NamedTuple):
    """Something that can be done: a tool or a capability, with what it is for."""

    name: str = ""
    description: str = ""


class Facts(NamedTuple):
    """What is known of a failure. All may be left out; texts may be any values.

    task: what was asked. failed: what failed: a step, an operation, a capability. where: more exactly.
    failure_type, cause, severity, level, recovery, confidence, user_message, technical_details, hint,
    suggestions, evidence, classifier: of the diagnosis, evidence in words. error: in words; chain: it
    and what was behind it, one text each; classes: the names of their classes; frames: where in the
    code, outermost first. status_code, code: of an answer. ended: how the run ended (`"escalated"`,
    `"suspended"` …), empty while it has not. reason: why so. question: what a person is asked. run_id,
    agent, attempt: of the run. steps: oldest first. attempts: oldest first, the failed one last.
    counters: what was used, each by itself. capabilities: what can be done. partial: what there is to
    show all the same. elapsed_s: seconds.
    next_steps: what a person may do now, before what follows from the diagnosis. left_out: what could
    not be read, and what was too much, in words.
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
    elapsed_s: float | None = None
    next_steps: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


FOR_PERSONS = frozenset({
    "task", "failed", "level", "user_message", "suggestions", "ended", "question", "attempt", "steps",
    "attempts", "counters", "elapsed_s", "next_steps",
})  # fmt: skip
"""The facts that are for whoever asked: nothing in them is said by code, tools or errors."""
STEPS_FOR_PERSONS = frozenset({"number", "name", "outcome", "objective", "attempt", "seconds"})
ATTEMPTS_FOR_PERSONS = frozenset({"number", "user_message", "action", "delay_s", "seconds"})


def for_a_person(facts: Facts) -> Facts:
    """Without what code, tools and errors said, and without ids: what the one who asked is told."""
    kept: Facts = _only(facts, FOR_PERSONS)
    last = facts.steps[-1].attempt if facts.steps else 0
    return kept._replace(
        user_message=without_internals(facts.user_message, facts),
        # What earlier attempts did is told by how they failed.
        steps=tuple(_only(step, STEPS_FOR_PERSONS) for step in facts.steps if step.attempt == last),
        attempts=tuple(
            _only(attempt, ATTEMPTS_FOR_PERSONS)._replace(
                user_message=without_internals(attempt.user_message, facts)
            )
            for attempt in facts.attempts
        ),
    )


def without_internals(text: str, facts: Facts) -> str:
    """A text without the names of the classes of this failure and without the id of its run."""
    names = [name for name in (*facts.classes, facts.run_id) if len(name) >= _LEAST_NAME]
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?:\w+\.)*(?<!\w){re.escape(name)}(?!\w)", "…", text)
    return text


_LEAST_NAME = 4


def _only(record: Any, names: frozenset[str]) -> Any:
    defaults = type(record)._field_defaults
    left = {name: defaults[name] for name in record._fields if name not in names}
    return record._replace(**left)
