"""Contestants that know nothing of triage: bare, tenacity, LangChain's retry middleware."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from .agents import SYSTEM, finish, loop, options_of, prompt, turns_of
from .desk import Desk


async def bare(desk: Desk) -> Any:
    """Call the agent once."""
    tools = {kit.name: kit.function for kit in desk.kits}
    ask = desk.client.chat.completions.create
    return await loop(desk.task, desk.name, ask, tools, desk.kits, None)


async def tenacity(desk: Desk) -> Any:
    """Call the agent four times at most, waiting longer each time."""
    from tenacity import AsyncRetrying, stop_after_attempt, wait_exponential_jitter

    async def sleep(seconds: float) -> None:
        desk.clock.sleep(seconds)

    retrying = AsyncRetrying(
        stop=stop_after_attempt(4),
        wait=wait_exponential_jitter(initial=1, max=60),
        sleep=sleep,
        reraise=True,
    )
    return await retrying(bare, desk)


def graph(desk: Desk, *middleware: Any) -> Any:
    """An agent of LangChain's `create_agent`, and a node behind it that reads its answer."""
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.tools import StructuredTool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph
    from pydantic import SecretStr

    class State(MessagesState):
        result: Any

    tools = [
        StructuredTool.from_function(
            coroutine=desk.catching(kit), name=kit.name, description=kit.function.__doc__ or ""
        )
        for kit in desk.kits
    ]
    model = ChatOpenAI(
        model=desk.name,
        base_url=f"{desk.url}/v1",
        api_key=SecretStr("key"),
        max_retries=0,
        http_async_client=desk.model_http,
        http_client=desk.sync_http,
        **options_of(desk.task),
    )
    agent = create_agent(model, tools, system_prompt=SYSTEM, middleware=middleware)

    def read(state: State) -> dict[str, Any]:
        results = []
        for message in state["messages"]:
            if isinstance(message, ToolMessage) and message.status != "error":
                try:
                    results.append(json.loads(message.text))
                except ValueError:
                    continue
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        return {"result": finish(desk.task, last.text, results)}

    builder = StateGraph(State)
    builder.add_node("agent", agent)
    builder.add_node("read", read)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "read")
    builder.add_edge("read", END)
    return builder.compile()


def asked(desk: Desk) -> dict[str, Any]:
    """What a graph is given."""
    return {"messages": [{"role": "user", "content": prompt(desk.task)}]}


def configured(desk: Desk) -> dict[str, Any]:
    """A bound for a graph that goes round: two steps for each turn of the plain agent."""
    return {"recursion_limit": 2 * turns_of(desk.task) + 4}


async def langchain(desk: Desk) -> Any:
    """The middleware that comes with LangChain: models and reading tools are tried again."""
    from langchain.agents.middleware import (
        ModelRetryMiddleware,
        ToolRetryMiddleware,
        model_retry,
        tool_retry,
    )

    async def sleep(seconds: float) -> None:
        desk.clock.sleep(seconds)

    virtual = SimpleNamespace(sleep=sleep, iscoroutinefunction=asyncio.iscoroutinefunction)
    model_retry.asyncio = tool_retry.asyncio = virtual  # type: ignore[assignment, attr-defined]
    reads = [kit.name for kit in desk.kits if kit.effect == "read"]
    made = graph(
        desk,
        ModelRetryMiddleware(max_retries=3, on_failure="error"),
        ToolRetryMiddleware(max_retries=3, tools=list(reads), on_failure="error"),
    )
    state = await made.ainvoke(asked(desk), config=configured(desk))
    return state["result"]


CONTESTANTS = {"bare": bare, "tenacity": tenacity, "langchain": langchain}
