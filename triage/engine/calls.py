"""A recorded call: run it, reuse its result, or stop for a person. Nothing unsafe runs twice.

`begin` decides by the call's key and what the journal says of it; `finish` and `fail` write down how it
ended. Sync code and async code make a call by the same coroutine: see `drivers`.
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
from .call_keys import Place, Tally, reusable, tally
from .compensation import undo
from .drivers import ASYNC, SYNC, Driver, step
from .event_loop import CANCELLATIONS
from .journal import Session, inner_id, inside
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
"""Characters of the error of a try that its step shows."""
LOOKED_THROUGH = 100_000
"""Bytes of a result up to which it is searched for secrets before the run goes on."""


class Begun:
    """A call whose body is about to run.

    idle: the body is not running, so an error raised now is not the tool's. outcome: what is known of
    the tries so far. tries: the failed ones that were followed by another; None: there are none. run: id
    of the inner run, for a call that is one. effect: the call's; an inner run's is known at its end, and
    so is asked_model, whether it asked a model. given: the arguments as a person has changed them.
    handled: the exception that the caller was handling, which says nothing about the call. around: the
    context managers that observers gave for the call, entered around its body.
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
        self.given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.effect = tool.effect
        self.asked_model = False
        self.handled = sys.exception()
        self.around: Sequence[AbstractContextManager[Any]] = ()

    def enter(self, run: Recorder) -> None:
        """The body begins: make `current_call()` this call."""
        self._entered = ExitStack()
        for manager in self.around:
            self._entered.enter_context(manager)
        self._calling = tools.calling.set(self.call)
        # A task from outside of the attempt may call through its handle.
        self._inside = None if current.get() is run else current.set(run)

    def leave(self) -> None:
        """The body has ended; called in the task or thread in which it began."""
        if self._inside is not None:
            current.reset(self._inside)
        tools.calling.reset(self._calling)
        error = sys.exception()
        if error is None or error is self.handled:
            self._entered.close()
        else:
            self._entered.__exit__(type(error), error, error.__traceback__)


class Undo(Struct, frozen=True):
    """Calls of the previous plan to undo before this one may begin, newest first."""

    entries: list[Compensation]


class Reused(Struct, frozen=True):
    """A call whose result is known already."""

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
    """Start a call: journal its start, return its recorded result, or say what to undo or ask first.

    cleared: its guard lets it run.

    Raises TypeError where the arguments do not fit, UsageError where they have no key, and
    `AttemptInterrupted` where a person must be asked first.
    """
    if run.alert:
        run.check_open()
    session, replay = run.session, run.replay
    given = tool.given(args, kwargs, session.salt)
    bound, name = given.bound, f"{tool.name}:{given.digest}"
    counted = tally(run)
    key = counted.claim(name)
    place = counted.place(tool, run)
    # What comes first in a run knows of no call before it: its journal need not be read.
    known = None if replay is None else _known(run, tool, key, place, bound, counted)
    if known is not None:
        again = _given_again(run, tool, known, bound, place)
        if again is not None:
            return again
    unsafe = tool.nested or tool.effect in UNSAFE
    question = None
    if unsafe:
        _check_with(run.before_calls, tool, bound, key, counted)
        heard = counted.heard
        question = doubt_heard(key, tool, run, heard) or question_about(key, tool, bound, run)
    if question is not None and question.doubt:
        ask(run, question)  # before a guard is: it does not know that the call may have happened
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
    begun.given = None if edit is None else tool.spread(given.bound)
    nested = tool.nested
    if nested:
        begun.effect = Effect.UNKNOWN
        begun.run = inner_id(session, key, given.bound)
        inside(session)
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
            # If this call is cut off, the next owner must know that it may be repeated.
            session.add(CallStarted, **fields, keyed=True)
            if session.keeper is not None:
                session.keeper.pump()

        call.on_asked = note_key
    return begun


