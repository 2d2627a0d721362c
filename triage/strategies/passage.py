"""`Passage`: one call through a gate, and what the gate learns from the outcome of the call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar, cast

import anyio

from triage.core.capture import capture
from triage.core.environment import SYSTEM, Environment, in_event_loop
from triage.core.errors import CircuitOpen, UsageError, misuse
from triage.core.failures import ErrorInfo
from triage.core.waiting import LONG_WAIT_S

__all__ = [
    "Passage",
    "Turn",
    "Verdict",
    "delay_after",
    "environment_of",
    "key_of",
    "verdict_of",
]


# What the exception of a call says about the service: is it down, does it ask us to wait?


Verdict: TypeAlias = Literal["up", "down", "unknown"]

_TIMED_OUT = 408
_FROM_SERVER = 500
_ASKED_TOO_OFTEN = frozenset({429, 529})
_OURS = ("PoolTimeout", "EmptyPoolError", "UnsupportedProtocol", "InvalidURL", "InvalidUrlClientError",
         "MissingSchema", "InvalidSchema", "LocationParseError", "LocalProtocolError")  # fmt: skip
"""Errors of our own side: the request was never sent, so they say nothing about the service."""
_LOST = ("TimeoutError", "ConnectionError")
_REFUSED_S = 1.0
"""Seconds to hold after a refusal that names no delay."""


def verdict_of(error: BaseException) -> Verdict:
    """Judge from the exception of a call whether the service is down.

    Down: an answer 5xx or 408, a request that was not sent or not answered, a timeout. Up: any
    other answer. Unknown: an error that says nothing about the service, such as a ValueError.
    """
    if not isinstance(error, Exception) or isinstance(error, CircuitOpen):
        return "unknown"
    for info in _what_caused(capture(error)):
        if info.is_a(*_OURS):
            return "unknown"
        if info.status_code is not None:
            down = info.status_code >= _FROM_SERVER or info.status_code == _TIMED_OUT
            return "down" if down else "up"
        if info.phase in {"not_sent", "sent"} or info.is_a(*_LOST):
            return "down"
    return "unknown"


def delay_after(error: BaseException) -> float | None:
    """Return the seconds to hold other calls after a rate limit; None if the call met none."""
    if not isinstance(error, Exception):
        return None
    refused = False
    for info in _what_caused(capture(error)):
        delay = info.retry_after_s
        if delay is None and info.hint is not None:
            delay = info.hint.get("retry_after_s")
        if delay is not None:
            return max(0.0, delay)
        refused = refused or info.status_code in _ASKED_TOO_OFTEN
    return _REFUSED_S if refused else None


def _what_caused(info: ErrorInfo) -> Iterator[ErrorInfo]:
    """Yield the error, its causes and group members, but not errors that were only being handled."""
    yield info
    for other in info.related:
        if other.relation != "context":
            yield from _what_caused(other)


# Waiting for another task, thread or event loop: a `Turn` for each way to wait.


class Turn(Protocol):
    """Something to wait for once. Made by whoever waits, woken from anywhere."""

    def wake(self) -> bool:
        """End the wait; False if nobody can be waiting any more."""
        ...

    async def wait(self, slow: Callable[[], None]) -> None:
        """Wait in an event loop, cancellably; call `slow` once that has lasted 2 s."""
        ...

    def wait_here(self, slow: Callable[[], None]) -> None:
        """Wait in a thread; call `slow` once that has lasted 2 s."""
        ...


def in_loop() -> Turn:
    """Make a turn for the current task, under asyncio or trio."""
    try:
        return _InAsyncio(asyncio.get_running_loop())
    except RuntimeError:
        return _InTrio()


class InThread:
    """A turn for this thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def wake(self) -> bool:
        self._event.set()
        return True

    async def wait(self, slow: Callable[[], None]) -> None:
        raise NotImplementedError("a thread's turn is waited for in the thread")

    def wait_here(self, slow: Callable[[], None]) -> None:
        if not self._event.wait(LONG_WAIT_S):
            slow()
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

    async def wait(self, slow: Callable[[], None]) -> None:
        timer = self._loop.call_later(LONG_WAIT_S, slow)
        try:
            await self._future
        finally:
            timer.cancel()

    def wait_here(self, slow: Callable[[], None]) -> None:
        raise NotImplementedError("a task's turn is awaited")


