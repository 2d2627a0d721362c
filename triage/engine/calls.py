"""A recorded call: run it, reuse its result, or stop for a person. Nothing unsafe runs twice.

`begin` decides by the call's key and its record in the journal; `finish` and `fail` record the end. Sync
and async code make a call by the same coroutine: see `drivers`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from msgspec.structs import replace

from triage.core.capture import capture
from triage.core.constructors import Struct
from triage.core.errors import AttemptInterrupted, ResultLost, UsageError
from triage.core.events import CallFinished, CallStarted
from triage.core.failures import ErrorInfo, words_of
from triage.core.json_values import digest
from triage.core.large_values import json_of
from triage.core.observers import logger
from triage.core.quoting import quote
from triage.core.secret_shapes import HIDDEN
from triage.core.state import Call, Compensation
from triage.core.steps import Step, step_of_json
from triage.core.taxonomy import UNSAFE, Effect

from . import tools
from .call_keys import Place, Tally, name_of_key, reusable, tally
from .compensation import undo
from .drivers import ASYNC, SYNC, Driver, step
from .event_loop import CANCELLATIONS
from .journal import Session, inner_id, inner_runs
from .models import is_judging, model_of
from .questions import ask, doubt_heard, lost_result, question_about, replaced, stop_in_doubt
from .rulings import Guarded, guarded
from .run import Recorder, current

__all__ = [
    "Begun",
    "Reused",
    "Undo",
    "begin",
    "fail",
    "finish",
    "pause",
]


MAX_ERROR = 300
"""Characters kept of a failed try's error message."""
MAX_SEARCHED = 100_000
"""Size in bytes of a result up to which it is searched for secrets before the run continues."""


class Begun:
    """A call whose body is about to run.

    idle: the body is not running, so an error raised now is not the tool's. outcome: known from the tries
    so far. tries: failed tries that were repeated; None without any. run: id of the inner run, if the call
    is one. effect: of the call; an inner run's is known at its end. asked_model: whether an inner run asked
    a model, known at its end. edited: the arguments as a person has changed them. handled: the exception
    that the caller was handling, unrelated to the call. around: context managers of observers, entered
    around the body.
    """

    def __init__(
        self,
        tool: tools.Tool,
        key: str,
        given: tools.Given,
        call: tools.CurrentCall,
        place: Place,
        started: float,
    ) -> None:
        self.tool = tool
        self.key = key
        self.bound = given.bound
        self.arguments = tool.shown(given.bound)
        self.call = call
        self.started = started
        self.idle = True
        self.outcome = "not_attempted"
        self.place = place
        self.tries: list[dict[str, Any]] | None = None
        self.run: str | None = None
        self.edited: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.effect = tool.effect
        self.asked_model = False
        self.handled = sys.exception()
        self.around: Sequence[AbstractContextManager[Any]] = ()

    def enter(self, run: Recorder) -> None:
        """Make this call the `current_call()` while its body runs."""
        self._entered = ExitStack()
        for manager in self.around:
            self._entered.enter_context(manager)
        self._calling = tools.calling.set(self.call)
        # A task from outside of the attempt may call through its handle.
        self._run_set = None if current.get() is run else current.set(run)

    def leave(self) -> None:
        """Undo `enter`; called in the same task or thread."""
        if self._run_set is not None:
            current.reset(self._run_set)
        tools.calling.reset(self._calling)
        error = sys.exception()
        if error is None or error is self.handled:
            self._entered.close()
        else:
            self._entered.__exit__(type(error), error, error.__traceback__)


class Undo(Struct, frozen=True):
    """Calls of the previous plan to undo before this call may begin, newest first."""

    entries: list[Compensation]


class Reused(Struct, frozen=True):
    """A call with a recorded result."""

    result: Any


# Deciding -----------------------------------------------------------------------------------------