def _idempotency_key(run: Recorder, key: str) -> str:
    """The key by which the other side knows a call.

    A call that was undone gets a new one: under the old key the other side would answer with the effect
    that is gone.
    """
    session = run.session
    before = None if run.replay is None else session.state.calls.get(key)
    if before is None:
        return digest(session.salt, key)
    return digest(session.salt, f"{key}@{before.seq}") if before.undone else before.idempotency_key


def _known(
    run: Recorder, tool: tools.Tool, key: str, place: Place, bound: dict[str, Any], counted: Tally
) -> Call | None:
    """The recorded call whose result is reused; None if the call must run."""
    calls = run.session.state.calls
    known = calls.get(key)
    # The effect of an inner run is known only when it has ended.
    if tool.effect in UNSAFE or (tool.nested and known is not None and known.effect in UNSAFE):
        if key in run.session.state.approved:  # a person let it run again, as its result is lost
            return None
        return known if known is not None and known.outcome == "done" and not known.undone else None
    if known is not None and reusable(known, run):
        counted.meet(tool.name, key)
        return known
    if not tool.by_position or run.took_state:
        return None
    if known is not None and known.attempt == run.number - 1:
        return None  # its own call failed, or is behind the point of return: it is asked anew
    before = counted.take(run, tool.name, place, tool.shown(bound))
    return None if before is None else calls[before]


# Reusing ------------------------------------------------------------------------------------------


def _given_again(
    run: Recorder, tool: tools.Tool, call: Call, bound: dict[str, Any], place: Place
) -> Reused | None:
    """Give a recorded result again; None where it is lost and the call may simply be made again."""
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
    if run.replay is None or call.key not in run.replay.kept:  # a rollback has kept its step
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
        _undo_again(run, tool, call.key, bound, result)
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
    """The step of a call."""
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


def _undo_again(
    run: Recorder, tool: tools.Tool, key: str, bound: dict[str, Any], result: Any
) -> None:
    """Register the compensator of a reused call that another process made."""
    session = run.session
    entries = [entry for entry in session.state.compensations if entry.key == key]
    if not entries:
        run.register_undo(key, _undoing(tool, bound, result))
        return
    known = session.undo = {} if session.undo is None else session.undo
    for entry in entries:
        if not entry.ran and entry.seq not in known:
            known[entry.seq] = _undoing(tool, bound, result)


def _undoing(tool: tools.Tool, bound: dict[str, Any], result: Any) -> tools.Undoing:
    undo = tool.compensate
    assert undo is not None
    return tools.Undoing(undo, (result,), tools.named_by(undo, bound, after=1))


# Ending -------------------------------------------------------------------------------------------


def finish(run: Recorder, begun: Begun, result: Any) -> Any:
    """Write down a result; the result."""
    session, tool = run.session, begun.tool
    data, exact = tool.dumped(result)
    recorded, typed = (data, False) if exact else tool.returns.recorded(result, data)
    # What was iterated over is empty the second time: a call that may be repeated gives it anew.
    spent = isinstance(result, Iterator | AsyncIterator) and tool.effect not in UNSAFE
    if not spent and (not (exact or typed) or _is_kept_less(session, recorded)):
        kept = session.live = {} if session.live is None else session.live
        kept[begun.key] = data if exact else result
    elif session.live is not None:
        session.live.pop(begun.key, None)  # of the same call in an earlier attempt
    error = tool.failure(data)
    outcome = "done" if error is None else _judged(begun, error)
    step = _step_of(begun, data, None, _took(run, begun))
    _close(run, begun, outcome, step, result=recorded, exact=exact, typed=typed, error=error)
    if outcome == "in_doubt":
        tally(run).hear(begun.key)
    if tool.compensate is not None and outcome == "done" and not run.over:
        run.register_undo(begun.key, _undoing(tool, begun.bound, result))
    return result


def _is_kept_less(session: Session, recorded: Any) -> bool:
    """Whether a store may keep less of a result: of one with a secret, and of a large one."""
    if not session.config.durable:
        return False
    durability = session.config.durability
    if len(json_of(recorded)) > min(LOOKED_THROUGH, durability.max_value):
        return True
    redactor = durability.redactor
    return redactor is not None and redactor.value(recorded)[1]


