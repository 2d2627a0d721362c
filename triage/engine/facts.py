"""The facts of a failure as plain values.

`facts_of` reads `Facts` from an error, its context, a run's state or a diagnosis. `Cleaner` turns any
value into a short text without secrets.
"""

from __future__ import annotations

import json
import math
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from types import TracebackType
from typing import (
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec.structs import replace

from triage.classifiers import diagnose
from triage.core import (
    Attempt,
    Diagnosis,
    ErrorInfo,
    FailureContext,
    RecoveryAction,
    Redactor,
    RunState,
    Step,
    Trajectory,
    TriageError,
    TriageSuspendedError,
    Usage,
    attr,
    capture,
    entry,
    is_a,
    is_mapping,
    is_reused,
    leaves,
    logger,
    some,
    text_of,
    whole,
)
from triage.core.constructors import Struct
from triage.core.escaping import UNSEEN
from triage.core.foreign import plain

from .compensation import not_undone

__all__ = [
    "AttemptFacts",
    "CapabilityFacts",
    "CounterFacts",
    "Facts",
    "StepFacts",
]


# Turning any value into text that may be shown, and any record into plain values. Nothing here fails;
# everything is bounded and redacted.


MAX_ITEMS = 60
"""Entries kept of one list; of steps and attempts the newest."""
MAX_TEXT = 2_000
_MAX_TEXTS = 30
_LONGEST_ITEM = 500
_LIMITS = {
    "given": 300,
    "result": 300,
    "name": 120,
    "error": 600,
    "hint": 800,
    "run_id": 160,
    "agent": 120,
    "description": 300,
    "partial": 800,
    "task": 1_000,
}
"""Characters kept of a field where they are not `MAX_TEXT`."""
_READ = 16
"""Redact this many times the limit before cutting, so that no secret is cut before it is found."""

R = TypeVar("R")


def passes(error: BaseException) -> bool:
    """Whether an exception must not be caught: a cancellation or the user's interrupt."""
    return any(isinstance(one, _passing()) for one in leaves(error))


def _passing() -> tuple[type[BaseException], ...]:
    found: list[type[BaseException]] = [KeyboardInterrupt]
    for module, name in (("asyncio", "CancelledError"), ("trio", "Cancelled")):
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None:
            found.append(kind)
    return tuple(found)


def safely(make: Callable[[], R], otherwise: R) -> R:
    """Return `make()`, or `otherwise` if it raises anything that may be caught."""
    try:
        return make()
    except BaseException as error:
        if passes(error):
            raise
        return otherwise


class Cleaner:
    """Makes values fit to be shown. redactor: finds the secrets in them."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def text(self, value: object, limit: int = MAX_TEXT) -> str:
        """Return the value as text: no secret, no invisible character, at most `limit` characters."""
        if value is None:
            return ""
        if is_a(value, str) or is_a(value, bytes):
            found = text_of(value, limit * _READ)
        elif is_a(value, bool) or whole(value) is not None or is_a(value, float):
            found = text_of(value)
        else:
            found = self._of_value(value, limit)
        return _cut(UNSEEN.sub("", self._redactor.text(found)).strip(), limit)

    def _of_value(self, value: object, limit: int) -> str:
        if any(is_a(value, kind) for kind in (dict, list, tuple)):
            shown, _ = self._redactor.value(plain(value))
            return json.dumps(shown, ensure_ascii=False)
        found = text_of(value, limit * _READ)
        return found or f"<{text_of(type.__dict__['__name__'].__get__(type(value)), 60)}>"

    def record(self, cls: Any, value: Any) -> Any:
        """Make a `cls` whose fields have their declared types, whatever values were given."""
        given: dict[str, Any] = {}
        for name, kind in kinds_of(cls).items():
            held = safely(partial(getattr, value, name, None), None)
            given[name] = self._field(name, kind, held)
        return cls(**{name: item for name, item in given.items() if item is not None})

    def _field(self, name: str, kind: Any, value: Any) -> Any:
        if value is None:
            return None
        if kind is str:
            return self.text(value, _LIMITS.get(name, MAX_TEXT))
        if kind is bool:
            return value is True
        if kind is int:
            number = whole(value)
            return None if number is None or abs(number) > 1 << 53 else number
        if kind is float:
            return _number(value)
        items = some(value, 5_000) if not is_a(value, str) else [value]
        inner = get_args(kind)[0]
        if inner is str:
            shown = (self.text(item, _LONGEST_ITEM) for item in items[:_MAX_TEXTS])
            return tuple(text for text in shown if text)
        kept = [item for item in items if is_a(item, inner)][-MAX_ITEMS:]
        return tuple(self.record(inner, item) for item in kept)


def _number(value: object) -> float | None:
    number = whole(value)
    if number is not None:
        return float(number) if abs(number) < 1 << 53 else None
    if not is_a(value, float):
        return None
    found = float.__float__(value)  # type: ignore[arg-type] # a float, as tested above
    return found if math.isfinite(found) else None


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@cache
def kinds_of(cls: Any) -> dict[str, Any]:
    """Return the kind of each field of a record: `str`, `int`, `float`, `bool`, or a tuple of one."""
    return {name: _kind(hint) for name, hint in get_type_hints(cls).items()}


def _kind(hint: Any) -> Any:
    if hint is Any:
        return str
    if get_origin(hint) in (Union, types.UnionType):
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint


# The values: `Facts` and its parts. Each source fills in the fields it knows.


Outcome: TypeAlias = Literal["done", "failed", "reused", "skipped", "open"]


class StepFacts(Struct, frozen=True):
    """One step, of a run or of a plan.

    number: from 1, within its attempt or plan. name: the tool or capability. outcome: `"done"`,
    `"failed"`, `"reused"` (an earlier result was used), `"skipped"` or `"open"` (not reached).
    objective: its goal. criteria: how its success is judged. given, result: its input and output, any
    values. error: in words. attempt: the attempt or version of the plan, from 1; 0 where there is only
    one. seconds: how long it took, None if not known. decisive: it decided the failure.
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
    """One attempt, and what was done about its failure.

    number: from 1. failure: the failure type and cause. user_message: for a person. error: in words.
    action: an action's kind (`"retry"`), empty for the last. hint: for the next attempt. delay_s: the
    wait before that. steps, failed_steps: how many. seconds: how long it took.
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
    """How much of something was used. limit: the most allowed, None for no limit."""

    name: str = ""
    used: float = 0.0
    limit: float | None = None


class CapabilityFacts(Struct, frozen=True):
    """A tool or capability, and what it is for."""

    name: str = ""
    description: str = ""


class Facts(Struct, frozen=True):
    """What is known of a failure. Every field is optional; texts may be any values.

    task: what was asked. failed: the step, operation or capability that failed. where: more precisely.
    failure_type, cause, severity, level, recovery, confidence, user_message, technical_details, hint,
    suggestions, evidence, classifier: of the diagnosis, evidence in words. error: in words; chain: the
    error and those behind it, one text each; classes: the names of their classes; frames: where in the
    code, outermost first. status_code, code: of an answer. ended: how the run ended (`"escalated"`,
    `"suspended"` …), empty until then. reason: why it ended so. question: for a person. run_id, agent,
    attempt: of the run. steps: oldest first. attempts: oldest first, the failed one last. counters:
    what was used. capabilities: the available tools. partial: the partial result. not_undone: effects
    that could not be undone, each with the reason. elapsed_s: seconds. next_steps: what a person may do
    now, listed before suggestions. left_out: what could not be read or was too much, in words.
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


FOR_PERSONS = frozenset({
    "task", "failed", "level", "user_message", "suggestions", "ended", "question", "attempt", "steps",
    "attempts", "counters", "elapsed_s", "next_steps",
})  # fmt: skip
"""Facts shown to the person who asked: none quotes code, tools or errors."""
STEPS_FOR_PERSONS = frozenset({"number", "name", "outcome", "objective", "attempt", "seconds"})
ATTEMPTS_FOR_PERSONS = frozenset({"number", "user_message", "action", "delay_s", "seconds"})


def for_a_person(facts: Facts) -> Facts:
    """Keep the facts for the person who asked: no ids, and no words of code, tools or errors."""
    kept: Facts = _only(facts, FOR_PERSONS)
    last = facts.steps[-1].attempt if facts.steps else 0
    stays = len(facts.not_undone)
    effects = "1 effect" if stays == 1 else f"{stays} effects"
    undo = f"Before it is tried again: {effects} could not be undone. Ask whoever runs this."
    return replace(
        kept,
        next_steps=(undo, *kept.next_steps) if stays else kept.next_steps,
        user_message=without_internals(facts.user_message, facts),
        # Earlier attempts show how they failed, not their steps.
        steps=tuple(_only(step, STEPS_FOR_PERSONS) for step in facts.steps if step.attempt == last),
        attempts=tuple(
            replace(
                _only(attempt, ATTEMPTS_FOR_PERSONS),
                user_message=without_internals(attempt.user_message, facts),
            )
            for attempt in facts.attempts
        ),
    )


def without_internals(text: str, facts: Facts) -> str:
    """Remove the class names of this failure and the id of its run from a text."""
    names = [name for name in (*facts.classes, facts.run_id) if len(name) >= _LEAST_NAME]
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?:\w+\.)*(?<!\w){re.escape(name)}(?!\w)", "…", text)
    return text


