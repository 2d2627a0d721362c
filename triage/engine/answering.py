"""A person's answer to a suspended run: check that it fits the question, and make its events.

Everything works from the journal, so it is the same for the agent that continues the run and for an
operator who has only the store, neither the agent nor the token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

from triage.core import actions
from triage.core.constructors import Struct
from triage.core.errors import UsageError
from triage.core.events import (
    ApprovalGiven,
    CallFinished,
    CallStarted,
    Event,
    RunSuspended,
    is_milestone,
)
from triage.core.failures import FailureContext
from triage.core.json_values import plain, plain_noting
from triage.core.state import RunState

from .config import Config, soon
from .journal import Session
from .questions import CALL, ELSEWHERE, Question
from .refusals import About, Refusal, refusal_hint
from .tools import shown

ANSWERS = (
    *get_args(actions.Action),
    actions.Happened,
    actions.Rerun,
    actions.Approved,
    actions.Rejected,
    actions.Edited,
)


class Answered(Struct, frozen=True):
    """The consequences of an answer.

    action: performed next. entries: make the events to journal before it, given a position and time. live:
    the person's result, if it has no JSON form, by the key of its call. inner: the answer for an inner run,
    by the digest of its token.
    """

    action: actions.Action
    entries: Sequence[Callable[..., Event]] = ()
    live: dict[str, Any] | None = None
    inner: dict[str, Any] | None = None


def waits_for(events: Sequence[Event]) -> RunSuspended | None:
    """Return the suspension of a run that waits for an answer; None if it does not wait."""
    last = next(filter(is_milestone, reversed(events)), None)
    return last if isinstance(last, RunSuspended) else None


def question_of(state: RunState, asked: RunSuspended) -> Question | None:
    """Return the question about a call, rebuilt from its suspension; None if it was not about a call."""
    if asked.call is None:
        return None
    call = state.calls.get(asked.call)
    tool = asked.call.rsplit(":", 2)[0]
    effect, arguments = ("unknown", None) if call is None else (call.effect, call.arguments)
    inner = "call" if call is not None and call.run is not None and call.outcome is None else ""
    return Question(
        asked.call, tool, effect, arguments, asked.question, doubt=asked.doubt, inner=inner
    )


def check(question: Question | None, answer: Any) -> actions.Action | None:
    """Return the action of an answer; None if it settles a call. Raises UsageError if it does not fit."""
    if isinstance(answer, actions.Suspend) or not isinstance(answer, ANSWERS):
        kind = "type" if isinstance(answer, type) else type(answer).__name__
        raise UsageError(
            "resume() takes an action (Retry, Replan, Rollback, Resume, Escalate, Abort), approve(), "
            f"reject(reason), edit(payload), happened(result) or rerun(), not {kind}"
        )
    if question is None or question.inner == "action":
        if isinstance(answer, actions.Happened | actions.Rerun):
            raise UsageError("this run waits for an action: no call of it is in doubt")
    elif question.not_begun and isinstance(answer, actions.Happened):
        raise UsageError(
            f"this run asks: {question.text} The call has not begun, so it cannot have happened: answer "
            "with approve(), reject(reason) or edit(arguments)"
        )
    elif question.kind == ELSEWHERE and isinstance(
        answer, actions.Approved | actions.Edited | actions.Rerun
    ):
        raise UsageError(
            f"this run asks: {question.text}; the call is made elsewhere, and only its result helps: "
            "answer with happened(result) or reject(reason)"
        )
    elif isinstance(answer, actions.Happened) and not _names_parts(question, answer.result):
        raise UsageError(
            f"this run asks {len(question.parts)} questions at once: answer with "
            f"happened({{name: answer, …}}), by the names {', '.join(question.parts)}"
        )
    elif isinstance(answer, actions.Edited) and (question.not_begun or question.editable):
        unknown = [name for name in answer.payload if name not in question.editable]
        if question.of == CALL and question.editable and unknown:
            raise UsageError(
                f"edit() names {', '.join(map(str, unknown))}, which {question.tool} is not called "
                f"with; an edit may change {', '.join(question.editable)}"
            )
    elif isinstance(answer, actions.Edited) or (
        question.doubt
        and not isinstance(
            answer, actions.Happened | actions.Rerun | actions.Escalate | actions.Abort
        )
    ):
        raise UsageError(
            f"this run asks: {question.text} Answer with happened(result), rerun(), Abort() or "
            f"Escalate(), not {type(answer).__name__}"
        )
    return _action_of(answer, question)


def _names_parts(question: Question, result: Any) -> bool:
    if not question.parts:
        return True
    named = isinstance(result, Mapping) and bool(result)
    return named and all(name in question.parts for name in result)


def _refusals_of(question: Question, reason: str) -> list[Refusal]:
    """Return the refusals, one per call, of a rejected question."""
    calls = question.calls or (About(question.key, (), f"the call of {question.tool}"),)
    return [Refusal(each, reason) for each in calls]


def _action_of(
    answer: Any, question: Question | None, before: Sequence[Refusal] = ()
) -> actions.Action | None:
    """Return the action of an answer; None if it settles a call, which is journalled."""
    if (
        question is not None
        and question.inner
        and not isinstance(answer, actions.Abort | actions.Escalate)
    ):
        return None  # the inner run takes the answer
    action: actions.Action | None = None
    match answer:
        case actions.Happened() | actions.Rerun():
            pass
        case actions.Approved():
            action = actions.Retry() if question is None else None
        case actions.Rejected(reason=reason):
            if question is None:
                action = actions.Abort(reason or "a person refused to go on")
            else:
                action = actions.Replan(refusal_hint(_refusals_of(question, reason or ""), before))
        case actions.Edited(payload=payload):
            if question is None:
                action = actions.Retry(inject=payload)
            elif not question.editable:
                action = actions.Replan(
                    f"A person refused the call of {question.tool} with {shown(question.arguments)}, "
                    f"and wants it made with {shown(plain(dict(payload)))} instead."
                )
        case _:
            action = answer
    return action


def answered(
    state: RunState,
    question: Question | None,
    answer: Any,
    *,
    by: str = "",
    before: Sequence[Refusal] = (),
) -> Answered:
    """Return the consequences of an answer that fits the question.

    by: who answers, by their own account. before: earlier refusals in force, repeated in the hint of a new
    one.
    """
    action = _action_of(answer, question, before)
    if question is None:
        assert action is not None
        return Answered(action)
    approval = partial(ApprovalGiven, kind=question.of, subject=question.key, by=by)
    entries: list[Callable[..., Event]] = []
    if isinstance(answer, actions.Rejected):
        reason = answer.reason or ""
        entries = [
            partial(approval, decision="rejected", reason=reason, ask_again=answer.ask_again)
        ]
    elif isinstance(answer, actions.Edited) and action is not None:
        wanted = f"make it with {shown(plain(dict(answer.payload)))} instead"
        entries = [partial(approval, decision="rejected", reason=wanted)]
    if question.inner and action is None:
        return Answered(actions.Retry(), entries, inner={question.asks: answer})
    if action is not None:
        return Answered(action, entries)
    if isinstance(answer, actions.Edited):
        payload = plain(dict(answer.payload))
        return Answered(actions.Retry(), [partial(approval, decision="edited", payload=payload)])
    if not isinstance(answer, actions.Happened):
        return Answered(actions.Retry(), [partial(approval, decision="approved")])
    data, exact = plain_noting(answer.result)
    if question.key not in state.calls:
        entries.append(
            partial(
                CallStarted,
                attempt=state.attempt,
                key=question.key,
                tool=question.tool,
                effect=question.effect,
                arguments=question.arguments,
            )
        )
    entries.append(
        partial(
            CallFinished,
            attempt=state.attempt,
            key=question.key,
            outcome="done",
            result=data,
            exact=exact,
        )
    )
    return Answered(actions.Retry(), entries, None if exact else {question.key: answer.result})


class Waiting(Struct, frozen=True):
    """A suspended run in this process: its session, its failure, and the time it stopped (monotonic)."""

    session: Session
    context: FailureContext
    since: float


def forget_questions(config: Config, events: Sequence[Event]) -> None:
    """Drop the suspended runs of these journal events: their questions are no longer open."""
    for event in events:
        if isinstance(event, RunSuspended):
            config.suspensions.pop(event.token_digest, None)


def digest_of(token: str) -> str:
    """Return the SHA-256 of a token, for stores to keep. Raises UsageError for anything but text."""
    if not isinstance(token, str):
        raise UsageError(f"a token is text, not {type(token).__name__}")
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


async def time_of(config: Config) -> float:
    """Return the current time for the expiry of questions, in seconds since the epoch.

    It is the clock of a durable store, which all processes share, else that of this process.
    """
    if not config.durable:
        return config.env.time()
    return await soon(config.store.now(), config.durability.lease_s)
