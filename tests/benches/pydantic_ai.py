"""An agent of Pydantic AI, whose model is OpenAI's real client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import openai
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import triage
from triage import Agent
from triage.testing.adapter_contract import World


class _Bench:
    name = "pydantic-ai"
    cannot: Mapping[str, str] = {}
    backends = ("asyncio",)

    def text(self, result: Any) -> str:
        return str(result.output)

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncIterator[Agent[Any]]:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        async with client:
            model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
            agent = PydanticAgent(model, tools=world.functions())
            yield triage.wrap(agent, effects=world.effects, **options)


BENCH = _Bench()
