"""Going on with a suspended run: the answer is checked, the token used up, the answer carried out."""

from __future__ import annotations

from typing import Any, cast, get_args

from ._call import Function
from ._decide import Decision, infeasible
from ._loop import run_loop
from ._plain import plain_noting
from ._recover import kept, perform
from ._session import Session, Suspensions, Waiting
from .actions import Abort, Action, Escalate, Happened, Rerun, Retry, Suspend
from .errors import UsageError
from .events import ApprovalGiven, CallFinished, CallStarted, RunResumed


async def resume(suspensions: Suspensions, function: Function, token: str, answer: Any) -> Any:
    """Carry out a person's answer; the run's result, as `run` gives it."""
    _check(suspensions.look(token), answer)
    waiting = suspensions.take(token)
    session = waiting.session
    # A person's time is none of the run's: its deadline moves on by as long as it has waited.
    session.started += session.config.env.monotonic() - waiting.since
    action = _carry_out(session, answer)
    session.add(RunResumed, waiting.context.attempt, kept(action))
    following = await perform(session, waiting.context, Decision(action, "person"))
    return await run_loop(session, function, following)


def _check(waiting: Waiting, answer: Any) -> None:
    question = waiting.session.question
    kinds = (*get_args(Action), Happened, Rerun)
    if isinstance(answer, Suspend) or not isinstance(answer, kinds):
        raise UsageError(
            "resume() takes an action (Retry, Replan, Rollback, Resume, Escalate, Abort), "
            f"happened(result) or rerun(), not {type(answer).__name__}"
        )
    if question is None:
        if isinstance(answer, Happened | Rerun):
            raise UsageError("this run waits for an action: no call of it is in doubt")
    elif question.doubt and not isinstance(answer, Happened | Rerun | Escalate | Abort):
        raise UsageError(
            f"this run asks: {question.text} Answer with happened(result), rerun(), Abort() or "
            f"Escalate(), not {type(answer).__name__}"
        )
    if not isinstance(answer, Happened | Rerun):
        action: Action = answer
        refused = infeasible(waiting.session, action)
        if refused is not None:
            raise UsageError(refused)


def _carry_out(session: Session, answer: Any) -> Action:
    """Journal the answer to a question about a call; the action that follows from any answer."""
    question, attempt = session.question, session.state.attempt
    if isinstance(answer, Happened) and question is not None:
        data, exact = plain_noting(answer.result)
        if not exact:
            session.live = {**(session.live or {}), question.key: answer.result}
        if question.key not in session.state.calls:
            started = (question.key, question.tool, question.effect, question.arguments)
            session.add(CallStarted, attempt, *started)
            session.has_calls = True
        session.add(CallFinished, attempt, question.key, "done", data, exact)
        return Retry()
    if isinstance(answer, Rerun) and question is not None:
        session.add(ApprovalGiven, "call", question.key, "approved")
        return Retry()
    return cast("Action", answer)
