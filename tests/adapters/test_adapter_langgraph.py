"""Graphs of LangGraph: where an attempt begins, what is done again, what is not, and what is told apart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send
from support import always
from tables import table

import triage
from adapters.langchain_agents import Log, Scripted, chat_model, steps_of, tools_of
from triage import Agent, Escalate, Limits, Replan, Retry, Rollback, TriageEscalationError
from triage.core import Event
from triage.testing.adapter_contract import (
    Fails,
    Rule,
    Script,
    World,
    asks,
    call,
    check_wire,
    loopback,
    results_in,
    says,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

SEARCH, CHARGE = asks(call("search", query="x")), asks(call("charge", cents=300))
BOTH = (Rule(says("done"), "receipt 5"), Rule(CHARGE, "found 17"), Rule(SEARCH))


class Course:
    """A graph of two nodes. first: what the first does; work: a recorded tool; fail: raises so often."""

    def __init__(self, failures: int = 1) -> None:
        self.did: list[str] = []
        self.events: list[Event] = []
        self.failures = failures

        @tool
        async def pay(cents: int) -> str:
            """Pay."""
            self.did.append(f"pay {cents}")
            return f"paid {cents}"

        @tool
        async def look(what: str) -> str:
            """Look."""
            self.did.append(f"look {what}")
            return f"saw {what}"

        self.pay, self.look = pay, look

    def fail(self) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionError("reset")

    def graph(self, *nodes: Any, saver: Any = None) -> Any:
        built: Any = StateGraph(Log)
        names = [node.__name__ for node in nodes]
        for node in nodes:
            built.add_node(node.__name__, node)
        for before, after in zip([START, *names], names, strict=False):
            built.add_edge(before, after)
        return built.compile(checkpointer=saver)

    def agent(self, graph: Any, action: Any = None, **options: Any) -> Agent[Any]:
        effects = {"pay": "once", "look": "read"}
        policy = always(Retry() if action is None else action)
        return triage.wrap(
            graph, policy, effects=effects, observers=[self.events.append], **options
        )


# Retry ----------------------------------------------------------------------------------------------


async def test_the_same_call_behind_a_checkpoint_is_another_call() -> None:
    course = Course()

    async def first(state: Log) -> Log:
        return {"log": [await course.pay.ainvoke({"cents": 300})]}

    async def second(state: Log) -> Log:
        course.fail()
        return {"log": ["second"]}

    async def third(state: Log) -> Log:
        return {"log": [await course.pay.ainvoke({"cents": 300})]}

    agent = course.agent(course.graph(first, second, third, saver=InMemorySaver()))
    result = await agent.run({"log": []})
    assert result == {"log": ["paid 300", "second", "paid 300"]}
    assert course.did == ["pay 300", "pay 300"]


async def test_a_tool_that_fails_inside_a_subgraph_is_called_again_and_nothing_else() -> None:
    refused = ConnectionRefusedError("[Errno 111] Connection refused")
    tools = {"charge": (refused, "receipt 5")}
    world = World(Script(BOTH, tools=tools))
    inner = create_agent(Scripted(world=world), tools_of(world))
    built: Any = StateGraph(MessagesState).add_node("book", inner).add_edge(START, "book")
    agent = triage.wrap(built.compile(InMemorySaver()), always(Retry()), effects=world.effects)
    await agent.run("go")
    assert world.deeds == ["search(x)", "charge(300)", "charge(300)"]
    assert len(world.requests) == 3


async def test_a_model_that_fails_inside_a_subgraph_is_asked_again_and_nothing_else() -> None:
    did: list[str] = []
    faults = {2: Fails(503, "Overloaded")}
    world = World(Script((Rule(says("done"), "plan"), Rule(says("plan"))), faults=faults))
    model = Scripted(world=world)

    async def plans(state: MessagesState) -> Any:
        did.append("plans")
        return {"messages": [await model.ainvoke(state["messages"])]}

    inner: Any = StateGraph(MessagesState).add_node("book", plans).add_edge(START, "book")
    outer: Any = StateGraph(MessagesState).add_node("plans", plans)
    outer.add_node("books", inner.compile()).add_edge(START, "plans").add_edge("plans", "books")
    result = await triage.wrap(outer.compile(InMemorySaver()), always(Retry())).run("go")
    assert [message.text for message in result["messages"]] == ["go", "plan", "done"]
    assert did == ["plans", "plans", "plans"]
    assert len(world.requests) == 3


@pytest.mark.parametrize("bad", [1, 2])
@pytest.mark.parametrize("saved", [True, False])
async def test_a_bad_answer_inside_a_subgraph_is_asked_anew_and_nothing_is_paid_again(
    bad: int, *, saved: bool
) -> None:
    course = Course()
    better = [Rule(says("good"), f"not wrong {bad}"), Rule(says("wrong 2"), "not wrong 1")][:bad]
    turns = (Rule(says("wrong 1"), "paid 300"), Rule(says("pay"), "plan"), Rule(says("plan")))
    world = World(Script((*better, *turns)))
    model = Scripted(world=world)

    async def asks(state: MessagesState) -> Any:
        course.did.append("asks")
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def pays(state: MessagesState) -> Any:
        course.did.append("pays")
        return {"messages": [HumanMessage(await course.pay.ainvoke({"cents": 300}))]}

    async def checks(state: MessagesState) -> Any:
        if state["messages"][-1].text != "good":
            raise ValueError(f"it is not {state['messages'][-1].text}")
        return {}

    inner: Any = StateGraph(MessagesState)
    for name, node in (("first", asks), ("pays", pays), ("second", asks), ("checks", checks)):
        inner.add_node(name, node)
    for edge in ((START, "first"), ("first", "pays"), ("pays", "second"), ("second", "checks")):
        inner.add_edge(*edge)
    outer: Any = StateGraph(MessagesState).add_node("plans", asks)
    outer.add_node("books", inner.compile()).add_edge(START, "plans").add_edge("plans", "books")
    graph = outer.compile(InMemorySaver() if saved else None)
    result = await triage.wrap(graph, effects={"pay": "once"}).run("go")
    assert result["messages"][-1].text == "good"
    assert course.did.count("pay 300") == 1
    assert len(world.requests) == 3 + bad


async def test_what_ran_beside_the_failed_node_does_not_run_again() -> None:
    course = Course()

    async def left(state: Log) -> Log:
        course.did.append("left")
        return {"log": ["left"]}

    async def right(state: Log) -> Log:
        course.did.append("right")
        course.fail()
        return {"log": ["right"]}

    built: Any = StateGraph(Log).add_node("left", left).add_node("right", right)
    graph = built.add_edge(START, "left").add_edge(START, "right").compile(InMemorySaver())
    result = await course.agent(graph).run({"log": []})
    assert sorted(result["log"]) == ["left", "right"]
    assert sorted(course.did) == ["left", "right", "right"]


async def test_a_call_beside_the_failed_one_is_not_taken_for_a_later_one() -> None:
    both = asks(call("charge", cents=300), call("search", query="x"))
    rules = (Rule(says("done"), "receipt 6"), Rule(CHARGE, "found 17"), Rule(both))
    tools = {"charge": ("receipt 5", "receipt 6"), "search": (ConnectionError("reset"), "found 17")}
    world = World(Script(rules, tools=tools))
    graph = create_agent(Scripted(world=world), tools_of(world), checkpointer=InMemorySaver())
    result = await triage.wrap(graph, always(Retry()), effects=world.effects).run("go")
    assert result["messages"][-1].text == "done"
    assert sorted(world.deeds) == ["charge(300)", "charge(300)", "search(x)", "search(x)"]
    check_wire(world.requests)


async def test_a_run_from_an_older_checkpoint_goes_on_from_its_own() -> None:
    course = Course(failures=0)

    async def first(state: Log) -> Log:
        course.did.append("first")
        return {"log": ["first"]}

    async def second(state: Log) -> Log:
        course.did.append("second")
        course.fail()
        return {"log": ["second"]}

    graph = course.graph(first, second, saver=InMemorySaver())
    config = {"configurable": {"thread_id": "7"}}
    agent = course.agent(graph)
    await agent.run({"log": []}, config=config)
    history = [snapshot async for snapshot in graph.aget_state_history(config)]
    before_second = next(one.config for one in history if one.next == ("second",))
    course.did.clear()
    course.failures = 1
    assert await agent.run(None, config=before_second) == {"log": ["first", "second"]}
    assert course.did == ["second", "second"]


async def test_a_thread_keeps_what_it_had_before_the_run() -> None:
    world = World(Script((Rule(says("done"), "second question"), Rule(says("first answer")))))
    graph = create_agent(Scripted(world=world), checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "7"}}
    refused: list[int] = []

    def once(result: Any) -> None:
        refused.append(1)
        if len(refused) == 2:
            raise ValueError("not this one")

    agent = triage.wrap(graph, always(Replan("Once more.")), verify=once)
    await agent.run("first question", config=config)
    result = await agent.run("second question", config=config)
    said = [message.text for message in result["messages"]]
    assert said[:2] == ["first question", "first answer"]
    assert said.count("second question") == 1
    assert said[-1] == "done"
    assert not any("Once more." in text for text in said), "a hint stays in the thread"


# Other actions --------------------------------------------------------------------------------------


async def test_a_rollback_takes_up_the_checkpoint_before_what_it_drops() -> None:
    course = Course()

    async def first(state: Log) -> Log:
        course.did.append("first")
        return {"log": [await course.look.ainvoke({"what": "a"})]}

    async def second(state: Log) -> Log:
        course.did.append("second")
        return {"log": [await course.look.ainvoke({"what": "b"})]}

    async def third(state: Log) -> Log:
        course.fail()
        return {"log": ["third"]}

    graph = course.graph(first, second, third, saver=InMemorySaver())

    def back(context: triage.FailureContext) -> Rollback:
        """To the checkpoint that the first look made."""
        position = next(
            event.seq for event in course.events if type(event).__name__ == "StepRecorded"
        )
        return Rollback(position)

    agent = course.agent(graph, back)
    result = await agent.run({"log": []})
    assert result == {"log": ["saw a", "saw b", "third"]}
    assert course.did == ["first", "look a", "second", "look b", "second", "look b"]


@table("saved", [True, False])
async def test_whoever_holds_the_turns_of_the_old_plan_the_new_one_is_told_them_once(
    *, saved: bool
) -> None:
    rules = (Rule(says("done"), "Use it."), Rule(says("{"), "found 17"), Rule(SEARCH))
    world = World(Script(rules, faults={3: Fails(400, "odd")}))
    actions = [Replan("Use it."), Retry("Use it.")]

    def next_action(_: Any) -> Any:
        return actions.pop(0)

    def whole(result: Any) -> bool:
        return bool(result["messages"][-1].text != "{")

    with loopback(world) as url:
        saver = InMemorySaver() if saved else None
        graph = create_agent(chat_model(url), tools_of(world), checkpointer=saver)
        agent = triage.wrap(graph, always(next_action), effects=world.effects, verify=whole)
        result = await agent.run("go")
    found = [("search", "found 17")]
    assert [results_in(request) for request in world.requests] == [[], found, found, found]
    held = [message.text for message in result["messages"] if message.type == "tool"]
    assert held == (["found 17"] if saved else []), "the thread knows what was done in it"
    assert world.deeds == ["search(x)"]
    check_wire(world.requests)


async def test_a_retry_after_an_answer_that_is_none_asks_the_model_again() -> None:
    script = Script((Rule(says("done")),), faults={1: says("half of i", ended="length")})
    world = World(script)
    graph = create_agent(Scripted(world=world), checkpointer=InMemorySaver())
    result = await triage.wrap(graph, always(Retry())).run("go")
    assert [message.text for message in result["messages"]] == ["go", "done"]
    assert len(world.requests) == 2


# Stopping -------------------------------------------------------------------------------------------


async def test_a_stop_is_not_swallowed_by_middleware_that_retries() -> None:
    world = World(Script((Rule(SEARCH),)))
    graph = create_agent(
        Scripted(world=world),
        tools_of(world),
        middleware=[ToolRetryMiddleware(max_retries=5, initial_delay=0.0)],
    )
    agent = triage.wrap(
        graph, always(Escalate()), effects=world.effects, limits=Limits(tool_calls=2)
    )
    with pytest.raises(TriageEscalationError, match="limit reached"):
        await agent.run("go")
    assert len(world.deeds) == 2


# Side by side ---------------------------------------------------------------------------------------


async def test_branches_that_ask_the_same_are_kept_apart() -> None:
    world = World(Script((Rule(says("done")),), faults={3: Fails(503, "overloaded")}))
    model = Scripted(world=world)
    events: list[Event] = []

    async def branch(state: Log) -> Log:
        answer = await model.ainvoke("the same question")
        return {"log": [answer.text]}

    def spread(state: Log) -> list[Send]:
        return [Send("branch", {"log": []}) for _ in range(3)]

    built: Any = StateGraph(Log).add_node("branch", branch)
    graph = built.add_conditional_edges(START, spread, ["branch"]).compile()
    agent = triage.wrap(graph, always(Retry()), observers=[events.append])
    assert await agent.run({"log": []}) == {"log": ["done"] * 3}
    assert len(world.requests) == 4, "an answer that was there is asked for again"
    places = {step.metadata["call"].rsplit(":", 2)[0] for step in steps_of(events) if step.metadata}
    assert places == {f"langgraph branch#1.{at}" for at in range(3)}


# Streaming ------------------------------------------------------------------------------------------


async def test_pieces_are_told_while_the_graph_runs() -> None:
    world = World(Script(BOTH))
    graph = create_agent(Scripted(world=world), tools_of(world))
    told: list[tuple[str, Any]] = []

    async def on_chunk(mode: str, piece: Any) -> None:
        told.append((mode, sorted(piece)))

    agent = triage.wrap(graph, effects=world.effects)
    result = await agent.run("go", on_chunk=on_chunk)
    assert result["messages"][-1].text == "done"
    nodes = ["model", "tools", "model", "tools", "model"]
    assert told == [("updates", [node]) for node in nodes]
    told.clear()
    await agent.run(
        "go", on_chunk=lambda mode, piece: told.append((mode, None)), stream_mode="messages"
    )
    assert {mode for mode, _ in told} == {"messages"}


@table("version", ["v1", "v2"])
async def test_pieces_of_subgraphs_are_told_with_their_place(version: str) -> None:
    world = World(Script((Rule(says("done")),)))
    inner = create_agent(Scripted(world=world), [])
    graph: Any = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
    told: list[tuple[list[str], str, list[str]]] = []

    def on_chunk(place: tuple[str, ...], mode: str, piece: Any) -> None:
        told.append(([name.partition(":")[0] for name in place], mode, sorted(piece)))

    agent = triage.wrap(graph.compile())
    given = {"messages": [HumanMessage("go")]}
    result = await agent.run(given, on_chunk=on_chunk, subgraphs=True, version=version)
    state = result.value if version == "v2" else result
    assert state["messages"][-1].text == "done"
    assert told == [(["inner"], "updates", ["model"]), ([], "updates", ["inner"])]


class Late(InMemorySaver):
    """A saver whose process dies before it has stored what a step has come to; pending writes it has."""

    dying = True

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if self.dying and metadata["step"] == 1:
            place = {**config["configurable"], "checkpoint_id": checkpoint["id"]}
            return {"configurable": place}
        return await super().aput(config, checkpoint, metadata, new_versions)


class Death:
    """Where a process dies, the first time it comes there."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()

    async def __call__(self, *_: Any) -> None:
        if not self._reached.is_set():
            self._reached.set()
            await asyncio.sleep(3600)

    async def of(self, run: Any) -> None:
        """Run until then."""
        died = asyncio.create_task(run)
        await self._reached.wait()
        died.cancel()
        await asyncio.wait([died])


