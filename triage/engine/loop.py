"""The loop of `Agent.run` and `Agent.stream`: attempt after attempt at the user's function."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from contextvars import ContextVar, copy_context
from typing import Any, NamedTuple
from weakref import WeakSet

import anyio
from anyio.lowlevel import RunVar, checkpoint_if_cancelled
from msgspec.structs import replace

from triage.core import errors
from triage.core.actions import Action, lasting
from triage.core.capture import capture
from triage.core.diagnosis import Diagnosis
from triage.core.environment import in_event_loop
from triage.core.events import AttemptStarted, RunFinished
from triage.core.json_values import plain_noting
from triage.core.observers import logger
from triage.core.state import is_call
from triage.core.taxonomy import UNSAFE, Cause

from .call_keys import Tally
from .calls import Run
from .checks import Refused, check, hold_against_record, look_at
from .config import Config
from .event_loop import current_caller, current_task, unbroken
from .journal import Session, inside
from .keeper import Keeper
from .outside import end_inner
from .questions import asked_inside, cut_off
from .recovery import Failure, Next, recover
from .returning import START, Reach, reach
from .run import NO_GUIDANCE, Guidance, Recorder, Replay, current, out_of_time
from .tools import Function

SYNC_THREADS = 40
"""How many sync agents of an event loop run at once."""

LOOKS = 4
"""Looks within `Limits(stall_seconds=…)`: a stall is noticed at most a quarter of that late."""

# Signals with which frameworks steer their own control flow although they are Exceptions: catching
# one would break the framework's pause. By name, so that no framework is imported.
_SIGNALS = frozenset({"langgraph.errors.GraphBubbleUp"})


class Restarted(NamedTuple):
    """Between the items of a stream: those of a new attempt follow. attempt: its number.

    returns_to: position of the journal before which recorded reads and model calls are reused. Items
    already yielded are not taken back.
    """

    attempt: int
    diagnosis: Diagnosis
    action: Action
    returns_to: int = 0


class Interrupted(Exception):
    """An attempt was interrupted; `__cause__` is what the function raised then, if anything."""


# The run: attempt after attempt until one succeeds or recovery ends.


async def run_loop(
    session: Session, function: Function, before: Awaitable[Next | None] | None = None
) -> Any:
    """Run to the end: the checked result, or the error that ends the run.

    before: awaited first; it returns how the first attempt here starts. None: a new run.
    """
    run: Run | None = None
    outside = current.get()
    session.handled = sys.exception()
    with session.redacting():
        try:
            following = None if before is None else await before
            run = first_attempt(session) if following is None else next_attempt(session, following)
            while True:
                session.attend(run)
                try:
                    # Set back below without `reset`, whose token would live as long as the run.
                    current.set(run)
                    try:
                        result = await _invoke(function, run, session.kwargs)
                    except BaseException as error:
                        await _end(run, error)
                        _raise_interrupted(run, error)
                        raise
                    finally:
                        # A discarded coroutine can be closed while another run is current.
                        if current.get() is run:
                            current.set(outside)
                        _say_unheard(run, function)
                    await _end(run)
                    if run.interrupt is not None:
                        raise Interrupted
                    look_at(run, result)
                    await hold_against_record(run, result, heard=function.is_told)
                    if session.config.checks is not None or run.has_subgoals:
                        result = await check(session.config.checks, run, result)
                except Exception as error:
                    failure = await _failure(session, run, error)
                    if failure is None:
                        raise
                else:
                    return await _finish(session, result)
                following = await recover(session, run, failure)
                # The error's traceback holds this frame: a frame that held the error too would be a cycle.
                del failure
                run = next_attempt(session, following)
        except Exception as error:
            session.raise_held(error)
            raise
        except BaseException as error:
            await _cancelled(session, run, error)
            session.raise_held(error)
            raise


async def stream_loop(
    session: Session, function: Function, before: Awaitable[None] | None = None
) -> AsyncGenerator[Any]:
    """As `run_loop`, with the items as they come, and `Restarted` before those of a new attempt."""
    attempts = _streamed_attempts(session, function, before)
    try:
        while True:
            session.handled = sys.exception()
            # Redact for the agent only, not for the consumer of the items.
            with session.redacting():
                try:
                    item = await anext(attempts)
                except StopAsyncIteration:
                    return
            yield item
    finally:
        with session.redacting():
            await attempts.aclose()


async def _streamed_attempts(
    session: Session, function: Function, before: Awaitable[None] | None
) -> AsyncGenerator[Any]:
    run: Run | None = None
    checks = session.config.checks
    try:
        if before is not None:
            await before
        run = first_attempt(session)
        while True:
            session.attend(run)
            items: list[Any] = []
            try:
                result: Any = items
                async with aclosing(_stream_attempt(function, run, session.kwargs)) as stream:
                    async for given in stream:
                        item = given
                        if isinstance(given, _Whole):
                            result = item = given.result
                        if checks is not None or session.comes_back:
                            items.append(item)
                        yield item
                if checks is not None or run.has_subgoals:
                    await check(checks, run, result)
            except Exception as error:
                failure = await _failure(session, run, error)
                if failure is None:
                    raise
            else:
                await _finish(session, items if session.comes_back else None)
                return
            run = next_attempt(session, await recover(session, run, failure))
            guidance = run.told
            assert guidance.diagnosis is not None
            assert guidance.action is not None
            returns_to = session.state.returns[run.number]
            yield Restarted(run.number, guidance.diagnosis, guidance.action, returns_to)
    except Exception as error:
        session.raise_held(error)
        raise
    except BaseException as error:
        await _cancelled(session, run, error, streams=True)
        session.raise_held(error)
        raise


async def claim_run_id(session: Session) -> None:
    """Store the start of a run whose id the caller chose. Raises UsageError where it is taken."""
    try:
        await session.flush()
    except errors.StaleWriter as error:
        raise errors.UsageError(f"run_id {session.run_id} is taken; choose another") from error
    except Exception as error:
        if not session.does_without_store(error):
            raise


# The attempt: how it begins, how the function is called, how it ends.


def first_attempt(session: Session) -> Run:
    """The handle of the first attempt. Raises AttemptOver where nobody waits for this inner run."""
    _refuse_left_behind(session)
    event = session.put(AttemptStarted, attempt=1, hint=session.first_hint)
    if session.busy:
        session.begin(event)
        session.raise_held()
    guidance = NO_GUIDANCE if session.first_hint is None else Guidance(hint=session.first_hint)
    return Run(session, 1, guidance, None, 0)


def next_attempt(session: Session, following: Next) -> Run:
    """The handle of a further attempt. Raises AttemptOver where nobody waits for this inner run."""
    _refuse_left_behind(session)
    guidance = following.guidance
    session.lasting = {**session.lasting, **lasting([guidance.action])}
    guidance = replace(guidance, **session.lasting)
    number = following.attempt
    session.attempt_started = session.config.env.monotonic()
    if session.config.limits.on_limit != "escalate":
        session.raise_limits()
    session.question = None
    event = session.put(
        AttemptStarted,
        attempt=number,
        base=following.base,
        hint=guidance.hint,
        subgoal=guidance.subgoal,
        keep_state=following.keep_state,
        inject=tuple(guidance.inject) if guidance.inject else (),
        returns_to=following.returns_to,
        carries=following.carries,
    )
    if session.busy:
        session.begin(event)
        session.raise_held()
    returns_to = following.returns_to or START
    begun = following.begun or number
    if following.base is None and not session.has_calls and not following.keep_state:
        # Nothing is kept and nothing can be reused, so the journal need not be read.
        nothing = Replay(following.kind, frozenset(), {}, Reach(at=returns_to), begun)
        return Run(session, number, guidance, nothing, 0)
    state = session.state
    kept = frozenset(
        step.metadata["call"] for step in state.steps if step.metadata and is_call(step)
    )
    unmatched: dict[str, set[str]] = {}
    for call in state.calls.values():
        unsettled = call.outcome in (None, "in_doubt", "done") and not call.undone
        if call.effect in UNSAFE and unsettled:
            unmatched.setdefault(call.tool, set()).add(call.key)
    replay = Replay(following.kind, kept, unmatched, reach(state, number, returns_to), begun)
    run = Run(session, number, guidance, replay, len(state.steps))
    if session.has_calls:
        run.tally = Tally(run)
    run.has_subgoals = bool(state.ledger.subgoals)
    return run


def _refuse_left_behind(session: Session) -> None:
    outer = session.parent
    if session.left_behind and outer is not None:
        outer.refuse_late()


def _arguments(function: Function, run: Run, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of one attempt: the caller's, the run's, and what an action injects."""
    filled = {**kwargs}
    run.hint_read = run.hint_read or not function.is_deaf
    for name, read in function.injected:
        filled[name] = read(run)
    for name, read in function.through_kwargs:
        value = read(run)
        if value is not None:
            filled.setdefault(name, value)
    return {**filled, **(run.told.inject or {})}


