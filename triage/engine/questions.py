"""Questions to a person: make one, and stop the run for the answer."""

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
"""Values of `Question.kind`."""
CALL, PLAN = "call", "plan"
"""Values of `Question.of`; others are possible."""


class Question(Struct, frozen=True):
    """A question about a call or a plan, which a person must answer before the run may go on.

    doubt: the call was started and may have happened. inner: set if the call is an inner run that asks:
    `call`, about a call of its own, or `action`. asks: digest of the token of the inner run's question.
    calls: the calls in question, to recognize a refused one. parts: names by which `happened({name: …})`
    must answer; empty if any value answers.

    kind: empty for a doubt, and in journals of 0.1.0. `approval`: may a call begin, asked by a guard or the
    agent's framework; `again`: may a call begin that resembles a completed one; `answer`: the framework's
    agent wants to know something; `elsewhere`: the result of a call that is made outside of the run.
    editable: names of the arguments that an approval may change.

    of: `call`, or the kind of content that is to be approved: `plan`, or `step` of one. `key` then
    identifies the content, `tool` repeats the kind, and `arguments` are the content. expires_s: seconds
    until an answer is too late, None for never.
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
    of: str = CALL
    expires_s: float | None = None

    @property
    def not_begun(self) -> bool:
        """Whether the question is whether a call may begin."""
        return not self.doubt and self.kind in (APPROVAL, AGAIN)

    @property
    def guesses(self) -> bool:
        """Whether a run with `on_in_doubt="fail"` fails instead of asking this."""
        return self.doubt or self.kind in (AGAIN, "")


def question_about(
    key: str, tool: Tool, bound: Mapping[str, Any], run: Recorder
) -> Question | None:
    """Return the question to ask before this unsafe call runs; None if it may run.

    This call may repeat, with other arguments, a call of an earlier attempt that this attempt has not made
    yet. A call that had begun before this one ended without effect is not repeated: the agent wanted
    both. An approved call waits until all calls in doubt are settled, since a question about one of them
    stops the attempt and would cut the call off.
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
    if approved:  # inner runs that were cut off continue without a question
        earlier = [call for call in earlier if call.run is None]
    earlier.sort(key=lambda call: (call.key != key, call.seq))
    known = state.calls.get(key)
    if tool.nested and known is not None and _is_same_run(known):
        return None
    for call in earlier:
        # The call's idempotency key protects it when it is made again, and no call in other words.
        protected = call.keyed and call.outcome != "in_doubt"
        reworded = known is None and name_of_key(call.key) != name_of_key(key)
        settled = call.outcome == "done" or (protected and (approved or not reworded))
        if not settled and not may_rerun and call.key not in state.approved:
            return doubt(call, state)
    if approved or replay.kind == "resume":  # a resumed attempt does other work
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
    """Return the question about an unsafe call that returned an error in this attempt; None without one.

    heard: keys of such calls, which may have happened. The question is due before an equal call, unless an
    idempotency key protects that, and before any other call of a tool with the effect `once`.
    """
    if not heard or run.session.config.durability.on_in_doubt == "rerun":
        return None
    state = run.session.state
    for name in heard:
        call = state.calls[name]
        again = name_of_key(name) == name_of_key(key)
        reworded = not again and call.tool == tool.name and tool.effect is Effect.ONCE
        in_doubt = call.outcome == "in_doubt" or (
            call.may_have_happened and call.keyed and not again
        )
        if (
            (again or reworded)
            and in_doubt
            and call.outcome != "done"
            and name not in state.approved
        ):
            return doubt(call, state)
    return None


def _is_same_run(call: Call) -> bool:
    """Whether a call's inner run continues: it was cut off, or had no effect and may start again."""
    return call.outcome is None or (call.outcome == "done" and call.effect not in UNSAFE)


def _was_refused(call: Call) -> bool:
    """Whether a call's arguments were invalid, so that it never ran and never will."""
    if call.error is None or call.error.is_a("ValidationError"):
        return call.error is not None
    hint = call.error.hint or {}
    return call.outcome == "not_attempted" and hint.get("cause") == Cause.INVALID_ARGUMENTS


