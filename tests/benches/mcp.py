"""A real MCP session with a server in memory; the loop around it asks OpenAI's client.

The client's model calls are recorded as everywhere, and the tools' are the session's own. The
server says itself which tool reads and which one may not be repeated.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import anyio
import openai
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

from triage import Agent
from triage.adapters.mcp import record as record_tools
from triage.adapters.openai import record as record_model
from triage.testing.adapter_contract import World

from . import Texts

TURNS = 10


class _Bench(Texts):
    name = "mcp"
    offers = ("endings", "parallel_tools", "short_requests", "other_models")

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        plain = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        async with plain, _Client(world) as session:
            model, tools = record_model(plain), record_tools(session)

            async def agent(task: str) -> str:
                return await _converse(model, tools, task)

            yield Agent(agent, **options)


class _Client(Client):
    """A session whose side of a call may die, or lose the answer."""

    def __init__(self, world: World) -> None:
        lost = any(isinstance(one, TimeoutError) for one in world.script.tools.get("charge", ()))
        super().__init__(_server(world), read_timeout_seconds=1 if lost else None)
        self._world = world

    async def call_tool(self, *args: Any, **options: Any) -> Any:
        result = await super().call_tool(*args, **options)
        self._world.check_alive()
        return result


def _server(world: World) -> MCPServer:
    server = MCPServer("bench", log_level="WARNING")
    search, charge = map(_losing, world.functions())
    server.tool(annotations=ToolAnnotations(read_only_hint=True))(search)
    server.tool(annotations=ToolAnnotations(destructive_hint=True))(charge)
    return server


def _losing(function: Callable[..., Any]) -> Callable[..., Any]:
    """A tool that does its work and does not answer, where the script says that it took too long."""

    @wraps(function)
    async def called(**given: Any) -> Any:
        try:
            return await function(**given)
        except TimeoutError:
            await anyio.sleep_forever()

    return called


async def _converse(model: Any, tools: Client, task: str) -> str:
    """The loop that everybody writes around a session."""
    listed = (await tools.list_tools()).tools
    definitions = [
        {"type": "function", "function": {"name": tool.name, "parameters": tool.input_schema}}
        for tool in listed
    ]
    messages: list[Any] = [{"role": "user", "content": task}]
    for _ in range(TURNS):
        answer = await model.chat.completions.create(
            model="m", messages=messages, tools=definitions
        )
        said = answer.choices[0].message
        if not said.tool_calls:
            return str(said.content)
        messages.append(said.to_dict())
        messages += await _results(tools, said.tool_calls)
    raise RuntimeError(f"no answer after {TURNS} turns")


async def _results(tools: Client, calls: list[Any]) -> list[Any]:
    found: dict[str, str] = {}

    async def one(call: Any) -> None:
        given = json.loads(call.function.arguments)
        result = await tools.call_tool(call.function.name, given)
        found[call.id] = "".join(getattr(part, "text", "") for part in result.content)

    if len(calls) == 1:
        await one(calls[0])
    else:
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(one, call)
    return [{"role": "tool", "tool_call_id": call.id, "content": found[call.id]} for call in calls]


BENCH = _Bench()