class _InTrio:
    def __init__(self) -> None:
        import trio

        self._token = trio.lowlevel.current_trio_token()
        self._event = trio.Event()
        self._over = trio.RunFinishedError

    def wake(self) -> bool:
        try:
            self._token.run_sync_soon(self._event.set)
        except self._over:
            return False
        return True

    async def wait(self, slow: Callable[[], None]) -> None:
        with anyio.move_on_after(LONG_WAIT_S) as scope:
            await self._event.wait()
        if scope.cancelled_caught:
            slow()
            await self._event.wait()

    def wait_here(self, slow: Callable[[], None]) -> None:
        raise NotImplementedError("a task's turn is awaited")


# One call through a gate: a context manager, sync and async, and a decorator.


F = TypeVar("F", bound=Callable[..., Any])


class Passage:
    """The result of `through()`: an `async with` or `with` around one call, or a function's decorator.

    A decorated function, async or sync, gets a new passage for each call. A sync `with` waits in its
    thread, and raises UsageError where it would have to wait inside an event loop. A passage is for one
    call at a time: a second one inside the first raises UsageError.
    """

    def __init__(self, environment: Environment) -> None:
        self._env = environment
        self._inside = False

    # What a gate says -----------------------------------------------------------------------------

    def _ask(self, turn: Callable[[], Turn]) -> float | Turn | None:
        """Return None to pass, else what to wait for before asking again: seconds, or a turn."""
        raise NotImplementedError

    def _withdraw(self) -> None:
        """Stop waiting without passing."""

    def _say(self, seconds: float | None = None) -> None:
        """Log why the call waits; None for a turn that has not come for 2 s."""

    def _left(self, error: BaseException | None) -> None:
        """Learn how the call ended after passing."""
        raise NotImplementedError

    def _another(self) -> Passage:
        """Make another passage like this one."""
        raise NotImplementedError

    # The ways to use it ---------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            while (wait := self._ask(in_loop)) is not None:
                if isinstance(wait, int | float):
                    self._say(wait)
                    await self._env.sleep(wait)
                    continue
                await wait.wait(self._say)
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside = False
        self._left(error)

    def __enter__(self) -> Self:
        self._begin()
        try:
            while (wait := self._ask(InThread)) is not None:
                self._wait_here(wait)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside = False
        self._left(error)

    def _wait_here(self, wait: float | Turn) -> None:
        if in_event_loop():
            raise UsageError(
                "`with gate.through()` would stop the event loop while it waits; write `async with`"
            )
        if not isinstance(wait, int | float):
            wait.wait_here(self._say)
            return
        self._say(wait)
        if self._env is SYSTEM:
            time.sleep(wait)
        else:
            anyio.run(self._env.sleep, wait)

    def __call__(self, function: F) -> F:
        """Decorate `function` with a passage of its own around each call."""
        if not callable(function):
            raise misuse("through() around", function, "a function")
        plain = _body_of(function)
        if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
            remedy = "write `async with gate.through():` inside of it"
            raise misuse("through() around", function, "a function that is no generator", remedy)
        if inspect.iscoroutinefunction(plain):

            @functools.wraps(function)
            async def passing(*args: Any, **kwargs: Any) -> Any:
                async with self._another():
                    return await function(*args, **kwargs)

            return cast("F", passing)

        @functools.wraps(function)
        def passing_here(*args: Any, **kwargs: Any) -> Any:
            with self._another():
                return function(*args, **kwargs)

        return cast("F", passing_here)

    def _begin(self) -> None:
        if self._inside:
            raise UsageError("a passage is for one call at a time; call through() again for each")
        self._inside = True

    def _end(self) -> None:
        self._inside = False
        self._withdraw()


def environment_of(field: str, environment: Environment | None) -> Environment:
    """Return the environment, the machine's for None. Raises UsageError naming `field` otherwise."""
    if environment is None:
        return SYSTEM
    if not isinstance(environment, Environment):
        raise misuse(field, environment, "an Environment or None")
    return environment


def key_of(field: str, key: object) -> str:
    """Return the key. Raises UsageError naming `field` for anything but text."""
    if not isinstance(key, str):
        raise misuse(field, key, "text", 'name the service, such as "openai"')
    return key


def _body_of(function: Any) -> Any:
    """Return the function that a call runs: that of a partial, or the `__call__` of an object."""
    while isinstance(function, functools.partial):
        function = cast("Any", function).func
    return function if inspect.isroutine(function) else type(function).__call__
