"""A person's answer to a suspended run: whether it fits the question, and what of it is journalled.

All of it works from the journal, so it is the same for the agent that goes on with the run and for an
operator who has the store and neither the agent nor the token.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from ._attempts import is_milestone
from ._plain import plain_noting
from ._questions import Question
from .actions import (
    Abort,
    Action,
    Approved,
    Edited,
    Escalate,
    Happened,
    Rejected,
    Replan,
    Rerun,
    Retry,
    Suspend,
)
from .errors import AlreadyResumed, RunOver, UnknownRun, UsageError
from .events import (
    ApprovalGiven,
    CallFinished,
    CallStarted,
    Event,
    RunFinished,
    RunResumed,
    RunSuspended,
)
from .redact import Redactor
from .state import RunState, fold

if TYPE_CHECKING:
    from .stores.base import Claim, Store

ANSWERS = (*get_args(Action), Happened, Rerun, Approved, Rejected, Edited)
LEASE_S = 30.0
"""Seconds an operator's hand may rest on a run: nearly always it is milliseconds."""


class Answered(NamedTuple):
    """What an answer comes to.

    action: what is done then. entries: what the journal gets before it, the type of each event with its
    fields after `time`. live: the result that was told, where it has no JSON form, by its call's key.
    """

    action: Action
    entries: Sequence[tuple[Any, ...]] = ()
    live: dict[str, Any] | None = None


def waits_for(events: Sequence[Event]) -> RunSuspended | None:
    """The question a run waits with, None if it does not wait."""
    last = next(filter(is_milestone, reversed(events)), None)
    return last if isinstance(last, RunSuspended) else None


def question_of(state: RunState, asked: RunSuspended) -> Question | None:
    """What was asked about a call; None if it was not about one."""
    if asked.call is None:
        return None
    call = state.calls.get(asked.call)
    tool = asked.call.rsplit(":", 2)[0]
    effect, arguments = ("unknown", None) if call is None else (call.effect, call.arguments)
    return Question(asked.call, tool, effect, arguments, asked.question, doubt=asked.doubt)


def check(question: Question | None, answer: Any) -> Action | None:
    """The action an answer stands for, None for one about a call. Raises UsageError if it does not fit."""
    if isinstance(answer, Suspend) or not isinstance(answer, ANSWERS):
        raise UsageError(
            "resume() takes an action (Retry, Replan, Rollback, Resume, Escalate, Abort), approve(), "
            f"reject(reason), edit(payload), happened(result) or rerun(), not {type(answer).__name__}"
        )
    if question is None:
        if isinstance(answer, Happened | Rerun):
            raise UsageError("this run waits for an action: no call of it is in doubt")
    elif isinstance(answer, Edited) or (
        question.doubt and not isinstance(answer, Happened | Rerun | Escalate | Abort)
    ):
        raise UsageError(
            f"this run asks: {question.text} Answer with happened(result), rerun(), Abort() or "
            f"Escalate(), not {type(answer).__name__}"
        )
    return _action_of(answer, question)


def _action_of(answer: Any, question: Question | None) -> Action | None:
    match answer:
        case Happened() | Rerun():
            return None
        case Approved():
            return Retry() if question is None else None
        case Rejected(reason=reason):
            if question is None:
                return Abort(reason or "a person refused to go on")
            said = f": {reason!r}" if reason else ""
            return Replan(f"A person refused the call of {question.tool}{said}. Find another way.")
        case Edited(payload=payload):
            return Retry(inject=payload)
        case _:
            return cast("Action", answer)


def answered(state: RunState, question: Question | None, answer: Any) -> Answered:
    """What an answer that fits comes to."""
    action = _action_of(answer, question)
    if action is not None:
        return Answered(action)
    assert question is not None
    if not isinstance(answer, Happened):
        return Answered(Retry(), [(ApprovalGiven, "call", question.key, "approved")])
    data, exact = plain_noting(answer.result)
    entries: list[tuple[Any, ...]] = []
    if question.key not in state.calls:
        shown = (question.key, question.tool, question.effect, question.arguments)
        entries.append((CallStarted, state.attempt, *shown))
    entries.append((CallFinished, state.attempt, question.key, "done", data, exact))
    return Answered(Retry(), entries, None if exact else {question.key: answer.result})


# At the store -------------------------------------------------------------------------------------


async def resolve(
    store: Store, run_id: str, answer: Happened | Rerun | Abort, *, now: float
) -> Action:
    """Answer a suspended run without its token: any worker may then recover it. What that will do.

    now: the time of the events, seconds since the epoch. Raises UnknownRun, RunOver, RunBusy while
    somebody else is answering, AlreadyResumed if somebody has; UsageError for a run that does not wait,
    an answer that does not fit, and a result that holds what looks like a secret.
    """
    events = await store.read(run_id)
    if not events:
        raise UnknownRun(f"the store knows no run {run_id}")
    if isinstance(events[-1], RunFinished):
        raise RunOver(f"run {run_id} has ended: {events[-1].status}")
    asked = waits_for(events)
    if asked is None:
        raise UsageError(f"run {run_id} does not wait for an answer")
    state = fold(events)
    question = question_of(state, asked)
    check(question, answer)
    if isinstance(answer, Happened):
        _refuse_secrets(answer.result)
    action, entries, _ = answered(state, question, answer)
    claim = await store.claim(run_id, lease_s=LEASE_S)
    if claim.events != len(events):
        await _let_go(store, run_id, claim.epoch)
        raise AlreadyResumed(f"run {run_id} has just been answered by somebody else")
    entries = [*entries, (RunResumed, asked.attempt, action)]
    await _write(store, run_id, entries, claim, now)
    return action


async def cancel(store: Store, run_id: str, *, now: float) -> None:
    """End a run, whoever has it: an owner that lives gets StaleWriter at its next write.

    Raises UnknownRun, and RunOver for a run that has ended.
    """
    claim = await store.claim(run_id, lease_s=LEASE_S, force=True)
    await _write(store, run_id, [(RunFinished, "cancelled")], claim, now)


async def _write(
    store: Store, run_id: str, entries: Sequence[tuple[Any, ...]], claim: Claim, now: float
) -> None:
    """Append events and let the run go, written or not."""
    at, epoch = claim.events, claim.epoch
    made = [kind(run_id, seq, now, *fields) for seq, (kind, *fields) in enumerate(entries, at)]
    try:
        await store.append(run_id, made, at=at, epoch=epoch)
    finally:
        await _let_go(store, run_id, epoch)


async def _let_go(store: Store, run_id: str, epoch: int) -> None:
    """What is written stands, and the lease ends by itself if it must: nothing here is an error."""
    try:
        await store.release(run_id, epoch=epoch)
    except Exception as error:  # noqa: BLE001 - as said
        logging.getLogger("triage").warning("run %s: not released: %s", run_id, error)


def _refuse_secrets(result: Any) -> None:
    """A redacted result could not be given to the agent, and no other may be stored."""
    data, _ = plain_noting(result)
    places = Redactor().fields_of(data, "result")
    if places:
        raise UsageError(
            f"{', '.join(places)} holds what looks like a secret, which no store keeps; resume the run "
            "by its token, in the process that goes on with it"
        )