async def _invoke(function: Function, run: Run, kwargs: Mapping[str, Any]) -> Any:
    """One attempt at the function: its result, or what it raises."""
    if run.session.config.plain:
        run.owner = current_task()
    if run.owner is not None:
        run.enter_task(run.owner)
        filled = _arguments(function, run, kwargs)
        return await run.watched(function.function(run.session.task, **filled))
    if function.kind == "generator":
        return [item async for item in _stream_attempt(function, run, kwargs)]
    stack: contextlib.ExitStack[bool | None]
    with contextlib.ExitStack() as stack:
        scope = _scope(run)
        if scope is None:
            run.enter_task(current_task())
        else:
            stack.enter_context(scope)
            run.enter_scope(scope)
        for manager in run.session.entered:
            stack.enter_context(manager)
        run.session.raise_held()
        return await _unstalled(run, _called(function, run, kwargs))
    return None  # type: ignore[unreachable] # the scope swallowed its cancellation; `_end` sees it


async def _called(function: Function, run: Run, kwargs: Mapping[str, Any]) -> Any:
    filled = _arguments(function, run, kwargs)
    if function.kind == "async":
        return await run.watched(function.function(run.session.task, **filled))
    result = await _in_thread(function, run, filled)
    if isinstance(result, AsyncGenerator):
        result = _collected(result)
    return await run.watched(result) if inspect.isawaitable(result) else result


