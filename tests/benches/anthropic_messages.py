"""Anthropic's own client against the loopback provider, with the plain loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anthropic

from triage import Agent
from triage.adapters.anthropic import record, run_tools
from triage.testing.adapter_contract import World


class _Bench:
    name = "anthropic"
    cannot: Mapping[str, str] = {}
    backends = ("asyncio", "trio")

    def text(self, result: Any) -> str:
        return str(result)

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncIterator[Agent[Any]]:
        plain = anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0)
        async with plain:
            client = record(plain)

            async def agent(task: str) -> str:
                ended = await run_tools(
                    client, task, model="m", max_tokens=100, tools=world.tools(), turns=10
                )
                return ended.text

            yield Agent(agent, **options)


BENCH = _Bench()
