"""What a person is asked about a recorded call before a run may go on, and what is undone instead."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn, get_args

import anyio
from msgspec.structs import replace

from triage.core import (
    ASKING,
    UNSAFE,
    Abort,
    Action,
    ApprovalAsked,
    ApprovalGiven,
    Approved,
    AttemptInterrupted,
    AttemptStarted,
    Call,
    CallFinished,
    CallStarted,
    Cause,
    Compensation,
    Diagnosis,
    Edited,
    Effect,
    ErrorInfo,
    Escalate,
    Event,
    Evidence,
    FailureContext,
    FailureType,
    Happened,
    Rejected,
    Replan,
    Rerun,
    Retry,
    RunResumed,
    RunState,
    RunSuspended,
    Severity,
    Step,
    Suspend,
    Usage,
    UsageError,
    is_milestone,
    leaves,
    logger,
    plain,
    plain_noting,
)
from triage.core.asking import TooSlow, ask_here, deadline_of
from triage.core.asking import ask as ask_user
from triage.core.constructors import Struct
from triage.core.messages import read_answer
from triage.core.messages.neutral import ending_of
from triage.core.messages.wires import refused_request
from triage.core.waiting import after_a_while
from triage.strategies import Preset

from .call_keys import name_of_key
from .compensation import available
from .config import CallDenied, Config, Guard, GuardedCall, soon
from .journal import Session
from .refusals import About, Refusal, abouts_in, describe, refusal_hint
from .returning import WAITS
from .run import Recorder
from .tools import TOOL_ATTRIBUTE, Tool, shown

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


# A person's answer to a suspended run: whether it fits the question, and what of it is journalled.
#
# All of it works from the journal, so it is the same for the agent that goes on with the run and
# for an operator who has the store and neither the agent nor the token.


ANSWERS = (*get_args(Action), Happened, Rerun, Approved, Rejected, Edited)


class Answered(Struct, frozen=True):
    """What follows from an answer.

    action: what is done next. entries: makers of the events that are journalled before it; each is still
    given its position. live: a result the person told that has no JSON form, by the key of its call.
    inner: where a run inside this one has asked, the answer by the digest of that run's token.
    """

    action: Action
    entries: Sequence[Callable[..., Event]] = ()
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
        kind = "type" if isinstance(answer, type) else type(answer).__name__
        raise UsageError(
            "resume() takes an action (Retry, Replan, Rollback, Resume, Escalate, Abort), approve(), "
            f"reject(reason), edit(payload), happened(result) or rerun(), not {kind}"
        )
    if question is None or question.inner == "action":
        if isinstance(answer, Happened | Rerun):
            raise UsageError("this run waits for an action: no call of it is in doubt")
    elif question.not_begun and isinstance(answer, Happened):
        raise UsageError(
            f"this run asks: {question.text} The call has not begun, so it cannot have happened: answer "
            "with approve(), reject(reason) or edit(arguments)"
        )
    elif question.kind == ELSEWHERE and isinstance(answer, Approved | Edited | Rerun):
        raise UsageError(
            f"this run asks: {question.text}; the call is made elsewhere, and only its result helps: "
            "answer with happened(result) or reject(reason)"
        )
    elif isinstance(answer, Happened) and not _names_parts(question, answer.result):
        raise UsageError(
            f"this run asks {len(question.parts)} questions at once: answer with "
            f"happened({{name: answer, …}}), by the names {', '.join(question.parts)}"
        )
    elif isinstance(answer, Edited) and (question.not_begun or question.editable):
        unknown = [name for name in answer.payload if name not in question.editable]
        if question.editable and unknown:
            raise UsageError(
                f"edit() names {', '.join(map(str, unknown))}, which {question.tool} is not called "
                f"with; an edit may change {', '.join(question.editable)}"
            )
    elif isinstance(answer, Edited) or (
        question.doubt and not isinstance(answer, Happened | Rerun | Escalate | Abort)
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


def _refused(question: Question, reason: str) -> list[Refusal]:
    """The refusals that a rejection of a question stands for."""
    calls = question.calls or (About(question.key, (), f"the call of {question.tool}"),)
    return [Refusal(each, reason) for each in calls]


def _action_of(
    answer: Any, question: Question | None, before: Sequence[Refusal] = ()
) -> Action | None:
    """The action an answer stands for; None where it is about a call, which is then journalled."""
    if question is not None and question.inner and not isinstance(answer, Abort | Escalate):
        return None  # it is for the run that asks
    action: Action | None = None
    match answer:
        case Happened() | Rerun():
            pass
        case Approved():
            action = Retry() if question is None else None
        case Rejected(reason=reason):
            if question is None:
                action = Abort(reason or "a person refused to go on")
            else:
                action = Replan(refusal_hint(_refused(question, reason or ""), before))
        case Edited(payload=payload):
            if question is None:
                action = Retry(inject=payload)
            elif not question.editable:
                action = Replan(
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
    """What follows from an answer that fits the question. by: who answers, as they name themselves.

    before: earlier refusals that stand, of which the model is told beside a new one.
    """
    action = _action_of(answer, question, before)
    if question is None:
        assert action is not None
        return Answered(action)
    given = partial(ApprovalGiven, kind="call", subject=question.key, by=by)
    entries: list[Callable[..., Event]] = []
    if isinstance(answer, Rejected):
        reason = answer.reason or ""
        entries = [partial(given, decision="rejected", reason=reason, ask_again=answer.ask_again)]
    elif isinstance(answer, Edited) and action is not None:
        wanted = f"make it with {shown(plain(dict(answer.payload)))} instead"
        entries = [partial(given, decision="rejected", reason=wanted)]
    if question.inner and action is None:
        return Answered(Retry(), entries, inner={question.asks: answer})
    if action is not None:
        return Answered(action, entries)
    if isinstance(answer, Edited):
        payload = plain(dict(answer.payload))
        return Answered(Retry(), [partial(given, decision="edited", payload=payload)])
    if not isinstance(answer, Happened):
        return Answered(Retry(), [partial(given, decision="approved")])
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
    return Answered(Retry(), entries, None if exact else {question.key: answer.result})


# Functions of the user's that ask a model: `run.model(function, …)` and `@triage.model`.


MODEL = "model"
"""In the metadata of a step: the model that was asked. In its action: that it is a model's."""

