"""Recorded calls: run it, reuse its result, or stop for a person. Nothing unsafe runs twice.

`begin` decides by the call's key and what the journal says of it; `finish` and `fail` write down how
it ended. The drivers, async and sync, share all three.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from ._plain import MARK, plain, plain_noting
from ._recorder import Recorder
from ._serde import digest
from ._tool import CurrentCall, Tool
from ._undo import available
from .diagnosis import Diagnosis, Evidence
from .errors import AttemptInterrupted, ResultLost
from .events import EXACT, CallFinished, CallStarted
from .failures import ErrorInfo
from .observers import logger
from .redact import redact
from .state import Call, Compensation
from .steps import Step
from .taxonomy import UNSAFE, Cause, FailureType, Severity

MAX_SHOWN = 200
"""Characters of a call's arguments that a question shows."""
REPLAYED = True


class Question(NamedTuple):
    """What a person is asked before a run may go on: about which call, and in which words.

    doubt: the call was started and may have happened; else it was not, and asks to be allowed.
    """

    key: str
    tool: str
    effect: str
    arguments: Any
    text: str
    doubt: bool


class Begun(NamedTuple):
    """A call that is now to run its body."""

    tool: Tool
    key: str
    arguments: dict[str, Any]
    bound: dict[str, Any]
    call: CurrentCall
    started: float


class Undo(NamedTuple):
    """Calls of the plan before that must be undone before this one may begin, newest first."""

    entries: list[Compensation]


class Reused(NamedTuple):
    """A call whose result is known already."""

    result: Any


# Deciding -----------------------------------------------------------------------------------------


def begin(
    run: Recorder,
    tool: Tool,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    may_undo: bool = True,
) -> Begun | Reused | Undo:
    """Start a call: journal its start, or give the result it had, or say what to undo before.

    Raises TypeError where the arguments do not fit, UsageError where they have no key, and
    `AttemptInterrupted` where a person must be asked first.
    """
    run.check_open()
    bound = tool.bind(args, kwargs)
    session = run.session
    part = tool.digest(bound, session.run_id)
    with session.lock:
        if run.occurrences is None:
            run.occurrences = {}
        name = f"{tool.name}:{part}"
        occurrence = run.occurrences[name] = run.occurrences.get(name, 0) + 1
    key = f"{name}:{occurrence}"
    state = session.state
    known = state.calls.get(key)
    if known is not None and _reusable(known, tool, run):
        return Reused(_reuse(run, tool, known))
    unsafe = tool.effect in UNSAFE
    if unsafe and key not in state.approved:
        question = _question(key, tool, bound, run)
        undo = _replaced(question, tool, run) if question is not None and may_undo else []
        if undo:
            with session.lock:
                run.occurrences[name] -= 1  # it has not begun
            return Undo(undo)
        if question is not None:
            _ask(run, question)
    if run.replay is not None:
        run.replay.meet(tool.name, key)
    arguments = tool.shown(bound)
    idempotency_key = digest(session.run_id, key)
    session.has_calls = True
    fields = (key, tool.name, tool.effect.value, arguments, idempotency_key)
    session.add(CallStarted, run.number, *fields)
    if unsafe:
        run.unsafe_begun()
    call = CurrentCall(tool.name, idempotency_key)
    return Begun(tool, key, arguments, bound, call, session.config.env.monotonic())


def _reusable(call: Call, tool: Tool, run: Recorder) -> bool:
    if call.outcome != "done" or call.undone:
        return False
    if tool.effect in UNSAFE:
        return True
    replay = run.replay
    if replay is None:
        return False
    match replay.kind:
        case "retry" | "resume":
            border = replay.critical_step
            before = border is None or (call.step is not None and call.step < border)
            return before and call.attempt == run.number - 1
        case "crash":
            # The attempt goes on in another process; what it had come to is not asked for again.
            return call.attempt == run.number
        case "rollback":
            return call.key in replay.kept
        case _:
            return False


def _question(key: str, tool: Tool, bound: Mapping[str, Any], run: Recorder) -> Question | None:
    """What must be asked before this unsafe call runs; None if it may.

    Only calls of earlier attempts matter that this attempt has not come to: this call may be one of
    them in other words.
    """
    replay = run.replay
    if replay is None:
        return None
    calls = run.session.state.calls
    may_rerun = run.session.config.durability.on_in_doubt == "rerun"
    earlier = [calls[name] for name in replay.unmatched.get(tool.name, ())]
    for call in earlier:
        if call.outcome != "done" and not may_rerun and call.key not in run.session.state.approved:
            return _doubt(call)
    if replay.kind == "resume":  # it goes on with other work
        return None
    for call in earlier:
        if call.outcome == "done" and not call.undone:
            shown = tool.shown(bound)
            text = (
                f"{tool.name} has completed in this run with {_text(call.arguments)}; may it run "
                f"again with {_text(shown)}?"
            )
            return Question(key, tool.name, tool.effect.value, shown, text, doubt=False)
    return None


