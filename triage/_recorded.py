"""Recorded calls: run it, reuse its result, or stop for a person. Nothing unsafe runs twice.

`begin` decides by the call's key and what the journal says of it; `finish` and `fail` write down how
it ended. The drivers, async and sync, share all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ._guarding import Guarded, guarded
from ._inside import inner_id, inside
from ._parts import large
from ._plain import plain
from ._questions import Question, ask, question_about, replaced, stop_in_doubt
from ._recorder import Recorder, current
from ._serde import digest
from ._tally import Place, Tally, reusable, tally
from ._tool import CurrentCall, Tool, Undoing, calling, name_of, named_by
from ._tries import pause_before
from .errors import ResultLost
from .events import EXACT, CallFinished, CallStarted
from .observers import logger
from .redact import HIDDEN
from .state import Call, Compensation
from .steps import Row, step_of
from .taxonomy import UNSAFE, Effect

if TYPE_CHECKING:
    from ._session import Session
    from .failures import ErrorInfo

__all__ = ["Begun", "Question", "Reused", "Undo", "begin", "fail", "finish", "pause"]

REPLAYED = KEYED = True
MAX_ERROR = 300
"""Characters of the error of a try that its step shows."""


class Begun:
    """A call that is now to run its body.

    idle: no body is running, so that an error that comes now is none of the tool's. outcome: what is
    known of the tries so far. tries: those that failed and were followed by another, None without any.
    run: id of the run inside this one that it is. effect: what the call has; of such a run it is known
    at its end.
    """

    __slots__ = (
        "_calling", "_inside", "arguments", "bound", "call", "effect", "idle", "key", "outcome", "place",
        "run", "started", "tool", "tries",
    )  # fmt: skip

    def __init__(
        self,
        tool: Tool,
        key: str,
        bound: dict[str, Any],
        call: CurrentCall,
        place: Place,
        started: float,
    ) -> None:
        self.tool = tool
        self.key = key
        self.bound = bound
        self.arguments = tool.shown(bound)
        self.call = call
        self.started = started
        self.idle = True
        self.outcome = "not_attempted"
        self.place = place
        self.tries: list[dict[str, Any]] | None = None
        self.run: str | None = None
        self.effect = tool.effect

    def enter(self, run: Recorder) -> None:
        """Its body begins: `current_call()` inside."""
        self._calling = calling.set(self.call)
        # A task from outside of the attempt may call through its handle.
        self._inside = None if current.get() is run else current.set(run)

    def leave(self) -> None:
        """Its body has ended, in the task or thread in which it began."""
        if self._inside is not None:
            current.reset(self._inside)
        calling.reset(self._calling)


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
    cleared: bool = False,
) -> Begun | Reused | Undo | Guarded:
    """Start a call: journal its start, or give the result it had, or say what must come before: what
    to undo, or whom to ask. cleared: its guard lets it run.

    Raises TypeError where the arguments do not fit, UsageError where they have no key, and
    `AttemptInterrupted` where a person must be asked first.
    """
    if run.alert:
        run.check_open()
    bound = tool.bind(args, kwargs)
    session, replay = run.session, run.replay
    run_id = session.run_id
    name = f"{tool.name}:{tool.digest(bound, run_id)}"
    counted = tally(run)
    key = f"{name}:{counted.occurrence(name)}"
    place = counted.place(tool, run_id)
    # What comes first in a run knows of no call before it: its journal need not be read.
    known = None if replay is None else _known(run, tool, key, counted)
    if known is not None:
        try:
            return Reused(_reuse(run, tool, known, bound, place))
        except ResultLost:
            if known.effect in UNSAFE:
                raise
            logger.debug("%s: its result is gone; it is called again", tool.name)
    if session.config.checks is not None and tool.counted and not (cleared or tool.nested):
        asked = guarded(run, tool, key, bound)
        if asked is not None:
            counted.not_begun(name)
            return asked
    if replay is not None:
        unsafe = tool.nested or tool.effect in UNSAFE
        if unsafe and key not in session.state.approved:
            question = question_about(key, tool, bound, run)
            undo = replaced(question, tool, run) if question is not None and may_undo else []
            if undo:
                counted.not_begun(name)
                return Undo(undo)
            if question is not None:
                ask(run, question)
        replay.meet(tool.name, key)
        counted.leave()
    return _started(run, tool, key, bound, place)


def _started(run: Recorder, tool: Tool, key: str, bound: dict[str, Any], place: Place) -> Begun:
    session = run.session
    if tool.counted:
        run.check_call(tool.name)
    idempotency_key = digest(session.run_id, key)
    call = CurrentCall(tool.name, idempotency_key, session.run_id)
    begun = Begun(tool, key, bound, call, place, session.config.env.monotonic())
    nested = tool.nested
    if nested:
        begun.effect = Effect.UNKNOWN
        begun.run = inner_id(session, key, bound)
        inside(session)
    effect = begun.effect._value_  # what `value` gives, without its descriptor
    fields = (run.number, key, tool.name, effect, begun.arguments, idempotency_key)
    session.has_calls = True
    seq = session.put(CallStarted, (*fields, not KEYED, begun.run) if nested else fields)
    if session.config.observers:
        session.tell(seq)
    if begun.effect in UNSAFE and not nested:
        run.unsafe_begun()
        if session.durable:
            call.on_asked = partial(_note_key, session, fields)
    return begun


def _note_key(session: Session, fields: tuple[Any, ...]) -> None:
    """Whoever finds this call cut off must know that it may be repeated."""
    session.add(CallStarted, *fields, KEYED)
    if session.keeper is not None:
        session.keeper.pump()


def _known(run: Recorder, tool: Tool, key: str, counted: Tally) -> Call | None:
    """The recorded call whose result this one is given; None where it must run."""
    calls = run.session.state.calls
    known = calls.get(key)
    # Of a run inside this one it is known only afterwards what it did.
    if tool.effect in UNSAFE or (tool.nested and known is not None and known.effect in UNSAFE):
        return known if known is not None and known.outcome == "done" and not known.undone else None
    if known is not None and reusable(known, run):
        counted.meet(tool.name, key)
        return known
    if not tool.by_position:
        return None
    before = counted.take(tool.name)
    return None if before is None else calls[before]


# Reusing ------------------------------------------------------------------------------------------


def _reuse(run: Recorder, tool: Tool, call: Call, bound: dict[str, Any], place: Place) -> Any:
    session = run.session
    result = restored(tool, call, session.live)
    step = call.step
    if run.replay is not None:
        run.replay.meet(tool.name, call.key)
    if run.replay is None or call.key not in run.replay.kept:
        effect = Effect(call.effect) if tool.nested else tool.effect
        metadata = place.metadata(call.key, call.run)
        metadata["replayed"] = True
        row = _row(tool, call.arguments, call.result, effect, metadata)
        step = run.record_call_step(step_of(row))
    session.add(CallFinished, run.number, call.key, "done", None, call.exact, None, REPLAYED, step)
    if tool.compensate is not None:
        _undo_again(run, tool, call.key, bound, result)
    return result


def _row(
    tool: Tool,
    arguments: Any,
    data: Any,
    effect: Effect,
    metadata: dict[str, Any],
    error: ErrorInfo | None = None,
    seconds: float | None = None,
) -> Row:
    """The step of a call. All of it is JSON that the journal has to itself: nothing is copied again."""
    text, kind = (None, None) if error is None else (error.message, error.type_name)
    return tool.row((
        None, "call", tool.name, arguments, data, None, text, kind, effect, None, metadata, None, seconds,
    ))  # fmt: skip


def restored(tool: Tool, call: Call, live: dict[str, Any] | None) -> Any:
    """The result of a call that is done. Raises ResultLost where it cannot be read back."""
    if live is not None and call.key in live:
        kept = live[call.key]
        return tool.loaded(plain(kept)) if call.exact else kept
    if call.exact and not call.answered:
        return tool.loaded(plain(call.result))
    # What a person says is taken for what the tool declares, where it fits.
    if call.typed or call.answered:
        try:
            return tool.loaded(tool.returns.read(call.result))
        except Exception as error:  # noqa: BLE001 - the user's types may raise anything
            logger.debug("%s: its result is not the declared type: %s", tool.name, error)
    if call.exact:
        return tool.loaded(plain(call.result))
    known = str(call.result)[:MAX_ERROR]
    why = (
        "it held a secret, which no store keeps"
        if HIDDEN in known
        else "give the tool a return annotation pydantic can validate, or return a value of JSON types"
    )
    raise ResultLost(
        f"{tool.name} completed, but its result cannot be read back here; {why}. What is known of it: "
        f"{known}",
        tool=tool.name,
        key=call.key,
    )


def _undo_again(run: Recorder, tool: Tool, key: str, bound: dict[str, Any], result: Any) -> None:
    """Have the compensator of a reused call at hand, where another process has made that call."""
    session = run.session
    entries = [entry for entry in session.state.compensations if entry.key == key]
    if not entries:
        register(run, tool, key, bound, result)
        return
    known = session.undo = {} if session.undo is None else session.undo
    for entry in entries:
        if not entry.ran and entry.seq not in known:
            known[entry.seq] = _undoing(tool, bound, result)


def _undoing(tool: Tool, bound: dict[str, Any], result: Any) -> Undoing:
    undo = tool.compensate
    assert undo is not None
    return Undoing(undo, (result,), named_by(undo, bound, after=1))


def register(run: Recorder, tool: Tool, key: str, bound: dict[str, Any], result: Any) -> None:
    """Register the compensator of a call that has completed."""
    run.register_undo(name_of(tool.compensate), key, _undoing(tool, bound, result))


# Ending -------------------------------------------------------------------------------------------


def finish(run: Recorder, begun: Begun, result: Any) -> Any:
    """Write down a result; the result."""
    session, tool = run.session, begun.tool
    data, exact = tool.dumped(result)
    typed = not exact and tool.returns.says_all(result, data)
    if not (exact or typed) or (session.config.durable and _hidden(session, data)):
        kept = session.live = {} if session.live is None else session.live
        kept[begun.key] = data if exact else result
    outcome = "failed" if tool.fails(data) else "done"
    _close(run, begun, outcome, data, None, exact=exact, typed=typed)
    if tool.compensate is not None and not run.over:
        register(run, tool, begun.key, begun.bound, result)
    return result


def _hidden(session: Session, data: Any) -> bool:
    """Whether a store may keep less of a result than there is, since it may hold a secret."""
    redactor = session.config.durability.redactor
    # To look through a large one would keep the event loop waiting.
    return redactor is not None and (large(data) or not redactor.clears((data,)))


def fail(run: Recorder, begun: Begun, error: BaseException) -> None:
    """Write down that a call raised, and judge whether it may have happened.

    An unsafe call in doubt stops the attempt, unless the run was told otherwise; the caller raises
    the error on.
    """
    from ._capture import capture

    info = capture(error)
    if begun.tool.nested:
        # What it did is done, and it has come to nothing: to do it all again must be asked for.
        _close(run, begun, "in_doubt" if begun.effect in UNSAFE else "failed", None, info)
        return
    outcome = begun.outcome if begun.idle else _judged(begun, info)
    _close(run, begun, outcome, None, info)
    rerun = run.session.config.durability.on_in_doubt == "rerun"
    if outcome == "in_doubt" and not (rerun or run.over) and run.interrupt is None:
        stop_in_doubt(run, run.session.state.calls[begun.key], info)


def _judged(begun: Begun, info: ErrorInfo) -> str:
    """What an error that the body raised says of the call."""
    if info.not_attempted:
        return "not_attempted"
    return "in_doubt" if begun.tool.effect in UNSAFE and not begun.call.asked else "failed"


def pause(run: Recorder, begun: Begun, error: Exception) -> float | None:
    """Seconds until the call's next try after this error; None where there is none."""
    tries = begun.tool.tries
    if tries is None or run.over or run.interrupt is not None:
        return None
    from ._capture import capture

    info = capture(error)
    outcome = _judged(begun, info)
    seconds = pause_before(
        tries,
        1 if begun.tries is None else len(begun.tries) + 1,
        error,
        info,
        draw=run.session.config.env.random(),
        left=run.session.attempt_seconds_left(),
    )
    if seconds is None or outcome == "in_doubt":
        return None
    begun.idle, begun.outcome = True, outcome
    told = {"error": info.message[:MAX_ERROR], "type": info.type_name, "pause_s": seconds}
    begun.tries = [told] if begun.tries is None else [*begun.tries, told]
    return seconds


def _close(
    run: Recorder,
    begun: Begun,
    outcome: str,
    data: Any,
    error: ErrorInfo | None,
    *,
    exact: bool = EXACT,
    typed: bool = False,
) -> None:
    session = run.session
    if not run.over:
        metadata = begun.place.metadata(begun.key, begun.run)
        if begun.tries is not None:
            metadata["tries"] = begun.tries
        took = session.config.env.monotonic() - begun.started
        seconds = took if took > 0 else 0.0  # not `max`, which takes ten times as long
        row = _row(begun.tool, begun.arguments, data, begun.effect, metadata, error, seconds)
        index = run.record_call_step(step_of(row))
        seq = session.put(CallFinished, (
            run.number, begun.key, outcome, data, exact, error, not REPLAYED, index, begun.call.asked,
            typed, "" if begun.run is None else begun.effect.value,
        ))  # fmt: skip
        if session.config.observers:
            session.tell(seq)
    if begun.tool.effect in UNSAFE:
        run.unsafe_ended()