async def _in_thread(function: Function, run: Run, filled: Mapping[str, Any]) -> Any:
    """What a plain function returns, whatever that is."""
    limiter = _sync_limiter.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(SYNC_THREADS)
        _sync_limiter.set(limiter)

    def called() -> tuple[Any]:
        run.caller = current_caller()
        # In a tuple, as trio refuses a coroutine from a thread.
        return (function.function(run.session.task, **filled),)

    caller = run.caller
    await checkpoint_if_cancelled()
    with run.thread_awaited():
        (returned,) = await anyio.to_thread.run_sync(
            called, limiter=limiter, abandon_on_cancel=True
        )
    run.caller = caller
    return returned


async def _collected(generator: AsyncGenerator[Any]) -> list[Any]:
    async with aclosing(generator):
        return [item async for item in generator]


class _Whole(NamedTuple):
    """The result of a wrapper that has returned no generator: not one of several items."""

    result: Any


async def _handed_on(
    function: Function, run: Run, filled: Mapping[str, Any]
) -> AsyncGenerator[Any]:
    """The items of the generator that a plain wrapper returns, or its result as a `_Whole`."""
    returned = await _in_thread(function, run, filled)
    if isinstance(returned, AsyncGenerator):
        async with aclosing(returned):
            async for item in returned:
                yield item
    else:
        yield _Whole(await returned if inspect.isawaitable(returned) else returned)


_sync_limiter: RunVar[anyio.CapacityLimiter | None] = RunVar("triage_sync_limiter")
"""Sync agents of an event loop share their own threads, so that they cannot starve anyone else's."""


def _scope(run: Run) -> anyio.CancelScope | None:
    """The scope of an attempt; None where nothing can end it early."""
    seconds = run.session.attempt_seconds_left()
    config = run.session.config
    watches = config.watching is not None or config.limits.watches
    if seconds is None and config.limits.stall_seconds is None and not watches:
        return None
    return anyio.CancelScope(
        deadline=math.inf if seconds is None else anyio.current_time() + seconds
    )


async def _unstalled(run: Run, work: Awaitable[Any]) -> Any:
    """Await `work`, and interrupt it once nothing was recorded for `stall_seconds`."""
    seconds = run.session.limits.stall_seconds
    if seconds is None:
        return await work

    async def look() -> None:
        env = run.session.config.env
        seen, since = run.recorded, env.monotonic()
        while run.interrupt is None:
            await env.sleep(seconds / LOOKS)
            if run.recorded != seen:
                seen, since = run.recorded, env.monotonic()
            elif env.monotonic() - since >= seconds:
                run.stop(run.session.limits.time_is_up("stall_seconds"))

    failed: BaseException | None = None
    result = None
    async with anyio.create_task_group() as group:
        group.start_soon(look)
        try:
            result = await work
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        try:
            raise failed
        finally:
            del failed  # its traceback holds this frame
    return result