def begin(
    run: Recorder,
    tool: tools.Tool,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    may_undo: bool = True,
    cleared: bool = False,
) -> Begun | Reused | Undo | Guarded:
    """Start a call, or return its recorded result, the calls to undo first, or the guard to ask first.

    cleared: the guard lets the call run. Raises TypeError for arguments that do not fit, UsageError for
    arguments without a key, and `AttemptInterrupted` if a person must be asked first.
    """
    if run.alert:
        run.check_open()
    session, replay = run.session, run.replay
    given = tool.given(args, kwargs, session.salt)
    bound, name = given.bound, f"{tool.name}:{given.digest}"
    counted = tally(run)
    key = counted.claim(name)
    place = counted.place(tool, run)
    # Without a replay no earlier call is recorded, so the journal need not be read.
    known = None if replay is None else _known(run, tool, key, place, bound, counted)
    if known is not None:
        reused = _reuse(run, tool, known, bound, place)
        if reused is not None:
            return reused
    unsafe = tool.nested or tool.effect in UNSAFE
    question = None
    if unsafe:
        _check_with(run.before_calls, tool, bound, key, counted)
        heard = counted.heard
        question = doubt_heard(key, tool, run, heard) or question_about(key, tool, bound, run)
    if question is not None and question.doubt:
        ask(run, question)  # before the guard, which does not know that the call may have happened
    if session.config.checks is not None and tool.counted and not (cleared or tool.nested):
        asked = guarded(run, tool, key, bound)
        if asked is not None:
            counted.not_begun(key)
            return asked
    if question is not None:
        undo = replaced(question, tool, run) if may_undo else []
        if undo:
            counted.not_begun(key)
            return Undo(undo)
        ask(run, question)
    if replay is not None:
        replay.meet(tool.name, key)
        counted.leave()
    return _started(run, tool, key, given, place)


def _check_with(
    checks: Sequence[Callable[[tools.Tool, Mapping[str, Any]], object]],
    tool: tools.Tool,
    bound: Mapping[str, Any],
    key: str,
    counted: Tally,
) -> None:
    try:
        for check in checks:
            check(tool, bound)
    except Exception:
        counted.not_begun(key)
        raise


def _started(run: Recorder, tool: tools.Tool, key: str, given: tools.Given, place: Place) -> Begun:
    session = run.session
    if tool.counted:
        run.check_call(tool.name)
    edit = session.state.edits.get(key) if run.replay is not None and tool.editable else None
    if edit is not None:
        given = tools.Given({**given.bound, **edit}, given.digest)
    idempotency_key = _idempotency_key(run, key)
    call = tools.CurrentCall(tool.name, idempotency_key, session.run_id, tool.kind)
    begun = Begun(tool, key, given, call, place, session.config.env.monotonic())
    begun.edited = None if edit is None else tool.spread(given.bound)
    nested = tool.nested
    if nested:
        begun.effect = Effect.UNKNOWN
        begun.run = inner_id(session, key, given.bound)
        inner_runs(session)
    fields: dict[str, Any] = {
        "attempt": run.number,
        "key": key,
        "tool": tool.name,
        "effect": begun.effect.value,
        "arguments": begun.arguments,
        "idempotency_key": idempotency_key,
    }
    session.has_calls = True
    unsafe = begun.effect in UNSAFE and not nested
    if unsafe:
        run.unsafe_begun(tool.timeout)
    kind = "judge" if tool.kind == "model" and is_judging() else tool.kind
    begun.around = session.add(CallStarted, **fields, run=begun.run, kind=kind)
    if unsafe and session.durable:

        def note_key() -> None:
            # If this call is cut off, the next owner must know that repeating it is safe.
            session.add(CallStarted, **fields, keyed=True)
            if session.keeper is not None:
                session.keeper.pump()

        call.on_asked = note_key
    return begun


def _idempotency_key(run: Recorder, key: str) -> str:
    """Return the idempotency key of a call.

    An undone call gets a new one: under the old key the other side would return the undone effect.
    """
    session = run.session
    before = None if run.replay is None else session.state.calls.get(key)
    if before is None:
        return digest(session.salt, key)
    return digest(session.salt, f"{key}@{before.seq}") if before.undone else before.idempotency_key


