"""An agent of LangChain's `create_agent` with a checkpointer, whose model is OpenAI's real client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import httpx2
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command
from pydantic import SecretStr

import triage
from triage import Agent
from triage.testing.adapter_contract import CAPABILITIES, World

TURNS = 20
"""Of the model, each followed by a step of the tools, before the graph gives up."""


class _Bench:
    name = "langgraph"
    offers = frozenset(CAPABILITIES)
    backends = ("asyncio",)

    def __init__(self) -> None:
        self._savers: WeakKeyDictionary[World, InMemorySaver] = WeakKeyDictionary()

    def text(self, result: Any) -> str:
        return str(result["messages"][-1].text)

    def given(self, world: World) -> Mapping[str, Any]:
        limit = {"config": {"recursion_limit": 2 * TURNS}}
        if not world.script.streamed:
            return limit

        def hear(mode: str, piece: Any) -> None:
            assert mode == "messages"
            if piece[0].type == "AIMessageChunk":
                world.hear(str(piece[0].text))

        return {**limit, "on_chunk": hear, "stream_mode": "messages"}

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        # The same for each process of a scenario, as a database would be.
        saver = self._savers.setdefault(world, InMemorySaver())
        async with httpx2.AsyncClient() as client:
            model = ChatOpenAI(
                model="m",
                base_url=f"{url}/v1",
                api_key=SecretStr("x"),
                max_retries=world.script.retries,
                http_async_client=client,
                stream_usage=True,
            )
            graph = _graph(model, world, saver)
            if world.script.open_call is not None:
                thread: Any = {"configurable": {"thread_id": "7"}}
                graph = graph.with_config(thread)
                await graph.aupdate_state(thread, {"messages": world.before()}, as_node="model")
            yield triage.wrap(graph, effects=world.effects, **options)


def _graph(model: BaseChatModel, world: World, saver: InMemorySaver) -> Any:
    tools: list[BaseTool] = [
        StructuredTool.from_function(coroutine=tool) for tool in world.functions()
    ]
    helpers = {
        name: create_agent(model, tools, system_prompt=world.instructions(name), name=name)
        for name in world.script.helpers
    }
    if not world.script.handoffs:
        more = [called(agent, name) for name, agent in helpers.items()]
        asked = HumanInTheLoopMiddleware(interrupt_on=dict.fromkeys(world.script.approvals, True))
        middleware: list[Any] = [asked] if world.script.approvals else []
        return create_agent(model, [*tools, *more], middleware=middleware, checkpointer=saver)
    first = create_agent(model, [*tools, *map(_handing, helpers)], name="clerk")
    built: Any = StateGraph(AgentState)
    for name, agent in {"clerk": first, **helpers}.items():
        built.add_node(name, agent)
    return built.add_edge(START, "clerk").compile(checkpointer=saver)


def called(agent: Any, name: str) -> BaseTool:
    """An agent as a tool."""

    async def help_(input: str) -> str:
        found = await agent.ainvoke({"messages": [HumanMessage(input)]})
        return str(found["messages"][-1].text)

    return StructuredTool.from_function(coroutine=help_, name=name, description="Helps.")


def _handing(name: str) -> BaseTool:
    """The tool that hands the conversation over to another node of the graph."""

    async def transfer(
        state: Annotated[Any, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[Any]:
        told = ToolMessage(f"You are with {name} now.", tool_call_id=tool_call_id)
        messages: Sequence[Any] = [*state["messages"], told]
        return Command(goto=name, update={"messages": messages}, graph=Command.PARENT)

    return StructuredTool.from_function(
        coroutine=transfer, name=f"transfer_to_{name}", description="Hands over."
    )


BENCH = _Bench()
