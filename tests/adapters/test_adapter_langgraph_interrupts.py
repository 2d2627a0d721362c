"""Interrupts of a graph: the run waits for an answer, and the graph is given it once, whoever goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support import always
from tables import table

import triage
from adapters.langchain_agents import Log, Scripted, calls_of, steps_of, tools_of
from triage import Agent, Retry, TriageSuspendedError, approve, happened
from triage.core import ApprovalAsked, Event, UsageError
from triage.testing.adapter_contract import Fails, Rule, Script, World, asks, call, check_wire, says

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

CHARGE = asks(call("charge", cents=300))
PAYS = (Rule(says("done"), "receipt 5"), Rule(says("as you wish"), "rejected"), Rule(CHARGE))


def asking(*questions: Any, saver: Any = None, failures: int = 0) -> Any:
    """A graph whose node asks these questions, one after the other, and then fails so often."""
    left = [failures]

    async def ask(state: Log) -> Log:
        answers = [interrupt(question) for question in questions]
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionError("reset")
        return {"log": answers}

    built: Any = StateGraph(Log).add_node("ask", ask).add_edge(START, "ask")
    return built.compile(InMemorySaver() if saver is None else saver)


async def suspended(run: Any) -> TriageSuspendedError:
    with pytest.raises(TriageSuspendedError) as caught:
        await run
    return caught.value


@table(("answer", "log"), [(happened(3), 3), (happened(None), None), (approve(), True)])
async def test_an_interrupt_suspends_the_run_and_its_answer_is_the_graphs(
    answer: Any, log: Any
) -> None:
    agent = triage.wrap(asking({"question": "how many?"}))
    waits = await suspended(agent.run({"log": []}))
    assert 'the graph waits for an answer: {"question": "how many?"}' in str(waits)
    assert await agent.resume(waits.token, answer) == {"log": [log]}


@table("streams", [True, False])
async def test_interrupts_of_the_second_form_of_results_are_asked_too(*, streams: bool) -> None:
    agent = triage.wrap(asking("how many?"))
    options: dict[str, Any] = {"on_chunk": lambda mode, piece: None} if streams else {}
    waits = await suspended(agent.run({"log": []}, version="v2", **options))
    result = await agent.resume(waits.token, happened(3))
    assert (result.value, result.interrupts) == ({"log": [3]}, ())


async def test_each_question_has_its_own_answer_even_where_they_are_the_same() -> None:
    agent = triage.wrap(asking("what?", "what?"))
    first = await suspended(agent.run({"log": []}))
    second = await suspended(agent.resume(first.token, happened("a")))
    assert await agent.resume(second.token, happened("b")) == {"log": ["a", "b"]}


async def test_a_failure_after_an_answer_asks_nothing_again() -> None:
    events: list[Event] = []
    graph = asking("what?", failures=1)
    agent = triage.wrap(graph, always(Retry()), observers=[events.append])
    waits = await suspended(agent.run({"log": []}))
    assert await agent.resume(waits.token, happened("a")) == {"log": ["a"]}
    answers = [step for step in steps_of(events) if step.action == "answer"]
    assert len(answers) == 1, "the answer was given to the graph more than once"


async def test_interrupts_of_nodes_side_by_side_are_asked_and_answered_together() -> None:
    async def left(state: Log) -> Log:
        return {"log": [("left", interrupt("left?"))]}

    async def right(state: Log) -> Log:
        return {"log": [("right", interrupt("right?"))]}

    built: Any = StateGraph(Log).add_node("left", left).add_node("right", right)
    graph = built.add_edge(START, "left").add_edge(START, "right").compile(InMemorySaver())
    agent = triage.wrap(graph)
    waits = await suspended(agent.run({"log": []}))
    _, _, asked = waits.question.partition("answer: ")
    ids = {value: key for key, value in (one.split() for one in asked.split("; "))}
    answers = {ids['"left?"']: "l", ids['"right?"']: "r"}
    result = await agent.resume(waits.token, happened(answers))
    assert sorted(result["log"]) == [("left", "l"), ("right", "r")]


@table("modes", ["updates", "messages", ["updates", "values"]])
async def test_pieces_that_nobody_is_told_are_refused(modes: Any) -> None:
    """The result would be a list of them, in which no failure and no interrupt is looked for."""
    agent = triage.wrap(asking("how many?"))
    with pytest.raises(triage.UsageError, match="give on_chunk"):
        await agent.run({"log": []}, stream_mode=modes)


async def test_another_process_goes_on_with_the_answer(tmp_path: Path) -> None:
    def agent_on(saver: Any) -> Agent[Any]:
        return triage.wrap(asking("what?", saver=saver), store=f"sqlite:///{tmp_path / 'runs.db'}")

    threads = str(tmp_path / "threads.db")
    async with AsyncSqliteSaver.from_conn_string(threads) as saver:
        first = agent_on(saver)
        waits = await suspended(first.run({"log": []}))
        await first.store.close()
    async with AsyncSqliteSaver.from_conn_string(threads) as saver:
        second = agent_on(saver)
        assert await second.resume(waits.token, happened("a")) == {"log": ["a"]}
        await second.store.close()


async def test_a_graph_that_keeps_nothing_cannot_wait() -> None:
    async def ask(state: Log) -> Log:
        return {"log": [interrupt("what?")]}

    built: Any = StateGraph(Log).add_node("ask", ask).add_edge(START, "ask")
    agent = triage.wrap(built.compile(), always(Retry()))
    with pytest.raises(triage.UsageError, match="compile it with a checkpointer"):
        await agent.run({"log": []})


# Approvals of LangChain's middleware ------------------------------------------------------------------


def paying(script: Script, events: list[Event]) -> tuple[World, Agent[Any]]:
    world = World(script)
    graph = create_agent(
        Scripted(world=world),
        tools_of(world),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"charge": True})],
        checkpointer=InMemorySaver(),
    )
    agent = triage.wrap(graph, always(Retry()), effects=world.effects, observers=[events.append])
    return world, agent


async def test_an_approved_call_runs_once_though_the_model_fails_after_it() -> None:
    events: list[Event] = []
    world, agent = paying(Script(PAYS, faults={2: Fails(503, "overloaded")}), events)
    waits = await suspended(agent.run("pay"))
    assert world.deeds == []
    result = await agent.resume(waits.token, approve())
    assert result["messages"][-1].text == "done"
    assert world.deeds == ["charge(300)"]
    assert len(world.requests) == 3
    check_wire(world.requests)


async def test_a_call_may_be_edited_and_refused_in_the_middlewares_own_words() -> None:
    events: list[Event] = []
    world, agent = paying(Script((Rule(says("done"), "receipt 5"), Rule(CHARGE))), events)
    waits = await suspended(agent.run("pay"))
    edited = {"type": "edit", "edited_action": {"name": "charge", "args": {"cents": 200}}}
    await agent.resume(waits.token, happened({"decisions": [edited]}))
    assert calls_of(events) == [("charge", {"cents": 200}, "receipt 5")]

    world, agent = paying(Script(PAYS), events)
    waits = await suspended(agent.run("pay"))
    decision = {"type": "reject", "message": "rejected by the boss"}
    result = await agent.resume(waits.token, happened({"decisions": [decision]}))
    assert result["messages"][-1].text == "as you wish"
    assert world.deeds == []


async def test_a_tool_that_asks_has_not_failed() -> None:
    @tool
    async def charge(cents: int) -> str:
        """Charge the card."""
        said = interrupt(f"charge {cents}?")
        return f"receipt 5, {said}"

    world = World(Script(PAYS))
    events: list[Event] = []
    graph = create_agent(Scripted(world=world), [charge], checkpointer=InMemorySaver())
    agent = triage.wrap(graph, effects={"charge": "once"}, observers=[events.append])
    waits = await suspended(agent.run("pay"))
    assert "charge 300?" in str(waits)
    result = await agent.resume(waits.token, happened("go"))
    message = result["messages"][-1]
    assert isinstance(message, AIMessage)
    assert message.text == "done"
    assert calls_of(events)[-1] == ("charge", {"cents": 300}, "receipt 5, go")


async def test_a_bare_value_for_several_interrupts_is_refused_and_the_token_stays_good() -> None:
    def half(name: str) -> Any:
        async def ask(state: Log) -> Log:
            return {"log": [interrupt(name)]}

        return ask

    built: Any = StateGraph(Log)
    for name in ("day", "hour"):
        built = built.add_node(name, half(name)).add_edge(START, name)
    events: list[Event] = []
    agent = triage.wrap(built.compile(InMemorySaver()), observers=[events.append])
    waits = await suspended(agent.run({"log": []}))
    for wrong in ("Monday", None, {}, {"day": "Monday"}, ["Monday", 9]):
        with pytest.raises(UsageError, match="asks 2 questions at once"):
            await agent.resume(waits.token, happened(wrong))
    (asked,) = [event for event in events if isinstance(event, ApprovalAsked)]
    result = await agent.resume(
        waits.token, happened(dict.fromkeys(asked.payload["parts"], "soon"))
    )
    assert result["log"] == ["soon", "soon"]