IDS = "ids"
"""In the metadata of a model's step: its own ids of the calls that it asked for, in their order. The step
itself has none, as they are new each time, and a loop must look like one."""

CUT = "LengthFinishReasonError"
"""What an answer is called that its provider marks as cut off by its length."""
BRIEF = 16
"""Tokens. A request for no more than these wants a single word, and takes it cut off."""

_judging: ContextVar[bool] = ContextVar("triage_judging", default=False)


@contextmanager
def judging() -> Generator[None]:
    """Around code that judges an answer with a model of its own.

    The work does not go on from a verdict: a recovery asks the judged model anew, and then the judge.
    """
    token = _judging.set(True)
    try:
        yield
    finally:
        _judging.reset(token)


def is_judging() -> bool:
    """Whether the calling code judges an answer."""
    return _judging.get()


class Model(Tool):
    """A function that asks a model: its calls are a model's, known by their arguments, else by their place.

    judge: as `judging` for each of its calls. Other options as of `tool`.
    """

    __slots__ = ("_answer",)
    counted = False

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        judge: bool = False,
        ignore: tuple[str, ...] = (),
        timeout: float | None = None,
        retries: int | Preset | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(judge, bool):
            raise UsageError(f"model(judge=…) must be True or False, not {type(judge).__name__}")
        super().__init__(
            function,
            effect=Effect.READ,
            match="position",
            ignore=ignore,
            timeout=timeout,
            retries=retries,
            name=name,
        )
        self.kind = "judge" if judge else "model"

    def shown(self, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as JSON; of a conversation only what is new since the model's last turn."""
        known = {name: _new_in(value) for name, value in bound.items() if name not in self._hidden}
        return plain(known)  # type: ignore[no-any-return] # JSON of a dict

    def dumped(self, result: Any) -> tuple[Any, bool]:
        """The answer as JSON. Raises UsageError for a stream, whose answer is not there yet."""
        if isinstance(result, AsyncIterator | Iterator) or hasattr(result, "__aiter__"):
            raise UsageError(
                f"{self.name} gave a stream, which cannot be recorded as one answer; ask for the whole "
                "answer, or use record(client), which records streams"
            )
        return plain_noting(result)

    def step(self, step: Step) -> Step:
        """What the model was told, said and asked for."""
        given, output, error, kind = (
            step.tool_input,
            step.tool_output,
            step.error,
            step.exception_type,
        )
        metadata = dict(step.metadata or {})
        said: str | None = None
        asked: Any = None
        usage: Usage | None = None
        if error is not None:
            metadata = refused_request(metadata)
        else:
            answer = read_answer(output)
            usage = None if answer is None else answer.usage
            ending = None if answer is None else ending_of(answer.ended)
            if ending is not None and not (ending.type_name == CUT and _is_brief(given)):
                error, kind = ending.message, ending.type_name
            if answer is None:
                asked = output
            elif answer.calls:
                asked = [{"tool": call.name, "arguments": call.arguments} for call in answer.calls]
                metadata[IDS] = [call.id for call in answer.calls]
                if answer.text:
                    metadata["said"] = answer.text
            else:
                said = answer.text
        metadata[MODEL] = (usage.model if usage is not None else None) or _named(given) or self.name
        return Step(
            action=MODEL,
            tool_input=given,
            tool_output=asked,
            llm_output=said,
            error=error,
            exception_type=kind,
            usage=usage,
            metadata=metadata,
            duration_s=step.duration_s,
        )


def _is_brief(arguments: Any) -> bool:
    """Whether so few tokens were asked for that an answer cut off by its length is what was wanted."""
    if not isinstance(arguments, Mapping):
        return False
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    return any(isinstance(arguments.get(name), int) and arguments[name] <= BRIEF for name in names)


def _named(arguments: Any) -> str | None:
    """The model that the arguments name."""
    found = arguments.get(MODEL) if isinstance(arguments, Mapping) else None
    return found if isinstance(found, str) else None


def _new_in(value: Any) -> Any:
    """Of a conversation, the messages after the model's last turn, without ids, which are new each time.

    Any other value comes back as it is.
    """
    if not isinstance(value, list) or not all(_part_of(item, "role") for item in value):
        return value
    new: list[Any] = []
    for item in reversed(value):
        if _part_of(item, "role") == "assistant":
            break
        new.append({"role": _part_of(item, "role"), "content": _part_of(item, "content")})
    return new[::-1]


def _part_of(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


_plain_model = functools.lru_cache(maxsize=1024)(Model)


def model_of(function: Callable[..., Any]) -> tuple[Model, tuple[Any, ...]]:
    """What is known of a function given to `run.model`, and the object it is bound to, if any."""
    owner: tuple[Any, ...] = ()
    unbound = getattr(function, "__func__", None)
    if unbound is not None:
        owner, function = (function.__self__,), unbound  # type: ignore[attr-defined] # a bound method
    known = getattr(function, TOOL_ATTRIBUTE, None)
    if isinstance(known, Model):
        return known, owner
    if known is not None:
        raise UsageError(
            f"run.model() was given {known.name}, which is a tool; call it as it is, or decorate it with "
            "@triage.model instead"
        )
    if not callable(function):
        raise UsageError(f"run.model() takes a function, not {type(function).__name__}")
    try:
        return _plain_model(function), owner
    except TypeError:  # an unhashable callable
        return Model(function), owner


# Asking the guard before a call runs, and doing as it says.


class Guarded(Struct, frozen=True):
    """A call that must not run before its guard was asked."""

    guard: Guard
    key: str
    call: GuardedCall
    tool: Tool


def guarded(run: Recorder, tool: Tool, key: str, bound: Mapping[str, Any]) -> Guarded | None:
    """The guard's question about a call; None where no guard covers it, or a person has approved it."""
    checks = run.session.config.checks
    guard = None if checks is None else checks.guarding
    # Only what was declared lets a call pass a guard: a name may lie.
    effect = Effect.UNKNOWN if tool.inferred else tool.effect
    if guard is None or not guard.covers(tool.name, effect):
        return None
    if key in run.session.state.approved:
        return None
    session = run.session
    arguments = plain(tool.shown(bound))  # a copy of its own, as a guard may change it
    call = GuardedCall(tool.name, arguments, effect, session.run_id, run.number, session.task)
    return Guarded(guard, key, call, tool)


async def rule(run: Recorder, asked: Guarded) -> None:
    """Ask a guard, sync or async: comes back where the call may run."""
    decide = asked.guard.decide
    ruling: Any
    try:
        seconds = deadline_of(decide)
        turn = nullcontext() if inspect.iscoroutinefunction(decide) else run.session.guard_turn
        async with turn:
            left = run.session.attempt_seconds_left()
            with _watched(run, asked):
                ruling = await ask_user(
                    decide, asked.call, seconds=seconds, seconds_left=left, long=True
                )
    except Exception as error:
        ruling = _unruled(run, asked, error)
    _obey(run, asked, ruling)


@contextmanager
def _watched(run: Recorder, asked: Guarded) -> Generator[None]:
    """Log once that a call waits for its guard, if that takes longer than 2 s."""
    left = run.session.attempt_seconds_left()
    most = min(deadline_of(asked.guard.decide), math.inf if left is None else left)
    say = partial(
        run.session.waits.say,
        f"guard {asked.call.tool}",
        run.session.named,
        None,
        f"the guard of {asked.call.tool} has not answered whether the call may run",
        f"at most {most:.3g} s, to its deadline or the run's",
        "the attribute deadline of the guard, Limits(seconds=… or attempt_seconds=…), or a guard that "
        "returns a Suspend",
    )
    timer = after_a_while(partial(copy_context().run, say))
    try:
        yield
    finally:
        timer.cancel()


def rule_sync(run: Recorder, asked: Guarded) -> None:
    """`rule` where a sync tool stands. An async guard is awaited from its thread."""
    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:
        pass
    else:
        anyio.from_thread.run(rule, run, asked)
        return
    decide = asked.guard.decide
    ruling: Any
    try:
        with _watched(run, asked):
            ruling = ask_here(decide, asked.call, seconds=deadline_of(decide))
    except Exception as error:
        ruling = _unruled(run, asked, error)
    if inspect.iscoroutine(ruling):
        ruling.close()
        ruling = Suspend("its guard is async, and a sync tool in the event loop cannot wait for it")
    _obey(run, asked, ruling)


def _unruled(run: Recorder, asked: Guarded, error: Exception) -> Suspend:
    logger.error("run %s: the guard of %s failed", run.run_id, asked.call.tool, exc_info=error)
    why = str(error) if isinstance(error, TooSlow) else f"failed with {type(error).__name__}"
    return Suspend(f"its guard {why}")


def _obey(run: Recorder, asked: Guarded, ruling: object) -> None:
    if ruling is None or ruling is True or ruling == "":
        return
    if isinstance(ruling, str) or ruling is False:
        call = asked.call
        denied = CallDenied(call.tool, ruling or "no reason was given")
        run.record_call_step(
            Step(
                action="call",
                tool_called=call.tool,
                tool_input=call.arguments,
                error=str(denied),
                exception_type=type(denied).__name__,
            )
        )
        raise denied
    if not isinstance(ruling, Suspend):
        ruling = Suspend(f"its guard answered {type(ruling).__name__}, which is no ruling")
    call = asked.call
    why = f": {ruling.question}" if ruling.question else ""
    text = f"may {call.tool} run with {shown(call.arguments)}?{why}"
    ask(
        run,
        to_be_approved(asked.key, asked.tool, call.arguments, text, APPROVAL, effect=call.effect),
    )


# The runs that wait for an answer.


class Waiting(Struct, frozen=True):
    """A suspended run: its session, the failure it stopped at and when (monotonic seconds)."""

    session: Session
    context: FailureContext
    since: float


def forget_questions(config: Config, events: Sequence[Event]) -> None:
    """Drop what this process keeps for the answers to a run's questions: they are answered no more."""
    for event in events:
        if isinstance(event, RunSuspended):
            config.suspensions.pop(event.token_digest, None)


def digest_of(token: str) -> str:
    """The SHA-256 of a token, which stores keep in its place. Raises UsageError for anything but text."""
    if not isinstance(token, str):
        raise UsageError(f"a token is text, not {type(token).__name__}")
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


async def time_of(config: Config) -> float:
    """The time by which questions expire, in seconds since the epoch.

    It is the store's, which everybody who may answer shares; of a store that ends with this process, the
    process' own.
    """
    if not config.durable:
        return config.env.time()
    return await soon(config.store.now(), config.durability.lease_s)
