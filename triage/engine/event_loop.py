"""A run in its event loop: cancellations of its task, and waits that no cancellation breaks.

When a child fails while its `asyncio.TaskGroup` waits at the end of its block, the group cancels the
waiting task. Before Python 3.13 it does not take that back: `task.cancelling()` stays raised after the
group has ended, as if other code had cancelled the task. The count cannot tell the two apart, but the group
can while the task is suspended in it, so `Watched` inspects an attempt wherever it is suspended, and
`Cancellations` subtracts the counts that groups leave behind.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import anyio

__all__ = [
    "CANCELLATIONS",
    "Background",
    "Cancellations",
    "current_caller",
    "current_task",
    "unbroken",
]

FORGETS = sys.version_info < (3, 13)
"""Whether task groups leave the count raised."""

CANCELLATIONS = ("CancelledError", "Cancelled", "AttemptInterrupted", "AttemptOver")
"""Names of the exception classes that stop code from outside."""

_WAITS = asyncio.TaskGroup.__aexit__.__code__
_AWAITED = {
    CoroutineType: "cr_await",
    GeneratorType: "gi_yieldfrom",
    AsyncGeneratorType: "ag_await",
}
_WRAPPERS = (
    "async_generator_asend",
    "async_generator_athrow",
    "coroutine_wrapper",
    "anext_awaitable",
)
"""The interpreter's wrapper types that do not expose the coroutine or generator they wrap."""


class Watched(Generator[Any, Any, Any], Awaitable[Any]):
    """Awaits a coroutine, and calls `forgotten` once for each cancel count that a group leaves behind.

    root: inspected in place of the coroutine: the async generator, if the coroutine is its `__anext__`.
    """

    def __init__(
        self,
        work: Coroutine[Any, Any, Any],
        forgotten: Callable[[], object],
        root: AsyncGenerator[Any, Any] | None = None,
    ) -> None:
        self.root = work if root is None else root
        self._work = work
        self._forgotten = forgotten
        self._group: Any = None

    def __await__(self) -> Watched:
        return self

    def send(self, value: Any) -> Any:
        self._resumed()
        return self._suspended(self._work.send(value))

    def throw(self, *error: Any) -> Any:
        self._resumed()
        return self._suspended(self._work.throw(*error))

    def close(self) -> None:
        self._work.close()

    def _suspended(self, signal: Any) -> Any:
        group = _waiting(self.root)
        uncancelled = group is not None and not group._parent_cancel_requested  # no public name
        self._group = group if uncancelled else None
        return signal

    def _resumed(self) -> None:
        group, self._group = self._group, None
        if group is not None and group._parent_cancel_requested:
            self._forgotten()


class Cancellations:
    """Counts how often other code has cancelled a task, without the counts that task groups leave behind.

    Only groups in awaitables wrapped by `watched` are recognized.
    """

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self._before = task.cancelling()

    def count(self) -> int:
        """Return the number of cancellations that were not taken back."""
        return self._task.cancelling() - self._before

    def watched(self, work: Any, root: Any = None) -> Any:
        """Wrap an awaitable, so that no group inside it counts as a cancellation by other code.

        root: the async generator, if `work` is its `__anext__`.
        """
        if not FORGETS or not hasattr(work, "send"):
            return work
        return Watched(work, self._forget, root)

    def _forget(self) -> None:
        self._before += 1


def current_task() -> asyncio.Task[Any] | None:
    """Return the running asyncio task; None under trio, and in a thread without an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def current_caller() -> int:
    """Return the id of the running task, or outside of any event loop that of the thread."""
    task = current_task()
    if task is not None:
        return id(task)
    try:
        return anyio.get_current_task().id
    except RuntimeError:
        return threading.get_ident()


def _waiting(link: Any) -> Any:
    """Return the group whose children a suspended coroutine waits for; None if it waits elsewhere."""
    while link is not None:
        if type(link) is CoroutineType and link.cr_code is _WAITS and link.cr_frame is not None:
            return link.cr_frame.f_locals["self"]
        link = _awaited(link)
    return None


def _awaited(link: Any) -> Any:
    kind = type(link)
    name = _AWAITED.get(kind)
    if name is not None:
        return getattr(link, name)
    if kind is Watched:
        return link.root
    if kind.__name__ in _WRAPPERS:
        return next((one for one in gc.get_referents(link) if type(one) in _AWAITED), None)
    return None


async def unbroken(work: Awaitable[None]) -> BaseException | None:
    """Wait until `work` is done; return a cancellation that came meanwhile, for the caller to raise.

    No scope shields from asyncio's `task.cancel()`, so the wait is repeated there.
    """
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            await work
            return None
        task = asyncio.ensure_future(work)
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                cancelled = error
        task.result()
    return cancelled


class Background:
    """Work in its own task, outside of the scopes where it starts, so that an async generator may own it.

    work: catches its own exceptions, cancellations too.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._scope = anyio.CancelScope()
        self._over = anyio.Event()

        async def run() -> None:
            try:
                with self._scope:
                    await work()
            finally:
                self._over.set()

        self._task: Any  # asyncio holds tasks only weakly
        if current_task() is not None:
            self._task = asyncio.get_running_loop().create_task(run())
        else:
            import trio

            self._task = trio.lowlevel.spawn_system_task(run, context=copy_context())

    async def stop(self) -> None:
        """Cancel the work unless it has ended, and wait for its end."""
        self._scope.cancel()
        cancelled = await unbroken(self._over.wait())
        if cancelled is not None:
            raise cancelled
