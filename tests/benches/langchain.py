"""A loop of a model and tools, as people write it; its model is Anthropic's real client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import SecretStr, ValidationError

import triage
from triage import Agent
from triage.testing.adapter_contract import World

TURNS = 10


class _Bench:
    name = "langchain"
    cannot: Mapping[str, str] = {}
    backends = ("asyncio",)

    def text(self, result: Any) -> str:
        return str(result.text)

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncIterator[Agent[Any]]:
        model = ChatAnthropic(
            model_name="m",
            base_url=url,
            api_key=SecretStr("x"),
            max_retries=0,
            timeout=10,
            stop=None,
        )
        tools = [StructuredTool.from_function(coroutine=tool) for tool in world.functions()]
        yield triage.wrap(_loop(model, tools), effects=world.effects, **options)


def _loop(model: ChatAnthropic, tools: Sequence[BaseTool]) -> RunnableLambda[str, AIMessage]:
    asking = model.bind_tools(tools)
    known = {tool.name: tool for tool in tools}

    async def loop(task: str) -> AIMessage:
        messages: list[AnyMessage] = [HumanMessage(task)]
        for _ in range(TURNS):
            answer = await asking.ainvoke(messages)
            if not answer.tool_calls:
                return answer
            messages.append(answer)
            messages += await asyncio.gather(*(_result(known, call) for call in answer.tool_calls))
        raise RuntimeError(f"no answer after {TURNS} turns")

    return RunnableLambda(loop)


async def _result(known: Mapping[str, BaseTool], call: ToolCall) -> ToolMessage:
    tool = known.get(call["name"])
    error = f"there is no tool {call['name']}"
    if tool is not None:
        try:
            made: ToolMessage = await tool.ainvoke(call)
        except ValidationError as problem:
            error = str(problem)
        else:
            return made
    return ToolMessage(error, tool_call_id=call["id"], status="error")


BENCH = _Bench()
