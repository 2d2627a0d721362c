"""Time that moves only when a test says so, under asyncio and trio."""

from __future__ import annotations

import heapq
import itertools
import tracemalloc
from collections.abc import Callable

import anyio
import anyio.lowlevel
from support import FakeEnvironment


async def settle() -> None:
    """Let every task go on as far as it can."""
    for _ in range(12):
        await anyio.lowlevel.checkpoint()


class VirtualEnvironment(FakeEnvironment):
    """Whoever sleeps is woken by `advance`."""

    def __init__(self) -> None:
        super().__init__()
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._order = itertools.count()

    async def sleep(self, seconds: float) -> None:
        event = anyio.Event()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), event))
        await event.wait()

    async def advance(self, seconds: float) -> None:
        """Move the time on, waking sleepers when they are due."""
        await settle()
        end = self.now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, event = heapq.heappop(self._sleepers)
            self.now = max(self.now, due)
            event.set()
            await settle()
        self.now = end
        await settle()


def grown(use: Callable[[int], None]) -> int:
    """Bytes by which the memory grows when the numbers from 2,000 to 10,000 are used."""
    for number in range(2_000):
        use(number)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(2_000, 10_000):
            use(number)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
