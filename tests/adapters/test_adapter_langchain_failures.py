"""Requests and failures of LangChain: what is repaired and told, what is no success, and why."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ModelCallLimitMiddleware,
    ModelRetryMiddleware,
    ToolCallLimitMiddleware,
)
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy
from tables import table

import triage
from adapters.langchain_agents import (
    Log,
    Refused,
    Scripted,
    chat_model,
    steps_of,
    tools_of,
    turn_asking,
    wrapped,
)
from triage import Escalate, FailureType, Retry, TriageEscalationError
from triage.adapters import SoftFailure
from triage.adapters.langchain import ANSWER
from triage.core import Cause
from triage.core.json_values import plain
from triage.core.messages.neutral import LOST
from triage.testing.adapter_contract import (
    Fails,
    Rule,
    Script,
    World,
    asks,
    call,
    check_wire,
    loopback,
    says,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

HELLO = Script((Rule(says("hello"), "greet"), Rule(says("what?"))))
# Requests -------------------------------------------------------------------------------------------


async def test_a_conversation_that_was_closed_goes_on_as_it_was_sent() -> None:
    world = World(Script(HELLO.rules, faults={4: Fails(503, "overloaded")}))

    async def talk(url: str) -> int:
        model = chat_model(url)
        messages: list[BaseMessage] = [HumanMessage("greet"), turn_asking("c1")]
        for late in ((), (), (ToolMessage("17", tool_call_id="c1"),), ()):
            messages += [*late, HumanMessage("greet")]
            messages.append(await model.ainvoke(messages))
        return len(messages)

    agent, _ = wrapped(RunnableLambda(talk))
    with loopback(world) as url:
        assert await agent.run(url) == 11
    check_wire(world.requests)
    results = [
        [message["content"] for message in request.body["messages"] if message["role"] == "tool"]
        for request in world.requests
    ]
    assert results == [[LOST], [LOST], ["17"], ["17"], ["17"]]


_IDS = st.sampled_from(["a", "b", "c"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
_ANSWERS = st.builds(
    AIMessage,
    content=st.text(max_size=9) | st.just([{"type": "text", "text": "part"}]),
    id=st.none() | st.text(min_size=1, max_size=5),
    tool_calls=st.lists(
        st.fixed_dictionaries(
            {"name": st.text(min_size=1, max_size=5), "id": _IDS}
            | {"args": st.dictionaries(st.text(max_size=3), _JSON, max_size=2)}
        ),
        max_size=2,
    ),
    response_metadata=st.dictionaries(st.text(max_size=3), _JSON, max_size=2),
)


@given(_ANSWERS)
def test_an_answer_is_read_back_as_it_was(message: AIMessage) -> None:
    result = ChatResult(generations=[ChatGeneration(message=message)])
    found = ANSWER.load(plain(ANSWER.dump(result)))
    assert found.generations[0].message == message


async def test_a_hint_that_stands_there_already_is_not_said_twice() -> None:
    world = World(Script(HELLO.rules, faults={1: Fails(503, "overloaded")}))
    agent, _ = wrapped(Scripted(world=world), Retry("please greet"))
    await agent.run("please greet")
    assert [len(request.body["messages"]) for request in world.requests] == [1, 1]


# Failures -------------------------------------------------------------------------------------------


@table(
    "result",
    [
        {"messages": [ToolMessage("boom", tool_call_id="c1", status="error")]},
        AIMessage("", invalid_tool_calls=[{"name": "f", "args": "{", "id": "1", "error": None}]),
        {"messages": [AIMessage("Sorry, need more steps to process this request.")]},
        {"messages": [AIMessage("It costs 3.")], "structured_response": None},
    ],
)
async def test_a_result_that_stands_for_a_failure_is_none(result: Any) -> None:
    agent, _ = wrapped(RunnableLambda(lambda _: result), Escalate())
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("go")
    assert isinstance(caught.value.__cause__, SoftFailure)


async def test_an_ordinary_answer_is_a_result() -> None:
    results: list[Any] = [
        turn_asking("c1"),
        AIMessage("Sorry, I cannot."),
        {"messages": []},
        {"messages": [AIMessage("It costs 3.")], "structured_response": {"cents": 3}},
        "text",
        None,
    ]
    for result in results:

        def gives(_: Any, made: Any = result) -> Any:
            return made

        agent, _ = wrapped(RunnableLambda(gives))
        assert await agent.run("go") == result


LOOP = Script((Rule(asks(call("search", query="x"))),))


@table(
    ("middleware", "steps", "version"),
    [
        ([ModelCallLimitMiddleware(run_limit=2)], 20, "v1"),
        ([ModelCallLimitMiddleware(run_limit=2)], 20, "v2"),
        ([ModelCallLimitMiddleware(run_limit=2, exit_behavior="error")], 20, "v1"),
        ([ToolCallLimitMiddleware(run_limit=1, exit_behavior="end")], 20, "v1"),
        ([ToolCallLimitMiddleware(run_limit=1, exit_behavior="error")], 20, "v1"),
        ([], 4, "v1"),
    ],
)
async def test_an_agent_that_runs_out_of_steps_is_known_for_it(
    middleware: Any, steps: int, version: str
) -> None:
    world = World(LOOP)
    graph = create_agent(Scripted(world=world), tools_of(world), middleware=middleware)
    agent, _ = wrapped(graph, Escalate(), effects=world.effects)
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("go", config={"recursion_limit": steps}, version=version)
    diagnosis = caught.value.diagnosis
    assert diagnosis is not None
    assert diagnosis.failure_type is FailureType.PLAN_INCOMPLETE
    assert diagnosis.cause == Cause.STEP_BUDGET
    assert len(world.requests) == 2


async def test_a_model_that_was_retried_in_vain_has_failed_for_its_own_reason() -> None:
    world = World(Script((Rule(Fails(429, "Rate limit reached")),)))
    retry = ModelRetryMiddleware(max_retries=1, initial_delay=0.0)
    agent, events = wrapped(create_agent(Scripted(world=world), middleware=[retry]), Escalate())
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("go")
    diagnosis = caught.value.diagnosis
    assert diagnosis is not None
    assert diagnosis.cause == Cause.RATE_LIMITED
    assert isinstance(caught.value.__cause__, SoftFailure)
    assert isinstance(caught.value.__cause__.__cause__, Refused)
    assert len(steps_of(events)) == 2, "a try of the middleware is not recorded"


async def test_a_context_that_is_too_long_is_known_for_it() -> None:
    def fails(_: Any) -> Any:
        raise ContextOverflowError("no")

    agent, _ = wrapped(RunnableLambda(fails), Escalate())
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("go")
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.failure_type is FailureType.CONTEXT_OVERFLOW


# Retries of their own -------------------------------------------------------------------------------


def test_what_retries_by_itself_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class Often(Scripted):
        max_retries: int = 4

    class Again(ModelRetryMiddleware):
        """A class of its own, as each class is said once in a process."""

    model = Often(world=World(HELLO))

    async def node(state: Log) -> Log:
        await model.ainvoke("hello")
        return {"log": []}

    built: Any = StateGraph(Log)
    built.add_node("node", node, retry_policy=RetryPolicy(max_attempts=3)).add_edge(START, "node")
    with caplog.at_level(logging.WARNING, "triage.retries"):
        triage.wrap(built.compile())
        triage.wrap(RunnableLambda(lambda _: None).with_retry(stop_after_attempt=5))
        triage.wrap(create_agent(Scripted(world=World(HELLO)), middleware=[Again(max_retries=7)]))
    text = caplog.text
    assert "Often retries up to 4 times" in text
    assert "langgraph.types.RetryPolicy retries up to 2 times" in text
    assert "RunnableRetry retries up to 4 times" in text
    assert "Again retries up to 7 times" in text
