"""Calling the user's function: one attempt at it."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import Context, copy_context
from functools import cache, lru_cache
from typing import Any, cast

from ._function import Function
from ._interrupt import current_task, out_of_time
from ._recorder import current
from ._run import Run
from .diagnosis import Diagnosis
from .errors import AttemptInterrupted, TriageSuspendedError, UsageError

# Signals with which frameworks steer their own control flow although they are Exceptions: catching
# one would break the framework's pause. By name, so that no framework is imported.
_PASSING = frozenset({"langgraph.errors.GraphBubbleUp"})

SYNC_THREADS = 40
"""How many sync agents of an event loop run at once."""

UNSTOPPABLE_GRACE = 10.0
"""Seconds waited, after the function has ended, for an unsafe call that it left running."""


def arguments(function: Function, run: Run, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of one attempt: the caller's, the run's, and what an action injects."""
    filled = {**kwargs}
    for name, read in function.injected:
        filled[name] = read(run)
    inject = run.told.inject
    if inject:
        filled.update(inject)
    return filled


class Failed(Exception):
    """An attempt was interrupted; `__cause__` is what the function raised then, if anything."""


class Refused(Exception):
    """The result failed a check. `diagnosis` says which; `__cause__` is what the check raised."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(str(diagnosis))
        self.diagnosis = diagnosis


def invoke(function: Function, run: Run, kwargs: Mapping[str, Any]) -> Awaitable[Any]:
    """One attempt at the function, to be awaited: its result, or what it raises."""
    if run.session.config.plain:
        run.owner = current_task()
    if run.owner is not None:
        run.enter_task(run.owner)
        filled = arguments(function, run, kwargs)
        return function.function(run.session.task, **filled)  # type: ignore[no-any-return] # an async function's
    if function.kind == "generator":
        return _items(function, run, kwargs)
    return _surrounded(function, run, kwargs)


async def _items(function: Function, run: Run, kwargs: Mapping[str, Any]) -> list[Any]:
    return [item async for item in stream_attempt(function, run, kwargs)]


async def _invoke(function: Function, run: Run, kwargs: Mapping[str, Any]) -> Any:
    filled = arguments(function, run, kwargs)
    if function.kind == "async":
        return await function.function(run.session.task, **filled)
    import anyio

    result = await anyio.to_thread.run_sync(
        lambda: function.function(run.session.task, **filled), limiter=_sync_limiter()
    )
    return await result if inspect.isawaitable(result) else result


@cache
def _limiters() -> Any:
    """One limiter an event loop: made with the first sync agent."""
    from anyio.lowlevel import RunVar

    return RunVar("triage_sync_limiter")


def _sync_limiter() -> Any:
    """Sync agents share their own threads, so that they cannot starve anyone else's."""
    import anyio

    limiter = _limiters().get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(SYNC_THREADS)
        _limiters().set(limiter)
    return limiter


async def _surrounded(function: Function, run: Run, kwargs: Mapping[str, Any]) -> Any:
    """The attempt inside its scope and the observers' context managers."""
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
        return await _unstalled(run, _invoke(function, run, kwargs))
    return None  # type: ignore[unreachable] # the scope swallowed its cancellation; `end` sees it


async def _unstalled(run: Run, work: Awaitable[Any]) -> Any:
    """What `work` gives, while another task interrupts an attempt that records nothing any more."""
    seconds = run.session.limits.stall_seconds
    if seconds is None:
        return await work
    from ._stall import guarded

    return await guarded(run, seconds, work)


def _scope(run: Run) -> Any:
    seconds = run.session.attempt_seconds_left()
    config = run.session.config
    watches = config.watching or config.limits.watches
    if seconds is None and config.limits.stall_seconds is None and not watches:
        return None
    import anyio

    return anyio.CancelScope(
        deadline=math.inf if seconds is None else anyio.current_time() + seconds
    )


async def stream_attempt(
    function: Function, run: Run, kwargs: Mapping[str, Any]
) -> AsyncGenerator[Any]:
    """The items of one attempt at an async generator; ends or raises as `attempt` does.

    The context variable and the observers are set around each step of the generator, never across
    a yield, so that the consumer's own code does not run inside the attempt. What an observer's
    manager sets in the context stays in a context of its own.
    """
    stack = _Managers(run.session.entered, copy_context())
    generator = function.function(run.session.task, **arguments(function, run, kwargs))
    try:
        while True:
            token = current.set(run)
            try:
                item = await _next(generator, run)
            except StopAsyncIteration:
                break
            finally:
                current.reset(token)
            yield item
    except BaseException as error:
        await end(run)
        sort(run, error)
        raise
    finally:
        await generator.aclose()
        stack.close()
    await end(run)
    if run.interrupt is not None:
        raise Failed


class _Managers:
    """The observers' managers of a streamed attempt, in a context that the consumer never sees."""

    def __init__(self, managers: Iterable[AbstractContextManager[Any]], context: Context) -> None:
        self._stack = contextlib.ExitStack()
        self._context = context
        for manager in managers:
            context.run(self._stack.enter_context, manager)

    def close(self) -> None:
        self._context.run(self._stack.close)


async def _next(generator: Any, run: Run) -> Any:
    scope = None if run.session.config.plain else _scope(run)
    if scope is None:
        run.enter_task(current_task())
        return await generator.__anext__()
    with scope:
        run.enter_scope(scope)
        return await _unstalled(run, generator.__anext__())
    raise StopAsyncIteration  # the scope swallowed its own cancellation: `end` sees that it was cancelled


async def end(run: Run) -> None:
    """Close the attempt, after unsafe calls that it left running have been recorded.

    Raises the cancellation from outside that came together with an interrupt.
    """
    run.leave()
    if run.interrupt is None and run.scope is not None and run.scope.cancel_called:
        run.interrupt = out_of_time(run.session)
    if run.calls_open:
        await run.settle(UNSTOPPABLE_GRACE)
    run.close()
    if run.interrupt is not None:
        await run.give_way()


def sort(run: Run, error: BaseException) -> None:
    """Raise `Failed` from what an interrupted function raised; let everything else pass.

    Cancellation from outside, KeyboardInterrupt and their like are never a failure; nor is the
    interrupt of a run around this one.
    """
    if isinstance(error, AttemptInterrupted) or (
        isinstance(error, BaseExceptionGroup)
        and not isinstance(error, ExceptionGroup)
        and error.split((AttemptInterrupted, Exception))[1] is None
    ):
        if run.interrupt is None and isinstance(error, AttemptInterrupted):
            if _of_outer(run, error):
                return
            run.interrupt = error.diagnosis
        raise Failed from error
    if run.interrupt is not None and (isinstance(error, Exception) or _is_cancelled(error)):
        raise Failed from error


def _of_outer(run: Run, error: AttemptInterrupted) -> bool:
    outer = run.session.parent
    while outer is not None:
        if outer.interrupt is error.diagnosis:
            return True
        outer = outer.session.parent
    return False


def _is_cancelled(error: BaseException) -> bool:
    """Whether it is a cancellation; nobody else's but ours, or `end` would not have come back."""
    import anyio

    return isinstance(error, anyio.get_cancelled_exc_class())


def passes(error: Exception) -> bool:
    """True for what is no failure: our caller's mistakes, suspensions, a framework's own signals."""
    return _passing(cast("Hashable", type(error)))


@lru_cache(maxsize=512)
def _passing(kind: Hashable) -> bool:
    assert isinstance(kind, type)
    if issubclass(kind, UsageError | TriageSuspendedError):
        return True
    return any(f"{cls.__module__}.{cls.__qualname__}" in _PASSING for cls in kind.__mro__)
