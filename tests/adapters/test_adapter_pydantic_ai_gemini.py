"""Agents of Pydantic AI whose model gives its calls no ids: each attempt has others that are made up."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.genai import Client
from google.genai.types import HttpOptions
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import Tool
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.google import GoogleProvider
from support import always
from tables import table

import triage
from adapters.pydantic_agents import models_of, tools_of
from triage import Replan, Retry, TriageSuspendedError, approve, happened, reject
from triage.core import ApprovalAsked, Event
from triage.testing.adapter_contract import Fails, Rule, Script, World, asks, call, provider, says

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

CHARGE = asks(call("charge", cents=300))
BOTH = asks(call("charge", cents=300), call("charge", cents=300))
DONE = Rule(says("done"), "receipt")


class Stage:
    """A wrapped agent over a script, and what it recorded."""

    def __init__(self, world: World, agent: triage.Agent[Any], events: list[Event]) -> None:
        self.world, self.agent, self.events = world, agent, events


@asynccontextmanager
async def staged(
    script: Script, policy: Any, *, approvals: tuple[str, ...] = ()
) -> AsyncGenerator[Stage]:
    world, events = World(script), list[Event]()
    async with provider(world) as url:
        client = Client(api_key="x", http_options=HttpOptions(base_url=url))
        model = GoogleModel("gemini-2.5-flash", provider=GoogleProvider(client=client))
        tools = [
            Tool(tool, requires_approval=tool.__name__ in approvals) for tool in world.functions()
        ]
        agent = PydanticAgent(model, tools=tools)
        wrapped = triage.wrap(agent, policy, effects=world.effects, observers=[events.append])
        yield Stage(world, wrapped, events)
        await client.aio.aclose()


@table("calls", [CHARGE, BOTH])
async def test_a_question_is_answered_once_in_whatever_attempt(calls: Any) -> None:
    script = Script((DONE, Rule(calls)), faults={2: says("half", ended="length")})
    async with staged(script, always(Retry()), approvals=("charge",)) as stage:
        with pytest.raises(TriageSuspendedError) as waits:
            await stage.agent.run("Pay.")
        result = await stage.agent.resume(waits.value.token, approve())
    assert result.output == "done"
    assert stage.world.deeds == ["charge(300)"] * len(calls.calls)
    assert len([event for event in stage.events if isinstance(event, ApprovalAsked)]) == 1


async def test_each_of_several_calls_has_the_answer_that_names_it() -> None:
    both = asks(call("charge", cents=1), call("charge", cents=2))
    async with staged(Script((DONE, Rule(both))), always(Retry()), approvals=("charge",)) as stage:
        with pytest.raises(TriageSuspendedError) as waits:
            await stage.agent.run("Pay.")
        (asked,) = [event for event in stage.events if isinstance(event, ApprovalAsked)]
        answers = {
            key: given["cents"] == 1 for key, (_, given) in asked.payload["arguments"].items()
        }
        result = await stage.agent.resume(waits.value.token, happened(answers))
    assert result.output == "done"
    assert stage.world.deeds == ["charge(1)"]


async def test_a_refused_call_is_no_step_and_its_refusal_stands() -> None:
    script = Script((Rule(says("done"), "too much"), Rule(CHARGE)))
    async with staged(script, always(Replan()), approvals=("charge",)) as stage:
        with pytest.raises(TriageSuspendedError) as waits:
            await stage.agent.run("Pay.")
        result = await stage.agent.resume(waits.value.token, reject("too much"))
    assert result.output == "done"
    assert stage.world.deeds == []
    assert tools_of(stage.events) == []


async def test_a_call_is_one_step_and_a_new_plan_begins_with_its_result() -> None:
    rules = (Rule(says("done"), "Hurry."), Rule(CHARGE))
    script = Script(rules, faults={2: Fails(400, "bad request")})
    async with staged(script, always(Replan("Hurry."))) as stage:
        result = await stage.agent.run("Pay.")
    assert result.output == "done"
    assert stage.world.deeds == ["charge(300)"], "the payment was made again"
    assert len(tools_of(stage.events)) == 1
    assert "receipt 5" in stage.world.requests[-1].text
    assert {
        str((step.metadata or {})["call"]).split(":")[0] for step in models_of(stage.events)
    } == {"gemini"}


async def test_a_call_of_an_unknown_tool_has_the_error_that_the_model_is_told() -> None:
    rules = (Rule(says("done"), "Unknown tool name"), Rule(asks(call("nope", a=1))))
    async with staged(Script(rules), always(Retry())) as stage:
        assert (await stage.agent.run("Pay.")).output == "done"
    (step,) = tools_of(stage.events)
    assert (step.tool_called, step.exception_type) == ("nope", "UnknownTool")
    assert "Available tools: 'charge', 'search'" in str(step.error)
