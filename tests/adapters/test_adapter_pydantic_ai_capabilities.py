"""Capabilities of the user's on an agent of Pydantic AI: they see what they would see without us."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, HandleDeferredToolCalls
from pydantic_ai.exceptions import CallDeferred, ModelHTTPError
from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel
from support import always
from tables import table

import triage
from adapters.pydantic_agents import Scripted, call, staged, steps_of
from triage import Replan, Retry, TriageSuspendedError, happened
from triage.core import Event
from triage.testing.adapter_contract import Rule, Script, asks, says
from triage.testing.adapter_contract import call as wanted

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

OVERLOADED = ModelHTTPError(503, "m")


class Watching(AbstractCapability[Any]):
    """Notes the hooks that are called. position: where among the others it wants to stand."""

    def __init__(self, position: Any) -> None:
        super().__init__()
        self.position = position
        self.seen: list[str] = []

    def get_ordering(self) -> CapabilityOrdering | None:
        return CapabilityOrdering(position=self.position) if self.position else None

    def get_wrapper_model(self, model: Model) -> Model:
        self.seen.append("model")
        return WrapperModel(model)

    async def before_run(self, ctx: Any) -> None:
        assert ctx.root_capability is not None
        self.seen.append("run")

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        assert ctx.model is request_context.model
        self.seen.append(f"request of {len(request_context.messages)}")
        return request_context

    async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
        assert ctx.run_step
        assert request_context.messages
        self.seen.append("answer")
        return response

    async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        assert ctx.tool_name == tool_def.name
        self.seen.append(f"{call.tool_name} of {args}")
        return args

    async def on_run_error(self, ctx: Any, *, error: BaseException) -> Any:
        assert ctx.run_id
        self.seen.append(type(error).__name__)
        raise error


@table("position", [None, "outermost", "innermost"])
async def test_each_hook_is_called_as_often_as_without_us_wherever_it_stands(position: Any) -> None:
    def look(what: str) -> str:
        """Look."""
        return f"saw {what}"

    def agent(watching: Watching) -> PydanticAgent[None, str]:
        model = Scripted(call("look", what="a"), call("look", what="b"), OVERLOADED, "done").model
        return PydanticAgent(model, tools=[look], capabilities=[watching])

    bare, wrapped = Watching(position), Watching(position)
    with pytest.raises(ModelHTTPError):
        await agent(bare).run("go")
    events: list[Event] = []
    result = await triage.wrap(agent(wrapped), always(Retry()), observers=[events.append]).run("go")
    assert result.output == "done"
    assert wrapped.seen[: len(bare.seen)] == bare.seen
    assert wrapped.seen[len(bare.seen) :] == [
        *(seen for seen in bare.seen if seen != "ModelHTTPError"),
        "answer",
    ]
    made = [step.tool_called or step.action for step in steps_of(events)]
    assert made == ["model", "look", "model", "look", "model", "model"], "a call is recorded once"


@table("position", [None, "innermost"])
async def test_a_new_plan_begins_with_what_was_found_beside_other_capabilities(
    position: Any,
) -> None:
    rules = (
        Rule(says("done"), "Hurry."),
        Rule(says("half", ended="length"), "found 17"),
        Rule(asks(wanted("search", query="x"))),
    )
    async with staged(Script(rules), capabilities=[Watching(position)]) as stage:
        wrapped = triage.wrap(stage.agent, always(Replan("Hurry.")), effects=stage.world.effects)
        result = await wrapped.run("go")
    assert result.output == "done"
    assert stage.world.deeds == ["search(x)"]
    last = stage.world.requests[-1].body["messages"]
    assert [message["role"] for message in last] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


async def _look() -> str:
    """Look."""
    return "saw"


async def test_one_call_is_answered_by_a_capability_and_the_other_by_a_person() -> None:
    def asks_elsewhere(question: str) -> str:
        """Ask."""
        raise CallDeferred

    def answered(ctx: Any, requests: Any) -> Any:
        assert ctx.run_id
        known = [one for one in requests.calls if one.args == {"question": "known"}]
        return requests.build_results(calls={one.tool_call_id: "yes" for one in known})

    both = [call("asks_elsewhere", question="known"), call("asks_elsewhere", question="new")]
    agent = PydanticAgent(
        Scripted(both, "done").model,
        tools=[asks_elsewhere],
        capabilities=[HandleDeferredToolCalls(handler=answered)],
    )
    wrapped = triage.wrap(agent)
    with pytest.raises(TriageSuspendedError) as waits:
        await wrapped.run("go")
    assert "'new'" in str(waits.value) or '"new"' in str(waits.value)
    assert "known" not in str(waits.value)
    result = await wrapped.resume(waits.value.token, happened("no"))
    assert result.output == "done"
    told = [getattr(part, "content", None) for part in result.all_messages()[2].parts]
    assert told == ["yes", "no"]


class Choosing(AbstractCapability[Any]):
    """Notes the model that each attempt at a request is prepared for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    async def prepare_model_request(self, ctx: Any, request_context: Any) -> Any:
        assert ctx.model is request_context.model
        self.seen.append(request_context.model)
        return request_context


async def test_a_capability_that_prepares_requests_finds_the_users_model() -> None:
    choosing = Choosing()
    model = Scripted(call("look"), "done").model
    agent = PydanticAgent(model, tools=[_look], capabilities=[choosing])
    events: list[Event] = []
    result = await triage.wrap(agent, observers=[events.append]).run("go")
    assert result.output == "done"
    assert choosing.seen == [model, model]
    assert [step.tool_called or step.action for step in steps_of(events)] == [
        "model", "look", "model",
    ]  # fmt: skip
