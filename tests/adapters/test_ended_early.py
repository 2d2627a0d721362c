"""What a framework hands back without having come to its end, and what its user has decided himself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

import agents
import pytest
from agents import RunErrorHandlerInput, RunErrorHandlerResult
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from openai.types.responses import ResponseOutputMessage, ResponseOutputRefusal
from pydantic import BaseModel
from tables import table

import triage
from adapters.langchain_agents import Scripted, tools_of, wrapped
from adapters.sdk_agents import Desk, calls, says
from triage import FailureType, Retry, TriageEscalationError, TriageSuspendedError
from triage.adapters import SoftFailure
from triage.core import Cause, Event
from triage.testing.adapter_contract import Rule, Script, World, asks, call
from triage.testing.adapter_contract import says as words

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
SEARCH = asks(call("search", query="x"))
RULES = (Rule(words("done"), "found 17"), Rule(SEARCH))


# A graph that ended with calls that were not made ------------------------------------------------------


def graph_of(
    world: World, *, way: Any, saver: Any = None, options: Any = None, **compiled: Any
) -> Any:
    """A graph of a model and its tools. way: where it goes after the model."""
    model = Scripted(world=world).bind_tools(tools_of(world), **(options or {}))

    async def ask(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    built: Any = StateGraph(MessagesState)
    built.add_node("model", ask).add_node("tools", ToolNode(tools_of(world)))
    built.add_edge(START, "model").add_conditional_edges("model", way, ["tools", END])
    built.add_edge("tools", "model")
    return built.compile(checkpointer=saver, **compiled)


def onward(state: Any) -> Any:
    return "tools" if state["messages"][-1].tool_calls else END


class Once:
    """A way that ends too early, the first time."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def __call__(self, state: Any) -> Any:
        if self.times and state["messages"][-1].tool_calls:
            self.times -= 1
            return END
        return onward(state)


@table("saver", [None, InMemorySaver()])
async def test_a_graph_that_ended_with_calls_to_be_made_has_not_succeeded(saver: Any) -> None:
    world = World(Script(RULES))
    agent, events = wrapped(graph_of(world, way=Once(), saver=saver))
    result = await agent.run("Look.")
    assert result["messages"][-1].text == "done"
    (failed,) = triage.core.fold(events).history
    assert failed.failure_type is FailureType.PLAN_INCOMPLETE
    assert failed.diagnosis.cause == Cause.INCOMPLETE
    assert failed.error is not None
    assert "search" in failed.error.message


async def test_it_is_no_success_however_often_it_ends_so() -> None:
    world = World(Script(RULES))
    agent = triage.wrap(graph_of(world, way=Once(100)))
    with pytest.raises(TriageEscalationError) as ended:
        await agent.run("Look.")
    assert isinstance(ended.value.__cause__, SoftFailure)


async def test_steps_that_run_out_are_no_success() -> None:
    """A graph of somebody's own that looks at `remaining_steps` and stops."""
    world = World(Script((Rule(SEARCH),)))

    def way(state: Any) -> Any:
        return END if len(world.deeds) >= 2 else onward(state)

    events: list[Event] = []
    agent = triage.wrap(graph_of(world, way=way), observers=[events.append])
    with pytest.raises(TriageEscalationError):
        await agent.run("Look.")
    found = {failed.failure_type for failed in triage.core.fold(events).history}
    assert FailureType.PLAN_INCOMPLETE in found