def _took(run: Recorder, begun: Begun) -> float:
    return max(0.0, run.session.config.env.monotonic() - begun.started)


def fail(run: Recorder, begun: Begun, error: BaseException) -> None:
    """Write down that a call raised, and judge whether it may have happened.

    An unsafe call in doubt stops the attempt, unless the run was told otherwise; the caller raises
    the error on.
    """
    info = capture(error, begun.handled)
    if info.is_a(*CANCELLATIONS):
        # The message of a cancellation speaks of scopes and tasks, which say nothing of the call.
        info = replace(info, message="it was stopped before it ended")
    if begun.tool.nested:
        # Its effects stay although it failed: ask before doing them again.
        _failed(run, begun, "in_doubt" if begun.effect in UNSAFE else "failed", info)
        return
    outcome = begun.outcome if begun.idle else _judged(begun, info)
    _failed(run, begun, outcome, info)
    rerun = run.session.config.durability.on_in_doubt == "rerun"
    if outcome == "in_doubt" and not (rerun or run.over) and run.interrupt is None:
        stop_in_doubt(run, run.session.state.calls[begun.key], info)


def note_try(run: Recorder, begun: Begun, error: Exception) -> None:
    """Record a try of a call that failed and is followed by another one: a step of its own."""
    info = capture(error, begun.handled)
    seconds = _took(run, begun)
    begun.started = run.session.config.env.monotonic()
    metadata = begun.place.metadata(begun.key, begun.run)
    del metadata["call"]  # which is the step of the call's end
    step = _step(begun.tool, begun.arguments, None, begun.effect, metadata, info, seconds)
    run.record_call_step(step)


def _judged(begun: Begun, info: ErrorInfo) -> str:
    """Judge from the error of a call, raised or returned, whether it may have happened."""
    if info.not_attempted:
        return "not_attempted"
    return "in_doubt" if begun.tool.effect in UNSAFE and not begun.call.asked else "failed"


def pause(run: Recorder, begun: Begun, error: Exception) -> float | None:
    """Seconds until the call's next try after this error; None where there is none."""
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
    told = {"error": info.message[:MAX_ERROR], "type": info.type_name, "pause_s": seconds}
    begun.tries = [told] if begun.tries is None else [*begun.tries, told]
    return seconds


def _step_of(begun: Begun, data: Any, error: ErrorInfo | None, seconds: float) -> Step:
    """The step of a call that has ended with a result, as JSON, or with an error."""
    metadata = begun.place.metadata(begun.key, begun.run)
    if begun.tries is not None:
        metadata["tries"] = begun.tries
    return _step(begun.tool, begun.arguments, data, begun.effect, metadata, error, seconds)


def _failed(run: Recorder, begun: Begun, outcome: str, error: ErrorInfo) -> None:
    step = _step_of(begun, None, error, _took(run, begun))
    _close(run, begun, outcome, step, error=error)


def _close(run: Recorder, begun: Begun, outcome: str, step: Step, /, **fields: Any) -> None:
    """Write down how a call has ended. fields: what the `CallFinished` says of its result or error."""
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


# Running a recorded call: in the event loop, in a thread, or where a sync tool stands.


