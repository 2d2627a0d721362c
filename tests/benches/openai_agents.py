"""An agent of the OpenAI Agents SDK, whose model is OpenAI's real client of the Responses API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from typing import Any
from weakref import WeakKeyDictionary

import agents
import openai

import triage
from triage import Agent
from triage.testing.adapter_contract import CAPABILITIES, World

agents.set_tracing_disabled(disabled=True)


class _Bench:
    name = "openai-agents"
    offers = frozenset(CAPABILITIES)
    backends = ("asyncio",)

    def __init__(self) -> None:
        self._sessions: WeakKeyDictionary[World, agents.Session] = WeakKeyDictionary()

    def text(self, result: Any) -> str:
        return str(result.final_output)

    def given(self, world: World) -> Mapping[str, Any]:
        given: dict[str, Any] = {}
        if world.script.streamed:

            def hear(event: Any) -> None:
                data: Any = getattr(event, "data", None)
                if getattr(data, "type", "") == "response.output_text.delta":
                    world.hear(data.delta)

            given["on_event"] = hear
        if world.script.open_call is not None:
            given["session"] = self._sessions[world]
        return given

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        retries = world.script.retries
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=retries)
        async with client:
            model = agents.OpenAIResponsesModel("m", client)
            tools: list[agents.Tool] = [
                agents.function_tool(tool, needs_approval=tool.__name__ in world.script.approvals)
                for tool in world.functions()
            ]
            helpers: list[agents.Agent[Any]] = [
                agents.Agent(
                    name=name, model=model, instructions=world.instructions(name), tools=list(tools)
                )
                for name in world.script.helpers
            ]
            clerk: agents.Agent[Any] = agents.Agent(name="clerk", model=model, tools=tools)
            if world.script.handoffs:
                clerk.handoffs = [*helpers]
            else:
                clerk.tools = [*tools, *(one.as_tool(one.name, "Helps.") for one in helpers)]
            with closing(agents.SQLiteSession("7")) as session:
                self._sessions[world] = session
                await session.add_items(_items(world.before()))
                yield triage.wrap(clerk, effects=world.effects, **options)


def _items(chat: Iterable[dict[str, Any]]) -> list[Any]:
    """Chat messages as items of the Responses API."""
    items: list[Any] = []
    for message in chat:
        items.append({"role": message["role"], "content": message["content"]})
        items += [
            {"type": "function_call", "call_id": call["id"], **call["function"]}
            for call in message.get("tool_calls", ())
        ]
    return items


BENCH = _Bench()
