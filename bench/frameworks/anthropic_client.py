"""Anthropic's own client in a plain loop: bare, with the client's retries, and recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anthropic

import triage
from bench.adapters import Framework, Task, policy
from triage import Agent
from triage.adapters.anthropic import record

TRIES = 3
TURNS = 60


def _client(url: str, tries: int = 0) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=tries)


async def _loop(client: Any, tools: dict[str, Any], messages: list[Any]) -> str:
    named = [{"name": name, "input_schema": {"type": "object"}} for name in tools]
    for _ in range(TURNS):
        message = await client.messages.create(
            model="m", max_tokens=100, messages=messages, tools=named
        )
        messages.append(
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_unset=True) for block in message.content],
            }
        )
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in message.content)
        results: list[dict[str, Any]] = []
        for call in calls:
            found = await tools[call.name](**call.input)
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": str(found)})
        messages.append({"role": "user", "content": results})
    raise RuntimeError("no end")


def _bare(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    return _asked(task, _client(url))


def _own(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    return _asked(task, _client(url, TRIES))


def _asked(task: Task, client: Any) -> Callable[[], Awaitable[str]]:
    tools = {tool.__name__: tool for tool in task.tools}

    async def run() -> str:
        return await _loop(client, tools, [{"role": "user", "content": "go"}])

    return run


def _wrapped(task: Task, url: str) -> Callable[[], Awaitable[str]]:
    client = record(_client(url))
    tools = {
        tool.__name__: triage.tool(effect=task.effects[tool.__name__])(tool) for tool in task.tools
    }

    async def attempt(given: str) -> str:
        return await _loop(client, tools, [{"role": "user", "content": given}])

    agent = Agent(attempt, policy())

    async def run() -> str:
        return await agent.run("go")

    return run


FRAMEWORK = Framework(
    "anthropic client",
    _bare,
    _wrapped,
    {"a plain loop": _bare, "with the client's retries": _own, "recorded": _wrapped},
)
