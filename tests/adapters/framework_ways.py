"""Agents of each framework and client, bare and wrapped, whose own checks look at the model's last answer.

Each charges a card, and then tells a price in the form that was declared in the framework's own way.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import agents as sdk
import anthropic
import httpx2
import openai
import pydantic_ai
from langchain.agents import create_agent
from langchain.agents.middleware import after_model
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import triage
from adapters import langchain_agents
from triage import Agent
from triage.adapters.anthropic import record as record_anthropic
from triage.adapters.openai import record as record_openai
from triage.testing.adapter_contract import Asks, Says, World, asks, call, says

sdk.set_tracing_disabled(disabled=True)
TASK = "Tell what the ticket costs, and pay for it."


class Price(BaseModel):
    """What a ticket costs."""

    cents: int


class Sent(NamedTuple):
    """A request as it went over the wire, without what names the connection."""

    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Wire:
    """The HTTP client of a way's model, and what it sent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sent: list[Sent] = []
        self.client = httpx2.AsyncClient(event_hooks={"request": [self._see]})

    async def _see(self, request: httpx2.Request) -> None:
        headers = tuple(item for item in sorted(request.headers.items()) if item[0] != "host")
        self.sent.append(Sent(request.url.path, headers, request.content))

    @property
    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="x", max_retries=0, http_client=self.client
        )

    @property
    def anthropic(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(
            base_url=self.url, api_key="x", max_retries=0, http_client=self.client
        )


Attempt = Callable[[str], Awaitable[Any]]
Build = Callable[[World, Wire], tuple[Attempt, Agent[Any]]]


class Way(NamedTuple):
    """One way to write the agent. build: bare and wrapped. right, wrong: the model's last answer."""

    name: str
    build: Build
    right: Says | Asks
    wrong: Says | Asks


JSON, NO_JSON = says('{"cents": 10}'), says('{"cents": "many"}')
WAYS: list[Way] = []


def way(right: Says | Asks = JSON, wrong: Says | Asks = NO_JSON) -> Callable[[Build], Build]:
    def enter(build: Build) -> Build:
        WAYS.append(Way(build.__name__, build, right, wrong))
        return build

    return enter


@asynccontextmanager
async def wire(url: str) -> AsyncGenerator[Wire]:
    """A wire for as long as the block runs."""
    made = Wire(url)
    async with made.client:
        yield made


# Pydantic AI -------------------------------------------------------------------------------------


def _pydantic(
    world: World, wire: Wire, output_type: Any, **options: Any
) -> pydantic_ai.Agent[None, Any]:
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=wire.openai))
    return pydantic_ai.Agent(model, tools=world.functions(), output_type=output_type, **options)


def _pydantic_both(world: World, agent: Any) -> tuple[Attempt, Agent[Any]]:
    async def bare(task: str) -> Any:
        return await agent.run(task)

    return bare, triage.wrap(agent, effects=world.effects)