async def test_a_node_of_tools_of_somebodys_own_counts_too() -> None:
    world = World(Script(RULES))
    model = Scripted(world=world).bind_tools(tools_of(world))

    async def ask(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    built: Any = StateGraph(MessagesState).add_node("model", ask).add_edge(START, "model")
    agent = triage.wrap(built.compile())
    with pytest.raises(TriageEscalationError):
        await agent.run("Look.")


@table("how", ["compiled", "asked"])
@table("where", ["interrupt_before", "interrupt_after"])
async def test_a_graph_that_stops_where_it_was_told_to_has_not_failed(where: str, how: str) -> None:
    world = World(Script(RULES))
    node = "tools" if where == "interrupt_before" else "model"
    told: Any = {where: [node]}
    given = told if how == "asked" else {}
    graph = graph_of(world, way=onward, saver=InMemorySaver(), **({} if given else told))
    agent, events = wrapped(graph)
    result = await agent.run(
        {"messages": [HumanMessage("Look.")]}, config={"configurable": {"thread_id": "1"}}, **given
    )
    assert result["messages"][-1].tool_calls
    assert not triage.core.fold(events).history
    assert not world.deeds


async def test_a_graph_that_asks_a_person_waits_and_goes_on() -> None:
    world = World(Script(RULES))

    def way(state: Any) -> Any:
        if onward(state) == END or interrupt("may it?"):
            return onward(state)
        return END

    agent, events = wrapped(graph_of(world, way=way, saver=InMemorySaver()))
    with pytest.raises(TriageSuspendedError) as waits:
        await agent.run("Look.")
    result = await agent.resume(waits.value.token, triage.approve())
    assert result["messages"][-1].text == "done"
    assert world.deeds == ["search(x)"]
    assert len(triage.core.fold(events).history) <= 1


async def test_an_answer_that_had_to_be_a_call_is_a_result() -> None:
    """Who forces the model to call wants the call, to read what stands in it."""
    world = World(Script(RULES))
    model = Scripted(world=world)

    async def ask(state: MessagesState) -> Any:
        bound = model.bind(tools=[{"name": "search"}], tool_choice="search")
        return {"messages": [await bound.ainvoke(state["messages"])]}

    built: Any = StateGraph(MessagesState).add_node("model", ask).add_edge(START, "model")
    agent, events = wrapped(built.compile())
    result = await agent.run("Look.")
    assert result["messages"][-1].tool_calls[0]["name"] == "search"
    assert not triage.core.fold(events).history


async def test_a_call_that_whoever_runs_the_graph_makes_himself_is_a_result() -> None:
    """The graph has tools of its own, and this is none of them."""
    world = World(Script((Rule(asks(call("show_map", city="Faro"))),)))
    agent, events = wrapped(
        graph_of(
            world,
            way=lambda state: (
                END if state["messages"][-1].tool_calls[0]["name"] == "show_map" else "tools"
            ),
        )
    )
    result = await agent.run("Look.")
    assert result["messages"][-1].tool_calls[0]["name"] == "show_map"
    assert not triage.core.fold(events).history


class Extracted(TypedDict):
    found: list[Any]


async def test_a_graph_without_messages_is_believed() -> None:
    async def node(state: Extracted) -> Extracted:
        asked = [{"name": "search", "args": {}, "id": "1"}]
        return {"found": [AIMessage("", tool_calls=asked)]}

    built: Any = StateGraph(Extracted).add_node("node", node).add_edge(START, "node")
    agent, events = wrapped(built.compile())
    assert len((await agent.run({"found": []}))["found"]) == 1
    assert not triage.core.fold(events).history


# What the handlers of errors of the OpenAI Agents SDK made ----------------------------------------------


def refusing(text: str = "I cannot help with that.") -> list[Any]:
    """A model's turn that is a refusal."""
    return [
        ResponseOutputMessage(
            id="m1",
            type="message",
            role="assistant",
            status="completed",
            content=[ResponseOutputRefusal(type="refusal", refusal=text)],
        )
    ]


class Price(BaseModel):
    cents: int


def made(found: RunErrorHandlerInput[Any]) -> Any:
    return RunErrorHandlerResult(final_output="made by the handler")


async def made_async(found: RunErrorHandlerInput[Any]) -> Any:
    return {"final_output": "made by the handler", "include_in_history": False}


def made_plain(found: RunErrorHandlerInput[Any]) -> Any:
    return "made by the handler"


def as_told(found: RunErrorHandlerInput[Any]) -> Any:
    return str(found.error.refusal)  # type: ignore[union-attr] # it is a refusal's


async def price(found: RunErrorHandlerInput[Any]) -> Any:
    return RunErrorHandlerResult(final_output=Price(cents=10))


def nothing(found: RunErrorHandlerInput[Any]) -> Any:
    return None


def is_done(result: Any) -> None:
    assert result.final_output == "done"


NONE: Mapping[str, Any] = MappingProxyType({})


class Handled(NamedTuple):
    """What handlers make of the model's turns. failed: how many attempts. raises: of the first tool."""

    turns: list[Any]
    handlers: dict[str, Any]
    result: Any = "made by the handler"
    failed: int = 0
    raises: tuple[Exception, ...] = ()
    run: Mapping[str, Any] = NONE
    agent: Mapping[str, Any] = NONE
    desk: Mapping[str, Any] = NONE


LOOKS = [calls(f"look {n}", what="x") for n in range(2)]
AGAIN = [refusing(), says("done")]
HANDLED = [
    *(
        Handled(LOOKS, {"max_turns": handler}, run={"max_turns": 2})
        for handler in (made, made_async, made_plain)
    ),
    *(Handled([refusing()], {"model_refusal": handler}) for handler in (made, made_async, made_plain)),
    Handled(LOOKS, {"max_turns": made}, raises=(ValueError("no such place"),), run={"max_turns": 1}),
    Handled([refusing()], {"model_refusal": as_told}, "I cannot help with that."),
    Handled([says("about ten")], {"invalid_final_output": price}, Price(cents=10),
            desk={"output_type": Price}),
    Handled(AGAIN, {"model_refusal": nothing}, "done", 1),
    Handled(AGAIN, {}, "done", 1),
    # What a handler made is checked as any result.
    Handled(AGAIN, {"model_refusal": made}, "done", 1, agent={"verify": is_done}),
]  # fmt: skip


@table("streamed", [False, True])
@table("handled", HANDLED)
async def test_what_a_handler_made_of_an_error_is_the_result(
    handled: Handled, *, streamed: bool
) -> None:
    desk = Desk(*handled.turns, **handled.desk)
    desk.raises = list(handled.raises)
    options: dict[str, Any] = {"on_event": lambda event: None} if streamed else {}
    agent = desk.agent(Retry("again"), **handled.agent)
    result = await agent.run("Look.", error_handlers=handled.handlers, **handled.run, **options)
    assert result.final_output == handled.result
    assert len(triage.core.fold(desk.events).history) == handled.failed


async def test_the_journal_says_what_a_handler_made() -> None:
    desk = Desk(refusing())
    await desk.agent().run("Look.", error_handlers={"model_refusal": made})
    last = desk.steps[-1]
    assert (last.action, last.tool_input) == ("error_handler", {"error": "model_refusal"})
    assert last.tool_output == "made by the handler"


async def test_a_handler_of_an_agent_inside_a_tool_decides_for_that_one_alone() -> None:
    inner = agents.Agent(name="helper", model=Desk(refusing()).model)

    @agents.function_tool
    async def ask_helper(what: str) -> str:
        """Ask the helper."""
        found = await agents.Runner.run(inner, what, error_handlers={"model_refusal": made})
        return str(found.final_output)

    desk = Desk(calls("ask_helper 1", what="x"), refusing(), says("done"), tools=[ask_helper])
    agent = desk.agent(Retry("again"), effects={"ask_helper": "read"})
    result = await agent.run("Look.")
    assert result.final_output == "done"
    assert len(triage.core.fold(desk.events).history) == 1
