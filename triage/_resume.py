"""Going on with a suspended run: the answer is checked, the token used up, the answer carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast, get_args

from ._attempts import Next, is_milestone
from ._call import Function
from ._decide import Decision, infeasible
from ._loop import run_loop
from ._plain import plain_noting
from ._recorded import Question
from ._recover import kept, perform
from ._reopen import UNSET, context_at, opened
from ._session import Config, Session, digest_of
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
from .errors import AlreadyResumed, RunBusy, RunOver, StaleWriter, TokenExpired, UsageError
from .events import ApprovalGiven, CallFinished, CallStarted, Event, RunResumed, RunSuspended

ANSWERS = (*get_args(Action), Happened, Rerun, Approved, Rejected, Edited)
_OLD = "this token was used before; a token answers one question once"


async def resume(
    config: Config, function: Function, token: str, answer: Any, kwargs: Mapping[str, Any]
) -> Any:
    """Carry out a person's answer; the run's result, as `run` gives it."""
    if config.durable:
        session, start = await _from_store(config, function, token, answer, kwargs)
    else:
        session, start = await _from_here(config, token, answer)
    return await run_loop(session, function, start)


async def _from_here(config: Config, token: str, answer: Any) -> tuple[Session, Next]:
    """A run that waits in this process."""
    waiting = config.suspensions.look(token)
    session, context = waiting.session, waiting.context
    _check(session, answer)
    config.suspensions.take(token)
    # A person's time is none of the run's: its deadline moves on by as long as it has waited.
    session.started += config.env.monotonic() - waiting.since
    action = _carry_out(session, answer)
    session.add(RunResumed, context.attempt, kept(action))
    return session, await perform(session, context, Decision(action, "person"))


async def _from_store(
    config: Config, function: Function, token: str, answer: Any, kwargs: Mapping[str, Any]
) -> tuple[Session, Next]:
    """A run that waits in its store, whichever process asked the question."""
    digest = digest_of(token)
    events = await config.store.read(token.partition("~")[0])
    asked = _asked(events, digest)
    if asked.expires is not None and config.env.time() >= asked.expires:
        raise TokenExpired(
            f"the answer to run {asked.run_id} came after its time; the run still waits"
        )
    waiting = config.suspensions.find(token)
    if waiting is not None:
        # It waits here: what only this process has (results without a JSON form) is still at hand.
        session, context = waiting.session, waiting.context
        session.started += config.env.monotonic() - waiting.since
    else:
        session = opened(config, function, events, kwargs, UNSET)
        session.question = _question(session, asked)
        context = context_at(session)
    _check(session, answer)
    session.flushed = len(events)
    try:
        claim = await config.store.claim(session.run_id, lease_s=config.durability.lease_s)
        session.keep(claim.epoch)
        action = _carry_out(session, answer)
        session.add(RunResumed, context.attempt, kept(action))
        await session.flush()
    except (RunBusy, RunOver, StaleWriter) as error:
        raise AlreadyResumed(_OLD) from error
    config.suspensions.drop(token)
    return session, await perform(session, context, Decision(action, "person"))


def _asked(events: Sequence[Event], digest: str) -> RunSuspended:
    """The question this token answers. Raises UsageError for no such token, AlreadyResumed for an old
    one.
    """
    asked = [event for event in events if isinstance(event, RunSuspended)]
    if all(event.token_digest != digest for event in asked):
        _unknown()
    last = next(filter(is_milestone, reversed(events)), None)
    if not isinstance(last, RunSuspended) or last.token_digest != digest:
        raise AlreadyResumed(_OLD)
    return last


def _unknown() -> NoReturn:
    raise UsageError(
        "no run of this agent's store waits with this token; give the token of the "
        "TriageSuspendedError to an agent with the same store"
    )


def _question(session: Session, asked: RunSuspended) -> Question | None:
    """What was asked about a call, read from the journal; None if it was not about one."""
    if asked.call is None:
        return None
    call = session.state.calls.get(asked.call)
    tool = asked.call.rsplit(":", 2)[0]
    effect, arguments = ("unknown", None) if call is None else (call.effect, call.arguments)
    return Question(asked.call, tool, effect, arguments, asked.question, doubt=asked.doubt)


def _check(session: Session, answer: Any) -> None:
    question = session.question
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
    action = _action_of(answer, question)
    if action is not None:
        refused = infeasible(session, action)
        if refused is not None:
            raise UsageError(refused)


def _action_of(answer: Any, question: Question | None) -> Action | None:
    """The action an answer stands for; None for one about a call."""
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


def _carry_out(session: Session, answer: Any) -> Action:
    """Journal the answer to a question about a call; the action that follows from any answer."""
    question, attempt = session.question, session.state.attempt
    action = _action_of(answer, question)
    if action is not None:
        return action
    assert question is not None
    if isinstance(answer, Happened):
        data, exact = plain_noting(answer.result)
        if not exact:
            session.live = {**(session.live or {}), question.key: answer.result}
        if question.key not in session.state.calls:
            started = (question.key, question.tool, question.effect, question.arguments)
            session.add(CallStarted, attempt, *started)
            session.has_calls = True
        session.add(CallFinished, attempt, question.key, "done", data, exact)
    else:
        session.add(ApprovalGiven, "call", question.key, "approved")
    return Retry()
