"""Agents of Pydantic AI: what is recorded, what is done again and what is not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import BinaryContent, ModelRetry, Tool, ToolReturn
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
)
from support import always

import triage
from adapters.pydantic_agents import Scripted, call, models_of, staged, tools_of
from triage import (
    Escalate,
    Retry,
    TriageEscalationError,
    TriageSuspendedError,
    approve,
)
from triage.core import Event
from triage.testing.adapter_contract import Fails, Rule, Script, asks, says
from triage.testing.adapter_contract import call as wanted

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

SEARCH, CHARGE = asks(wanted("search", query="x")), asks(wanted("charge", cents=300))
BOTH = (Rule(says("done"), "receipt 5"), Rule(CHARGE, "found 17"), Rule(SEARCH))
OVERLOADED = ModelHTTPError(503, "m")


# Recording ------------------------------------------------------------------------------------------


async def test_nothing_of_the_users_agent_changes_and_outside_of_a_run_nothing_is_recorded() -> (
    None
):
    async with staged(Script(BOTH)) as stage:
        before = dict(vars(stage.agent))
        await triage.wrap(stage.agent, effects=stage.world.effects).run("go")
        assert {name: value for name, value in vars(stage.agent).items() if name != "_name"} == {
            name: value for name, value in before.items() if name != "_name"
        }
        result = await stage.agent.run("go")
    assert result.output == "done"
    assert stage.world.deeds == ["search(x)", "charge(300)"] * 2


async def test_a_failed_run_keeps_all_that_was_said_and_used() -> None:
    fault = {3: Fails(400, "no such model")}
    async with staged(Script(BOTH, faults=fault)) as stage:
        agent = triage.wrap(stage.agent, always(Escalate()), effects=stage.world.effects)
        with pytest.raises(TriageEscalationError) as caught:
            await agent.run("go")
    context = caught.value.context
    assert context is not None
    shown = [(s.tool_called or s.action, s.tool_output) for s in context.trajectory]
    assert shown == [
        ("model", [{"tool": "search", "arguments": {"query": "x"}}]),
        ("search", "found 17"),
        ("model", [{"tool": "charge", "arguments": {"cents": 300}}]),
        ("charge", "receipt 5"),
        ("model", None),
    ]
    assert context.usage.total_tokens == 30
    assert "no such model" in str(context.trajectory[-1].error)


async def test_a_stream_is_recorded_and_given_again_to_who_listens() -> None:
    heard: list[str] = []
    events: list[Event] = []

    async def listen(ctx: Any, pieces: Any) -> None:
        heard.extend([piece.event_kind async for piece in pieces])

    async with staged(Script(BOTH, faults={3: says("half", ended="length")})) as stage:
        wrapped = triage.wrap(
            stage.agent, always(Retry()), effects=stage.world.effects, observers=[events.append]
        )
        result = await wrapped.run("go", event_stream_handler=listen)
    assert result.output == "done"
    assert len(stage.world.requests) == 4
    assert all(request.body["stream"] for request in stage.world.requests)
    assert stage.world.deeds == ["search(x)", "charge(300)"]
    assert heard.count("function_tool_call") == 4, "the attempts were not heard alike"
    assert [step.error is None for step in models_of(events)] == [True, True, False, True]
    assert models_of(events)[-1].llm_output == "done"
    assert models_of(events)[0].usage == triage.Usage(10, 5, calls=1, model="scripted")


async def test_answers_recorded_where_the_framework_asks_are_given_again(tmp_path: Path) -> None:
    """As in journals of versions before 0.3.0, also where the model is known to ask over HTTP."""
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with staged(Script(BOTH)) as stage:
        effects = stage.world.effects
        await triage.wrap(stage.agent, effects=effects).run("go")
        known = len(stage.world.requests)
        tools = [
            Tool(tool, requires_approval=tool.__name__ == "charge")
            for tool in stage.world.functions()
        ]
        agent = PydanticAgent(stage.agent.model, tools=tools)
        first = triage.wrap(agent, effects=effects, store=store, seam="off")
        with pytest.raises(TriageSuspendedError) as waits:
            await first.run("go")
        await first.store.close()
        second = triage.wrap(agent, effects=effects, store=store)
        result = await second.resume(waits.value.token, approve())
        await second.store.close()
    assert result.output == "done"
    assert stage.world.deeds == ["search(x)", "charge(300)"] * 2
    assert len(stage.world.requests) - known == 3, "an answer was asked for again"


# Tools ----------------------------------------------------------------------------------------------


class Bee(BaseModel):
    legs: int


async def test_whatever_a_tool_gave_is_given_to_the_model_again_as_it_was() -> None:
    ran: list[str] = []
    picture = BinaryContent(b"abc", media_type="image/png")

    def plain() -> Bee:
        ran.append("plain")
        return Bee(legs=6)

    def rich() -> Any:
        ran.append("rich")
        return ToolReturn({"x": 1}, content=["see", picture], metadata={"k": 1})

    def files() -> Any:
        ran.append("files")
        return ["a", picture]

    tools = [plain, rich, files]
    model = Scripted([call(tool.__name__) for tool in tools], OVERLOADED, "done")
    agent = PydanticAgent(model.model, tools=tools)
    assert (await triage.wrap(agent, always(Retry())).run("go")).output == "done"
    assert sorted(ran) == sorted(tool.__name__ for tool in tools), "a tool ran twice"
    first, second = ([_timeless(part) for part in seen[-1].parts] for seen in model.seen[1:])
    assert first == second


def _timeless(part: Any) -> dict[str, Any]:
    """A part as the framework itself keeps it."""
    (kept,) = ModelMessagesTypeAdapter.dump_python([ModelRequest([part])], mode="json")
    return {**kept["parts"][0], "timestamp": None}


async def test_what_a_tool_says_it_has_refused_is_a_step_with_its_error_and_no_doubt() -> None:
    events: list[Event] = []

    def book(seats: int) -> str:
        if seats > 4:
            raise triage.not_attempted(ModelRetry("four seats at most"))
        return f"booked {seats}"

    model = Scripted(call("book", seats=5), call("book", seats=2), OVERLOADED, "done")
    agent = PydanticAgent(model.model, tools=[book])
    wrapped = triage.wrap(agent, always(Retry()), observers=[events.append])
    assert (await wrapped.run("go")).output == "done"
    found = [(step.tool_input, step.tool_output, step.error) for step in tools_of(events)]
    assert found == [
        ({"seats": 5}, None, "four seats at most"),
        ({"seats": 2}, "booked 2", None),
        ({"seats": 5}, None, "four seats at most"),
    ]
    assert tools_of(events)[0].exception_type == "ModelRetry"


async def test_a_charge_that_was_lost_is_asked_about_even_if_the_tool_asks_for_a_retry() -> None:
    did: list[int] = []

    async def charge(cents: int) -> str:
        did.append(cents)
        try:
            await asyncio.wait_for(asyncio.sleep(60), 0)
        except TimeoutError as error:
            raise ModelRetry("try again") from error
        return "receipt"

    agent = PydanticAgent(Scripted(call("charge", cents=3)).model, tools=[charge])
    wrapped = triage.wrap(agent, always(Retry()), effects={"charge": "once"})
    with pytest.raises(TriageSuspendedError, match="did charge with"):
        await wrapped.run("go")
    assert did == [3]


async def test_an_effect_before_a_failure_is_not_repeated_and_a_triage_tool_is_one_step() -> None:
    events: list[Event] = []
    did: list[int] = []

    @triage.tool(effect="once")
    async def charge(cents: int) -> str:
        """Charge."""
        did.append(cents)
        return "receipt"

    model = Scripted(call("charge", cents=3), OVERLOADED, "done")
    agent = PydanticAgent(model.model, tools=[charge])
    await triage.wrap(agent, always(Retry()), observers=[events.append]).run("go")
    assert did == [3]
    assert [(step.tool_called, step.effect) for step in tools_of(events)] == [("charge", "once")]


def look_at(what: int) -> str:
    """Look."""
    return f"saw {what}"


NEVER_RAN = [
    ("look_at", {"what": "x"}, "InvalidArguments"),
    ("nope", {"a": 1}, "UnknownTool"),
    ("nope", {"a": 2}, "UnknownTool"),
]


def never_ran(events: list[Event]) -> list[tuple[Any, Any, Any]]:
    return [(step.tool_called, step.tool_input, step.exception_type) for step in tools_of(events)]


async def test_calls_that_never_ran_are_steps_even_the_one_that_ends_the_run() -> None:
    events: list[Event] = []
    model = Scripted([call("nope", a=1), call("look_at", what="x")], call("nope", a=2))
    agent = PydanticAgent(model.model, tools=[look_at])
    wrapped = triage.wrap(agent, always(Escalate()), observers=[events.append])
    with pytest.raises(TriageEscalationError):
        await wrapped.run("go")
    assert never_ran(events) == NEVER_RAN
    assert "the tools are: look_at" in str(tools_of(events)[1].error)


async def test_a_call_that_never_ran_has_the_error_that_the_model_is_told() -> None:
    events: list[Event] = []
    both = asks(wanted("nope", a=1), wanted("look_at", what="x"))
    rules = (Rule(asks(wanted("nope", a=2)), "Unknown tool name"), Rule(both))
    async with staged(Script(rules), tools=[look_at]) as stage:
        wrapped = triage.wrap(stage.agent, always(Escalate()), observers=[events.append])
        with pytest.raises(TriageEscalationError):
            await wrapped.run("go")
    assert never_ran(events) == NEVER_RAN
    misfit, unknown, _ = tools_of(events)
    assert "unable to parse string as an integer" in str(misfit.error)
    assert unknown.error in [
        message["content"] for message in stage.world.requests[1].body["messages"]
    ]


# Stopping and going on ------------------------------------------------------------------------------


async def test_a_prompt_that_is_made_anew_each_time_does_not_make_another_request() -> None:
    times = iter(range(100))
    model = Scripted(call("look", at=1), call("look", at=2), OVERLOADED, "done")

    def look(at: int) -> str:
        return f"saw {at}"

    agent = PydanticAgent(model.model, tools=[look], instructions=lambda: f"It is {next(times)}.")
    agent.system_prompt(lambda: f"Call {next(times)}.")
    assert (await triage.wrap(agent, always(Retry())).run("go")).output == "done"
    assert len(model.seen) == 4
