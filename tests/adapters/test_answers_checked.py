"""Checks of a framework's agent look at its answer, not at all that its result holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import agents
import pydantic_ai
import pytest
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from tables import table

import triage
from adapters.framework_ways import Wire, wire
from adapters.langchain_agents import chat_model
from triage import Agent, Checks
from triage.core import Event, fold
from triage.testing.adapter_contract import Rule, Script, World, asks, call, loopback, says

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
TOLD = "Never say 'internal use'."
FOUND = "internal use: 17 left"
CHECKS = Checks(grounding=True, constraints=("internal use",), tools=["search"])


class Stock(BaseModel):
    left: int


async def search(query: str) -> str:
    """Search."""
    return FOUND


def in_langgraph(wire: Wire, saver: Any = None, **options: Any) -> Agent[Any]:
    model = chat_model(wire.url, http_async_client=wire.client)
    tools = [StructuredTool.from_function(coroutine=search)]
    return triage.wrap(
        create_agent(model, tools, system_prompt=TOLD, checkpointer=saver), **options
    )


def with_checkpointer(wire: Wire, **options: Any) -> Agent[Any]:
    return in_langgraph(wire, InMemorySaver(), **options)


def in_pydantic_ai(wire: Wire, **options: Any) -> Agent[Any]:
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=wire.openai))
    return triage.wrap(pydantic_ai.Agent(model, tools=[search], instructions=TOLD), **options)


def in_agents_sdk(wire: Wire, **options: Any) -> Agent[Any]:
    tools: list[Any] = [agents.function_tool(search)]
    model = agents.OpenAIResponsesModel("m", wire.openai)
    return triage.wrap(
        agents.Agent(name="clerk", model=model, tools=tools, instructions=TOLD), **options
    )


Builds = Callable[..., Agent[Any]]
WAYS = [in_langgraph, with_checkpointer, in_pydantic_ai, in_agents_sdk]


async def outcome(build: Builds, *answers: str, **options: Any) -> tuple[Any, list[str]]:
    """The result of an agent that searches and gives these answers, and what its attempts failed with."""
    events: list[Event] = []
    script = Script(
        (Rule(says(answers[-1]), FOUND), Rule(asks(call("search", query="x")))),
        faults={at: says(answer) for at, answer in enumerate(answers[:-1], 2)},
    )
    with loopback(World(script)) as url:
        async with wire(url) as line:
            result = await build(line, observers=[events.append], **options).run("How many?")
    return result, [str(past.failure_type) for past in fold(events).history]


@table("build", WAYS)
async def test_what_tools_and_instructions_say_is_no_answer(build: Builds) -> None:
    _, failed = await outcome(build, "There are 17 left.", checks=CHECKS)
    assert failed == []


@table("build", WAYS)
async def test_an_answer_that_no_tool_gave_is_asked_for_again(build: Builds) -> None:
    _, failed = await outcome(build, "There are 4711 left.", "There are 17 left.", checks=CHECKS)
    assert failed == ["hallucinated_state"]


@table("build", WAYS)
async def test_a_result_type_is_about_the_answer(build: Builds) -> None:
    result, failed = await outcome(build, '{"left": "?"}', '{"left": 17}', result_type=Stock)
    assert result == Stock(left=17)
    assert failed == ["schema_mismatch"]
