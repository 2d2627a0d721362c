"""How recorded calls wait: in the event loop, or blocking, where sync code stands.

Code that waits is written once, as a coroutine that is given a driver. With `SYNC` none of its waits
suspends it, so `step` runs it to its end in the thread and the context of its caller.
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
        """Whether it can wait for long without holding up an event loop."""
        return True

    async def call(self, function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
        """Await an async function."""
        return await function(*args)

    async def barrier(self, session: Session, *, unsafe: bool = False) -> None:
        """Do as `Session.barrier`. unsafe: it is for a call that must not happen twice."""
        await session.barrier()

    async def rule(self, run: Recorder, asked: Guarded) -> None:
        """Ask a guard."""
        await rule(run, asked)

    def body(self, run: Recorder, tool: Tool, args: Any, kwargs: Any) -> Any:
        """Call a tool's function: its result, to be awaited by a driver that suspends."""
        return _body(run, tool, args, kwargs)


class _Blocking(Driver):
    """Blocks the thread of a sync caller."""

    suspends = False

    @property
    def can_wait(self) -> bool:
        return not in_event_loop()

    async def call(self, function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
        """Await it in the event loop that the thread belongs to, else in one of its own."""
        try:
            anyio.from_thread.check_cancelled()
        except RuntimeError:
            return anyio.run(function, *args)
        return anyio.from_thread.run(function, *args)

    async def barrier(self, session: Session, *, unsafe: bool = False) -> None:
        # In the event loop's own thread only what must not happen twice is worth holding everybody up.
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
        # The thread is left behind at its timeout, or where the call is cut off: nothing can stop it.
        with nullcontext() if tool.timeout is not None else run.thread_awaited():
            result = await anyio.to_thread.run_sync(
                partial(tool.function, *args, **kwargs), abandon_on_cancel=True
            )
        return await result if inspect.isawaitable(result) else result


def step(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine whose waits block; its result."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return] # a coroutine's result
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # no coroutine lets it out as it is
            raise error.__cause__ from None
        raise
    work.close()
    raise RuntimeError(f"{work} waits in sync code")


def immediate(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Make a sync function one that is awaited, and calls it where it stands."""

    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return call
