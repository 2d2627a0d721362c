"""A client in a plain loop, in the three ways it can be used: bare, with its own retries, and recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import triage
from bench.adapters import Framework, Task, policy
from triage import Agent

TRIES = 3
TURNS = 60


def framework(
    name: str,
    made: Callable[[str, int], Any],
    record: Callable[[Any], Any],
    loop: Callable[[Any, dict[str, Any], list[Any]], Awaitable[str]],
) -> Framework:
    """The ways of a client.

    made: a client of an address that retries so often. record: what wraps it. loop: asks it, with the
    tools by name and the messages, until the answer.
    """

    def asked(task: Task, client: Any) -> Callable[[], Awaitable[str]]:
        tools = {tool.__name__: tool for tool in task.tools}

        async def run() -> str:
            return await loop(client, tools, [{"role": "user", "content": "go"}])

        return run

    def bare(task: Task, url: str) -> Callable[[], Awaitable[str]]:
        return asked(task, made(url, 0))

    def own(task: Task, url: str) -> Callable[[], Awaitable[str]]:
        return asked(task, made(url, TRIES))

    def wrapped(task: Task, url: str) -> Callable[[], Awaitable[str]]:
        client = record(made(url, 0))
        tools = {
            tool.__name__: triage.tool(effect=task.effects[tool.__name__])(tool)
            for tool in task.tools
        }

        async def attempt(given: str) -> str:
            return await loop(client, tools, [{"role": "user", "content": given}])

        agent = Agent(attempt, policy())

        async def run() -> str:
            return await agent.run("go")

        return run

    ways = {"a plain loop": bare, "with the client's retries": own, "recorded": wrapped}
    return Framework(name, bare, wrapped, ways)
