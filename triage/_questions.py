"""What a person is asked about a recorded call before a run may go on, and what is undone instead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ._recorder import Recorder
from ._tool import Tool
from ._undo import available
from .diagnosis import Diagnosis, Evidence
from .errors import AttemptInterrupted
from .events import ApprovalAsked, AttemptStarted, Event, RunResumed
from .failures import ErrorInfo
from .redact import redact
from .state import Call, Compensation
from .taxonomy import Cause, FailureType, Severity

if TYPE_CHECKING:
    from ._session import Session

MAX_SHOWN = 200
"""Characters of a call's arguments that a question shows."""


class Question(NamedTuple):
    """What a person is asked before a run may go on: about which call, and in which words.

    doubt: the call was started and may have happened; else it was not, and asks to be allowed. inner:
    what is asked by a run inside this one, which the call is: about a `call` of its own, or for an
    `action`; empty where the question is this run's own. asks: digest of the token of that question.
    """

    key: str
    tool: str
    effect: str
    arguments: Any
    text: str
    doubt: bool
    inner: str = ""
    asks: str = ""


def question_about(
    key: str, tool: Tool, bound: Mapping[str, Any], run: Recorder
) -> Question | None:
    """What must be asked before this unsafe call runs; None if it may.

    Only calls of earlier attempts matter that this attempt has not come to: this call may be one of
    them in other words.
    """
    replay = run.replay
    if replay is None:
        return None
    state = run.session.state
    may_rerun = run.session.config.durability.on_in_doubt == "rerun"
    earlier = [state.calls[name] for name in replay.unmatched.get(tool.name, ())]
    if tool.nested and key in state.calls and state.calls[key].outcome is None:
        return None  # a run that was cut off goes on
    for call in earlier:
        settled = call.outcome == "done" or (call.outcome is None and call.keyed)
        if not settled and not may_rerun and call.key not in state.approved:
            return doubt(call)
    if replay.kind == "resume":  # it goes on with other work
        return None
    for call in earlier:
        if call.outcome == "done" and not call.undone:
            again = tool.shown(bound)
            text = (
                f"{tool.name} has completed in this run with {shown(call.arguments)}; may it run "
                f"again with {shown(again)}?"
            )
            return Question(key, tool.name, tool.effect.value, again, text, doubt=False)
    return None


def replaced(question: Question, tool: Tool, run: Recorder) -> list[Compensation]:
    """The compensators of the calls that a new plan replaces by this one; none if one has none."""
    replay = run.replay
    if replay is None or replay.kind != "replan" or question.doubt:
        return []
    calls = run.session.state.calls
    done = [calls[key] for key in replay.unmatched.get(tool.name, ()) if not calls[key].undone]
    entries = [available(run.session, call.key) for call in done if call.outcome == "done"]
    if not all(entries):
        return []
    return sorted((entry for found in entries for entry in found), key=lambda e: -e.seq)


def doubt(call: Call) -> Question:
    """Did this call happen?"""
    why = f" ({call.error})" if call.error is not None else ""
    return Question(
        call.key,
        call.tool,
        call.effect,
        call.arguments,
        f"did {call.tool} with {shown(call.arguments)} happen? It was started and its outcome is "
        f"not known{why[:300]}",
        doubt=True,
    )


def shown(arguments: Any) -> str:
    """A call's arguments as a question shows them."""
    text = redact(json.dumps(arguments))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def ask(run: Recorder, question: Question) -> NoReturn:
    """Stop the attempt before the call: a person must answer first."""
    run.session.question = question
    diagnosis = Diagnosis(
        FailureType.UNKNOWN,
        cause=Cause.IN_DOUBT,
        severity=Severity.CRITICAL,
        evidence=(Evidence("call:asked", question.text),),
        technical_details=question.text,
        user_message="A step may have taken effect already, and somebody must look.",
        classifier="calls",
    )
    run.stop(diagnosis)
    raise AttemptInterrupted(diagnosis)


WAITS = "waits_for_answer"
"""The cause of an attempt's end that is no failure: a framework's agent waits for a person."""


def wait_for_answer(run: Recorder, question: Question, rule: str) -> NoReturn:
    """Stop the attempt: its agent itself asks a person. rule: what says so, as evidence."""
    run.session.question = question
    diagnosis = Diagnosis(
        FailureType.UNKNOWN,
        cause=WAITS,
        severity=Severity.CRITICAL,
        evidence=(Evidence(rule, question.text),),
        technical_details=question.text,
        user_message="The work waits for an answer.",
        classifier="calls",
    )
    run.stop(diagnosis)
    raise AttemptInterrupted(diagnosis)


def question_at(events: Sequence[Event]) -> Question | None:
    """What the run has come to ask about a call in its last attempt; None if nothing."""
    for event in reversed(events):
        if isinstance(event, AttemptStarted | RunResumed):
            return None
        if isinstance(event, ApprovalAsked) and event.kind == "call":
            return Question(key=event.subject, text=event.question, **event.payload)
    return None


def asked_inside(session: Session, error: BaseException) -> Diagnosis | None:
    """The diagnosis where an attempt ended because a run inside it waits for an answer; else None.

    The question is this run's from now on.
    """
    inner = session.inner
    assert inner is not None
    assert inner.asked is not None
    raised, question = inner.asked
    inner.asked = None
    if not _holds(error, raised):
        return None
    session.question = question
    return Diagnosis(
        FailureType.UNKNOWN,
        cause=Cause.IN_DOUBT,
        severity=Severity.CRITICAL,
        evidence=(Evidence("call:inside", question.text),),
        technical_details=f"the run of {question.tool} inside this one asks: {question.text}",
        user_message="A part of the work waits for an answer.",
        classifier="calls",
    )


def _holds(error: BaseException, sought: BaseException) -> bool:
    """Whether an error is the one that is sought, or a group that holds it."""
    if isinstance(error, BaseExceptionGroup):
        return any(_holds(inner, sought) for inner in error.exceptions)
    return error is sought


def stop_in_doubt(run: Recorder, call: Call, info: ErrorInfo) -> None:
    """Stop the attempt behind a call that failed and may have happened all the same."""
    question = doubt(call)
    run.session.question = question
    run.stop(
        Diagnosis(
            FailureType.EXTERNAL_FAULT,
            cause=Cause.IN_DOUBT,
            severity=Severity.CRITICAL,
            evidence=(Evidence("call:in_doubt", question.text),),
            technical_details=str(info)[:1000],
            user_message="A step may have taken effect although it failed.",
            classifier="calls",
        )
    )