def _replaced(question: Question, tool: Tool, run: Recorder) -> list[Compensation]:
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


def _doubt(call: Call) -> Question:
    why = f" ({call.error})" if call.error is not None else ""
    return Question(
        call.key,
        call.tool,
        call.effect,
        call.arguments,
        f"did {call.tool} with {_text(call.arguments)} happen? It was started and its outcome is "
        f"not known{why[:300]}",
        doubt=True,
    )


def _text(arguments: Any) -> str:
    text = redact(json.dumps(arguments))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def _ask(run: Recorder, question: Question) -> NoReturn:
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


# Reusing ------------------------------------------------------------------------------------------


def _reuse(run: Recorder, tool: Tool, call: Call) -> Any:
    session = run.session
    result = _restored(tool, call, session.live)
    step = call.step
    if run.replay is not None:
        run.replay.meet(tool.name, call.key)
    if run.replay is None or call.key not in run.replay.kept:
        step = run.record_call_step(
            Step(
                action="call",
                tool_called=tool.name,
                tool_input=call.arguments,
                tool_output=call.result,
                effect=tool.effect,
                metadata={"call": call.key, "replayed": True},
            )
        )
    session.add(CallFinished, run.number, call.key, "done", None, call.exact, None, REPLAYED, step)
    return result


def _restored(tool: Tool, call: Call, live: dict[str, Any] | None) -> Any:
    if call.exact:
        return plain(call.result)
    if tool.returns is not None and tool.returns is not Any and MARK not in json.dumps(call.result):
        from pydantic import PydanticUserError, TypeAdapter, ValidationError

        try:
            return TypeAdapter(tool.returns).validate_json(json.dumps(call.result))
        except (ValidationError, PydanticUserError, NameError):
            logger.debug("%s: its result is not the declared type; using the live one", tool.name)
    if live is not None and call.key in live:
        return live[call.key]
    raise ResultLost(
        f"{tool.name} completed, but its result has no JSON form and is gone; give the tool a return "
        "annotation that pydantic can validate",
        tool=tool.name,
        key=call.key,
    )


# Ending -------------------------------------------------------------------------------------------


def finish(run: Recorder, begun: Begun, result: Any) -> Any:
    """Write down a result; the result."""
    session = run.session
    data, exact = plain_noting(result)
    if not exact:
        if session.live is None:
            session.live = {}
        session.live[begun.key] = result
    _close(run, begun, "done", data, None, exact=exact)
    undo = begun.tool.compensate
    if undo is not None and not run.over:
        name = getattr(undo, "__qualname__", type(undo).__name__)
        run.register_undo(name, begun.key, lambda: undo(result, **_named(undo, begun.bound)))
    return result


def _named(undo: Any, bound: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the call's arguments that the compensator names, after the result."""
    names = list(inspect.signature(undo).parameters)[1:]
    return {name: bound[name] for name in names if name in bound}


def fail(run: Recorder, begun: Begun, error: BaseException) -> None:
    """Write down that a call raised, and judge whether it may have happened.

    An unsafe call in doubt stops the attempt, unless the run was told otherwise; the caller raises
    the error on.
    """
    from ._capture import capture

    info = capture(error)
    unsafe = begun.tool.effect in UNSAFE
    if info.not_attempted:
        outcome = "not_attempted"
    elif unsafe and not begun.call.asked:
        outcome = "in_doubt"
    else:
        outcome = "failed"
    _close(run, begun, outcome, None, info)
    durability = run.session.config.durability
    first = run.interrupt is None and not run.over
    if outcome == "in_doubt" and durability.on_in_doubt != "rerun" and first:
        question = _doubt(run.session.state.calls[begun.key])
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


def _close(
    run: Recorder,
    begun: Begun,
    outcome: str,
    data: Any,
    error: ErrorInfo | None,
    *,
    exact: bool = EXACT,
) -> None:
    session = run.session
    unsafe = begun.tool.effect in UNSAFE
    if not run.over:
        index = run.record_call_step(
            Step(
                action="call",
                tool_called=begun.tool.name,
                tool_input=begun.arguments,
                tool_output=data,
                error=None if error is None else error.message,
                exception_type=None if error is None else error.type_name,
                effect=begun.tool.effect,
                metadata={"call": begun.key},
                duration_s=max(0.0, session.config.env.monotonic() - begun.started),
            )
        )
        session.add(
            CallFinished, run.number, begun.key, outcome, data, exact, error, not REPLAYED, index,
            begun.call.asked,
        )  # fmt: skip
    if unsafe:
        run.unsafe_ended()
