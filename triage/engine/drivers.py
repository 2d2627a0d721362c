"""How recorded calls wait: in the event loop, or by blocking a sync caller.

Waiting code is written once, as a coroutine with a driver. With `SYNC` no wait suspends the coroutine, so
`step` runs it to its end in the thread and context of the caller.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import Any, ParamSpec, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from triage.core.asking import TooSlow, ask_here
from triage.core.environment import in_event_loop

from .journal import Session
from .rulings import Guarded, rule, rule_sync
from .run import Recorder
from .tools import Tool

__all__ = ["ASYNC", "SYNC", "Driver", "immediate", "step"]

P = ParamSpec("P")
R = TypeVar("R")


class Driver:
    """Waits in the event loop."""

    suspends = True
    """Whether the coroutine may be suspended."""

    @property
    def can_wait(self) -> bool:
        """Whether a long wait blocks no event loop."""
        return True

    async def call(self, function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
        """Await an async function."""
        return await function(*args)

    async def barrier(self, session: Session, *, unsafe: bool = False) -> None:
        """Do as `Session.barrier`. unsafe: for an unsafe call."""
        await session.barrier()

    async def rule(self, run: Recorder, asked: Guarded) -> None:
        """Ask a guard."""
        await rule(run, asked)

    def body(self, run: Recorder, tool: Tool, args: Any, kwargs: Any) -> Any:
        """Call a tool's function; return its result, or from a driver that suspends an awaitable of it."""
        return _body(run, tool, args, kwargs)


class _Blocking(Driver):
    """Blocks the thread of a sync caller."""

    suspends = False

    @property
    def can_wait(self) -> bool:
        return not in_event_loop()

    async def call(self, function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
        """Await the function in the event loop that the thread belongs to, else in a new one."""
        try:
            anyio.from_thread.check_cancelled()
        except RuntimeError:
            return anyio.run(function, *args)
        return anyio.from_thread.run(function, *args)

    async def barrier(self, session: Session, *, unsafe: bool = False) -> None:
        # In the event loop's own thread, only an unsafe call is worth blocking the loop.
        if unsafe or self.can_wait:
            session.barrier_sync()

    async def rule(self, run: Recorder, asked: Guarded) -> None:
        rule_sync(run, asked)

    def body(self, run: Recorder, tool: Tool, args: Any, kwargs: Any) -> Any:
        if tool.timeout is None:
            return tool.function(*args, **kwargs)
        try:
            return ask_here(partial(tool.function, *args, **kwargs), seconds=tool.timeout)
        except TooSlow as slow:
            raise TimeoutError(f"{tool.name} {slow}") from None


ASYNC = Driver()
SYNC: Driver = _Blocking()


async def _body(run: Recorder, tool: Tool, args: Any, kwargs: Any) -> Any:
    with anyio.fail_after(tool.timeout):
        if tool.is_async:
            return await tool.function(*args, **kwargs)
        await anyio.lowlevel.checkpoint_if_cancelled()
        # Nothing can stop the thread, so it is left behind at its timeout, or if the call is cut off.
        with nullcontext() if tool.timeout is not None else run.thread_awaited():
            result = await anyio.to_thread.run_sync(
                partial(tool.function, *args, **kwargs), abandon_on_cancel=True
            )
        return await result if inspect.isawaitable(result) else result


def step(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine whose waits block; return its result."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return] # a coroutine's result
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # a coroutine raises it as a RuntimeError
            raise error.__cause__ from None
        raise
    work.close()
    raise RuntimeError(f"{work} waits in sync code")


def immediate(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Wrap a sync function as an async one that calls it in place."""

    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return call
