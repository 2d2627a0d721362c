"""A run and its events side by side, for `Agent.events`."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import anyio

from ._function import Function
from ._loop import run_loop
from ._session import Config, Session
from .events import Event


class _Bell:
    """Wakes the follower from any thread an agent records in."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._thread = threading.get_ident()

    def __call__(self, _event: Event) -> None:
        if threading.get_ident() == self._thread:
            self._event.set()
            return
        try:
            anyio.from_thread.run_sync(self._event.set)
        except RuntimeError:
            # A thread that no event loop started: what it recorded is given with the next event.
            return

    async def wait(self) -> None:
        await self._event.wait()
        self._event = anyio.Event()

    def ring(self) -> None:
        self._event.set()


async def follow(
    function: Function, new_session: Callable[[Config], Session], config: Config
) -> AsyncIterator[Event]:
    """Start a run and yield its events; raises, after the last of them, what the run raised."""
    bell = _Bell()
    session = new_session(
        replace(config, observers=(*config.observers, bell), plain=False, busy=True)
    )
    raised: list[Exception] = []
    over = False

    async def runner() -> None:
        nonlocal over
        try:
            await run_loop(session, function)
        except Exception as error:  # noqa: BLE001 - raised to the consumer, after the last event
            raised.append(error)
        finally:
            over = True
            bell.ring()

    given = 0
    async with anyio.create_task_group() as group:
        group.start_soon(runner)
        while True:
            finished = over
            while given < session.position:
                try:
                    yield session.events[given]
                except GeneratorExit:  # a group would make another error of it
                    group.cancel_scope.cancel()
                    return
                given += 1
            if finished:
                break
            await bell.wait()
    if raised:
        raise raised[0]
