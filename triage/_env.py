"""Clock, ids, sleep and random of a run: one object, so that tests and replays can give another."""

from __future__ import annotations

import itertools
import os
import random
import time as clock
from typing import Protocol, runtime_checkable


@runtime_checkable
class Environment(Protocol):
    """Where a run takes time, ids and chance from."""

    def time(self) -> float:
        """Seconds since the epoch, for people; never compared."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; durations and deadlines are measured on it."""
        ...

    def new_id(self) -> str:
        """A new run id: text, unique, not secret."""
        ...

    def new_token(self) -> str:
        """A new secret of 128 random bits as text."""
        ...

    def random(self) -> float:
        """A number from 0 to 1, for jitter."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait, cancellably."""
        ...


class SystemEnvironment:
    """The machine's own."""

    # The functions themselves, not methods around them: they are called with every event.
    time = staticmethod(clock.time)
    monotonic = staticmethod(clock.monotonic)

    def __init__(self) -> None:
        self._source = random.Random()  # noqa: S311 - ids and jitter, no secrets
        self.reseed()

    def random(self) -> float:
        return self._source.random()

    def new_id(self) -> str:
        return str(next(self._count)) + self._rest

    def new_token(self) -> str:
        return os.urandom(16).hex()

    async def sleep(self, seconds: float) -> None:
        import anyio

        await anyio.sleep(seconds)

    def reseed(self) -> None:
        """Take new randomness: a forked child must not repeat its parent's ids."""
        self._source.seed(os.urandom(16))
        # A count from a random start, then what is this process' own: unique, told apart by its first
        # eight digits, and at half the cost of drawing 128 bits for each run.
        self._count = itertools.count(self._source.randrange(10_000_000, 90_000_000))
        self._rest = os.urandom(12).hex()


SYSTEM = SystemEnvironment()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SYSTEM.reseed)
