"""The path of a failure: diagnose, fail, decide, choose, perform. The only place that acts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NoReturn, assert_never

from ._answers import end_inner
from ._attempts import Failure, Next, count_in_parent
from ._decide import Decision, decide
from ._diagnose import context_of, diagnose
from ._guidance import Guidance
from ._ledger import Ledger
from ._plain import plain
from ._questions import Question
from ._run import Run
from ._session import Session
from ._suspensions import Waiting, digest_of, time_of
from ._undo import NotUndone, behind, undo_all, undone
from .actions import (
    PROCEEDING,
    Abort,
    Action,
    Escalate,
    Proceed,
    Replan,
    Resume,
    Retry,
    Rollback,
    Stop,
    Suspend,
)
from .errors import (
    TriageAbortError,
    TriageError,
    TriageEscalationError,
    TriageFatalError,
    TriageSuspendedError,
)
from .events import (
    EXACT,
    ActionChosen,
    ApprovalAsked,
    AttemptFailed,
    RunFinished,
    RunSuspended,
)
from .failures import ErrorInfo, FailureContext
from .limits import delay_of
from .observers import logger
from .redact import redact
from .reports import report_of
from .taxonomy import FailureType


@cache
def _capture() -> Callable[[BaseException], ErrorInfo]:
    """Imported with the first failure, which most processes never see."""
    from ._capture import capture

    return capture


@cache
def _nested_retries() -> Callable[[Callable[..., Any], Iterable[object]], None]:
    """Imported with the first fault of another side, which is when retries begin to multiply."""
    from ._retry_layers import say_used_by

    return say_used_by


# A member of an enumeration costs a call wherever it is asked for by name.
_EXTERNAL_FAULT = FailureType.EXTERNAL_FAULT


# The path -----------------------------------------------------------------------------------------


async def recover(session: Session, run: Run, failure: Failure) -> Next:
    """From a failed attempt to the next one. Raises the error that ends the run instead."""
    info = None
    if failure.error is not None:
        info = _capture()(failure.error)
    trajectory = run.ended_by(info)
    diagnosis = failure.diagnosis
    if diagnosis is None:
        diagnosis = await diagnose(session, trajectory)
    if diagnosis.failure_type is _EXTERNAL_FAULT:
        _nested_retries()(session.config.function, session.kwargs.values())
    if session.question is not None:
        # Whoever goes on from here in another process must ask the same.
        session.add(ApprovalAsked, *asked_of(session.question))
    session.add(AttemptFailed, run.number, info, diagnosis)
    context = context_of(session, run, failure.error, trajectory, diagnosis)
    decision = await decide(session, context)
    session.add(ActionChosen, run.number, kept(decision.action), decision.by, decision.reason)
    return await perform(session, context, decision)


def asked_of(question: Question) -> tuple[str, str, str, dict[str, Any]]:
    """A question as the fields of an `ApprovalAsked`."""
    about = {
        "tool": question.tool,
        "effect": question.effect,
        "arguments": question.arguments,
        "doubt": question.doubt,
    }
    if question.inner:
        about |= {"inner": question.inner, "asks": question.asks}
    return "call", question.key, question.text, about


def kept(action: Action) -> Action:
    """The action as the journal keeps it: with copies of the values it carries."""
    if isinstance(action, Retry) and action.inject:
        return replace(action, inject=plain(dict(action.inject)))
    if isinstance(action, Suspend) and action.metadata:
        return replace(action, metadata=plain(dict(action.metadata)))
    return action


# Perform ------------------------------------------------------------------------------------------


async def perform(session: Session, context: FailureContext, decision: Decision) -> Next:
    """Carry out the action: the start of the next attempt, or the error that ends the run."""
    action = decision.action
    if decision.diagnosis is not None:
        context = context._replace(diagnosis=decision.diagnosis)
    if isinstance(action, PROCEEDING):
        return await proceed(session, context, action)
    return await _end(session, context, action, fatal=decision.fatal)


async def _end(session: Session, context: FailureContext, action: Stop, *, fatal: bool) -> NoReturn:
    """Raise the error that ends the run, or leaves it to a person."""
    match action:
        case Suspend():
            await suspend(session, context, action)
        case Escalate(reason=reason, compensate=compensate):
            await stop(
                session, context, "escalated", TriageEscalationError, reason, compensate=compensate
            )
        case Abort(reason=reason) if fatal:
            await stop(session, context, "fatal", TriageFatalError, reason)
        case Abort(reason=reason, compensate=compensate):
            await stop(session, context, "aborted", TriageAbortError, reason, compensate=compensate)
        case _:
            assert_never(action)


async def proceed(session: Session, context: FailureContext, action: Proceed) -> Next:
    """Flush, compensate, wait; how the next attempt starts."""
    if session.keeper is not None:
        await flush(session, context)
    following = plan_next(session, context, action)
    if session.undo is not None:
        await _compensate(session, context, action, following)
    delay = delay_of(action)
    if delay > 0:
        await session.config.env.sleep(delay)
    return following


def plan_next(session: Session, context: FailureContext, action: Proceed) -> Next:
    """How the attempt after this action starts, by the action alone."""
    diagnosis = context.diagnosis
    number = context.attempt + 1
    match action:
        case Retry(hint=hint, inject=inject):
            # All fields in their order: what is made of a tuple costs a third of a call with them.
            guidance = _made(Guidance, (hint, None, None, diagnosis, action, inject or None))
            return _made(Next, (number, guidance, action.kind, None, False))
        case Replan(hint=hint):
            told = hint or diagnosis.hint or _REPLAN_HINT
            return Next(
                number, Guidance(hint=told, diagnosis=diagnosis, action=action), action.kind
            )
        case Resume(subgoal=subgoal, hint=hint):
            guidance = Guidance(
                hint=hint,
                subgoal=subgoal or session.state.open_subgoals[0],
                state=context.state,
                diagnosis=diagnosis,
                action=action,
            )
            return Next(number, guidance, action.kind, keep_state=True)
        case Rollback(checkpoint_id=checkpoint, hint=hint):
            base = checkpoint if checkpoint is not None else context.checkpoint_id
            ledger = None if base is None else session.state.ledger_at(base)
            kept_part = Ledger() if ledger is None or base is None else ledger.cut(base)
            kept_steps = len(kept_part.steps)
            told = hint or f"{_ROLLBACK_HINT.format(kept_steps)} {diagnosis.hint or ''}".strip()
            guidance = Guidance(
                hint=told, state=plain(kept_part.state), diagnosis=diagnosis, action=action
            )
            return Next(number, guidance, action.kind, base=base)


_made = tuple.__new__
_REPLAN_HINT = "The approach so far has failed. Make a new plan and do not repeat the last one."
_ROLLBACK_HINT = (
    "The work was rolled back: the first {} recorded steps and their state are kept, what came after "
    "is undone. Go on from there in another way."
)


async def _compensate(
    session: Session,
    context: FailureContext,
    action: Proceed,
    following: Next,
) -> None:
    """Undo what the next attempt would otherwise repeat, newest first."""
    if isinstance(action, Resume):
        return
    for entry in behind(session.state, following.base):
        # Recorded calls are reused by a retry, and met again by a new plan; only hand-written
        # steps have to be undone for those.
        if not isinstance(action, Rollback) and not entry.key.startswith("step@"):
            continue
        error = await undone(session, context.attempt, entry)
        if error is not None:
            failed = NotUndone(entry, error)
            reason = f"the compensator {entry.name} failed with {type(error).__name__}"
            if context.exception is not None:
                context.exception.add_note(str(failed))
            await stop(
                session, context, "escalated", TriageEscalationError, reason, notes=[str(failed)]
            )


# Stopping -----------------------------------------------------------------------------------------


async def flush(session: Session, context: FailureContext) -> None:
    """Store the journal before going on; a store that fails ends the run unless told otherwise."""
    try:
        await session.flush_attempt()
    except Exception as error:
        if session.does_without_store(error):
            return
        if context.exception is None:
            raise
        error.add_note(f"raised while recovering from: {context.error}")
        raise error from context.exception


async def stop(
    session: Session,
    context: FailureContext,
    status: str,
    kind: type[TriageError],
    reason: str | None,
    *,
    compensate: bool = False,
    notes: Sequence[str] = (),
) -> NoReturn:
    """End the run: journal it, store it, and raise `kind` from the original error.

    compensate: undo first what can be undone. notes: added to the error, with what was not undone.
    """
    failed = await undo_all(session, context.attempt) if compensate else []
    if session.inner is not None:
        await end_inner(session)
    session.add(RunFinished, status, None, EXACT, context.error)
    count_in_parent(session)
    error = kind(_message(context, status, reason), context)
    error.reporter = report_of
    for note in (*notes, *map(str, failed)):
        error.add_note(note)
    await session.flush_beside(error)
    raise error from context.exception


def _message(context: FailureContext, status: str, reason: str | None) -> str:
    diagnosis = str(context.diagnosis)
    because = f"; {context.error}" if context.error is not None else ""
    if not because and context.diagnosis.evidence:
        because = f"; {context.diagnosis.evidence[0].text}"  # no exception says it
    why = f": {reason}" if reason and reason != diagnosis else ""
    text = f"run {context.run_id[:8]} {status} after attempt {context.attempt}: {diagnosis}"
    return redact(f"{text}{why}{because}"[:2000])


async def suspend(session: Session, context: FailureContext, action: Suspend) -> NoReturn:
    """Stop until a person answers: journal the question, and raise the error with the token."""
    # The token names its run, so that any process with the store can find it.
    token = f"{session.run_id}~{session.config.env.new_token()}"
    question = redact(action.question or f"{context.diagnosis}; how should the run go on?")
    asked = session.question
    expires = None
    if action.expires_s is not None:
        try:
            expires = await time_of(session.config) + action.expires_s
        except Exception as silent:  # noqa: BLE001 - a store that fails hides no question
            logger.warning("run %s: its store gives no time: %r", session.run_id, silent)
            expires = session.config.env.time() + action.expires_s
    session.add(
        RunSuspended,
        context.attempt,
        digest_of(token),
        question,
        plain(dict(action.metadata)),
        None if asked is None else asked.key,
        asked is not None and asked.doubt,
        expires,
    )
    error = TriageSuspendedError(
        f"run {session.run_id[:8]} is suspended: {question}",
        context,
        token=token,
        question=question,
    )
    error.reporter = report_of
    since = session.config.env.monotonic()
    session.config.suspensions.put(token, Waiting(session, context, since))
    await session.flush_beside(error)
    raise error from context.exception
