"""A worker that is stopped and goes on: `python store_worker.py KIND NAME WHERE FILE BACKEND`."""

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


def worker(store: Any, file: Path, pause: Pause) -> Agent[list[str]]:
    """An agent that pays four times. pause: awaited `before` the third payment and `inside` of it."""

    def charge(number: int) -> None:
        with file.open("a") as effects:
            effects.write(f"{number}\n")

    @triage.tool(effect="once")
    async def pay(number: int) -> str:
        if number == 3:
            await pause("inside")
        await anyio.to_thread.run_sync(charge, number)
        return f"paid {number}"

    async def works(task: str) -> list[str]:
        paid: list[str] = []
        for number in (1, 2, 3, 4):
            if number == 3:
                await pause("before")
            paid.append(await pay(number))
        return paid

    durability = Durability(lease_s=LEASE)
    return Agent(works, RETRY, store=store, durability=durability, name="worker")


async def main(store: Any, where: str, file: Path) -> None:
    """Run until it ends, waiting at one place until a line comes in."""

    async def pause(place: str) -> None:
        if place == where:
            print("here", flush=True)  # noqa: T201 - how it answers
            await anyio.to_thread.run_sync(sys.stdin.readline)

    try:
        ended = await worker(store, file, pause).run("task", run_id=RUN)
    except triage.TriageError as error:
        ended = [type(error).__name__]
    print(*ended, flush=True)  # noqa: T201 - as above
    await store.close()


if __name__ == "__main__":
    kind, name, place, path, backend = sys.argv[1:]
    anyio.run(main, Opened(kind, Path(os.curdir)).at(name), place, Path(path), backend=backend)
