"""A question to a person: what is asked, and how a run stops for the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from msgspec.structs import replace

from triage.core.constructors import Struct
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.errors import AttemptInterrupted, leaves
from triage.core.events import ApprovalAsked, AttemptStarted, Event, RunResumed
from triage.core.failures import ASKING, ErrorInfo
from triage.core.state import Call, Compensation, RunState
from triage.core.taxonomy import UNSAFE, Cause, Effect, FailureType, Severity

from .call_keys import name_of_key
from .compensation import available
from .journal import Session
from .refusals import About, abouts_in, describe
from .returning import WAITS
from .run import Recorder
from .tools import Tool, shown

APPROVAL, AGAIN, ANSWER, ELSEWHERE = "approval", "again", "answer", "elsewhere"
"""Kinds of questions about what is not in doubt: see `Question`."""


class Question(Struct, frozen=True):
    """What a person is asked before a run may go on: about which call, and in which words.

    doubt: the call was started and may have happened. inner: what is asked by a run inside this one,
    which the call is: about a `call` of its own, or for an `action`; empty where the question is this
    run's own. asks: digest of the token of that question. calls: those it is about, by which a refusal is
    known again. parts: names by which `happened({name: …})` must answer; none where any value answers.

    kind: of a question that is not about a doubt: whether a call that has not begun may run, as a guard
    or the agent's framework asks (`approval`) or since it looks like one that has completed (`again`);
    what the framework's agent wants to know (`answer`); or the result of a call that somebody else makes
    (`elsewhere`). Empty in journals of 0.1.0. editable: names of the arguments that an approval may
    change; none where they cannot be.
    """

    key: str
    tool: str
    effect: str
    arguments: Any
    text: str
    doubt: bool
    inner: str = ""
    asks: str = ""
    kind: str = ""
    editable: Sequence[str] = ()
    calls: Sequence[About] = ()
    parts: Sequence[str] = ()

    @property
    def not_begun(self) -> bool:
        """Whether it asks for leave to begin a call."""
        return not self.doubt and self.kind in (APPROVAL, AGAIN)

    @property
    def guesses(self) -> bool:
        """Whether a run with `on_in_doubt="fail"` fails instead of asking this."""
        return self.doubt or self.kind in (AGAIN, "")


def question_about(
    key: str, tool: Tool, bound: Mapping[str, Any], run: Recorder
) -> Question | None:
    """What must be asked before this unsafe call runs; None if it may.

    Only calls of earlier attempts that this attempt has not reached yet matter: this call may be one of
    them, worded differently. It is none that had begun before this call ended without effect: the agent
    wanted both. An approved call waits until all calls in doubt are settled, since asking about one stops
    the attempt and would cut the call off.
    """
    replay = run.replay
    if replay is None:
        return None
    state = run.session.state
    may_rerun = run.session.config.durability.on_in_doubt == "rerun"
    approved = key in state.approved
    if approved:
        names = [name for unmatched in replay.unmatched.values() for name in unmatched]
    else:
        names = list(replay.unmatched.get(tool.name, ()))
    earlier = [state.calls[name] for name in names]
    if approved:  # runs that were cut off go on unasked
        earlier = [call for call in earlier if call.run is None]
    earlier.sort(key=lambda call: (call.key != key, call.seq))
    known = state.calls.get(key)
    if tool.nested and known is not None and _is_same_run(known):
        return None
    for call in earlier:
        settled = call.outcome == "done" or (call.outcome is None and call.keyed)
        if not settled and not may_rerun and call.key not in state.approved:
            return doubt(call, state)
    if approved or replay.kind == "resume":  # it goes on with other work
        return None
    if known is not None and _was_refused(known):
        return None
    tried = -1 if known is None or known.done_at is None else known.done_at
    for call in earlier:
        if call.outcome == "done" and not call.undone and call.seq > tried:
            again = tool.shown(bound)
            text = (
                f"{tool.name} has completed in this run with {shown(call.arguments)}; may it run "
                f"again with {shown(again)}?"
            )
            return to_be_approved(key, tool, again, text, AGAIN)
    return None


def doubt_heard(key: str, tool: Tool, run: Recorder, heard: Sequence[str]) -> Question | None:
    """What must be asked before this unsafe call runs about one that returned an error in this attempt.

    heard: keys of such calls that may have happened all the same. They are asked about before an equal
    call, and before any other call of a tool that is `once`.
    """
    if not heard or run.session.config.durability.on_in_doubt == "rerun":
        return None
    state = run.session.state
    for name in heard:
        call = state.calls[name]
        again = name_of_key(name) == name_of_key(key)
        same = again or (call.tool == tool.name and tool.effect is Effect.ONCE)
        if same and call.outcome == "in_doubt" and name not in state.approved:
            return doubt(call, state)
    return None


def _is_same_run(call: Call) -> bool:
    """Whether a call is an inner run that goes on as it was cut off, or anew as it had no effect."""
    return call.outcome is None or (call.outcome == "done" and call.effect not in UNSAFE)


def _was_refused(call: Call) -> bool:
    """Whether a call's arguments were refused: it never ran, and will be refused again."""
    if call.error is None or call.error.is_a("ValidationError"):
        return call.error is not None
    hint = call.error.hint or {}
    return call.outcome == "not_attempted" and hint.get("cause") == Cause.INVALID_ARGUMENTS


def to_be_approved(
    key: str, tool: Tool, arguments: Any, text: str, kind: str, effect: Effect | None = None
) -> Question:
    """The question whether a call that has not begun may run. effect: None is the tool's."""
    editable = tuple(arguments) if tool.editable and isinstance(arguments, Mapping) else ()
    said = (effect or tool.effect).value
    return Question(
        key, tool.name, said, arguments, text, doubt=False, kind=kind, editable=editable
    )


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