async def test_a_node_that_had_ended_does_not_run_again_where_its_checkpoint_came_too_late(
    tmp_path: Path,
) -> None:
    course, saver, death = Course(), Late(), Death()

    async def first(state: Log) -> Log:
        course.did.append("first")
        return {"log": ["first"]}

    async def second(state: Log) -> Log:
        course.did.append("second")
        await death()
        return {"log": ["second"]}

    store = f"sqlite:///{tmp_path}/runs.db"
    agent = course.agent(course.graph(first, second, saver=saver), store=store)
    await death.of(agent.run({"log": []}, run_id="r"))
    saver.dying = False
    assert await agent.recover("r") == {"log": ["first", "second"]}
    assert course.did == ["first", "second", "second"]
    await agent.store.close()


async def test_a_process_that_dies_while_a_result_is_checked_asks_no_model_anew(
    tmp_path: Path,
) -> None:
    death = Death()
    world = World(Script((Rule(says("done")),)))
    graph = create_agent(Scripted(world=world), [], checkpointer=InMemorySaver())
    agent = triage.wrap(graph, store=f"sqlite:///{tmp_path}/runs.db", verify=death)
    await death.of(agent.run("Go on.", run_id="r"))
    assert (await agent.recover("r"))["messages"][-1].text == "done"
    assert len(world.requests) == 1
    await agent.store.close()