def _known(
    run: Recorder, tool: tools.Tool, key: str, place: Place, bound: dict[str, Any], counted: Tally
) -> Call | None:
    """Return the recorded call whose result is reused; None if the call must run."""
    calls = run.session.state.calls
    known = calls.get(key)
    # The effect of an inner run is known only at its end.
    if tool.effect in UNSAFE or (tool.nested and known is not None and known.effect in UNSAFE):
        if (
            key in run.session.state.approved
        ):  # a person has allowed a repetition, as the result is lost
            return None
        return known if known is not None and known.outcome == "done" and not known.undone else None
    if known is not None and reusable(known, run):
        counted.meet(tool.name, key)
        return known
    if not tool.by_position or run.took_state:
        return None
    if known is not None and known.attempt == run.number - 1:
        return None  # the call failed, or is behind the point of return: ask again
    before = counted.take(run, tool.name, place, tool.shown(bound))
    return None if before is None else calls[before]


# Reusing ------------------------------------------------------------------------------------------


def _reuse(
    run: Recorder, tool: tools.Tool, call: Call, bound: dict[str, Any], place: Place
) -> Reused | None:
    """Reuse a recorded result; None if it is lost and the call may be repeated."""
    try:
        result = tools.restored(tool, call, run.session.live)
    except ResultLost:
        if call.effect in UNSAFE:
            if HIDDEN in str(call.result):
                ask(run, lost_result(call))
            raise
        logger.debug("%s: its result is gone; it is called again", tool.name)
        return None
    step = call.step
    if run.replay is None or call.key not in run.replay.kept:  # else a rollback has kept its step
        effect = Effect(call.effect) if tool.nested else tool.effect
        metadata = place.metadata(call.key, call.run)
        metadata["replayed"] = True
        made = _step(tool, call.arguments, call.result, effect, metadata)
        step = run.record_call_step(made)
    if run.replay is not None:
        run.replay.meet(tool.name, call.key)
    run.session.add(
        CallFinished,
        attempt=run.number,
        key=call.key,
        outcome="done",
        exact=call.exact,
        replayed=True,
        step=step,
    )
    if tool.compensate is not None and not run.session.state.inherits(call.seq):
        _keep_undo(run, tool, call.key, bound, result, reused=True)
    return Reused(result)


def _step(
    tool: tools.Tool,
    arguments: Any,
    data: Any,
    effect: Effect,
    metadata: dict[str, Any],
    error: ErrorInfo | None = None,
    seconds: float | None = None,
) -> Step:
    text, kind = (None, None) if error is None else (words_of(error), error.type_name)
    if tool.inferred:
        metadata["effect_from"] = "name"
    step = step_of_json(
        action="call",
        tool_called=tool.name,
        tool_input=arguments,
        tool_output=data,
        error=text,
        exception_type=kind,
        effect=effect,
        metadata=metadata,
        duration_s=seconds,
    )
    return tool.step(step)


def _keep_undo(
    run: Recorder,
    tool: tools.Tool,
    key: str,
    bound: dict[str, Any],
    result: Any,
    *,
    reused: bool = False,
) -> None:
    """Register the compensator of a call, unless one is registered that undoes the same effect.

    Such a compensator is that of the reused call itself, or of an equal call if the tool may be repeated:
    equal calls of it have one effect, which is undone once. Another process may have registered it.
    """
    session = run.session
    undoing = _undoing(tool, bound, result)
    repeatable = tool.effect not in UNSAFE
    entries = [
        entry
        for entry in session.state.compensations
        if (reused and entry.key == key)
        or (repeatable and not entry.ran and name_of_key(entry.key) == name_of_key(key))
    ]
    if not entries:
        run.register_undo(key, undoing)
        return
    known = session.undo = {} if session.undo is None else session.undo
    for entry in entries:
        if not entry.ran:
            known.setdefault(entry.seq, undoing)


def _undoing(tool: tools.Tool, bound: dict[str, Any], result: Any) -> tools.Undoing:
    undo = tool.compensate
    assert undo is not None
    return tools.Undoing(undo, (result,), tools.named_by(undo, bound, after=1))


# Ending -------------------------------------------------------------------------------------------


