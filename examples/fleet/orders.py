"""A fleet of one agent: `triage worker examples.fleet.orders:fleet`, and this file to enqueue orders."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import triage
from triage import Agent
from triage.adapters.dbos import Fleet, Queue


@triage.tool(effect="once")
async def charge(order: int) -> str:
    """Charge for an order; never repeated, whichever worker dies."""
    await asyncio.sleep(1)
    return f"order {order} is charged"


@triage.tool(effect="idempotent")
async def ship(order: int) -> str:
    """Ship an order."""
    await asyncio.sleep(1)
    return f"order {order} is shipped"


async def desk(task: dict[str, Any]) -> list[str]:
    """Charge and ship."""
    return [await charge(task["order"]), await ship(task["order"])]


fleet = Fleet(
    [Agent(desk)],
    os.environ.get("TRIAGE_STORE", "postgresql://postgres@127.0.0.1:5432/postgres"),
    queues=[Queue("desk", worker_concurrency=5)],
)


async def main(count: int) -> None:
    """Enqueue orders and wait for them."""
    ids = [await fleet.enqueue("desk", {"order": number}) for number in range(count)]
    for run_id in ids:
        print(await fleet.result(run_id))
    await fleet.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
