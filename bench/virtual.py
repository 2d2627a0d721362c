"""An event loop whose time jumps to the next timer: hours of waiting take seconds, always the same way."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Where others would wait for so many seconds, the time is that much later."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; nothing ever comes from outside."""
        if timeout is not None and timeout > 0:
            self.now += timeout
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now


class VirtualEnvironment:
    """Clock, sleep, ids and chance of the loop that runs; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        """The same."""
        return asyncio.get_running_loop().time()

    def new_id(self) -> str:
        """Hexadecimal digits."""
        return f"{self._source.getrandbits(128):032x}"

    def new_token(self) -> str:
        """Hexadecimal digits."""
        return self.new_id()

    def random(self) -> float:
        """From 0 to 1."""
        return self._source.random()

    async def sleep(self, seconds: float) -> None:
        """Wait in the loop's time."""
        await asyncio.sleep(seconds)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a loop of its own."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)