def finish(run: Recorder, begun: Begun, result: Any) -> Any:
    """Record and return a result."""
    session, tool = run.session, begun.tool
    data, exact = tool.dumped(result)
    recorded, typed = (data, False) if exact else tool.returns.recorded(result, data)
    # An iterator is empty the second time; a call that may be repeated returns a new one.
    spent = isinstance(result, Iterator | AsyncIterator) and tool.effect not in UNSAFE
    if not spent and (not (exact or typed) or _store_omits(session, recorded)):
        live = session.live = {} if session.live is None else session.live
        live[begun.key] = data if exact else result
    elif session.live is not None:
        session.live.pop(begun.key, None)  # of the same call in an earlier attempt
    error = tool.failure(data)
    outcome = "done" if error is None else _judged(begun, error)
    step = _step_of(begun, data, None, _duration(run, begun))
    _close(run, begun, outcome, step, result=recorded, exact=exact, typed=typed, error=error)
    if outcome == "in_doubt":
        tally(run).hear(begun.key)
    if tool.compensate is not None and outcome == "done" and not run.over:
        _keep_undo(run, tool, begun.key, begun.bound, result)
    return result


def _store_omits(session: Session, recorded: Any) -> bool:
    """Whether the store may omit part of a result: a secret, or a large value."""
    if not session.config.durable:
        return False
    durability = session.config.durability
    if len(json_of(recorded)) > min(MAX_SEARCHED, durability.max_value):
        return True
    redactor = durability.redactor
    return redactor is not None and redactor.value(recorded)[1]


def _duration(run: Recorder, begun: Begun) -> float:
    return max(0.0, run.session.config.env.monotonic() - begun.started)


def fail(run: Recorder, begun: Begun, error: BaseException) -> None:
    """Record that a call raised, and whether it may have happened; the caller raises the error.

    An unsafe call in doubt stops the attempt, unless `Durability.on_in_doubt` is `"rerun"`.
    """
    info = capture(error, begun.handled)
    if info.is_a(*CANCELLATIONS):
        # A cancellation's message is about scopes and tasks, not about the call.
        info = replace(info, message="it was stopped before it ended")
    if begun.tool.nested:
        # Its effects stay although it failed: ask before doing them again.
        _failed(run, begun, "in_doubt" if begun.effect in UNSAFE else "failed", info)
        return
    outcome = begun.outcome if begun.idle else _judged(begun, info)
    _failed(run, begun, outcome, info)
    if outcome == "failed" and begun.effect in UNSAFE:
        # Its tool took the idempotency key, which protects an equal call and no reworded one.
        counted = tally(run)
        counted.not_begun(begun.key)
        counted.hear(begun.key)
    rerun = run.session.config.durability.on_in_doubt == "rerun"
    if outcome == "in_doubt" and not (rerun or run.over) and run.interrupt is None:
        stop_in_doubt(run, run.session.state.calls[begun.key], info)


def note_try(run: Recorder, begun: Begun, error: Exception) -> None:
    """Record, as its own step, a failed try of a call that is repeated."""
    info = capture(error, begun.handled)
    seconds = _duration(run, begun)
    begun.started = run.session.config.env.monotonic()
    metadata = begun.place.metadata(begun.key, begun.run)
    del metadata["call"]  # only the step of the call's end carries the key
    step = _step(begun.tool, begun.arguments, None, begun.effect, metadata, info, seconds)
    run.record_call_step(step)


def _judged(begun: Begun, info: ErrorInfo) -> str:
    """Return the outcome of a failed call, from the error raised or returned."""
    if info.not_attempted:
        return "not_attempted"
    return "in_doubt" if begun.tool.effect in UNSAFE and not begun.call.asked else "failed"


