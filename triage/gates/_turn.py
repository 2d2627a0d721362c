"""Waiting for somebody in another task, thread or event loop: a `Turn` for each way to wait."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from trio.lowlevel import TrioToken


class Turn(Protocol):
    """What one waits for, once. Made where it is waited for, woken from anywhere."""

    def wake(self) -> bool:
        """End the waiting; False if nobody can be waiting any more."""
        ...

    async def wait(self) -> None:
        """Wait in an event loop, cancellably."""
        ...

    def wait_here(self) -> None:
        """Wait in a thread."""
        ...


def in_loop() -> Turn:
    """A turn for the task that runs now, under asyncio or trio."""
    import asyncio

    try:
        return _InAsyncio(asyncio.get_running_loop())
    except RuntimeError:
        import trio

        return _InTrio(trio.lowlevel.current_trio_token())


class InThread:
    """A turn for this thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def wake(self) -> bool:
        self._event.set()
        return True

    async def wait(self) -> None:
        raise NotImplementedError("a thread's turn is waited for in the thread")

    def wait_here(self) -> None:
        self._event.wait()


class _InAsyncio:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future = loop.create_future()

    def wake(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        await self._future

    def wait_here(self) -> None:
        raise NotImplementedError("a task's turn is awaited")


class _InTrio:
    def __init__(self, token: TrioToken) -> None:
        import trio

        self._token = token
        self._event = trio.Event()
        self._over = trio.RunFinishedError

    def wake(self) -> bool:
        try:
            self._token.run_sync_soon(self._event.set)
        except self._over:
            return False
        return True

    async def wait(self) -> None:
        await self._event.wait()

    def wait_here(self) -> None:
        raise NotImplementedError("a task's turn is awaited")
