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
from .checks import Refused, check, refuse_failed_result, refuse_omitted_failure
from .config import Config
from .event_loop import current_caller, current_task, unbroken
from .journal import Session, inner_runs
from .keeper import Keeper
from .outside import end_inner
from .questions import asked_inside, cut_off
from .recovery import Failure, Next, recover
from .returning import START, Reach, reach
from .run import NO_GUIDANCE, Guidance, Recorder, Replay, current, out_of_time
from .tools import Function

SYNC_THREADS = 40
"""Sync agents that run at once in one event loop."""

LOOKS = 4
"""Looks per `Limits(stall_seconds=…)`: a stall is noticed at most a quarter of that time late."""

# Exceptions by which frameworks steer their own control flow: catching one would break the framework's
# pause. By name, so that no framework is imported.
_SIGNALS = frozenset({"langgraph.errors.GraphBubbleUp"})


class Restarted(NamedTuple):
    """Item of a stream: the items of a new attempt follow; earlier ones are not taken back.

    attempt: number of the new attempt. returns_to: journal position; recorded reads and model calls before
    it are reused.
    """

    attempt: int
    diagnosis: Diagnosis
    action: Action
    returns_to: int = 0


class Interrupted(Exception):
    """An attempt was interrupted; `__cause__` is the exception of its function, if any."""


# The run: attempt after attempt until one succeeds or recovery ends.


async def run_loop(
    session: Session, function: Function, before: Awaitable[Next | None] | None = None
) -> Any:
    """Run attempts until one succeeds; return its checked result, or raise the error that ends the run.

    before: awaited first; returns how the first attempt here starts. None: a new run.
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
                    # Restored below without `reset`: its token would live as long as the run.
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
                        _warn_of_unread_hint(run, function)
                    await _end(run)
                    if run.interrupt is not None:
                        raise Interrupted
                    refuse_failed_result(run, result)
                    await refuse_omitted_failure(run, result, names_hint=function.names_hint)
                    if session.config.checks is not None or run.has_subgoals:
                        result = await check(session.config.checks, run, result)
                except Exception as error:
                    failure = await _failure(session, run, error)
                    if failure is None:
                        raise
                else:
                    return await _finish(session, result)
                following = await recover(session, run, failure)
                # The error's traceback holds this frame, so keeping the error here would make a cycle.
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
    """Do as `run_loop`, yielding items as they come, and `Restarted` before a new attempt's items."""
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
                    async for streamed in stream:
                        item = streamed
                        if isinstance(streamed, _Whole):
                            result = item = streamed.result
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
    """Store the start of a run whose id the caller chose. Raises UsageError if the id is taken."""
    try:
        await session.flush()
    except errors.StaleWriter as error:
        raise errors.UsageError(f"run_id {session.run_id} is taken; choose another") from error
    except Exception as error:
        if not session.does_without_store(error):
            raise


# One attempt: begin, call the function, end.


def first_attempt(session: Session) -> Run:
    """Begin the first attempt. Raises AttemptOver if nobody waits for this inner run."""
    _refuse_left_behind(session)
    event = session.put(AttemptStarted, attempt=1, hint=session.first_hint)
    if session.busy:
        session.begin(event)
        session.raise_held()
    guidance = NO_GUIDANCE if session.first_hint is None else Guidance(hint=session.first_hint)
    return Run(session, 1, guidance, None, 0)


def next_attempt(session: Session, following: Next) -> Run:
    """Begin a further attempt. Raises AttemptOver if nobody waits for this inner run."""
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
        if call.effect in UNSAFE and call.may_have_happened and not call.undone:
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
    """Return the keyword arguments of one attempt: the caller's, the run's and the injected ones."""
    filled = {**kwargs}
    run.hint_read = run.hint_read or not function.ignores_hints
    for name, read in function.injected:
        filled[name] = read(run)
    for name, read in function.kwargs_filled:
        value = read(run)
        if value is not None:
            filled.setdefault(name, value)
    return {**filled, **(run.told.inject or {})}


async def _invoke(function: Function, run: Run, kwargs: Mapping[str, Any]) -> Any:
    """Call the function for one attempt; return its result."""
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
    return None  # type: ignore[unreachable] # the scope swallowed its cancellation; `_end` looks for that


async def _called(function: Function, run: Run, kwargs: Mapping[str, Any]) -> Any:
    filled = _arguments(function, run, kwargs)
    if function.kind == "async":
        return await run.watched(function.function(run.session.task, **filled))
    result = await _in_thread(function, run, filled)
    if isinstance(result, AsyncGenerator):
        result = _collected(result)
    return await run.watched(result) if inspect.isawaitable(result) else result


async def _in_thread(function: Function, run: Run, filled: Mapping[str, Any]) -> Any:
    """Call a plain function in a thread; return its result unchanged."""
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
    """The whole result of a wrapper that returned no generator, as opposed to one item of several."""

    result: Any


async def _handed_on(
    function: Function, run: Run, filled: Mapping[str, Any]
) -> AsyncGenerator[Any]:
    """Yield the items of the generator that a plain wrapper returns, or its result as a `_Whole`."""
    returned = await _in_thread(function, run, filled)
    if isinstance(returned, AsyncGenerator):
        async with aclosing(returned):
            async for item in returned:
                yield item
    else:
        yield _Whole(await returned if inspect.isawaitable(returned) else returned)


_sync_limiter: RunVar[anyio.CapacityLimiter | None] = RunVar("triage_sync_limiter")
"""Threads of sync agents, per event loop: separate, so that agents starve nobody else's threads."""