async def test_answers_recorded_where_the_framework_asks_are_given_again(tmp_path: Path) -> None:
    """As in journals of earlier versions, also where the model is known to ask over HTTP."""
    death = Death()
    world = World(Script(BOTH))
    given: Any = {"effects": world.effects, "store": f"sqlite:///{tmp_path}/runs.db"}
    with loopback(world) as url:
        graph = create_agent(chat_model(url), tools_of(world))
        await triage.wrap(graph, effects=world.effects).run("go")
        known = len(world.requests)
        first = triage.wrap(graph, seam="off", verify=death, **given)
        await death.of(first.run("go", run_id="r"))
        await first.store.close()
        second = triage.wrap(graph, verify=death, **given)
        assert (await second.recover("r"))["messages"][-1].text == "done"
        await second.store.close()
    assert world.deeds == ["search(x)", "charge(300)"] * 2
    assert len(world.requests) - known == 3, "an answer was asked for again"


async def test_a_run_that_has_ended_gives_its_messages_to_who_recovers_it(tmp_path: Path) -> None:
    agent = triage.wrap(
        create_agent(Scripted(world=World(Script((Rule(says("done")),)))), []),
        store=f"sqlite:///{tmp_path}/runs.db",
    )
    result = await agent.run("Go on.", run_id="r")
    again = await agent.recover("r")
    assert again == result
    assert [message.type for message in again["messages"]] == ["human", "ai"]
    await agent.store.close()
