"""A worker that is stopped and goes on.

`python -m stores.store_worker KIND NAME WHERE FILE BACKEND SHAPE`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from store_kinds import Opened
from support import RETRY

import triage
from triage import Agent, Durability

RUN = "run-1"
LEASE = 0.4
"""Seconds a worker is waited for."""
Pause = Callable[[str], Awaitable[None]]


SHAPES = {"alone": 1, "nested": 1, "parallel": 2}
"""How many pay at once: the run itself, a run inside it, or two of those."""

STOPPED_IN = (3, 7)
"""The third payment of each of those."""


def worker(store: Any, file: Path, pause: Pause, shape: str = "alone") -> Agent[list[str]]:
    """An agent that has each of those who pay do so four times.

    pause: awaited by each `before` its third payment and `inside` of it.
    """

    def charge(number: int) -> None:
        with file.open("a") as effects:
            effects.write(f"{number}\n")

    @triage.tool(effect="once")
    async def pay(number: int) -> str:
        if number in STOPPED_IN:
            await pause("inside")
        await anyio.to_thread.run_sync(charge, number)
        return f"paid {number}"

    async def pays(task: str, first: int = 1) -> list[str]:
        paid: list[str] = []
        for number in range(first, first + 4):
            if number == first + 2:
                await pause("before")
            paid.append(await pay(number))
        return paid

    options: dict[str, Any] = {"store": store, "durability": Durability(lease_s=LEASE)}
    payer = Agent(pays, RETRY, name="payer", **options)

    async def works(task: str) -> list[str]:
        paid: dict[int, list[str]] = {}

        async def one(first: int) -> None:
            paid[first] = await payer.run(task, first=first)

        async with anyio.create_task_group() as group:
            for part in range(SHAPES[shape]):
                group.start_soon(one, 1 + 4 * part)
        return [each for first in sorted(paid) for each in paid[first]]

    return Agent(pays if shape == "alone" else works, RETRY, name="worker", **options)


async def main(store: Any, where: str, file: Path, shape: str) -> None:
    """Run until it ends, all that pay waiting at one place until a line comes in."""
    waiting, told = 0, anyio.Event()

    async def pause(place: str) -> None:
        nonlocal waiting
        if place != where:
            return
        waiting += 1
        if waiting < SHAPES[shape]:
            await told.wait()
            return
        print("here", flush=True)  # noqa: T201 - how it answers
        await anyio.to_thread.run_sync(sys.stdin.readline)
        told.set()

    try:
        ended = await worker(store, file, pause, shape).run("task", run_id=RUN)
    except triage.TriageError as error:
        ended = [type(error).__name__]
    print(*ended, flush=True)  # noqa: T201 - as above
    await store.close()


if __name__ == "__main__":
    kind, name, place, path, backend, shape = sys.argv[1:]
    store = Opened(kind, Path(os.curdir)).at(name)
    anyio.run(main, store, place, Path(path), shape, backend=backend)
