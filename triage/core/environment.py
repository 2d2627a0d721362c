"""The clock, ids, sleep and random source of a run, in one object that tests and replays can replace."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import sys
import time as clock
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from random import Random
from typing import Any, Protocol, runtime_checkable

import anyio
import anyio.from_thread


@runtime_checkable
class Environment(Protocol):
    """Source of a run's time, ids and randomness."""

    def time(self) -> float:
        """Return seconds since the epoch, for people only; never compared."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back, for durations and deadlines."""
        ...

    def new_id(self) -> str:
        """Return a new run id: text, unique, not secret."""
        ...

    def new_token(self) -> str:
        """Return a new secret of 128 random bits as text."""
        ...

    def random(self) -> float:
        """Return a number from 0 to 1, for jitter."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep; can be cancelled."""
        ...


class SystemEnvironment:
    """The machine's own clock, ids, sleep and randomness."""

    # Not wrapped in methods, since every event calls them.
    time = staticmethod(clock.time)
    monotonic = staticmethod(clock.monotonic)

    _source: Random | None = None

    def __init__(self) -> None:
        self.reseed()

    def random(self) -> float:
        if self._source is None:
            self._source = random.Random()  # noqa: S311 - jitter, no secrets
        return self._source.random()

    def new_id(self) -> str:
        return str(next(self._count)) + self._rest

    def new_token(self) -> str:
        return os.urandom(16).hex()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    def reseed(self) -> None:
        """Draw a new seed, since a forked child must not repeat its parent's ids."""
        self._source = None
        # An id is a count from a random start, so that the first eight digits differ between runs,
        # followed by random bits of this process.
        start = int.from_bytes(os.urandom(8), "big") % 80_000_000
        self._count = itertools.count(10_000_000 + start)
        self._rest = os.urandom(12).hex()


SYSTEM = SystemEnvironment()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SYSTEM.reseed)


def in_event_loop() -> bool:
    """Whether the caller runs in an event loop."""
    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:
        return False
    return True


def being_cancelled(error: BaseException) -> bool:
    """Whether an exception is the event loop's cancellation, and the calling task is being cancelled."""
    try:
        if not isinstance(error, anyio.get_cancelled_exc_class()):
            return False
    except RuntimeError:  # in a thread: ask the task that waits for it
        try:
            anyio.from_thread.check_cancelled()
        except RuntimeError:
            return False
        except BaseException:
            return True
        return False
    if anyio.current_effective_deadline() == -math.inf:
        return True
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def lazily(
    package: str, homes: Mapping[str, Collection[str]], modules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package that imports names on first use.

    homes: the names defined by each module, relative to the package. modules: submodules that are names
    themselves.
    """
    places = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name in modules:
            return import_module(f".{name}", package)
        home = places.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from .constructors import check_constructor  # here, to break a cycle of imports

        value = getattr(import_module(f".{home}", package), name)
        if isinstance(value, type):
            check_constructor(value)
        setattr(sys.modules[package], name, value)
        return value

    def known() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places, *modules})

    return find, known