async def _stream_attempt(
    function: Function, run: Run, kwargs: Mapping[str, Any]
) -> AsyncGenerator[Any]:
    """The items of one attempt at an async generator; ends or raises as an attempt does.

    The context variable and the observers are set around each step of the generator, never across
    a yield, so that the consumer's own code does not run inside the attempt.
    """
    stack, context = contextlib.ExitStack(), copy_context()
    placed: list[tuple[ContextVar[Any], Any]] = []
    if run.session.entered:
        before = copy_context()
        for manager in run.session.entered:
            context.run(stack.enter_context, manager)
        placed = [(var, value) for var, value in context.items() if before.get(var) is not value]
    filled = _arguments(function, run, kwargs)
    if function.kind == "wrapped":
        generator = _handed_on(function, run, filled)
    else:
        generator = function.function(run.session.task, **filled)
    try:
        while True:
            variables: list[tuple[Any, Any]] = [(current, run), *placed]
            tokens = [var.set(value) for var, value in variables]
            try:
                item = await _next_item(generator, run)
            except StopAsyncIteration:
                break
            finally:
                for token in reversed(tokens):
                    token.var.reset(token)
            yield item
    except BaseException as error:
        await _end(run, error)
        _raise_interrupted(run, error)
        raise
    finally:
        await generator.aclose()
        context.run(stack.close)
    await _end(run)
    if run.interrupt is not None:
        raise Interrupted


async def _next_item(generator: Any, run: Run) -> Any:
    scope = None if run.session.config.plain else _scope(run)
    if scope is None:
        run.enter_task(current_task())
        return await run.watched(generator.__anext__(), generator)
    with scope:
        run.enter_scope(scope)
        return await _unstalled(run, run.watched(generator.__anext__(), generator))
    raise StopAsyncIteration  # the scope swallowed its own cancellation: `_end` sees that it was cancelled


async def _end(run: Run, error: BaseException | None = None) -> None:
    """Close the attempt, after unsafe calls that it left running have been recorded.

    error: what its function raised. Raises the cancellation from outside that came together with an
    interrupt.
    """
    run.leave(error)
    if run.interrupt is None and run.scope is not None and run.scope.cancel_called:
        run.interrupt = out_of_time(run.session)
    if run.calls_open:
        await run.settle()
    run.close()
    if run.cut and run.session.question is None and not run.session.lost:
        run.session.question = cut_off(run)
    await _keep_inside(run)
    if run.interrupt is not None:
        await run.give_way()


async def _keep_inside(run: Recorder) -> None:
    """Keep the inner runs that an attempt has left running, for the next one to go on with."""
    for one in run.inside:
        session = one.session
        if session.comes_back and not (session.has_ended or session.lost):
            left = inside(run.session).left
            known = left.get(session.run_id)
            if known is None or known.position <= session.position:
                left[session.run_id] = session
            if session.keeper is None:
                await session.flush()
        await _keep_inside(one)


_unheard: WeakSet[Function] = WeakSet()
"""Functions whose lost hints were logged already: one line each is enough."""


def _say_unheard(run: Run, function: Function) -> None:
    """Log once that the function was given a hint it cannot receive, and that nothing else asked for it."""
    if run.told.hint and not run.hint_read and function not in _unheard:
        _unheard.add(function)
        logger.warning(
            "agent %s: nobody received the hint for its next attempt; give its function a parameter "
            "_triage_hint, or read current_run().guidance.hint",
            run.session.config.name,
        )


# The failure: what an exception stands for.


def _raise_interrupted(run: Run, error: BaseException) -> None:
    """Raise `Interrupted` from what an interrupted function raised; let everything else pass.

    Cancellation from outside, KeyboardInterrupt and their like are never a failure; nor is the
    interrupt of a run around this one.
    """
    if isinstance(error, errors.AttemptInterrupted) or (
        isinstance(error, BaseExceptionGroup)
        and not isinstance(error, ExceptionGroup)
        and error.split((errors.AttemptInterrupted, Exception))[1] is None
    ):
        if run.interrupt is None and isinstance(error, errors.AttemptInterrupted):
            outer = run.session.parent
            while outer is not None:
                if outer.interrupt is error.diagnosis:
                    return
                outer = outer.session.parent
            run.interrupt = error.diagnosis
        raise Interrupted from error
    # A cancellation here is ours: `_end` has raised those from outside.
    if (
        run.interrupt is not None
        and isinstance(error, (Exception, anyio.get_cancelled_exc_class()))
        and not isinstance(error, Interrupted)  # a generator's attempt has raised it already
    ):
        raise Interrupted from error


