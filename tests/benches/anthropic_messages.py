"""Anthropic's own client against the loopback provider, with the plain loop; streamed, helpers in tools."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic

import triage
from triage import Agent
from triage.adapters.anthropic import record, run_tools
from triage.testing.adapter_contract import CAPABILITIES, World

from . import Texts


class _Bench(Texts):
    name = "anthropic"
    offers = frozenset(CAPABILITIES) - {"approvals", "handoffs"}

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        retries = world.script.retries
        plain = anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=retries)
        async with plain:
            client: Any = record(plain)
            if world.script.streamed:
                client = _Streaming(client, world.hear)
            tools = [
                *world.tools(),
                *(_helper(client, world, name) for name in world.script.helpers),
            ]

            async def agent(task: str) -> str:
                told = [*map(_message, world.before()), {"role": "user", "content": task}]
                done = await run_tools(
                    client, told, model="m", max_tokens=100, tools=tools, turns=10
                )
                return done.text

            yield Agent(agent, **options)


def _message(chat: dict[str, Any]) -> dict[str, Any]:
    """A chat message as Anthropic writes it."""
    uses = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in chat.get("tool_calls", ())
    ]
    return {"role": chat["role"], "content": [{"type": "text", "text": chat["content"]}, *uses]}


def _helper(client: Any, world: World, name: str) -> Callable[..., Any]:
    """Another loop, inside of a tool."""

    async def help_(input: str) -> str:
        done = await run_tools(
            client,
            input,
            model="m",
            max_tokens=100,
            system=world.instructions(name),
            tools=world.tools(),
            turns=10,
        )
        return done.text

    return triage.tool(effect="read", name=name)(help_)


class _Streaming:
    """A client for the loop that streams each answer, and gives its words on as they come."""

    def __init__(self, client: Any, hear: Callable[[str], None]) -> None:
        self._client = client
        self._hear = hear
        self.messages = self

    async def create(self, **options: Any) -> Any:
        async with self._client.messages.stream(**options) as stream:
            async for text in stream.text_stream:
                self._hear(text)
            return await stream.get_final_message()


BENCH = _Bench()
