"""Calling the user's function: what it takes, read once, and one attempt at it."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import Context, copy_context
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

from ._interrupt import current_task, out_of_time
from ._recorder import current
from ._run import Run
from .diagnosis import Diagnosis
from .errors import AttemptInterrupted, TriageSuspendedError, UsageError

_INJECTED: dict[str, Callable[[Run], Any]] = {
    "record_step": lambda run: run.record_step,
    "update_state": lambda run: run.update_state,
    "record_usage": lambda run: run.record_usage,
    "run": lambda run: run,
    "_triage_hint": lambda run: run.told.hint,
    "_triage_subgoal": lambda run: run.told.subgoal,
    "_triage_state": lambda run: run.told.state,
    "_triage_context": lambda run: run.told if run.number > 1 else None,
}

# Signals with which frameworks steer their own control flow although they are Exceptions: catching
# one would break the framework's pause. By name, so that no framework is imported.
_PASSING = frozenset({"langgraph.errors.GraphBubbleUp"})

SYNC_THREADS = 40
"""How many sync agents of an event loop run at once."""

UNSTOPPABLE_GRACE = 10.0
"""Seconds waited, after the function has ended, for an unsafe call that it left running."""


class Function(NamedTuple):
    """A user's function as it will be called. kind: `async`, `sync` or `generator`.

    injected: the parameters the run fills. wanted: others without a default. known: all that may be
    given by keyword; None when it takes any. of_instance: its first parameter is the instance or class
    it will be bound to.
    """

    function: Callable[..., Any]
    name: str
    kind: str
    injected: tuple[tuple[str, Callable[[Run], Any]], ...]
    wanted: frozenset[str]
    known: frozenset[str] | None
    of_instance: bool

    def check(self, kwargs: Mapping[str, Any]) -> None:
        """UsageError for arguments the function does not take, or that the run fills itself."""
        for name in kwargs:
            if name in _INJECTED and any(name == injected for injected, _ in self.injected):
                raise UsageError(f"{name} is filled by the run; do not give it to run() as well")
            if self.known is not None and name not in self.known:
                known = ", ".join(sorted(self.known)) or "none but the task"
                raise UsageError(f"{self.name} takes no parameter {name}; it takes: {known}")
        missing = self.wanted - kwargs.keys()
        if missing:
            names = ", ".join(sorted(missing))
            raise UsageError(f"{self.name} needs {names}; give it as run(task, {names}=…)")


def read_function(function: Any, *, bound: bool) -> Function:
    """What is to be known of a function before it is called. bound: it is a method of an object.

    Raises UsageError for what cannot be called with a task.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    if not callable(function):
        raise UsageError(f"an agent must be a function, not {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise UsageError(f"{name} has no signature to read; wrap it in a function") from None
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    leading = 2 if not bound and positional and positional[0].name in ("self", "cls") else 1
    if len(positional) < leading and not takes_any:
        raise UsageError(f"{name} takes no task; its first parameter must be the task")
    if positional and positional[leading - 1].name in _INJECTED:
        raise UsageError(
            f"the first parameter of {name} must be the task, not {positional[leading - 1].name}"
        )
    rest = [p for p in parameters if p not in positional[:leading]]
    for p in rest:
        if p.kind is p.POSITIONAL_ONLY and p.default is p.empty:
            raise UsageError(f"{name} takes {p.name} by position only; only the task is given so")
    keywords = [p for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return Function(
        function=function,
        name=name,
        kind=_kind(function, name),
        injected=tuple((p.name, _INJECTED[p.name]) for p in keywords if p.name in _INJECTED),
        wanted=frozenset(
            p.name for p in keywords if p.default is p.empty and p.name not in _INJECTED
        ),
        known=None
        if open_ended
        else frozenset(p.name for p in keywords if p.name not in _INJECTED),
        of_instance=leading > 1,
    )


def _kind(function: Any, name: str) -> str:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    candidates = (function, getattr(function, "__call__", None))  # noqa: B004 - also objects that are called
    if any(inspect.isasyncgenfunction(candidate) for candidate in candidates):
        return "generator"
    if any(inspect.iscoroutinefunction(candidate) for candidate in candidates):
        return "async"
    if any(inspect.isgeneratorfunction(candidate) for candidate in candidates):
        raise UsageError(
            f"{name} is a sync generator; make it an async generator to stream from it"
        )
    return "sync"


def fingerprint(function: Function) -> str:
    """A digest of the function's code, nested functions included: another one means other code.

    Where the code cannot be read (a callable of a compiled module), only the name counts.
    """
    import hashlib
    from types import CodeType

    target = inspect.unwrap(function.function)
    while hasattr(target, "func"):  # functools.partial
        target = target.func
    target = getattr(target, "__func__", target)
    if not hasattr(target, "__code__"):  # an object that is called
        target = type(target).__call__
    code = getattr(target, "__code__", None)
    found = hashlib.sha256(function.name.encode())
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        block = waiting.pop()
        found.update(block.co_code)
        found.update(repr(block.co_names).encode())
        for constant in block.co_consts:
            if isinstance(constant, CodeType):
                waiting.append(constant)
            else:
                # The order of a set differs from process to process.
                items = constant if isinstance(constant, frozenset) else (constant,)
                found.update(repr(sorted(map(repr, items))).encode())
    return found.hexdigest()[:16]


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
        if scope is not None:
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