async def _failure(session: Session, run: Run, error: Exception) -> Failure | None:
    """The failure that an exception stands for. None: it is not ours to handle, and the run has ended.

    Raises StaleWriter where another process owns the run now.
    """
    if await _is_stopped(session, run, error):
        return None
    if isinstance(error, Interrupted) and session.lost:
        await session.flush()
    if isinstance(error, Interrupted):
        cause = error.__cause__
        diagnosis = run.interrupt
        if (
            isinstance(cause, Exception)
            and diagnosis is not None
            and (run.cut or diagnosis.cause == Cause.IN_DOUBT)
            and session.inner is not None
        ):
            # A question inside may have cut off the call in doubt, and would do so again.
            diagnosis = _asked_inside(session, cause) or diagnosis
        return Failure(cause if isinstance(cause, Exception) else None, diagnosis)
    if isinstance(error, Refused):
        return Failure(error.__cause__, error.diagnosis, refused=True)
    if session.failed_with(error):
        if isinstance(error, ExceptionGroup):
            await session.flush()  # which says it plainly
        return None
    waits = _asked_inside(session, error)
    if waits is not None:
        return Failure(error, waits)
    if _is_no_failure(error):
        await _leave(session, error, "error")
        return None
    return Failure(error)


def _is_no_failure(error: BaseException) -> bool:
    """Whether it, or a member of a group, is a mistake of the caller's, a suspension or a signal."""
    return any(
        isinstance(one, errors.UsageError | errors.TriageSuspendedError)
        or any(f"{cls.__module__}.{cls.__qualname__}" in _SIGNALS for cls in type(one).__mro__)
        for one in errors.leaves(error)
    )


async def _is_stopped(session: Session, run: Run, error: Exception) -> bool:
    """Whether there is no next attempt for those who run this one: nobody waits for it any more."""
    if session.left_behind:
        # The next attempt around it goes on with this run, from what is recorded by now.
        if session.keeper is not None:
            session.keeper.over = True
        return True
    if await run.cancelled_outside():
        await _cancelled(session, run, error)
        return True
    return False


def _asked_inside(session: Session, error: Exception) -> Diagnosis | None:
    return None if session.inner is None else asked_inside(session, error)


# The end of a run.


async def _finish(session: Session, result: Any) -> Any:
    """End a run well: journal the result, store it, give it back."""
    data, exact, typed = _read_result(session.config, result)
    session.add(RunFinished, status="done", result=data, exact=exact, typed=typed)
    if session.parent is not None:
        session.count_in_parent()
    try:
        await session.flush()
    except Exception as error:
        if session.does_without_store(error):
            session.raise_held(result=result)
            return result
        # The store failed, not the result: the caller finds it on the error.
        error.result = result  # type: ignore[attr-defined] # any exception of any store carries it
        error.add_note("the agent had finished: its result is the attribute `result` of this error")
        raise
    await end_inner(session)
    session.raise_held(result=result)
    return result


def _read_result(config: Config, result: Any) -> tuple[Any, bool, bool]:
    """A result as JSON, and whether that says all of it, by itself or with the declared type."""
    data, exact = plain_noting(result)
    if exact or not config.durable:
        return data, exact, False
    data, typed = config.returns.recorded(result, data)
    return data, exact, typed


async def _leave(session: Session, error: BaseException, status: str) -> None:
    session.add(RunFinished, status=status, error=capture(error, session.handled))
    await session.flush_beside(error)
    await end_inner(session)


async def _cancelled(
    session: Session, run: Run | None, error: BaseException, *, streams: bool = False
) -> None:
    """Journal a cancellation from outside; the caller raises it on.

    streams: the caller is an async generator, which may await something while it is closed.
    """
    if run is not None:
        run.close()
    if (isinstance(error, GeneratorExit) and not streams) or not in_event_loop():
        # The coroutine was discarded, so nothing can be awaited here. The lease expires by itself.
        if session.keeper is not None:
            session.keeper.pump()
            session.keeper.over = True
        return
    if session.keeper is not None and session.config.durable:
        await unbroken(_hand_back(session, session.keeper, error))
        return
    with anyio.CancelScope(shield=True):
        if session.comes_back or session.has_ended:
            await session.flush_beside(error)
        else:
            await _leave(session, error, "cancelled")


async def _hand_back(session: Session, keeper: Keeper, error: BaseException) -> None:
    """Release a durable run to its store, where `recover` finds it.

    The run survives an ending process and a caller that stops waiting.
    """
    keeper.over = True
    await session.flush_beside(error)
    await session.give_back()
