"""An agent of LangChain's `create_agent` with a checkpointer, whose model is OpenAI's real client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import httpx2
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import SecretStr

import triage
from triage import Agent
from triage.testing.adapter_contract import World


class _Bench:
    name = "langgraph"
    cannot: Mapping[str, str] = {}
    backends = ("asyncio",)

    def __init__(self) -> None:
        self._savers: WeakKeyDictionary[World, InMemorySaver] = WeakKeyDictionary()

    def text(self, result: Any) -> str:
        return str(result["messages"][-1].text)

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncIterator[Agent[Any]]:
        # The same for each process of a scenario, as a database would be.
        saver = self._savers.setdefault(world, InMemorySaver())
        tools = [StructuredTool.from_function(coroutine=tool) for tool in world.functions()]
        async with httpx2.AsyncClient() as client:
            model = ChatOpenAI(
                model="m",
                base_url=f"{url}/v1",
                api_key=SecretStr("x"),
                max_retries=0,
                http_async_client=client,
            )
            graph = create_agent(model, tools, checkpointer=saver)
            wrapped = triage.wrap(graph, effects=world.effects, **options)
            yield wrapped


BENCH = _Bench()
