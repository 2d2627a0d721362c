"""Handle runs through their store alone, in a process that need not have their agent: read their question,
answer it, and end them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import anyio

from triage.core import actions, errors
from triage.core.events import (
    ApprovalGiven,
    CallFinished,
    CallStarted,
    Event,
    RunFinished,
    RunResumed,
    RunSuspended,
)
from triage.core.json_values import plain_noting
from triage.core.observers import logger
from triage.core.quoting import action_text, json_text, span
from triage.core.redaction import Redactor, redact
from triage.core.state import RunState, fold
from triage.core.taxonomy import Cause
from triage.core.wire import to_json
from triage.stores.base import Claim, RunInfo, Store

from .answering import answered, check, forget_questions, question_of, waits_for
from .journal import Session
from .keeper import hurry, release
from .questions import CALL, ELSEWHERE, question_at
from .refusals import refusals
from .returning import WAITS

LEASE_S = 30.0
"""Seconds of the lease taken while a run is answered or cancelled, which takes milliseconds."""
SHORTEST_S, LONGEST_S = 0.01, 0.5
"""Bounds of the seconds between two looks at a run that another process is answering."""
PATIENCE_S = 2.0
"""Seconds to wait for that answer. Answering takes milliseconds, so a slower process has died."""
T = TypeVar("T")


Refusal: TypeAlias = Callable[[Sequence[Event], actions.Action], str | None]
"""Returns why an agent cannot carry out an action in the run of this journal; None if it can."""


async def resolve(
    store: Store,
    run_id: str,
    answer: actions.Reply,
    *,
    now: float,
    by: str = "",
    question: str | None = None,
    refuses: Refusal | None = None,
) -> actions.Action:
    """Record an answer to a suspended run, for any worker to recover; return the action that follows.

    An inner run asks through its outer runs, so its answer resumes them too.

    now: the time of the events, in seconds since the epoch. by: who answers, for the journal. question:
    digest of the token of the question that is answered; None means the question that is open now.
    refuses: checks whether the agent can carry out the action; None means that no agent is available, so
    answers that only an agent can check are refused.

    Raises UnknownRun; RunOver for a run that has ended; AlreadyResumed, which names the first answer, if
    the question was answered; TokenExpired; RunBusy while a process that died answering still holds the
    lease; UsageError for a run that asks nothing, an answer that does not fit the question or needs the
    agent, and an apparent secret in a result or arguments.
    """
    asked, action = await _resolve(store, run_id, answer, now, by, question, refuses)
    await _resume_outer(store, run_id, asked.token_digest, answer, now, by)
    return action


async def _resolve(
    store: Store,
    run_id: str,
    answer: actions.Reply,
    now: float,
    by: str,
    question: str | None = None,
    refuses: Refusal | None = None,
) -> tuple[RunSuspended, actions.Action]:
    """Record an answer in a run and in the inner run that asked; return the question and the action."""
    events = await store.read(run_id)
    if not events:
        raise errors.UnknownRun(f"the store knows no run {run_id}")
    asked = waits_for(events)
    if asked is None or question not in (None, asked.token_digest):
        raise not_asked(run_id, events, question)
    state = fold(events)
    asks = question_at(events) or question_of(state, asked)
    # Even without the token, the approval of a plan counts in time only.
    expires = asked.expires if asks is not None and asks.of != CALL else None
    if expires is not None and await store.now() >= expires:
        raise late(run_id)
    action = check(asks, answer)
    if refuses is not None:
        refused = None if action is None else refuses(events, action)
        if refused is not None:
            raise errors.UsageError(refused)
    elif isinstance(action, actions.Rollback | actions.Resume) or (
        asks is None and isinstance(answer, actions.Edited)
    ):
        raise errors.UsageError(
            "this answer needs the agent: give it to Agent.answer or Agent.resume"
        )
    if isinstance(answer, actions.Happened):
        _refuse_secrets(answer.result, "result")
    if isinstance(answer, actions.Edited):
        _refuse_secrets(answer.payload, "payload")
    result = answered(state, asks, answer, by=by, before=refusals(events))
    read, take = partial(store.read, run_id), partial(store.claim, run_id, lease_s=LEASE_S)
    claim = await first_to_answer(take, read, asked)
    try:
        if claim.events != len(events):
            raise not_asked(run_id, await read(), asked.token_digest)
        if (
            asks is not None
            and asks.inner
            and not isinstance(answer, actions.Abort | actions.Escalate)
        ):
            await _resolve_inner(store, state, asks.key, answer, now, by)
    except BaseException:
        await release(store, run_id, claim.epoch)
        raise
    resumed = partial(RunResumed, attempt=asked.attempt, action=result.action, by=by)
    await _write(store, run_id, [*result.entries, resumed], claim, now)
    return asked, result.action


class FirstAnswer(NamedTuple):
    """The answer in force. by: who gave it; empty if unknown. time: in seconds since the epoch."""

    by: str
    time: float
    said: str


def first_answer(events: Sequence[Event], question: str) -> FirstAnswer | None:
    """Return how a question was answered; None if it is still open or was never asked.

    question: digest of its token.
    """
    first: FirstAnswer | None = None
    asked = [
        at
        for at, event in enumerate(events)
        if isinstance(event, RunSuspended) and event.token_digest == question
    ]
    for event in events[asked[-1] + 1 :] if asked else ():
        match event:
            case ApprovalGiven(decision=said, reason=reason):
                said = f"{said}: {reason}" if reason else said
                first = FirstAnswer(event.by, event.time, said)
            case CallFinished(step=None):
                result = json_text(redact(to_json(event.result)))
                first = FirstAnswer("", event.time, f"it happened: {result}")
            case RunResumed():
                said = action_text(event.action) if first is None else first.said
                return FirstAnswer(event.by or (first.by if first else ""), event.time, said)
            case RunFinished():
                return FirstAnswer(event.by, event.time, event.status)
            case RunSuspended():
                break
            case _:
                pass
    return None


def late(run_id: str) -> errors.TokenExpired:
    """Return the error for an answer after its time."""
    return errors.TokenExpired(
        f"the answer to run {run_id} came after its time; the run still waits"
    )


def not_asked(
    run_id: str, events: Sequence[Event], question: str | None = None
) -> errors.TriageError:
    """Return the error for an answer to a question that is not open.

    It is RunOver, AlreadyResumed or, for a run that has never asked, UsageError. question: digest of the
    answered question's token; None means the last question.
    """
    over = isinstance(events[-1], RunFinished) and question is None
    if question is None:
        asked = [event.token_digest for event in events if isinstance(event, RunSuspended)]
        question = asked[-1] if asked else None
    first = None if question is None else first_answer(events, question)
    who = "" if first is None else f" first{first.by and f' by {first.by}'}: {first.said}"
    if over:
        ended = f"run {run_id} has ended: {getattr(events[-1], 'status', '')}"
        return errors.RunOver(f"{ended}; it was answered{who}" if who else ended)
    if question is None:
        return errors.UsageError(f"run {run_id} does not wait for an answer")
    if first is None:
        return errors.AlreadyResumed(f"run {run_id} no longer asks this; see what it asks now")
    return errors.AlreadyResumed(f"this question was answered{who}")


async def first_to_answer(
    take: Callable[[], Awaitable[T]],
    read: Callable[[], Awaitable[Sequence[Event]]],
    asked: RunSuspended,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> T:
    """Claim a waiting run; wait up to `PATIENCE_S` for another process that is answering it.

    take: claims the run. read: reads its journal. Raises AlreadyResumed, which names the first answer, and
    RunBusy if a process seems to have died while answering; the question is open again once its lease ends.
    """
    pause, waited = SHORTEST_S, 0.0
    while True:
        try:
            return await take()
        except (errors.RunBusy, errors.RunOver) as error:
            events = await read()
            if waits_for(events) != asked:
                raise not_asked(asked.run_id, events, asked.token_digest) from error
            if isinstance(error, errors.RunOver) or (
                waited >= PATIENCE_S and error.wait_s > LONGEST_S
            ):
                raise
        await sleep(pause)
        waited += pause
        pause = min(2 * pause, LONGEST_S)


async def _resolve_inner(
    store: Store, state: RunState, key: str, answer: actions.Reply, now: float, by: str
) -> None:
    """Pass an answer to the inner run that asked for it, unless it has one already."""
    inner = state.calls[key].run
    assert inner is not None
    info = await store.info(inner)
    if info is None:
        raise errors.UsageError(
            f"the question comes from run {inner} inside run {state.run_id}, which is not in this store; "
            "resolve it in its own store, or resume the run by its token"
        )
    if info.status == "suspended":
        await _resolve(store, inner, answer, now, by)


async def _resume_outer(
    store: Store, run_id: str, digest: str, answer: actions.Reply, now: float, by: str
) -> None:
    """Resume the outer runs that wait with an answered question of their inner run.

    digest: of the question's token. An outer run that was answered meanwhile is left alone.
    """
    info = await store.info(run_id)
    while info is not None and info.parent is not None:
        outer = info.parent
        events = await store.read(outer)
        asked, question = waits_for(events), question_at(events)
        if asked is None or question is None or question.asks != digest:
            return
        claim = await store.claim(outer, lease_s=LEASE_S)
        if claim.events != len(events):
            await release(store, outer, claim.epoch)
            return
        result = answered(fold(events), question, answer, by=by)
        resumed = partial(RunResumed, attempt=asked.attempt, action=actions.Retry(), by=by)
        await _write(store, outer, [*result.entries, resumed], claim, now)
        info, digest = await store.info(outer), asked.token_digest


async def cancel(store: Store, run_id: str, *, now: float, by: str = "") -> None:
    """End a run and its inner runs for good, even if another process owns them.

    A live owner gets StaleWriter, and its agent function is cancelled: at once in this process, elsewhere
    at the next lease renewal. now: the time of the event, in seconds since the epoch. by: who cancels the
    run, for the journal. Raises UnknownRun, and RunOver if the run has ended.
    """
    claim = await store.claim(run_id, lease_s=LEASE_S, force=True, revive=True)
    events = await store.read(run_id)
    await _write(store, run_id, [partial(RunFinished, status="cancelled", by=by)], claim, now)
    hurry(run_id)
    if any(isinstance(event, CallStarted) and event.run is not None for event in events):
        for inner in open_inside(fold(events)):
            await _cancel_inner(store, inner, run_id, now)


async def end_inner(session: Session) -> None:
    """Cancel the unfinished inner runs of a run that has ended, since nothing can reach them again.

    Does nothing until the end is stored: before that, another process may own the run and continue it.
    """
    if session.is_stored:
        await _cancel_open(session)


async def _cancel_open(session: Session) -> None:
    if session.inner is None:
        return
    for inner in open_inside(session.state):
        left = session.inner.left.get(inner)
        config = session.config if left is None else left.config
        await _cancel_inner(config.store, inner, session.run_id, config.env.time())
        if left is not None:
            forget_questions(left.config, left.events)
            await _cancel_open(left)  # its inner runs may be in another store


def open_inside(state: RunState) -> list[str]:
    """Return the ids of the inner runs that have not ended."""
    calls = state.calls.values()
    return [call.run for call in calls if call.run is not None and call.outcome is None]


async def _cancel_inner(store: Store, run_id: str, parent: str, now: float) -> None:
    try:
        info = await store.info(run_id)
        # An id chosen by the caller may belong to an unrelated run.
        if info is not None and info.parent == parent:
            await cancel(store, run_id, now=now)
    except errors.StoreError as error:
        logger.debug("run %s: not cancelled: %s", run_id, error)


async def _write(
    store: Store, run_id: str, entries: Sequence[Callable[..., Event]], claim: Claim, now: float
) -> None:
    """Append events and release the run, even if the append fails."""
    at, epoch = claim.events, claim.epoch
    made = [make(run_id=run_id, seq=seq, time=now) for seq, make in enumerate(entries, at)]
    try:
        await store.append(run_id, made, at=at, epoch=epoch)
    finally:
        await release(store, run_id, epoch)


def _refuse_secrets(value: Any, name: str) -> None:
    """Raise UsageError for a value with a secret, as the store would redact it."""
    data, _ = plain_noting(value)
    places = Redactor().fields_of(data, name)
    if places:
        raise errors.UsageError(
            f"{', '.join(places)} holds what looks like a secret, which no store keeps; resume the run "
            "by its token, in the process that continues it"
        )


# Views of a waiting run: its question, possible answers, and lease.


WAITING = (Cause.NEEDS_APPROVAL, WAITS, "approval")
"""Causes of an attempt's end that is no failure: a person is asked, and nothing is in doubt. Journals of
plans up to 0.2.0 have `approval`."""
_ANSWERS = {
    "approval": ("approve", "reject", "edit", "abort"),
    "answer": ("happened", "approve", "reject", "abort"),
    "call in doubt": ("happened", "rerun", "abort"),
}
"""Answers that `resolve` takes to a question about a call, by the result of `asks_of`."""
_ELSEWHERE = ("happened", "reject", "abort")
_ACTIONS = ("approve", "reject", "retry", "replan", "abort", "escalate")


def asks_of(events: Sequence[Event]) -> str:
    """Return the kind of a run's question: `approval`, `call in doubt` or `answer`; empty without one."""
    asked = waits_for(events)
    if asked is None:
        return ""
    if asked.doubt:
        return "call in doubt"
    question = question_at(events)
    approval = question is not None and question.not_begun
    return "approval" if approval else "answer"


def answers_to(events: Sequence[Event]) -> tuple[str, ...]:
    """Return the possible answers to a run's question, the most usual first."""
    question = question_at(events)
    plan = question is not None and question.of != CALL
    if not (plan or is_about_call(events)):
        return _ACTIONS
    elsewhere = question is not None and question.kind == ELSEWHERE
    return _ELSEWHERE if elsewhere else _ANSWERS[asks_of(events)]


def is_about_call(events: Sequence[Event]) -> bool:
    """Whether a run's question is about a call, its own or an inner run's."""
    asked, question = waits_for(events), question_at(events)
    wants_action = question is not None and question.inner == "action"
    return asked is not None and asked.call is not None and not wants_action


def asked_inside_by(events: Sequence[Event]) -> str | None:
    """Return the id of the inner run whose question a run waits with; None if the question is its own."""
    asked, question = waits_for(events), question_at(events)
    if asked is None or question is None or not question.inner:
        return None
    return fold(events).calls[question.key].run


def lease_of(info: RunInfo, time: float) -> str:
    """Return the rest of a run's lease in words; empty without one."""
    if info.lease_until is None:
        return ""
    left = info.lease_until - time
    return f"{span(left)} left" if left > 0 else f"ended {span(-left)} ago"
