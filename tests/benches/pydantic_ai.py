"""An agent of Pydantic AI, whose model is OpenAI's real client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import openai
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import Tool
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import triage
from triage import Agent
from triage.testing.adapter_contract import CAPABILITIES, World


class _Bench:
    name = "pydantic-ai"
    offers = frozenset(CAPABILITIES) - {"handoffs"}
    backends = ("asyncio",)

    def text(self, result: Any) -> str:
        return str(result.output)

    def given(self, world: World) -> Mapping[str, Any]:
        given: dict[str, Any] = {}
        if world.script.streamed:
            given["event_stream_handler"] = _hearing(world)
        if world.script.open_call is not None:
            given["message_history"] = [_message(chat) for chat in world.before()]
        return given

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        retries = world.script.retries
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=retries)
        async with client:
            model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
            helpers = [_helper(model, world, name) for name in world.script.helpers]
            tools = [
                Tool(tool, requires_approval=tool.__name__ in world.script.approvals)
                for tool in world.functions()
            ]
            agent = PydanticAgent(model, tools=[*tools, *helpers])
            yield triage.wrap(agent, effects=world.effects, **options)


def _helper(model: OpenAIChatModel, world: World, name: str) -> Tool[Any]:
    """An agent as a tool."""
    told = world.instructions(name)
    agent = PydanticAgent(model, tools=world.functions(), name=name, instructions=told)

    async def help_(input: str) -> str:
        return (await agent.run(input)).output

    return Tool(help_, name=name)


def _hearing(world: World) -> Callable[..., Any]:
    async def listen(ctx: Any, events: Any) -> None:
        async for event in events:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                world.hear(event.part.content)
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                world.hear(event.delta.content_delta)

    return listen


def _message(chat: dict[str, Any]) -> ModelMessage:
    if chat["role"] == "user":
        return ModelRequest([UserPromptPart(chat["content"])])
    calls = [
        ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
        for call in chat["tool_calls"]
    ]
    return ModelResponse([TextPart(chat["content"]), *calls])


BENCH = _Bench()