def _scope(run: Run) -> anyio.CancelScope | None:
    """Return the cancel scope of an attempt; None if nothing can end it early."""
    seconds = run.session.attempt_seconds_left()
    config = run.session.config
    watches = config.watching is not None or config.limits.watches
    if seconds is None and config.limits.stall_seconds is None and not watches:
        return None
    return anyio.CancelScope(
        deadline=math.inf if seconds is None else anyio.current_time() + seconds
    )


async def _unstalled(run: Run, work: Awaitable[Any]) -> Any:
    """Await `work`; interrupt the attempt once nothing was recorded for `stall_seconds`."""
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
    """Yield the items of one attempt at an async generator; ends or raises as the attempt does.

    The context variable and the observers are set around each step of the generator, never across
    a yield, so that the consumer's code runs outside the attempt.
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
    raise StopAsyncIteration  # the scope swallowed its own cancellation; `_end` checks for that


async def _end(run: Run, error: BaseException | None = None) -> None:
    """Close the attempt once its running unsafe calls are recorded.

    error: raised by its function. Raises a cancellation from outside that came together with an interrupt.
    """
    run.leave(error)
    if run.interrupt is None and run.scope is not None and run.scope.cancel_called:
        run.interrupt = out_of_time(run.session)
    if run.calls_open:
        await run.settle()
    run.close()
    if run.cut and run.session.question is None and not run.session.lost:
        run.session.question = cut_off(run)
    await _keep_inner(run)
    if run.interrupt is not None:
        await run.raise_cancellation()


async def _keep_inner(run: Recorder) -> None:
    """Keep the unfinished inner runs of an attempt for the next attempt to continue."""
    for inner in run.inner_attempts:
        session = inner.session
        if session.comes_back and not (session.has_ended or session.lost):
            left = inner_runs(run.session).left
            known = left.get(session.run_id)
            if known is None or known.position <= session.position:
                left[session.run_id] = session
            if session.keeper is None:
                await session.flush()
        await _keep_inner(inner)


_warned: WeakSet[Function] = WeakSet()
"""Functions whose unread hints were logged; one line each is enough."""


def _warn_of_unread_hint(run: Run, function: Function) -> None:
    """Warn once per function that nothing read the hint of its attempt."""
    if run.told.hint and not run.hint_read and function not in _warned:
        _warned.add(function)
        logger.warning(
            "agent %s: nobody received the hint for its next attempt; give its function a parameter "
            "_triage_hint, or read current_run().guidance.hint",
            run.session.config.name,
        )


# The failure that an exception stands for.


def _raise_interrupted(run: Run, error: BaseException) -> None:
    """Raise `Interrupted` from the error of an interrupted function; let everything else pass.

    A cancellation from outside, a KeyboardInterrupt and the interrupt of an outer run are never a failure.
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
    # A cancellation here is ours: `_end` has raised any from outside.
    if (
        run.interrupt is not None
        and isinstance(error, (Exception, anyio.get_cancelled_exc_class()))
        and not isinstance(error, Interrupted)  # a generator's attempt has raised it already
    ):
        raise Interrupted from error


async def _failure(session: Session, run: Run, error: Exception) -> Failure | None:
    """Return the failure that an exception stands for; None if the run has ended with the exception.

    Raises StaleWriter if another process owns the run now.
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
            # An inner run's question may have cut off the call in doubt, and would do so again.
            diagnosis = _asked_inside(session, cause) or diagnosis
        return Failure(cause if isinstance(cause, Exception) else None, diagnosis)
    if isinstance(error, Refused):
        return Failure(error.__cause__, error.diagnosis, refused=True)
    if session.failed_with(error):
        if isinstance(error, ExceptionGroup):
            await session.flush()  # raises the plain error
        return None
    waits = _asked_inside(session, error)
    if waits is not None:
        return Failure(error, waits)
    if _is_no_failure(error):
        await _leave(session, error, "error")
        return None
    return Failure(error)


def _is_no_failure(error: BaseException) -> bool:
    """Whether an error, or a member of a group, is a usage error, a suspension or a framework's signal."""
    return any(
        isinstance(one, errors.UsageError | errors.TriageSuspendedError)
        or any(f"{cls.__module__}.{cls.__qualname__}" in _SIGNALS for cls in type(one).__mro__)
        for one in errors.leaves(error)
    )


async def _is_stopped(session: Session, run: Run, error: Exception) -> bool:
    """Whether the run stops here, as nobody waits for its result."""
    if session.left_behind:
        # The outer run's next attempt continues this run from its journal.
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
    """End a successful run: journal the result, store it, return it."""
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
        # The store failed, not the agent: the caller finds the result on the error.
        error.result = result  # type: ignore[attr-defined] # any exception of any store carries it
        error.add_note("the agent had finished: its result is the attribute `result` of this error")
        raise
    await end_inner(session)
    session.raise_held(result=result)
    return result


def _read_result(config: Config, result: Any) -> tuple[Any, bool, bool]:
    """Return a result as JSON, whether that is exact, and whether it is exact with the declared type."""
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
    """Journal a cancellation from outside; the caller raises it.

    streams: the caller is an async generator, which may await while it is closed.
    """
    if run is not None:
        run.close()
    if (isinstance(error, GeneratorExit) and not streams) or not in_event_loop():
        # The coroutine was discarded, so nothing can be awaited here; the lease expires.
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
    """Release a durable run's lease, so that `recover` finds it after a process or caller has gone."""
    keeper.over = True
    await session.flush_beside(error)
    await session.give_back()
