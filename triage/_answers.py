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
from .actions import Abort, Action, Escalate, Replan, Retry, Suspend
from .answers import Approved, Edited, Happened, Rejected, Rerun
from .errors import AlreadyResumed, RunOver, StoreError, UnknownRun, UsageError
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
    from ._session import Session
    from .stores.base import Claim, Store

ANSWERS = (*get_args(Action), Happened, Rerun, Approved, Rejected, Edited)
LEASE_S = 30.0
"""Seconds an operator's hand may rest on a run: nearly always it is milliseconds."""


class Answered(NamedTuple):
    """What an answer comes to.

    action: what is done then. entries: what the journal gets before it, the type of each event with its
    fields after `time`. live: the result that was told, where it has no JSON form, by its call's key.
    inner: the answer itself, by the digest of the token it would have had, where a run inside this one
    has asked.
    """

    action: Action
    entries: Sequence[tuple[Any, ...]] = ()
    live: dict[str, Any] | None = None
    inner: dict[str, Any] | None = None


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
    inner = "call" if call is not None and call.run is not None and call.outcome is None else ""
    return Question(
        asked.call, tool, effect, arguments, asked.question, doubt=asked.doubt, inner=inner
    )


def check(question: Question | None, answer: Any) -> Action | None:
    """The action an answer stands for, None for one about a call. Raises UsageError if it does not fit."""
    if isinstance(answer, Suspend) or not isinstance(answer, ANSWERS):
        raise UsageError(
            "resume() takes an action (Retry, Replan, Rollback, Resume, Escalate, Abort), approve(), "
            f"reject(reason), edit(payload), happened(result) or rerun(), not {type(answer).__name__}"
        )
    if question is None or question.inner == "action":
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
    if question is not None and question.inner and not isinstance(answer, Abort | Escalate):
        return None  # it is for the run that asks
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
    if question.inner:
        return Answered(Retry(), inner={question.asks: answer})
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
    store: Store, run_id: str, answer: Happened | Rerun | Retry | Abort, *, now: float
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
    if question is not None and question.inner and isinstance(answer, Happened | Rerun):
        await _resolve_inner(store, state, question.key, answer, now)
    action, entries, _, _ = answered(state, question, answer)
    claim = await store.claim(run_id, lease_s=LEASE_S)
    if claim.events != len(events):
        await _let_go(store, run_id, claim.epoch)
        raise AlreadyResumed(f"run {run_id} has just been answered by somebody else")
    entries = [*entries, (RunResumed, asked.attempt, action)]
    await _write(store, run_id, entries, claim, now)
    return action


async def _resolve_inner(
    store: Store, state: RunState, key: str, answer: Happened | Rerun, now: float
) -> None:
    """Give an answer to the run inside that asks for it, unless it has been given one."""
    inner = state.calls[key].run
    assert inner is not None
    info = await store.info(inner)
    if info is None:
        raise UsageError(
            f"it is run {inner} inside of run {state.run_id} that asks, which this store does not keep; "
            "resolve it where it is kept, or resume the run by its token"
        )
    if info.status == "suspended":
        await resolve(store, inner, answer, now=now)


async def cancel(store: Store, run_id: str, *, now: float) -> None:
    """End a run and those inside it, whoever has them: an owner that lives gets StaleWriter.

    Raises UnknownRun, and RunOver for a run that has ended.
    """
    claim = await store.claim(run_id, lease_s=LEASE_S, force=True, revive=True)
    events = await store.read(run_id)
    await _write(store, run_id, [(RunFinished, "cancelled")], claim, now)
    if any(isinstance(event, CallStarted) and event.run is not None for event in events):
        for inner in _open_inside(fold(events)):
            await _cancel_inner(store, inner, run_id, now)


async def end_inner(session: Session) -> None:
    """A run ends: so do those inside it that were cut off, and that nothing will come to again."""
    for inner in _open_inside(session.state):
        left = None if session.inner is None else session.inner.left.get(inner)
        config = session.config if left is None else left.config
        await _cancel_inner(config.store, inner, session.run_id, config.env.time())


def _open_inside(state: RunState) -> list[str]:
    calls = state.calls.values()
    return [call.run for call in calls if call.run is not None and call.outcome is None]


async def _cancel_inner(store: Store, run_id: str, parent: str, now: float) -> None:
    try:
        info = await store.info(run_id)
        # One of an id that the caller chose may be somebody else's.
        if info is not None and info.parent == parent:
            await cancel(store, run_id, now=now)
    except StoreError as error:
        logging.getLogger("triage").debug("run %s: not cancelled: %s", run_id, error)


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
