"""OpenAI's own client in a plain loop: bare, with the client's retries, and recorded."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import openai

import triage
from bench.adapters import Framework, Task, policy
from triage import Agent
from triage.adapters.openai import record

TRIES = 3
TURNS = 60


def _client(url: str, tries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=tries)


async def _loop(client: Any, tools: dict[str, Any], messages: list[Any]) -> str:
    named = [{"type": "function", "function": {"name": name}} for name in tools]
    for _ in range(TURNS):
        response = await client.chat.completions.create(model="m", messages=messages, tools=named)
        message = response.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return str(message.content)
        for call in message.tool_calls:
            found = await tools[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(found)})
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
    "openai client",
    _bare,
    _wrapped,
    {"a plain loop": _bare, "with the client's retries": _own, "recorded": _wrapped},
)
