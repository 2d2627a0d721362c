"""An agent of the OpenAI Agents SDK, whose model is OpenAI's real client of the Responses API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import agents
import openai

import triage
from triage import Agent
from triage.testing.adapter_contract import World

agents.set_tracing_disabled(disabled=True)


class _Bench:
    name = "openai-agents"
    cannot: Mapping[str, str] = {}
    backends = ("asyncio",)

    def text(self, result: Any) -> str:
        return str(result.final_output)

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncIterator[Agent[Any]]:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        async with client:
            clerk: agents.Agent[None] = agents.Agent(
                name="clerk",
                model=agents.OpenAIResponsesModel("m", client),
                tools=[agents.function_tool(tool) for tool in world.functions()],
            )
            yield triage.wrap(clerk, effects=world.effects, **options)


BENCH = _Bench()
