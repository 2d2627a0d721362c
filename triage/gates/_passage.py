"""One call's way through a gate: a context manager, sync and async, and a decorator."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from triage._env import SYSTEM, Environment
from triage._options import misuse
from triage.errors import UsageError

from ._turn import InThread, Turn, in_loop

F = TypeVar("F", bound=Callable[..., Any])


class Passage:
    """What `through()` gives: `async with` and `with` around one call, or a decorator of a function.

    A decorated function passes anew with each call; it may be async or sync. A sync `with` waits in
    its thread, and raises UsageError where it would have to wait inside an event loop. A passage is
    used for one call at a time: UsageError for a second one inside the first.
    """

    def __init__(self, environment: Environment) -> None:
        self._env = environment
        self._inside = False

    # What a gate says -----------------------------------------------------------------------------

    def _ask(self, turn: Callable[[], Turn]) -> float | Turn | None:
        """None: it may pass. Else what to wait for before asking again: seconds, or a turn."""
        raise NotImplementedError

    def _withdraw(self) -> None:
        """It waits no more and does not pass."""

    def _left(self, error: BaseException | None) -> None:
        """It has passed, and the call has ended so."""
        raise NotImplementedError

    def _another(self) -> Passage:
        """A passage like this one."""
        raise NotImplementedError

    # The ways to use it ---------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            while (wait := self._ask(in_loop)) is not None:
                if isinstance(wait, int | float):
                    await self._env.sleep(wait)
                else:
                    await wait.wait()
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
                _refuse_in_loop()
                if isinstance(wait, int | float):
                    _sleep(self._env, wait)
                else:
                    wait.wait_here()
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

    def __call__(self, function: F) -> F:
        """`function` with a passage of its own around each call."""
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
    """The given one, the machine's for None. UsageError naming `field` for anything else."""
    if environment is None:
        return SYSTEM
    if not isinstance(environment, Environment):
        raise misuse(field, environment, "an Environment or None")
    return environment


def key_of(field: str, key: object) -> str:
    """A key as it was given. UsageError naming `field` for anything but text."""
    if not isinstance(key, str):
        raise misuse(field, key, "text", 'name the service, such as "openai"')
    return key


def _body_of(function: Any) -> Any:
    """The function that runs when this is called: of a partial its function, of an object `__call__`."""
    while isinstance(function, functools.partial):
        function = cast("Any", function).func
    return function if inspect.isroutine(function) else type(function).__call__


def _refuse_in_loop() -> None:
    import anyio

    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:  # no event loop in this thread: waiting stops nobody else
        return
    raise UsageError(
        "`with gate.through()` would stop the event loop while it waits; write `async with`"
    )


def _sleep(environment: Environment, seconds: float) -> None:
    if environment is SYSTEM:
        time.sleep(seconds)
        return
    import asyncio

    asyncio.run(_slept(environment, seconds))


async def _slept(environment: Environment, seconds: float) -> None:
    await environment.sleep(seconds)
