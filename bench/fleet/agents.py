"""The storm's fleet, which its workers load with `triage worker bench.fleet.agents:fleet`.

Read from the environment: STORM_STORE (a URL), STORM_EFFECTS (a file), STORM_LEASE_S and STORM_ENGINE.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import triage
from triage import Agent, FailurePolicy, Retry, Suspend
from triage.adapters import dbos
from triage.adapters.fleet import Fleet, Queue

from .world import World

world = World(os.environ["STORM_EFFECTS"])
STEPS = 4
PAUSE_S = 0.2
"""Seconds before and after each effect, inside its tool."""


def key_of(run_id: str, tool: str, number: int) -> str:
    """Return the key of an effect in the log."""
    return f"{run_id}/{tool}/{number}"


@triage.tool(effect="once")
async def pay(number: int) -> str:
    """Pay; this effect must not happen twice."""
    run = triage.current_run()
    assert run is not None
    await asyncio.sleep(PAUSE_S)
    world.do(key_of(run.run_id, "pay", number))
    await asyncio.sleep(PAUSE_S)
    return f"paid {number}"


@triage.tool(effect="idempotent")
async def book(number: int) -> str:
    """Book; this effect may be repeated."""
    run = triage.current_run()
    assert run is not None
    await asyncio.sleep(PAUSE_S)
    world.do(key_of(run.run_id, "book", number))
    await asyncio.sleep(PAUSE_S)
    return f"booked {number}"


async def desk(task: dict[str, Any], *, run: triage.Run) -> list[str]:
    """Pay four times; every third run fails in its first attempt, and every fifth asks a person."""
    done = [await pay(number) for number in range(STEPS // 2)]
    if run.attempt == 1 and task["number"] % 5 == 0:
        raise PermissionError("may I go on?")
    if run.attempt == 1 and task["number"] % 3 == 0:
        raise ConnectionError("the other side hung up")
    return done + [await pay(number) for number in range(STEPS // 2, STEPS)]


async def clerk(task: dict[str, Any]) -> list[str]:
    """Book four times."""
    assert task["number"] % 2
    return [await book(number) for number in range(STEPS)]


def _choose(context: Any) -> Any:
    asks = "may I go on?" in str(context.exception)
    return Suspend("may I go on?") if asks else Retry(delay=0.1)


policy = FailurePolicy(default=_choose)
agents: list[Agent[Any]] = [Agent(desk, policy), Agent(clerk, policy)]
options: dict[str, Any] = {
    "queues": [Queue("desk", worker_concurrency=4), Queue("clerk", worker_concurrency=4)],
    "lease_s": float(os.environ.get("STORM_LEASE_S", "10")),
}


def made(store: str) -> Fleet:
    """Return the fleet."""
    return dbos.Fleet(agents, store, **options)


fleet = made(os.environ["STORM_STORE"])
