"""How an attempt begins, the first and every further one."""

from __future__ import annotations

from typing import NamedTuple

from ._guidance import NO_GUIDANCE, Guidance, Replay
from ._journal import ATTEMPT
from ._run import Run
from ._session import Session
from .diagnosis import Diagnosis
from .events import (
    ActionChosen,
    AttemptFailed,
    AttemptStarted,
    Event,
    RunFinished,
    RunResumed,
    RunSuspended,
)
from .state import RunState, is_call
from .steps import NO_USAGE, Usage
from .taxonomy import UNSAFE


class Failure(NamedTuple):
    """An attempt that failed. error: the live exception, None if there was none. diagnosis: where it
    is known already (an interrupt, a check), None where the classifier must say.
    """

    error: BaseException | None
    diagnosis: Diagnosis | None = None


class Next(NamedTuple):
    """How the next attempt starts. base: position it is restored to. keep_state: as `AttemptStarted`."""

    attempt: int
    guidance: Guidance
    kind: str
    base: int | None = None
    keep_state: bool = False


_FIRST = (1,)
_MILESTONES = (AttemptStarted, AttemptFailed, ActionChosen, RunSuspended, RunResumed, RunFinished)


def is_milestone(event: Event) -> bool:
    """True for the events that say where a run stands."""
    return isinstance(event, _MILESTONES)


def first_attempt(session: Session) -> Run:
    """The handle of the first attempt."""
    # Nobody else knows the session yet, so this needs no lock.
    session.records += (ATTEMPT, session.time(), _FIRST, None, None)
    if session.busy:
        session.begin(1)
    return Run(session, 1, NO_GUIDANCE, None, 0)


def next_attempt(session: Session, following: Next) -> Run:
    """The handle of a further attempt."""
    guidance = following.guidance
    number = following.attempt
    diagnosis = guidance.diagnosis
    session.attempt_started = session.config.env.monotonic()
    if session.config.limits.on_limit != "escalate":
        session.raise_limits()
    session.question = None
    told = (
        number,
        following.base,
        guidance.hint,
        guidance.subgoal,
        following.keep_state,
        tuple(guidance.inject) if guidance.inject else (),
    )
    seq = session.put(AttemptStarted, told)
    if session.busy:
        session.begin(seq)
    critical = None if diagnosis is None else diagnosis.critical_step
    if following.base is None and not session.has_calls and not following.keep_state:
        # Nothing is kept and nothing can be reused, so the journal need not be read.
        # What is made of a tuple costs a third of a call with the fields.
        replay = tuple.__new__(Replay, (following.kind, critical, NO_KEYS, {}))
        return Run(session, number, guidance, replay, 0)
    state = session.state
    kept, unmatched = _known_calls(state)
    replay = Replay(following.kind, critical, kept, unmatched)
    run = Run(session, number, guidance, replay, len(state.steps))
    run.has_subgoals = bool(state.ledger.subgoals)
    return run


NO_KEYS: frozenset[str] = frozenset()


def _known_calls(state: RunState) -> tuple[frozenset[str], dict[str, set[str]]]:
    """Keys of the calls whose steps were kept, and by tool those of unsafe ones still to be met."""
    kept = frozenset(
        step.metadata["call"] for step in state.steps if step.metadata and is_call(step)
    )
    unmatched: dict[str, set[str]] = {}
    for call in state.calls.values():
        unsettled = call.outcome in (None, "in_doubt", "done") and not call.undone
        if call.effect in UNSAFE and unsettled:
            unmatched.setdefault(call.tool, set()).add(call.key)
    return kept, unmatched


def count_in_parent(session: Session) -> None:
    """What a run inside another has used counts in the outer one too, each part of it once."""
    parent = session.parent
    if parent is None or parent.over:
        return
    counted = parent.session.state.used_inside.get(session.run_id, NO_USAGE)
    usage = _beyond(session.state.usage, counted)
    if usage.calls or usage.total_tokens or usage.cost_usd is not None:
        parent.count(usage, session.run_id)


def _beyond(usage: Usage, counted: Usage) -> Usage:
    if counted is NO_USAGE:
        return usage
    cost = usage.cost_usd
    if cost is not None:
        cost = max(0.0, cost - (counted.cost_usd or 0.0)) or None
    return Usage(
        max(0, usage.input_tokens - counted.input_tokens),
        max(0, usage.output_tokens - counted.output_tokens),
        cost,
        max(0, usage.calls - counted.calls),
        usage.model,
    )
