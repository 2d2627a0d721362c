"""OpenAI's own client against the loopback provider, with the plain loop; streamed, helpers in tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

import triage
from triage import Agent
from triage.adapters.openai import record, run_tools
from triage.testing.adapter_contract import CAPABILITIES, World

from . import Texts


class _Bench(Texts):
    name = "openai"
    offers = frozenset(CAPABILITIES) - {"approvals", "handoffs"}

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        retries = world.script.retries
        plain = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=retries)
        async with plain:
            client: Any = record(plain)
            if world.script.streamed:
                client = _Streaming(client, world.hear)
            tools = [
                *world.tools(),
                *(_helper(client, world, name) for name in world.script.helpers),
            ]

            async def agent(task: str) -> str:
                told = [*world.before(), {"role": "user", "content": task}]
                return (await run_tools(client, told, model="m", tools=tools, turns=10)).text

            yield Agent(agent, **options)


def _helper(client: Any, world: World, name: str) -> Callable[..., Any]:
    """Another loop, inside of a tool."""

    async def help_(input: str) -> str:
        told = [
            {"role": "system", "content": world.instructions(name)},
            {"role": "user", "content": input},
        ]
        return (await run_tools(client, told, model="m", tools=world.tools(), turns=10)).text

    return triage.tool(effect="read", name=name)(help_)


class _Streaming:
    """A client for the loop that streams each answer, and gives its words on as they come."""

    def __init__(self, client: Any, hear: Callable[[str], None]) -> None:
        self._client = client
        self._hear = hear
        self.chat = self.completions = self

    async def create(self, **options: Any) -> Any:
        state: Any = ChatCompletionStreamState()
        stream = await self._client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
        async with stream:
            async for piece in stream:
                state.handle_chunk(piece)
                for choice in piece.choices:
                    self._hear(choice.delta.content or "")
        return state.get_final_completion()


BENCH = _Bench()
