"""Agents for the tests of `triage runs`, which copy this file into a directory of their own."""

from __future__ import annotations

import os
from typing import Any

import anyio

from triage import Abort, Agent, FailurePolicy, Limits, Run, Step, Suspend, tool


@tool(effect="once")
async def charge(order: str) -> str:
    async with await anyio.open_file("charged.txt", "a", encoding="utf-8") as file:
        await file.write(f"{order}\n")
    raise TimeoutError("the bank did not answer")


async def pay(order: str) -> str:
    return f"paid, receipt {await charge(order)}"


async def guarded(_task: str, *, _triage_hint: str | None = None) -> str:
    return _triage_hint or ""


async def ask(
    task: str, *, record_step: Any, days: int = 0, _triage_hint: str | None = None
) -> Any:
    record_step(Step(action="think"))
    if not days and _triage_hint is None:
        raise RuntimeError("not enough is known")
    return [task, days, _triage_hint]


async def look(task: Any, *, client: Any = None, days: int = 1) -> Any:
    print("printed by the function")  # noqa: T201 - what it prints is looked at
    return {"task": task, "client": client, "days": days}


async def fails(_task: str) -> None:
    raise ValueError("not today")


async def misused(_task: str, *, record_step: Any) -> None:
    record_step("no step")


async def interrupted(_task: str) -> None:
    raise KeyboardInterrupt


async def waits(task: str, *, run: Run) -> str:
    run.record_step(Step(action="wait"))
    await run.flush()
    if await anyio.Path("go").exists():
        return f"{task} is done"
    print("ready", flush=True)  # noqa: T201 - its parent waits for it
    await anyio.sleep_forever()
    return ""


asking = FailurePolicy(default=Suspend("how many days?"))
desk = Agent(ask, asking, store=os.environ.get("DESK_STORE"))
waiting = Agent(waits, store=os.environ.get("DESK_STORE"), limits=Limits())
aborting = Agent(fails, FailurePolicy(default=Abort("enough")))
