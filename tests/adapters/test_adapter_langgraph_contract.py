"""A graph without a checkpointer keeps the contract, too: it starts over, and the journal answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from benches import failures_of
from benches.langgraph import BENCH, called
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool

import triage
from adapters.langchain_agents import chat_model
from triage import Agent
from triage.testing.adapter_contract import CAPABILITIES, World

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


class _Bare:
    name = "langgraph without a checkpointer"
    offers = frozenset(CAPABILITIES) - {"approvals", "handoffs", "history"}
    backends = ("asyncio",)

    def text(self, result: Any) -> str:
        message = result["messages"][-1]
        assert isinstance(message, AIMessage)
        return str(message.text)

    def given(self, world: World) -> Mapping[str, Any]:
        return BENCH.given(world)

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        model = chat_model(url, max_retries=world.script.retries, stream_usage=True)
        tools: list[Any] = [StructuredTool.from_function(coroutine=each) for each in world.tools()]
        helpers = [
            called(create_agent(model, tools, system_prompt=world.instructions(name)), name)
            for name in world.script.helpers
        ]
        effects = dict.fromkeys(world.script.helpers, "read")
        yield triage.wrap(create_agent(model, [*tools, *helpers]), effects=effects, **options)


@pytest.mark.timeout(240)
async def test_a_graph_without_a_checkpointer_keeps_the_contract() -> None:
    assert await failures_of(_Bare()) == {}