@way(asks(call("final_result", cents=10)), asks(call("final_result", cents="many")))
def pydantic_output_tool(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    return _pydantic_both(world, _pydantic(world, wire, Price, retries=0))


@way()
def pydantic_prompted_output(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    output = pydantic_ai.PromptedOutput(Price)
    return _pydantic_both(world, _pydantic(world, wire, output, retries=0))


@way()
def pydantic_native_output(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    output = pydantic_ai.NativeOutput(Price)
    return _pydantic_both(world, _pydantic(world, wire, output, retries=0))


@way(says("It costs 10."), says("It costs about ten."))
def pydantic_output_validator(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    agent = _pydantic(world, wire, str, retries=0)

    def exact(text: str) -> str:
        if "about" in text:
            raise pydantic_ai.ModelRetry("Say the exact price.")
        return text

    agent.output_validator(exact)
    return _pydantic_both(world, agent)


@way(says("It costs 10."), says("It costs about ten."))
def pydantic_output_function(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    def cents(text: str) -> int:
        return int(text.removeprefix("It costs ").removesuffix("."))

    return _pydantic_both(world, _pydantic(world, wire, pydantic_ai.TextOutput(cents), retries=0))


# OpenAI Agents -----------------------------------------------------------------------------------


def _sdk(world: World, wire: Wire, **options: Any) -> tuple[Attempt, Agent[Any]]:
    tools: list[sdk.Tool] = [sdk.function_tool(tool) for tool in world.functions()]
    model = sdk.OpenAIResponsesModel("m", wire.openai)
    agent: sdk.Agent[Any] = sdk.Agent(name="clerk", model=model, tools=tools, **options)

    async def bare(task: str) -> Any:
        return await sdk.Runner.run(agent, task)

    return bare, triage.wrap(agent, effects=world.effects)


@way()
def sdk_output_type(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    return _sdk(world, wire, output_type=Price)


@way(says("It costs 10."), says("It costs about ten."))
def sdk_output_guardrail(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    @sdk.output_guardrail
    async def exact(context: Any, agent: Any, output: str) -> sdk.GuardrailFunctionOutput:
        return sdk.GuardrailFunctionOutput(output_info=None, tripwire_triggered="about" in output)

    return _sdk(world, wire, output_guardrails=[exact])


@way(says("It costs 10."), says("It costs about ten."))
def sdk_guardrail_that_raises(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    @sdk.output_guardrail
    async def exact(context: Any, agent: Any, output: str) -> sdk.GuardrailFunctionOutput:
        cents = int(output.removeprefix("It costs ").removesuffix("."))
        return sdk.GuardrailFunctionOutput(output_info=cents, tripwire_triggered=False)

    return _sdk(world, wire, output_guardrails=[exact])


# LangChain ---------------------------------------------------------------------------------------


def chat_model(wire: Wire) -> ChatOpenAI:
    """LangChain's model over the wire's client."""
    return langchain_agents.chat_model(wire.url, http_async_client=wire.client)


def _chain(world: World, wire: Wire, **options: Any) -> tuple[Attempt, Agent[Any]]:
    model = chat_model(wire)
    tools = [StructuredTool.from_function(coroutine=tool) for tool in world.functions()]
    graph: Any = create_agent(model, tools, **options)

    async def bare(task: str) -> Any:
        return await graph.ainvoke({"messages": [{"role": "user", "content": task}]})

    return bare, triage.wrap(graph, effects=world.effects)


@way(asks(call("Price", cents=10)), asks(call("Price", cents="many")))
def graph_tool_strategy(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    return _chain(world, wire, response_format=ToolStrategy(Price, handle_errors=False))


@way()
def graph_provider_strategy(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    return _chain(world, wire, response_format=ProviderStrategy(Price))


@way(says("It costs 10."), says("It costs about ten."))
def graph_middleware(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    @after_model
    def exact(state: Any, runtime: Any) -> None:
        if "about" in state["messages"][-1].text:
            raise ValueError("the price is not exact")

    return _chain(world, wire, middleware=[exact])


# Clients -----------------------------------------------------------------------------------------


def _both(
    attempt: Callable[[Any, str], Awaitable[Any]], client: Any, recorded: Any
) -> tuple[Attempt, Agent[Any]]:
    async def bare(task: str) -> Any:
        return await attempt(client, task)

    async def wrapped(task: str) -> Any:
        return await attempt(recorded, task)

    return bare, Agent(wrapped)


_FUNCTION = {
    "name": "charge",
    "description": "Charge the card.",
    "parameters": {
        "type": "object",
        "properties": {"cents": {"type": "integer"}},
        "required": ["cents"],
        "additionalProperties": False,
    },
    "strict": True,
}


@way()
def openai_chat_parse(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    charge = {tool.__name__: tool for tool in world.tools()}["charge"]

    async def attempt(client: Any, task: str) -> Any:
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            made = await client.chat.completions.parse(
                model="m",
                messages=messages,
                tools=[{"type": "function", "function": _FUNCTION}],
                response_format=Price,
            )
            said = made.choices[0].message
            if not said.tool_calls:
                return said.parsed
            messages.append(said.model_dump(exclude_none=True, exclude={"parsed"}))
            for asked in said.tool_calls:
                found = await charge(**json.loads(asked.function.arguments))
                messages.append({"role": "tool", "tool_call_id": asked.id, "content": found})

    return _both(attempt, wire.openai, record_openai(wire.openai))


@way()
def openai_responses_parse(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    charge = {tool.__name__: tool for tool in world.tools()}["charge"]

    async def attempt(client: Any, task: str) -> Any:
        items: list[Any] = [{"role": "user", "content": task}]
        while True:
            made = await client.responses.parse(
                model="m",
                input=items,
                tools=[{"type": "function", **_FUNCTION}],
                text_format=Price,
            )
            calls = [item for item in made.output if item.type == "function_call"]
            if not calls:
                return made.output_parsed
            for asked in calls:
                items.append(asked.model_dump(exclude={"parsed_arguments"}))
                found = await charge(**json.loads(asked.arguments))
                items.append(
                    {"type": "function_call_output", "call_id": asked.call_id, "output": found}
                )

    return _both(attempt, wire.openai, record_openai(wire.openai))


@way()
def anthropic_messages_parse(world: World, wire: Wire) -> tuple[Attempt, Agent[Any]]:
    charge = {tool.__name__: tool for tool in world.tools()}["charge"]
    tool = {
        "name": "charge",
        "description": "Charge the card.",
        "input_schema": _FUNCTION["parameters"],
    }

    async def attempt(client: Any, task: str) -> Any:
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            made = await client.messages.parse(
                model="m", max_tokens=100, messages=messages, tools=[tool], output_format=Price
            )
            asked = [block for block in made.content if block.type == "tool_use"]
            if not asked:
                return made.parsed_output
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": one.id,
                    "content": await charge(**one.input),
                }
                for one in asked
            ]
            told = [block.model_dump(exclude_none=True) for block in made.content]
            messages += [
                {"role": "assistant", "content": told},
                {"role": "user", "content": results},
            ]

    return _both(attempt, wire.anthropic, record_anthropic(wire.anthropic))
