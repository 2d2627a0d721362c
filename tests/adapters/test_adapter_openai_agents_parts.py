"""The parts of an agent of the OpenAI Agents SDK: its models, and tools of every kind."""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import Any

import agents
import anyio
import openai
import pytest
from agents.mcp import MCPServer
from agents.testing import ScriptedModel
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations
from openai.types.responses import ResponseCustomToolCall
from pydantic import BaseModel
from support import always
from tables import table

import triage
from adapters.sdk_agents import Desk, Refused, calls, model, over_http, says, steps_of, told
from triage import Effect, Replan, TriageSuspendedError
from triage.core import Event, RunFinished
from triage.testing.adapter_contract import (
    Fails,
    Rule,
    Script,
    World,
    asks,
    call,
    check_wire,
    provider,
    results_in,
)
from triage.testing.adapter_contract import says as answers

from .own_loops import litellm

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


class Bill(BaseModel):
    cents: int


# Models ---------------------------------------------------------------------------------------------


def test_layers_that_retry_by_themselves_are_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "triage.retries")
    client = openai.AsyncOpenAI(base_url="http://127.0.0.1:1/v1", api_key="x", max_retries=77)
    retry = agents.ModelRetrySettings(max_retries=4)
    inner: agents.Agent[Any] = agents.Agent(name="inner", model="gpt-5")
    triage.wrap(
        agents.Agent(
            name="outer",
            model=agents.OpenAIResponsesModel("m", client),
            model_settings=agents.ModelSettings(retry=retry),
            handoffs=[inner],
        )
    )
    said = "\n".join(caplog.messages)
    assert "up to 77 times by itself" in said
    assert "agents.ModelSettings.retry of 'outer' retries up to 4 times" in said
    assert "the client that agents makes retries up to 2 times" in said


class Named(agents.ModelProvider):
    """Gives one model by any name."""

    def __init__(self, found: ScriptedModel) -> None:
        self.found = found
        self.names: list[str | None] = []

    def get_model(self, model_name: str | None) -> agents.Model:
        self.names.append(model_name)
        return self.found


@table("chosen", [None, "gpt-5", "gpt-4o"])
@table("own", [None, "gpt-5", "gpt-4o"])
async def test_a_model_is_asked_with_the_settings_that_it_would_have(
    chosen: str | None, own: str | None
) -> None:
    found = model(says("bare"), says("wrapped"))
    named = Named(found)
    config = agents.RunConfig(model=chosen, model_provider=named)
    clerk: agents.Agent[Any] = agents.Agent(name="clerk", model=own)
    await agents.Runner.run(clerk, "Look.", run_config=config)
    await triage.wrap(clerk).run("Look.", run_config=config)
    bare, wrapped = found.calls
    assert wrapped == bare
    assert named.names == [chosen or own] * 2


async def test_a_filter_of_the_users_own_has_the_word() -> None:
    async def shorten(data: Any) -> agents.run.ModelInputData:
        return agents.run.ModelInputData(data.model_data.input[-1:], "short")

    desk = Desk(calls("look 1", what="x"), says("done"))
    config = agents.RunConfig(call_model_input_filter=shorten)
    await desk.agent().run([{"role": "user", "content": "Look."}] * 3, run_config=config)
    assert [call.system_instructions for call in desk.model.calls] == ["short", "short"]
    assert len(desk.asked(0)) == 1


