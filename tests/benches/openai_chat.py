"""OpenAI's own client against the loopback provider, with the plain loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import openai

from triage import Agent
from triage.adapters.openai import record, run_tools
from triage.testing.adapter_contract import World


class _Bench:
    name = "openai"
    cannot: Mapping[str, str] = {}
    backends = ("asyncio", "trio")

    def text(self, result: Any) -> str:
        return str(result)

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncIterator[Agent[Any]]:
        plain = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        async with plain:
            client = record(plain)

            async def agent(task: str) -> str:
                ended = await run_tools(client, task, model="m", tools=world.tools(), turns=10)
                return ended.text

            yield Agent(agent, **options)


BENCH = _Bench()
