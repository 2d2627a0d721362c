"""Read `Facts` from an error, the context of a failure, a run's state or a diagnosis.

A source maps each field to the function that reads the field. An unreadable field leaves the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from operator import attrgetter
from traceback import walk_tb
from typing import Any, TypeAlias, cast

from triage.classifiers.rules import diagnose
from triage.core.actions import RecoveryAction
from triage.core.capture import capture
from triage.core.diagnosis import Diagnosis
from triage.core.errors import TriageError
from triage.core.failures import Attempt, ErrorInfo, FailureContext
from triage.core.foreign import attr, entry, is_a, is_mapping, some, text_of
from triage.core.observers import logger
from triage.core.state import RunState, is_reused
from triage.core.steps import Step

from .cleaning import MAX_ITEMS, passes
from .effects import not_undone
from .facts import AttemptFacts, CapabilityFacts, CounterFacts, Facts, StepFacts

Source: TypeAlias = Mapping[str, Callable[[Any], Any]]

_MAX_ATTEMPTS = 10_000
_MAX_FRAMES = 30
_MAX_CHAIN = 12


def facts_of(subject: object) -> Facts:
    """Read the facts of a failure from `subject`. Raises only exceptions that must not be caught."""
    if is_a(subject, Facts):
        return cast("Facts", subject)
    found: dict[str, Any] = {}
    unread: list[str] = []
    for source, owner in _sources(subject):
        for name, read in source.items():
            try:
                found[name] = read(owner)
            except BaseException as error:
                if passes(error):
                    raise
                logger.warning("a report goes without %s: it cannot be read", name)
                unread.append(f"{name} could not be read")
    found["left_out"] = (*some(found.get("left_out", ())), *unread)
    return Facts(**found)


def _sources(subject: Any) -> Iterator[tuple[Source, Any]]:
    """Yield the sources of facts about the subject; later ones override."""
    if is_a(subject, TriageError):
        yield _ENDED, subject
        context = attr(subject, "context")
        subject = subject if context is None else context
    diagnosis = error = None
    if is_a(subject, Diagnosis):
        diagnosis = subject
    elif is_a(subject, ErrorInfo):
        error = subject
    elif is_a(subject, FailureContext):
        yield _CONTEXT, subject
        diagnosis, error = attr(subject, "diagnosis"), attr(subject, "error")
    elif is_a(subject, RunState):
        yield _STATE, subject
        last = next(reversed(subject.history), None)
        diagnosis, error = attr(last, "diagnosis"), subject.error or attr(last, "error")
    elif is_a(subject, BaseException):
        yield {"frames": _frames}, subject
        error = capture(subject)
        diagnosis = diagnose(error)
    elif is_mapping(subject):
        yield _MAPPING, subject
    elif subject is not None:
        yield {"technical_details": lambda value: text_of(value) or None}, subject
    if is_a(diagnosis, Diagnosis):
        yield _DIAGNOSIS, diagnosis
    if is_a(error, ErrorInfo):
        yield _ERROR, error


# A run is the `FailureContext` of a live run, or the `RunState` of its journal.


def _attempts(run: Any) -> list[Attempt]:
    """Return the failed attempts, oldest first."""
    if is_a(run, RunState):
        return list(run.history)
    now = Attempt(
        number=run.attempt, trajectory=run.trajectory, state={}, error=run.error,
        diagnosis=run.diagnosis, action=None, usage=run.usage, started=0.0, ended=0.0,
    )  # fmt: skip
    return [*islice(run.attempt_history, _MAX_ATTEMPTS), now]


def _all_steps(run: Any) -> list[tuple[int, int, Step, bool]]:
    """Return all steps, each with its attempt, its number there, and whether it decided the failure."""
    attempts = _attempts(run)
    parts = [(one.number, one.trajectory.steps, one.diagnosis.critical_step) for one in attempts]
    if is_a(run, RunState) and run.attempt != (attempts[-1].number if attempts else 0):
        parts.append((run.attempt, run.steps, None))
    return [
        (attempt, at + 1, step, at == critical)
        for attempt, steps, critical in parts
        for at, step in enumerate(steps)
    ]


def _step(attempt: int, number: int, step: Step, *, decisive: bool) -> StepFacts:
    outcome = "reused" if is_reused(step.metadata) else "done"
    return StepFacts(
        number=number,
        name=_name(step),
        outcome=outcome if step.error is None else "failed",
        objective="" if step.action in ("call", step.tool_called) else step.action,
        given=step.tool_input,
        result=step.tool_output if step.tool_output is not None else step.llm_output,
        error=step.error or "",
        attempt=attempt,
        seconds=step.duration_s,
        decisive=decisive,
    )


def _name(step: Step) -> str:
    return step.tool_called or step.action or "step"


def _attempt(past: Attempt) -> AttemptFacts:
    action, diagnosis = past.action, past.diagnosis
    return AttemptFacts(
        number=past.number,
        failure=f"{diagnosis.failure_type} ({diagnosis.cause})".removesuffix(" (None)"),
        user_message=diagnosis.user_message,
        error="" if past.error is None else str(past.error),
        action=action.kind if isinstance(action, RecoveryAction) else "",
        hint=getattr(action, "hint", None) or "",
        delay_s=getattr(action, "delay", 0.0),
        steps=len(past.trajectory),
        failed_steps=sum(step.error is not None for step in past.trajectory.steps),
        seconds=past.ended - past.started if past.ended > past.started else None,
    )


def _failed_step(run: Any) -> str | None:
    """Name the decisive step, else the last step if it failed."""
    last = {one.number for one in _attempts(run)[-1:]}
    steps = [one for one in _all_steps(run) if one[0] in last]
    known = [one for one in steps if one[3]] or [one for one in steps[-1:] if one[2].error]
    return f"step {known[0][1]}, {_name(known[0][2])}" if known else None


def _counters(run: Any) -> tuple[CounterFacts, ...]:
    steps = [step for _, _, step, _ in _all_steps(run)]
    used = {
        "attempts": run.attempt,
        "steps": len(steps),
        "steps that failed": sum(step.error is not None for step in steps),
        "tool calls": sum(step.tool_called is not None for step in steps),
        "model calls": run.usage.calls,
        "tokens": run.usage.total_tokens,
        "US dollars": run.usage.cost_usd or 0.0,
    }
    shown = (CounterFacts(name, count) for name, count in used.items())
    return tuple(one for one in shown if one.used or one.name in ("attempts", "steps"))


def _left_out(run: Any) -> tuple[str, ...]:
    count = len(_all_steps(run)) - MAX_ITEMS
    return (f"{count} earlier steps",) if count > 0 else ()


def _frames(error: BaseException | None) -> tuple[str, ...]:
    """List the frames of an error, outermost first, by line number, without reading files."""
    trace = None if error is None else error.__traceback__
    calls = [(frame.f_code, line) for frame, line in walk_tb(trace)][-_MAX_FRAMES:]
    return tuple(f"{code.co_filename}:{line} in {code.co_qualname}" for code, line in calls)


def _fields(*names: str) -> Source:
    return {name: attrgetter(name) for name in names}


_RUN: Source = {
    **_fields("task", "run_id", "attempt"),
    "steps": lambda run: tuple(
        _step(*one[:3], decisive=one[3]) for one in _all_steps(run)[-MAX_ITEMS:]
    ),
    "attempts": lambda run: tuple(map(_attempt, _attempts(run))),
    "failed": _failed_step,
    "counters": _counters,
    "left_out": _left_out,
}
_CONTEXT: Source = {
    **_RUN,
    **_fields("elapsed_s"),
    "partial": attrgetter("partial.last_output"),
    "capabilities": lambda context: tuple(map(CapabilityFacts, some(context.tools, 200))),
    "frames": lambda context: _frames(context.exception),
    "where": lambda context: next(reversed(_frames(context.exception)), None),
}
_STATUSES = frozenset({"escalated", "aborted", "fatal", "suspended", "error", "cancelled"})
_STATE: Source = {
    **_RUN,
    **_fields("agent", "question"),
    "ended": lambda state: state.status if state.status in _STATUSES else None,
    "reason": lambda state: next((attr(one.action, "reason") for one in state.history[-1:]), None),
    "elapsed_s": lambda state: next(
        (one.ended - state.started for one in state.history[-1:]), None
    ),
    "not_undone": not_undone,
}
_ENDS = {
    "TriageEscalationError": "escalated",
    "TriageAbortError": "aborted",
    "TriageFatalError": "fatal",
    "TriageSuspendedError": "suspended",
}
_ENDED: Source = {
    **_fields("not_undone"),
    "ended": lambda error: _ENDS.get(type(error).__name__),
    "reason": text_of,
    "question": lambda error: getattr(error, "question", None),
}
_DIAGNOSIS: Source = {
    **_fields("failure_type", "cause", "severity", "level", "recovery", "confidence", "user_message",
              "technical_details", "hint", "suggestions", "classifier"),
    "evidence": lambda diagnosis: tuple(f"{one.rule}: {one.text}" for one in diagnosis.evidence),
}  # fmt: skip
_ERROR: Source = {
    **_fields("status_code", "code"),
    "error": str,
    "chain": lambda error: tuple(map(str, some(error.walk(), _MAX_CHAIN))),
    "classes": lambda error: tuple(one.type_name for one in some(error.walk(), _MAX_CHAIN)),
}
_MAPPING: Source = {name: partial(entry, key=name) for name in Facts.__struct_fields__}