def pause(run: Recorder, begun: Begun, error: Exception) -> float | None:
    """Return the seconds until the call's next try after this error; None without another try."""
    tries = begun.tool.tries
    if tries is None or run.over or run.interrupt is not None:
        return None
    info = capture(error, begun.handled)
    outcome = _judged(begun, info)
    seconds = tools.pause_before(
        tries,
        1 if begun.tries is None else len(begun.tries) + 1,
        error,
        info,
        draw=run.session.config.env.random(),
        left=run.session.attempt_seconds_left(),
    )
    if seconds is None or outcome == "in_doubt":
        return None
    run.session.waits.say(
        f"call {begun.tool.name} {info.type_name}",
        run.session.named,
        seconds,
        f"the call {begun.tool.name} failed with {info.type_name} {quote(info.message)} and is made again",
        f"at most {tries.retries} times in this call",
        f"retries=… of the tool {begun.tool.name}",
    )
    begun.idle, begun.outcome = True, outcome
    failed = {"error": info.message[:MAX_ERROR], "type": info.type_name, "pause_s": seconds}
    begun.tries = [failed] if begun.tries is None else [*begun.tries, failed]
    return seconds


def _step_of(begun: Begun, data: Any, error: ErrorInfo | None, seconds: float) -> Step:
    """Return the step of an ended call, with its result as JSON or its error."""
    metadata = begun.place.metadata(begun.key, begun.run)
    if begun.tries is not None:
        metadata["tries"] = begun.tries
    return _step(begun.tool, begun.arguments, data, begun.effect, metadata, error, seconds)


def _failed(run: Recorder, begun: Begun, outcome: str, error: ErrorInfo) -> None:
    step = _step_of(begun, None, error, _duration(run, begun))
    _close(run, begun, outcome, step, error=error)


def _close(run: Recorder, begun: Begun, outcome: str, step: Step, /, **fields: Any) -> None:
    """Record the end of a call. fields: of `CallFinished`, about the result or error."""
    session = run.session
    if not run.over:
        session.add(
            CallFinished,
            attempt=run.number,
            key=begun.key,
            outcome=outcome,
            step=run.record_call_step(step),
            keyed=begun.call.asked,
            effect="" if begun.run is None else begun.effect.value,
            asked_model=begun.asked_model,
            **fields,
        )
        if session.durable and session.keeper is not None:
            session.keeper.pump()
    if begun.tool.effect in UNSAFE:
        run.unsafe_ended()


# Running a recorded call: in the event loop, in a thread, or in the sync caller.