def call_async(
    tool: tools.Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Awaitable[Any]:
    """Call an async tool: recorded inside a run, plain outside of any."""
    run = current.get()
    if run is None:
        return tool.function(*args, **kwargs)  # type: ignore[no-any-return] # an async function's
    return record_call(run, tool, args, kwargs)


def call_sync(tool: tools.Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a sync tool where it stands: recorded inside a run, plain outside of any."""
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
    """Call a tool in an attempt: run it, give the result it had, or stop for a person."""
    tool = _as_in(run, tool)
    try:
        begun = await _begun(run, tool, args, kwargs, driver)
        if isinstance(begun, Reused):
            return begun.result
        result = await _ran(run, begun, *(begun.given or (args, kwargs)), driver)
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
    """Start a call, after what must be undone or asked first, or give its recorded result."""
    cleared = False
    while True:
        # Sync code cannot await a compensator, so a person is asked, as for a call without one.
        begun = begin(run, tool, args, kwargs, may_undo=driver.suspends, cleared=cleared)
        if isinstance(begun, Begun | Reused):
            return begun
        if isinstance(begun, Guarded):
            await driver.rule(run, begun)
            cleared = True
            continue
        # A compensator that is a tool itself is no call of the attempt.
        token = current.set(None)
        try:
            for entry in begun.entries:
                failed = await undo(run.session, run.number, entry)
                if failed is not None:
                    raise failed
        finally:
            current.reset(token)


async def _ran(
    run: Recorder, begun: Begun, args: tuple[Any, ...], kwargs: Mapping[str, Any], driver: Driver
) -> Any:
    """Run the body, again where its tool says how often and the error allows it; its result.

    An error is written down, and raised on.
    """
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
    """Wait for what has an effect beside a call that ends the group it is in: it would be cut off.

    A call within another call waits for none, as that would be for the one around it.
    """
    if tools.calling.get() is None:
        await run.settle()


def _as_in(run: Recorder, tool: tools.Tool) -> tools.Tool:
    """The tool with the effect it has in this run, where none was declared."""
    if tool.declared or not run.session.config.infer_effects:
        return tool
    known = tool.by_name()
    if known.inferred:
        _say_inferred(known)
    return known


# The handle of one attempt as the agent has it: `run`, and `current_run()` for code deep inside.


class Run(Recorder):
    """One attempt of a run, seen from inside. Safe to use from tasks and threads of the attempt.

    After the attempt every recording raises `AttemptOver`; after an interrupt, `AttemptInterrupted`.
    """

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or `@triage.tool`, recorded; its result, reused if it is known already.

        A sync function runs in a thread. One that is no tool has the effect `unknown`: it is not
        repeated by any recovery. Raises what the function raises.
        """
        bound_to = getattr(function, "__self__", None)
        runs_agent = getattr(
            function if bound_to is None else bound_to, tools.AGENT_ATTRIBUTE, False
        )
        if runs_agent is True and (bound_to is None or function.__name__ == "run"):
            self.check_open()
            token = current.set(
                self
            )  # a task from outside of the attempt may call through its handle
            try:
                return await function(*args, **kwargs)  # a run writes itself down
            finally:
                current.reset(token)
        known, owner = tools.tool_of(function)
        return await record_call(self, known, owner + args, kwargs)

    async def model(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Ask a model through a function of your own, recorded as a model call; what it gives.

        After a failure, answers from before the point of return are given again, whatever the hint has
        changed in the prompt; from there on the function is called anew. Words, tool calls and tokens
        are read from answers of OpenAI's and Anthropic's forms, and from texts. A sync function runs in a
        thread. Raises what the function raises, and UsageError where it gives a stream.
        """
        known, owner = model_of(function)
        return await record_call(self, known, owner + args, kwargs)


def current_run() -> Run:
    """The attempt the calling code runs in. Raises UsageError outside of any."""
    run = current.get()
    if run is None:
        raise UsageError(
            "current_run() was called outside of a run; call it from an agent function"
        )
    assert isinstance(run, Run)
    return run


_MOST_SAID = 1_000
_said: set[str] = set()
_said_lock = threading.Lock()


def _say_inferred(tool: tools.Tool) -> None:
    """Log that a tool's effect is inferred from its name, once a name."""
    with _said_lock:
        if tool.name in _said or len(_said) >= _MOST_SAID:
            return
        _said.add(tool.name)
    logger.info(
        "the effect of the tool %.100r is not declared; by its name it is a %s, which a recovery may "
        "call again. Declare it (effect=… or effects={…}), or turn this off with infer_effects=False",
        tool.name,
        tool.effect.value,
    )