@table("kind", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
async def test_an_answer_that_was_cut_off_is_none(kind: Any) -> None:
    rules = (Rule(answers("done"), "Be brief."), Rule(answers("half of i", ended="length")))
    world = World(Script(rules))
    async with provider(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        async with client:
            clerk: agents.Agent[Any] = agents.Agent(name="clerk", model=kind("m", client))
            policy = triage.FailurePolicy(default=Replan("Be brief."))
            result = await triage.wrap(clerk, policy).run("Say.")
    assert result.final_output == "done"
    assert len(world.requests) == 2


def responses(url: str, client: openai.AsyncOpenAI) -> agents.Model:
    return agents.OpenAIResponsesModel("m", client)


def chat(url: str, client: openai.AsyncOpenAI) -> agents.Model:
    return agents.OpenAIChatCompletionsModel("m", client)


def by_litellm(name: str, url: str) -> agents.Model:
    litellm()
    module = import_module("agents.extensions.models.litellm_model")
    made: agents.Model = module.LitellmModel(name, base_url=url, api_key="x")
    return made


def anthropic(url: str, client: openai.AsyncOpenAI) -> agents.Model:
    return by_litellm("anthropic/m", url)


def gemini(url: str, client: openai.AsyncOpenAI) -> agents.Model:
    return by_litellm("gemini/m", f"{url}/v1beta/models/m")


@table("streamed", [False, True])
@table("make", [responses, chat, anthropic, gemini])
async def test_whatever_is_asked_a_call_is_made_once_and_is_one_step_that_a_new_plan_knows(
    make: Any, *, streamed: bool
) -> None:
    rules = (
        Rule(answers("done"), "Be brief."),
        Rule(asks(call("charge", cents=300)), "found 17"),
        Rule(asks(call("search", query="x"))),
    )
    world = World(Script(rules, faults={3: Fails(400, "bad request")}))
    events: list[Event] = []
    more: dict[str, Any] = {"on_event": str} if streamed else {}
    async with over_http(world, make) as clerk:
        agent = triage.wrap(
            clerk, always(Replan("Be brief.")), effects=world.effects, observers=[events.append]
        )
        assert (await agent.run("Pay.", **more)).final_output == "done"
    check_wire(world.requests)
    assert world.deeds == ["search(x)", "charge(300)"]
    made = [("search", "found 17"), ("charge", "receipt 5")]
    assert results_in(world.requests[-1]) == made
    assert [(s.tool_called, s.tool_output) for s in steps_of(events) if s.tool_called] == made


@table("streamed", [False, True])
async def test_the_journal_keeps_the_output_alone(*, streamed: bool) -> None:
    desk = Desk(says("done"))
    more: dict[str, Any] = {"on_event": str} if streamed else {}
    result = await desk.agent().run("Look.", context={"password": "hunter2"}, **more)
    assert isinstance(result, agents.RunResultStreaming if streamed else agents.RunResult)
    (ended,) = [event for event in desk.events if isinstance(event, RunFinished)]
    assert ended.result == {"final_output": "done"}
    assert result.context_wrapper.context == {"password": "hunter2"}


# Tools of other kinds -------------------------------------------------------------------------------


async def test_a_payment_that_took_too_long_is_asked_about_and_not_made_again() -> None:
    began: list[int] = []

    async def pay(cents: int) -> str:
        """Pay."""
        began.append(cents)
        await anyio.sleep(0.1)
        return "receipt"

    asked = [calls("pay 1", cents=5), calls("pay 2", cents=5), says("done")]
    desk = Desk(*asked, tools=[agents.function_tool(pay, timeout=0.01)])
    with pytest.raises(TriageSuspendedError, match="did pay with"):
        await desk.agent(effects={"pay": "once"}).run("Pay.")
    assert began == [5]
    assert len(desk.model.calls) == 1


class Shelf(MCPServer):
    """A server with a tool that says it only reads, and one that says nothing."""

    @property
    def name(self) -> str:
        return "shelf"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> Any:
        reads = ToolAnnotations(read_only_hint=True)
        schema = {"type": "object", "properties": {}}
        return [
            Tool(name="peek", input_schema=schema, annotations=reads),
            Tool(name="take", input_schema=schema),
        ]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        return CallToolResult(content=[TextContent(type="text", text=f"{tool_name} it")])

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


async def test_tools_of_a_server_say_what_they_do() -> None:
    desk = Desk(calls("peek 1"), calls("take 2"), Refused(), says("done"), mcp_servers=[Shelf()])
    await desk.agent(trust_hints=True).run("Take it.")
    found = {step.tool_called: step.effect for step in desk.steps if step.tool_called}
    assert found == {"peek": Effect.READ, "take": Effect.UNKNOWN}
    assert "take it" in told(desk.asked())[-1]


async def test_an_agent_that_a_tool_runs_in_a_thread_is_part_of_the_tool() -> None:
    helper: agents.Agent[Any] = agents.Agent(name="helper", model=model(says("helped")))

    def delegate(what: str) -> str:
        """Delegate."""
        return str(asyncio.run(agents.Runner.run(helper, what)).final_output)

    tool = agents.function_tool(delegate)
    desk = Desk(calls("delegate 1", what="x"), Refused(), says("done"), tools=[tool])
    await desk.agent(effects={"delegate": "once"}).run("Do.")
    assert told(desk.asked())[-1] == "helped"
    assert [step.tool_called for step in desk.steps if step.tool_called] == ["delegate"]


async def test_a_custom_tool_is_recorded() -> None:
    did: list[str] = []

    async def draw(context: Any, given: str) -> str:
        did.append(given)
        return f"drew {given}"

    tool = agents.CustomTool("draw", "Draw.", draw)
    asked = ResponseCustomToolCall(
        type="custom_tool_call", call_id="c1", name="draw", input="a bee", id="i1"
    )
    desk = Desk([asked], Refused(), says("done"), tools=[tool])
    await desk.agent(effects={"draw": "once"}).run("Draw.")
    assert did == ["a bee"]
    (step,) = [step for step in desk.steps if step.tool_called]
    assert (step.tool_input, step.tool_output) == ({"arguments": "a bee"}, "drew a bee")


async def test_an_approval_policy_is_asked_as_without_triage() -> None:
    asked: list[Any] = []

    async def policy(context: Any, given: Any, call_id: str) -> bool:
        asked.append((given, call_id))
        return bool(given["cents"] > 100)

    desk = Desk(calls("charge 1", cents=50), says("paid"))
    desk.clerk.tools = [agents.function_tool(desk.charge, needs_approval=policy)]
    await desk.agent().run("Pay.")
    assert asked == [({"cents": 50}, "call_1")]
    assert desk.did == ["charge 50"]


async def test_what_a_tool_gives_reaches_the_model_the_same_when_it_is_given_again() -> None:
    async def picture(what: str) -> Any:
        """Draw."""
        return [agents.ToolOutputText(text="a bee"), agents.ToolOutputImage(file_id="f1")]

    async def bill(what: str) -> Bill:
        """Bill."""
        return Bill(cents=3)

    tools = [agents.function_tool(picture), agents.function_tool(bill)]
    both = [*calls("picture 1", what="x"), *calls("bill 2", what="x")]
    desk = Desk(both, Refused(), says("done"), tools=tools)
    await desk.agent(effects={"picture": "read"}).run("Draw.")
    first, second = ([item["output"] for item in desk.asked(at)[3:]] for at in (1, 2))
    assert first == second
    assert first[0][0] == {"type": "input_text", "text": "a bee"}
    assert first[1] == "cents=3"
