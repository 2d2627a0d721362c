"""A loop of a model and tools, as people write it; its model is Anthropic's real client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from anthropic import AsyncAnthropic
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import SecretStr, ValidationError

import triage
from triage import Agent
from triage.testing.adapter_contract import CAPABILITIES, World

TURNS = 10


class _Bench:
    name = "langchain"
    offers = frozenset(CAPABILITIES) - {"approvals", "handoffs"}
    backends = ("asyncio",)

    def text(self, result: Any) -> str:
        return str(result.text)

    def given(self, world: World) -> Mapping[str, Any]:
        return {}

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        model = ChatAnthropic(
            model_name="m",
            base_url=url,
            api_key=SecretStr("x"),
            max_retries=world.script.retries,
            timeout=10,
            stop=None,
        )
        # By itself it takes a client that is kept for the URL: a later provider that is given the same port
        # would be asked through connections to the one before.
        async with AsyncAnthropic(
            base_url=url, api_key="x", max_retries=world.script.retries, timeout=10
        ) as client:
            model._async_client = client
            hear = world.hear if world.script.streamed else None
            tools = [StructuredTool.from_function(coroutine=tool) for tool in world.functions()]
            helpers = [
                _helper(_loop(model, tools, [SystemMessage(world.instructions(name))]), name)
                for name in world.script.helpers
            ]
            loop = _loop(model, [*tools, *helpers], convert_to_messages(world.before()), hear)
            yield triage.wrap(loop, effects=world.effects, **options)


def _loop(
    model: ChatAnthropic,
    tools: Sequence[BaseTool],
    before: Sequence[BaseMessage],
    hear: Callable[[str], None] | None = None,
) -> RunnableLambda[str, AIMessage]:
    asking = model.bind_tools(tools)
    known = {tool.name: tool for tool in tools}

    async def loop(task: str) -> AIMessage:
        messages: list[BaseMessage] = [*before, HumanMessage(task)]
        for _ in range(TURNS):
            answer = await _asked(asking, messages, hear)
            if not answer.tool_calls:
                return answer
            messages.append(answer)
            messages += await asyncio.gather(*(_result(known, call) for call in answer.tool_calls))
        raise RuntimeError(f"no answer after {TURNS} turns")

    return RunnableLambda(loop)


async def _asked(
    model: Runnable[Any, AIMessage], messages: list[BaseMessage], hear: Callable[[str], None] | None
) -> AIMessage:
    if hear is None:
        return await model.ainvoke(messages)
    whole: Any = None
    async for piece in model.astream(messages):
        whole = piece if whole is None else whole + piece
        hear(str(piece.text))
    return AIMessage(**{key: value for key, value in dict(whole).items() if key != "type"})


def _helper(loop: Runnable[str, AIMessage], name: str) -> BaseTool:
    async def help_(input: str) -> str:
        return str((await loop.ainvoke(input)).text)

    return StructuredTool.from_function(coroutine=help_, name=name, description="Helps.")


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