def call_async(
    tool: tools.Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Awaitable[Any]:
    """Call an async tool: recorded inside a run, plain outside of any."""
    run = current.get()
    if run is None:
        return tool.function(*args, **kwargs)  # type: ignore[no-any-return] # an async function's
    return record_call(run, tool, args, kwargs)


def call_sync(tool: tools.Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a sync tool in the caller's thread: recorded inside a run, plain outside of any."""
    run = current.get()
    if run is None:
        return tool.function(*args, **kwargs)
    return step(record_call(run, tool, args, kwargs, SYNC))


async def record_call(
    run: Recorder,
    tool: tools.Tool,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    driver: Driver = ASYNC,
) -> Any:
    """Call a tool in an attempt: run it, return its recorded result, or stop for a person."""
    tool = _with_effect(run, tool)
    try:
        begun = await _begun(run, tool, args, kwargs, driver)
        if isinstance(begun, Reused):
            return begun.result
        result = await _run_body(run, begun, *(begun.edited or (args, kwargs)), driver)
    except (Exception, AttemptInterrupted):
        if run.interrupt is not None and driver.suspends:
            await settle_beside(run)
        raise
    finish(run, begun, result)
    if run.session.durable and not run.over:
        await driver.barrier(run.session, unsafe=tool.effect in UNSAFE)
    run.session.raise_held()
    return result


async def _begun(
    run: Recorder,
    tool: tools.Tool,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    driver: Driver,
) -> Begun | Reused:
    """Start a call, after undoing or asking if necessary, or return its recorded result."""
    cleared = False
    while True:
        # Sync code cannot await a compensator, so a person is asked, as if there were none.
        begun = begin(run, tool, args, kwargs, may_undo=driver.suspends, cleared=cleared)
        if isinstance(begun, Begun | Reused):
            return begun
        if isinstance(begun, Guarded):
            await driver.rule(run, begun)
            cleared = True
            continue
        # A compensator that is itself a tool is no call of the attempt.
        token = current.set(None)
        try:
            for entry in begun.entries:
                failed = await undo(run.session, run.number, entry)
                if failed is not None:
                    raise failed
        finally:
            current.reset(token)


async def _run_body(
    run: Recorder, begun: Begun, args: tuple[Any, ...], kwargs: Mapping[str, Any], driver: Driver
) -> Any:
    """Run the body, with its tool's retries; return its result. Records the error, and raises it."""
    session, tool = run.session, begun.tool
    begun.enter(run)
    try:
        session.raise_held()
        if tool.effect in UNSAFE:
            await driver.barrier(session, unsafe=True)
        while True:
            begun.idle = False
            try:
                result = driver.body(run, tool, args, kwargs)
                return await result if driver.suspends else result
            except Exception as error:
                seconds = pause(run, begun, error) if driver.can_wait else None
                if seconds is None:
                    raise
                failed = error
            try:
                await driver.call(session.config.env.sleep, seconds)
                if run.over or run.interrupt is not None:
                    raise failed
            finally:
                del failed  # its traceback holds this frame
    except BaseException as error:
        fail(run, begun, error)
        raise
    finally:
        begun.leave()


async def settle_beside(run: Recorder) -> None:
    """Wait for concurrent unsafe calls, which the error about to be raised would cut off.

    A call within another call does not wait, as the outer call may be among them.
    """
    if tools.calling.get() is None:
        await run.settle()


def _with_effect(run: Recorder, tool: tools.Tool) -> tools.Tool:
    """Return the tool with its effect in this run: declared, or inferred from its name."""
    if tool.declared or not run.session.config.infer_effects:
        return tool
    known = tool.by_name()
    if known.inferred:
        _log_inferred(known)
    return known


# The agent's handle of an attempt: `run`, or `current_run()`.


class Run(Recorder):
    """An agent's handle of its attempt. Safe to use from tasks and threads of the attempt.

    After the attempt every recording raises `AttemptOver`; after an interrupt, `AttemptInterrupted`.
    """

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or `@triage.tool`, recorded; return its result, reused if recorded before.

        A sync function runs in a thread. A function that is no tool has the effect `unknown`: no recovery
        repeats it. Raises the function's exception.
        """
        bound_to = getattr(function, "__self__", None)
        runs_agent = getattr(
            function if bound_to is None else bound_to, tools.AGENT_ATTRIBUTE, False
        )
        if runs_agent is True and (bound_to is None or function.__name__ == "run"):
            self.check_open()
            # A task from outside of the attempt may call through its handle.
            token = current.set(self)
            try:
                return await function(*args, **kwargs)  # an agent records its run itself
            finally:
                current.reset(token)
        known, owner = tools.tool_of(function)
        return await record_call(self, known, owner + args, kwargs)

    async def model(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Ask a model through your own function, recorded as a model call; return its answer.

        After a failure, answers before the point of return are reused, even if a hint has changed the
        prompt; later ones are asked again. Text, tool calls and tokens are read from answers in OpenAI's
        and Anthropic's formats, and from strings. A sync function runs in a thread. Raises the function's
        exception, and UsageError if it returns a stream.
        """
        known, owner = model_of(function)
        return await record_call(self, known, owner + args, kwargs)


def current_run() -> Run:
    """Return the calling code's attempt. Raises UsageError outside of any."""
    run = current.get()
    if run is None:
        raise UsageError(
            "current_run() was called outside of a run; call it from an agent function"
        )
    assert isinstance(run, Run)
    return run


_MAX_LOGGED = 1_000
_logged: set[str] = set()
_logged_lock = threading.Lock()


def _log_inferred(tool: tools.Tool) -> None:
    """Log once per name that a tool's effect is inferred from its name."""
    with _logged_lock:
        if tool.name in _logged or len(_logged) >= _MAX_LOGGED:
            return
        _logged.add(tool.name)
    logger.info(
        "the effect of the tool %.100r is not declared; by its name it is a %s, which a recovery may "
        "call again. Declare it (effect=… or effects={…}), or turn this off with infer_effects=False",
        tool.name,
        tool.effect.value,
    )
