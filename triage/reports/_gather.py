"""`Facts` of whatever a failure is known by: an error, its context, a run that was read, a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from triage._capture import capture
from triage._capture._probe import attr, entry, is_a, is_mapping, some, text_of
from triage.actions import RecoveryAction
from triage.diagnosis import Diagnosis
from triage.errors import TriageError, TriageSuspendedError
from triage.failures import Attempt, ErrorInfo, FailureContext
from triage.observers import logger
from triage.state import RunState, is_reused
from triage.steps import Step, Trajectory, Usage

from ._clean import MAX_ITEMS, passes
from ._facts import AttemptFacts, CapabilityFacts, CounterFacts, Facts, StepFacts

if TYPE_CHECKING:
    from types import TracebackType

_MOST_FRAMES = 30
_MOST_CHAIN = 12


class _Found:
    """Facts as they are found, each by itself: one that cannot be read costs no other."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.unread: list[str] = []

    def put(self, name: str, read: Callable[[], Any]) -> None:
        """One fact, unless it is there already, says nothing or cannot be read."""
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
        """These facts; nothing that reading one of them raises ends the others."""
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
        """What was found."""
        left_out = (*some(self.fields.get("left_out", ())), *self.unread)
        fields: dict[str, Any] = {**self.fields, "left_out": left_out}
        return Facts(**fields)


def facts_of(subject: Any) -> Facts:
    """What is known of a failure by this. Raises what may not be caught, nothing else."""
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
        for name in Facts._fields:
            found.put(name, partial(entry, subject, name))
    elif subject is not None:
        found.put("technical_details", lambda: text_of(subject) or None)
    return found.facts()


_Parts = Iterator[tuple[str, Callable[[], Any]]]


def _of_ended(error: Any) -> _Parts:
    """How a run ended, by the error it ended with."""
    yield "ended", lambda: _ENDED.get(type(error).__name__)
    yield "reason", lambda: text_of(error)
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
    yield "attempts", lambda: (*map(_attempt, history), _this(context, trajectory))
    yield "failed", lambda: _failed(trajectory, context.diagnosis)
    yield "partial", lambda: context.partial.last_output
    yield "elapsed_s", lambda: context.elapsed_s
    yield "capabilities", lambda: tuple(CapabilityFacts(name) for name in some(context.tools, 200))
    all_of_it = [*(past.trajectory for past in history), trajectory]
    yield "counters", lambda: _counters(context.attempt, all_of_it, context.usage)
    yield "left_out", lambda: _too_many(all_of_it)


def _of_state(state: RunState) -> _Parts:
    """A run as its journal tells it, living or ended."""
    yield "task", lambda: state.task
    yield "run_id", lambda: state.run_id
    yield "agent", lambda: state.agent
    yield "attempt", lambda: state.attempt
    yield "ended", lambda: state.status if state.status in _STATUSES else None
    yield "question", lambda: state.question
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
    """An exception that no run has classified."""
    from triage.classifiers import diagnose

    info = capture(error)
    yield from _of_diagnosis(diagnose(info))
    yield from _of_error(info)
    yield "frames", lambda: _frames(error)


# --- parts ------------------------------------------------------------------------------------------


def _frames(error: object) -> tuple[str, ...]:
    """Where it was raised, outermost first. Nothing is read from disk: lines have numbers, no text."""
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
    """The steps of all attempts, the newest of them."""
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


def _attempt(past: Attempt) -> AttemptFacts:
    action = past.action
    return AttemptFacts(
        number=past.number,
        failure=_kind(past.diagnosis),
        user_message=past.diagnosis.user_message,
        error="" if past.error is None else str(past.error),
        action=action.kind if is_a(action, RecoveryAction) and action is not None else "",
        hint=getattr(action, "hint", None) or "",
        delay_s=getattr(action, "delay", 0.0),
        steps=len(past.trajectory),
        failed_steps=_failures(past.trajectory),
        seconds=max(0.0, past.ended - past.started),
    )


def _this(context: FailureContext, trajectory: Trajectory) -> AttemptFacts:
    """The attempt of the failure itself, of which nothing is decided yet."""
    return AttemptFacts(
        number=context.attempt,
        failure=_kind(context.diagnosis),
        user_message=context.diagnosis.user_message,
        error="" if context.error is None else str(context.error),
        steps=len(trajectory),
        failed_steps=_failures(trajectory),
    )


def _kind(diagnosis: Diagnosis) -> str:
    cause = f" ({diagnosis.cause})" if diagnosis.cause else ""
    return f"{diagnosis.failure_type}{cause}"


def _failures(trajectory: Trajectory) -> int:
    return sum(1 for step in trajectory.steps if step.error is not None)


def _failed(trajectory: Trajectory, diagnosis: Diagnosis) -> str | None:
    """What failed: the step that decided, else the last one, where it failed."""
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
