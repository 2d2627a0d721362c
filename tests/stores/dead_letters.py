"""Runs whose processes are killed again and again: `python -m stores.dead_letters KIND NAME SHAPE …`.

It prints a line for each answer. Each process is killed in the middle of a call. Where the run gets on,
each of them ends one call more than the one before; where it does not, each is killed in the second call.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
from store_kinds import Opened
from support import RETRY

import triage
from triage import Agent
from triage.core import DeadLetter

DEATHS = 4
CALLS = range(DEATHS + 2)
SHAPES = ("alone", "inside", "deep inside")


def worker(store: Any, shape: str, dies_in: int | None) -> Agent[list[int]]:
    """An agent, or one inside another or two, whose calls are safe to repeat."""

    @triage.tool(effect="idempotent")
    async def count(number: int) -> int:
        if number == dies_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    async def counts(task: str) -> list[int]:
        return [await count(number) for number in CALLS]

    agent = Agent(counts, RETRY, store=store, name="counts")
    for around in range(SHAPES.index(shape)):

        async def delegates(task: str, inner: Agent[list[int]] = agent) -> list[int]:
            return await inner.run(task)

        agent = Agent(delegates, RETRY, store=store, name=f"delegates {around}")
    return agent


async def lives(store: Any, run_id: str, shape: str, dies_in: int | None) -> None:
    """One process: take the run up, and bring it as far as it gets."""
    agent = worker(store, shape, dies_in)
    said: list[Any]
    try:
        if await store.info(run_id) is None:
            said = await agent.run("task", run_id=run_id)
        else:
            said = await agent.recover(run_id)
    except DeadLetter:
        said = ["dead letter"]
    print(run_id, *said, sep=" | ", flush=True)  # noqa: T201 - how it answers
    await store.close()


def main(kind: str, name: str, *shapes: str) -> None:
    """Each shape, with progress and without."""
    for shape in shapes:
        for gets_on in (True, False):
            run_id = f"{shape.replace(' ', '-')}-{'gets-on' if gets_on else 'stands-still'}"
            for deaths in range(DEATHS + 1):
                dies_in = deaths + 1 if gets_on else 1
                child = os.fork()
                if not child:
                    made = Opened(kind, Path()).at(name)
                    anyio.run(lives, made, run_id, shape, dies_in if deaths < DEATHS else None)
                    os._exit(0)
                os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