def doubt(call: Call, state: RunState) -> Question:
    """Did this call happen? Of equal calls it is said which of them."""
    why = f" ({call.error})" if call.error is not None else ""
    return Question(
        call.key,
        call.tool,
        call.effect,
        call.arguments,
        f"did {call.tool} with {shown(call.arguments)} happen? It was started and its outcome is "
        f"not known{why[:300]}{_which(call, state)}",
        doubt=True,
    )


def lost_result(call: Call) -> Question:
    """What was the result of this call? It is done, and the store kept no result that holds a secret."""
    text = (
        f"{call.tool} with {shown(call.arguments)} has completed, and its result held a secret, which the "
        "store does not keep. What was it? Tell it with happened(result); rerun() would repeat the call."
    )
    return Question(call.key, call.tool, call.effect, call.arguments, text, doubt=True)


def _which(call: Call, state: RunState) -> str:
    """Which of several equal calls this is, by their order and when it began; empty for a single one."""
    name = call.key.rpartition(":")[0]
    equal = sorted(
        (one for one in state.calls.values() if one.key.rpartition(":")[0] == name),
        key=lambda one: int(one.key.rpartition(":")[2]),
    )
    if len(equal) < 2:
        return ""
    at = [one.key for one in equal].index(call.key) + 1
    return f"; it is call {at} of {len(equal)} with these arguments{_moment(call.began)}"


def _moment(seconds: float) -> str:
    try:
        began = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f", begun {began:%Y-%m-%d %H:%M:%S}.{began.microsecond // 1000:03} UTC"


def ask(run: Recorder, question: Question) -> NoReturn:
    """Stop the attempt before the call: a person must answer first."""
    _stop_and_ask(run, question, _waiting(question, "call:asked"))


def wait_for_answer(run: Recorder, question: Question, rule: str) -> NoReturn:
    """Stop the attempt: its agent itself asks a person. rule: what says so, as evidence."""
    diagnosis = _waiting(question, rule)
    message = "The work waits for an answer."
    _stop_and_ask(run, question, replace(diagnosis, cause=WAITS, user_message=message))


def _stop_and_ask(run: Recorder, question: Question, diagnosis: Diagnosis) -> NoReturn:
    if run.over:  # a task left behind: the run asks something else by now, or nothing
        run.refuse_late()
    if not (question.doubt or question.calls):
        made = describe(run.session, question.key, question.tool, question.arguments)
        question = replace(question, calls=(made,))
    run.session.question = question
    run.stop(diagnosis)
    raise AttemptInterrupted(diagnosis)


def _waiting(question: Question, rule: str) -> Diagnosis:
    """Why an attempt ends that asks this. rule: what says so, as evidence."""
    cause: str = Cause.IN_DOUBT
    message = "A step may have taken effect already, and somebody must look."
    if question.not_begun:
        cause, message = Cause.NEEDS_APPROVAL, "A step waits for an approval; it has not begun."
    elif question.kind in (ANSWER, ELSEWHERE):
        cause, message = WAITS, "The work waits for an answer."
    return Diagnosis(
        FailureType.UNKNOWN,
        cause=cause,
        severity=Severity.CRITICAL,
        evidence=(Evidence(rule, question.text),),
        technical_details=question.text,
        user_message=message,
        classifier=ASKING,
    )


def question_at(events: Sequence[Event]) -> Question | None:
    """What the run has come to ask about a call in its last attempt; None if nothing."""
    for event in reversed(events):
        if isinstance(event, AttemptStarted | RunResumed):
            return None
        if isinstance(event, ApprovalAsked) and event.kind == "call":
            payload: dict[str, Any] = {**event.payload, "calls": abouts_in(event)}
            return Question(key=event.subject, text=event.question, **payload)
    return None


def asked_inside(session: Session, error: BaseException) -> Diagnosis | None:
    """The diagnosis where an attempt ended because a run inside it waits for an answer; else None.

    The question is this run's from now on. Other runs inside that wait ask when they are come to again.
    """
    inner = session.inner
    assert inner is not None
    asked, inner.asked = inner.asked, []
    within = {id(one) for one in leaves(error)}
    question = next((question for raised, question in asked if id(raised) in within), None)
    if question is None:
        return None
    session.question = question
    return replace(
        _waiting(question, "call:inside"),
        technical_details=f"the run of {question.tool} inside this one asks: {question.text}",
        user_message="A part of the work waits for an answer.",
    )


def stop_in_doubt(run: Recorder, call: Call, info: ErrorInfo) -> None:
    """Stop the attempt behind a call that failed and may have happened all the same."""
    question = doubt(call, run.session.state)
    run.session.question = question
    run.stop(
        Diagnosis(
            FailureType.EXTERNAL_FAULT,
            cause=Cause.IN_DOUBT,
            severity=Severity.CRITICAL,
            evidence=(Evidence("call:in_doubt", question.text),),
            technical_details=str(info)[:1000],
            user_message="A step may have taken effect although it failed.",
            classifier=ASKING,
        )
    )


def cut_off(run: Recorder) -> Question | None:
    """What must be asked about the unsafe calls that an attempt was cut off in; None if nothing."""
    if run.session.config.durability.on_in_doubt == "rerun":
        return None
    state = run.session.state
    calls = (
        call
        for call in state.calls.values()
        if call.attempt == run.number and call.outcome in (None, "in_doubt")
        if call.effect in UNSAFE and call.run is None and not call.keyed
    )
    first = min(calls, key=lambda call: call.seq, default=None)
    return None if first is None else doubt(first, state)