def to_be_approved(
    key: str, tool: Tool, arguments: Any, text: str, kind: str, effect: Effect | None = None
) -> Question:
    """Return the question whether a call may begin. effect: None takes the tool's."""
    editable = tuple(arguments) if tool.editable and isinstance(arguments, Mapping) else ()
    asked_effect = (effect or tool.effect).value
    return Question(
        key, tool.name, asked_effect, arguments, text, doubt=False, kind=kind, editable=editable
    )


def about_content(
    kind: str, subject: str, content: Any, text: str, *, expires_s: float | None = None
) -> Question:
    """Return the question whether content may be run. Only that of a plan can be edited.

    subject: identifies exactly this content in this run.
    """
    editable = tuple(content) if kind == PLAN and isinstance(content, Mapping) else ()
    return Question(
        subject,
        kind,
        Effect.UNKNOWN.value,
        content,
        text,
        doubt=False,
        kind=APPROVAL,
        editable=editable,
        calls=(About(subject, (), f"the {kind}"),),
        of=kind,
        expires_s=expires_s,
    )


def replaced(question: Question, tool: Tool, run: Recorder) -> list[Compensation]:
    """Return the compensators of the calls that a new plan replaces by this one; empty if one lacks any."""
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
    """Return the question whether this call happened; it says which of several equal calls is meant."""
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
    """Return the question for a completed call's result, which held a secret and was not stored."""
    text = (
        f"{call.tool} with {shown(call.arguments)} has completed, and its result held a secret, which the "
        "store does not keep. What was it? Tell it with happened(result); rerun() would repeat the call."
    )
    return Question(call.key, call.tool, call.effect, call.arguments, text, doubt=True)


def _which(call: Call, state: RunState) -> str:
    """Return a call's number among equal calls, and when it began, in words; empty without equal calls."""
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
    """Stop the attempt before the call, until a person has answered."""
    _stop_and_ask(run, question, _waiting(question, "call:asked"))


def wait_for_answer(run: Recorder, question: Question, rule: str) -> NoReturn:
    """Stop the attempt, as its agent itself asks a person. rule: of the evidence."""
    diagnosis = _waiting(question, rule)
    message = "The work waits for an answer."
    _stop_and_ask(run, question, replace(diagnosis, cause=WAITS, user_message=message))


def _stop_and_ask(run: Recorder, question: Question, diagnosis: Diagnosis) -> NoReturn:
    if run.over:  # a task left behind: by now the run asks another question, or none
        run.refuse_late()
    if not (question.doubt or question.calls):
        made = describe(run.session, question.key, question.tool, question.arguments)
        question = replace(question, calls=(made,))
    run.session.question = question
    run.stop(diagnosis)
    raise AttemptInterrupted(diagnosis)


def _waiting(question: Question, rule: str) -> Diagnosis:
    """Return the diagnosis of an attempt that stops for a question. rule: of the evidence."""
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
    """Return the question that the last attempt has asked; None without one, and for a Suspend's."""
    for event in reversed(events):
        if isinstance(event, AttemptStarted | RunResumed):
            return None
        if isinstance(event, ApprovalAsked):
            if event.kind != CALL:
                left = None if event.expires is None else event.expires - event.time
                return about_content(
                    event.kind, event.subject, event.payload, event.question, expires_s=left
                )
            payload: dict[str, Any] = {**event.payload, "calls": abouts_in(event)}
            return Question(key=event.subject, text=event.question, **payload)
    return None


def asked_inside(session: Session, error: BaseException) -> Diagnosis | None:
    """Return the diagnosis if an attempt ended because an inner run waits for an answer; else None.

    This run takes over the question. Other waiting inner runs ask when the attempt calls them again.
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
    """Stop the attempt after a failed call that may have happened."""
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
    """Return the question about unsafe calls that an attempt was cut off in; None without any."""
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