_LEAST_NAME = 4


def _only(record: Any, names: frozenset[str]) -> Any:
    kept = {name: getattr(record, name) for name in record.__struct_fields__ if name in names}
    return type(record)(**kept)


# Reading `Facts` from an error, its context, a run's state or a diagnosis.


_MOST_FRAMES = 30
_MOST_CHAIN = 12


class _Found:
    """Collects facts one at a time, so that an unreadable one does not lose the others."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.unread: list[str] = []

    def put(self, name: str, read: Callable[[], Any]) -> None:
        """Add a fact, unless it is there already, is empty or cannot be read."""
        if name in self.fields:
            return
        try:
            value = read()
        except BaseException as error:
            if passes(error):
                raise
            logger.warning("a report goes without %s: it cannot be read", name)
            self.unread.append(f"{name} could not be read")
            return
        if value is not None and not (is_a(value, tuple) and value == ()):
            self.fields[name] = value

    def all(self, source: Iterator[tuple[str, Callable[[], Any]]]) -> None:
        """Add all of these facts; an error while reading one does not stop the others."""
        while True:
            try:
                name, read = next(source)
            except StopIteration:
                return
            except BaseException as error:
                if passes(error):
                    raise
                self.unread.append("more could not be read")
                return
            self.put(name, read)

    def facts(self) -> Facts:
        """Return the facts found."""
        left_out = (*some(self.fields.get("left_out", ())), *self.unread)
        fields: dict[str, Any] = {**self.fields, "left_out": left_out}
        return Facts(**fields)


def facts_of(subject: Any) -> Facts:
    """Read the facts of a failure from `subject`. Raises only what must not be caught."""
    if is_a(subject, Facts):
        return cast("Facts", subject)
    found = _Found()
    if is_a(subject, TriageError):
        found.all(_of_ended(subject))
        context = attr(subject, "context")
        subject = subject if context is None else context
    if is_a(subject, FailureContext):
        found.all(_of_context(subject))
    elif is_a(subject, RunState):
        found.all(_of_state(subject))
    elif is_a(subject, Diagnosis):
        found.all(_of_diagnosis(subject))
    elif is_a(subject, ErrorInfo):
        found.all(_of_error(subject))
    elif is_a(subject, BaseException):
        found.all(_of_exception(subject))
    elif is_mapping(subject):
        for name in Facts.__struct_fields__:
            found.put(name, partial(entry, subject, name))
    elif subject is not None:
        found.put("technical_details", lambda: text_of(subject) or None)
    return found.facts()


_Parts = Iterator[tuple[str, Callable[[], Any]]]


def _of_ended(error: Any) -> _Parts:
    """Read how a run ended from the error it ended with."""
    yield "ended", lambda: _ENDED.get(type(error).__name__)
    yield "reason", lambda: text_of(error)
    yield "not_undone", lambda: error.not_undone
    if is_a(error, TriageSuspendedError):
        yield "question", lambda: error.question


_ENDED = {
    "TriageEscalationError": "escalated",
    "TriageAbortError": "aborted",
    "TriageFatalError": "fatal",
    "TriageSuspendedError": "suspended",
}


def _of_context(context: Any) -> _Parts:
    yield "task", lambda: context.task
    yield from _of_diagnosis(context.diagnosis)
    if context.error is not None:
        yield from _of_error(context.error)
    yield "frames", lambda: _frames(context.exception)
    yield "where", lambda: next(iter(_frames(context.exception)[-1:]), None)
    yield "run_id", lambda: context.run_id
    yield "attempt", lambda: context.attempt
    history: Sequence[Attempt] = context.attempt_history
    trajectory: Trajectory = context.trajectory
    yield "steps", lambda: _all_steps(history, trajectory, context.attempt, context.diagnosis)
    this = (context.attempt, context.diagnosis, context.error, trajectory)
    yield "attempts", lambda: (*map(_attempt, history), _failed_attempt(*this))
    yield "failed", lambda: _failed(trajectory, context.diagnosis)
    yield "partial", lambda: context.partial.last_output
    yield "elapsed_s", lambda: context.elapsed_s
    yield "capabilities", lambda: tuple(CapabilityFacts(name) for name in some(context.tools, 200))
    all_of_it = [*(past.trajectory for past in history), trajectory]
    yield "counters", lambda: _counters(context.attempt, all_of_it, context.usage)
    yield "left_out", lambda: _too_many(all_of_it)


def _of_state(state: RunState) -> _Parts:
    """Read a run, active or ended, from its state."""
    yield "task", lambda: state.task
    yield "run_id", lambda: state.run_id
    yield "agent", lambda: state.agent
    yield "attempt", lambda: state.attempt
    yield "ended", lambda: state.status if state.status in _STATUSES else None
    yield "question", lambda: state.question
    yield "not_undone", lambda: not_undone(state)
    history = list(state.history)
    last = history[-1] if history else None
    if last is not None:
        yield from _of_diagnosis(last.diagnosis)
        yield "reason", lambda: getattr(last.action, "reason", None)
        yield "failed", lambda: _failed(last.trajectory, last.diagnosis)
    error = state.error or (None if last is None else last.error)
    if error is not None:
        yield from _of_error(error)
    going_on = state.attempt and (last is None or last.number != state.attempt)
    now = Trajectory(state.steps if going_on else ())
    yield "steps", lambda: _all_steps(history, now, state.attempt, None)
    yield "attempts", lambda: tuple(map(_attempt, history))
    trajectories = [*(past.trajectory for past in history), now]
    yield "counters", lambda: _counters(state.attempt, trajectories, state.usage)
    yield "left_out", lambda: _too_many(trajectories)
    if last is not None:
        yield "elapsed_s", lambda: max(0.0, last.ended - state.started)


_STATUSES = frozenset({"escalated", "aborted", "fatal", "suspended", "error", "cancelled"})


def _of_diagnosis(diagnosis: Any) -> _Parts:
    if not is_a(diagnosis, Diagnosis):
        return
    for name in ("failure_type", "severity", "level", "confidence", "user_message",
                 "technical_details", "hint", "suggestions", "classifier"):  # fmt: skip
        yield name, partial(getattr, diagnosis, name)
    yield "cause", lambda: None if diagnosis.cause is None else str(diagnosis.cause)
    yield "recovery", lambda: diagnosis.recovery
    yield "evidence", lambda: tuple(f"{one.rule}: {one.text}" for one in diagnosis.evidence)


def _of_error(error: ErrorInfo) -> _Parts:
    yield "error", lambda: str(error)
    yield "status_code", lambda: error.status_code
    yield "code", lambda: error.code
    yield "chain", lambda: tuple(str(info) for info in some(error.walk(), _MOST_CHAIN))
    yield "classes", lambda: tuple(info.type_name for info in some(error.walk(), _MOST_CHAIN))


def _of_exception(error: Any) -> _Parts:
    """Read an exception that no run has classified."""
    info = capture(error)
    yield from _of_diagnosis(diagnose(info))
    yield from _of_error(info)
    yield "frames", lambda: _frames(error)


# --- parts ------------------------------------------------------------------------------------------


def _frames(error: object) -> tuple[str, ...]:
    """List where an error was raised, outermost first, by line number, without reading files."""
    if not is_a(error, BaseException):
        return ()
    found: list[str] = []
    trace: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append(f"{code.co_filename}:{trace.tb_lineno} in {code.co_qualname}")
        trace = trace.tb_next
    return tuple(found[-_MOST_FRAMES:])


def _all_steps(
    history: Sequence[Attempt], last: Trajectory, attempt: int, diagnosis: Diagnosis | None
) -> tuple[StepFacts, ...]:
    """Return the newest steps over all attempts."""
    found = list(_steps(last, attempt, diagnosis, MAX_ITEMS))
    for past in reversed(history):
        room = MAX_ITEMS - len(found)
        found = [*_steps(past.trajectory, past.number, past.diagnosis, room), *found]
    return tuple(found)


def _too_many(trajectories: Sequence[Trajectory]) -> tuple[str, ...]:
    count = sum(len(trajectory) for trajectory in trajectories) - MAX_ITEMS
    return (f"{count} earlier steps",) if count > 0 else ()


def _steps(
    trajectory: Trajectory, attempt: int, diagnosis: Diagnosis | None, most: int
) -> Iterator[StepFacts]:
    critical = None if diagnosis is None else diagnosis.critical_step
    first = max(0, len(trajectory) - most)
    for at, step in enumerate(trajectory.steps[first:], first):
        yield StepFacts(
            number=at + 1,
            name=step.tool_called or step.action or "step",
            outcome=_outcome(step),
            objective="" if step.action in ("call", step.tool_called) else step.action,
            given=step.tool_input,
            result=step.tool_output if step.tool_output is not None else step.llm_output,
            error=step.error or "",
            attempt=attempt,
            seconds=step.duration_s,
            decisive=critical == at,
        )


def _outcome(step: Step) -> str:
    if step.error is not None:
        return "failed"
    return "reused" if is_reused(step.metadata) else "done"


def _failed_attempt(
    number: int, diagnosis: Diagnosis, error: ErrorInfo | None, trajectory: Trajectory
) -> AttemptFacts:
    cause = f" ({diagnosis.cause})" if diagnosis.cause else ""
    return AttemptFacts(
        number=number,
        failure=f"{diagnosis.failure_type}{cause}",
        user_message=diagnosis.user_message,
        error="" if error is None else str(error),
        steps=len(trajectory),
        failed_steps=sum(1 for step in trajectory.steps if step.error is not None),
    )


def _attempt(past: Attempt) -> AttemptFacts:
    """Describe an attempt and the action taken after it failed."""
    action = past.action
    return replace(
        _failed_attempt(past.number, past.diagnosis, past.error, past.trajectory),
        action=action.kind if is_a(action, RecoveryAction) and action is not None else "",
        hint=getattr(action, "hint", None) or "",
        delay_s=getattr(action, "delay", 0.0),
        seconds=max(0.0, past.ended - past.started),
    )


def _failed(trajectory: Trajectory, diagnosis: Diagnosis) -> str | None:
    """Name what failed: the decisive step, else the last step if that one failed."""
    steps, at = trajectory.steps, diagnosis.critical_step
    if at is not None and at < len(steps):
        step = steps[at]
    elif steps and steps[-1].error is not None:
        step, at = steps[-1], len(steps) - 1
    else:
        return None
    return f"step {at + 1}, {step.tool_called or step.action or 'step'}"


def _counters(
    attempt: int, trajectories: Sequence[Trajectory], usage: Usage
) -> tuple[CounterFacts, ...]:
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    found = {
        "attempts": attempt,
        "steps": len(steps),
        "steps that failed": sum(1 for step in steps if step.error is not None),
        "tool calls": sum(1 for step in steps if step.tool_called is not None),
        "model calls": usage.calls,
        "tokens": usage.total_tokens,
        "US dollars": usage.cost_usd or 0.0,
    }
    always = ("attempts", "steps")
    return tuple(CounterFacts(name, n) for name, n in found.items() if n or name in always)
