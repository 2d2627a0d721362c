"""Agents for the tests of the command line, which copy this file into a directory of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio

import triage
from triage import Abort, Agent, FailurePolicy, Run, Step, Suspend, Usage

KEY = "sk-" + "a1" * 20


@triage.tool(effect="once")
async def charge(cents: int) -> dict[str, int]:
    return {"paid": cents}


async def book(
    task: str, *, record_step: Any, run: Run, city: str = "Lisboa", days: int = 1
) -> dict[str, Any]:
    print("printed by the function")  # noqa: T201 - what it prints is looked at
    step = Step(
        action="look",
        tool_called="search",
        tool_input={"city": city},
        tool_output=["f1"],
        usage=Usage(100, 20, 0.01),
    )
    record_step(step)
    await charge(995)
    if run.attempt == 1:
        raise ConnectionError("the service is down")
    return {"task": task, "city": city, "days": days}


async def hostile(_task: str, *, record_step: Any) -> None:
    record_step(
        Step(
            action="[red]not markup[/red]\x1b[2J\r\nand more",
            tool_called="t\x07",
            tool_output=f"{KEY} {'x' * 5000}",
        )
    )
    raise ConnectionError("password=hunter22 [/oops] \x1b]0;title\x07 \ud800")


async def interrupted(_task: str) -> None:
    raise KeyboardInterrupt


async def waits(_task: str) -> None:
    print("ready", flush=True)  # noqa: T201 - its parent waits for it
    await anyio.sleep_forever()


async def misused(_task: str, *, record_step: Any) -> None:
    record_step("no step")


def plain(task: str) -> str:
    return f"plain {task}"


async def items(task: str) -> AsyncIterator[Any]:
    yield 1
    yield task


async def nothing(_task: str) -> None:
    return None


async def odd(_task: str) -> str:
    return "a\x1b[31mb\tc\nd\ud800"


async def unencodable(_task: str) -> set[int]:
    return {1, 2}


class Desk:
    async def answer(self, task: str) -> str:
        return f"desk {task}"


desk = Desk()
stops = Agent(interrupted, name="stops")
aborts = Agent(hostile, FailurePolicy(default=Abort("enough")))
asks = Agent(hostile, FailurePolicy(default=Suspend(f"may I go on? {KEY}")))
number = 3
