"""What happens once happens once, whoever calls it; and what a tool's name alone says of its effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import agents as sdk
import anyio
import pytest
from adapters.langchain_agents import Scripted as ScriptedChat
from adapters.pydantic_agents import Scripted, call
from adapters.sdk_agents import model as sdk_model
from adapters.sdk_agents import says as sdk_says
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext
from support import FakeEnvironment, always, question_of

import triage
from engine.asked_models import HINT, Provider, answer, asking, user
from triage import Agent, Checks, Replan, Retry, TriageEscalationError, TriageSuspendedError, rerun
from triage.adapters.openai import record, run_tools
from triage.engine import Watching
from triage.testing.adapter_contract import Rule, Script, World, asks, says
from triage.testing.adapter_contract import call as tool_call

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


POLICIES = pytest.mark.parametrize(
    "policy",
    [None, always(Replan(HINT)), always(Retry(hint=HINT))],
    ids=["default", "replan", "retry"],
)


class Till:
    """A tool that happens once, which the model may call and code may call. charged: what it has done."""

    def __init__(self) -> None:
        self.charged: list[int] = []
        self.fails = [True]

        @triage.tool(effect="once")
        async def charge(cents: int) -> str:
            """Charge the card."""
            self.charged.append(cents)
            return f"receipt {cents}"

        self.charge = charge

    def fail_once(self) -> None:
        """What comes after the charge fails, the first time."""
        if self.fails:
            self.fails.pop()
            raise ValueError("the total does not add up")


def only_on_asyncio(anyio_backend: str) -> None:
    if anyio_backend != "asyncio":
        pytest.skip("the framework runs on asyncio only")


@POLICIES
@pytest.mark.parametrize("in_subgraph", [False, True])
async def test_a_node_that_calls_the_tool_itself(
    policy: Any, anyio_backend: str, *, in_subgraph: bool
) -> None:
    only_on_asyncio(anyio_backend)
    till, world = Till(), World(Script((Rule(says("done")),)))
    model = ScriptedChat(world=world)

    async def asks_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def pays(state: MessagesState) -> dict[str, Any]:
        await till.charge(300)
        return {}

    async def checks(state: MessagesState) -> dict[str, Any]:
        till.fail_once()
        return {}

    inner = StateGraph(MessagesState)
    inner.add_node("pay", pays)
    inner.add_edge(START, "pay")
    inner.add_edge("pay", END)
    graph = StateGraph(MessagesState)
    graph.add_node("ask", asks_model)
    graph.add_node("pay", inner.compile() if in_subgraph else pays)
    graph.add_node("check", checks)
    for one, other in ((START, "ask"), ("ask", "pay"), ("pay", "check"), ("check", END)):
        graph.add_edge(one, other)
    agent = triage.wrap(graph.compile(), policy, environment=FakeEnvironment())
    await agent.run({"messages": [("user", "pay")]})
    assert till.charged == [300]


@POLICIES
async def test_code_that_calls_the_tool_after_run_tools(policy: Any) -> None:
    till, provider = Till(), Provider()
    client = record(provider.client())

    async def works(task: str) -> str:
        conversation = await run_tools(
            client, model="m", messages=[user("hello")], tools=[till.charge]
        )
        await till.charge(300)
        till.fail_once()
        return conversation.text

    assert (await Agent(works, policy, environment=FakeEnvironment()).run("t")).startswith("re: ")
    assert till.charged == [300]


@POLICIES
async def test_two_conversations_in_one_function_keep_apart(policy: Any) -> None:
    till, provider = Till(), Provider()
    client = record(provider.client())

    async def works(task: str) -> list[str]:
        first = await run_tools(client, model="m", messages=[user("first")], tools=[till.charge])
        second = await run_tools(client, model="m", messages=[user("second")], tools=[till.charge])
        till.fail_once()
        return [first.text, second.text]

    await Agent(works, policy, environment=FakeEnvironment()).run("t")
    for sent in provider.sent:
        words = [message["content"] for message in sent]
        assert not ("first" in words and "second" in words)
        assert not ("re: first" in words and "second" in words)


@POLICIES
async def test_a_handoff_that_calls_the_tool(policy: Any, anyio_backend: str) -> None:
    only_on_asyncio(anyio_backend)
    till = Till()

    async def pays(context: Any) -> None:
        await till.charge(300)
        till.fail_once()

    second = sdk.Agent(name="second", model=sdk_model(*[sdk_says("done")] * 5))
    handoff = sdk.handoff(second, on_handoff=pays)
    turn = [sdk.testing.function_call("transfer_to_second", {}, call_id="call_1")]
    first = sdk.Agent(name="first", model=sdk_model(*[turn] * 5), handoffs=[handoff])
    assert (
        await triage.wrap(first, policy, environment=FakeEnvironment()).run("pay")
    ).final_output == "done"
    assert till.charged == [300]


@POLICIES
async def test_an_output_validator_that_calls_the_tool(policy: Any, anyio_backend: str) -> None:
    only_on_asyncio(anyio_backend)
    till = Till()
    clerk = PydanticAgent(Scripted("done").model)

    @clerk.output_validator
    async def pays(context: RunContext[object], output: str) -> str:
        await till.charge(300)
        till.fail_once()
        return output

    assert (
        await triage.wrap(clerk, policy, environment=FakeEnvironment()).run("pay")
    ).output == "done"
    assert till.charged == [300]


@POLICIES
async def test_an_agent_inside_a_tool_that_calls_the_tool(policy: Any, anyio_backend: str) -> None:
    only_on_asyncio(anyio_backend)
    till = Till()
    helper = PydanticAgent(Scripted(call("charge", cents=300), "paid").model, tools=[till.charge])

    async def delegate() -> str:
        """Have it paid."""
        return str((await helper.run("pay")).output)

    clerk = PydanticAgent(
        Scripted(call("delegate"), "done", "done", "done").model, tools=[delegate]
    )

    @clerk.output_validator
    async def checks(context: RunContext[object], output: str) -> str:
        till.fail_once()
        return output

    assert (
        await triage.wrap(clerk, policy, environment=FakeEnvironment()).run("pay")
    ).output == "done"
    assert till.charged == [300]


# Over random agents -----------------------------------------------------------------------------------
deeds = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 3)),
        st.tuples(st.just("charge"), st.integers(1, 3)),
        st.tuples(st.just("inner"), st.integers(1, 3)),
        st.tuples(st.just("talk"), st.integers(1, 3)),
        st.tuples(st.just("look"), st.integers(0, 2)),
    ),
    min_size=1,
    max_size=7,
)


Failure = tuple[int, type[Exception]]


failures = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.sampled_from([ValueError, ConnectionError, KeyError, RuntimeError, AssertionError]),
    ),
    max_size=3,
)


actions = st.sampled_from([Retry(hint=HINT), Replan(HINT), None])


class Course:
    """An agent that does these things one after the other, and fails at some of them, once each."""

    def __init__(
        self, deeds: Sequence[tuple[str, int]], fails: Sequence[Failure], action: Any
    ) -> None:
        self.deeds = deeds
        self.charged: list[int] = []
        self.environment = FakeEnvironment()
        self._left = list(fails)
        talks = {f"talk {number}": [asking("charge", cents=number)] for number in range(1, 4)}
        self._client = record(Provider(talks).client())
        self._policy = None if action is None else always(action)

        @triage.tool(effect="once")
        async def charge(cents: int) -> str:
            self.charged.append(cents)
            return f"receipt {cents}"

        @triage.tool(effect="read")
        async def look(at: int) -> int:
            return at

        async def pays(task: int) -> str:
            await answer(self._client, f"pay {task}")
            return await charge(task)

        async def talk(number: int) -> str:
            words = [user(f"talk {number}")]
            return (await run_tools(self._client, model="m", messages=words, tools=[charge])).text

        inner = Agent(pays, name="payer", policy=self._policy, environment=self.environment)
        self._does: dict[str, Callable[[int], Awaitable[Any]]] = {
            "ask": lambda number: answer(self._client, f"question {number}"),
            "charge": charge,
            "inner": inner.run,
            "talk": talk,
            "look": look,
        }

    async def works(self, task: str) -> str:
        for at, (what, number) in enumerate(self.deeds):
            for one in self._left:
                if one[0] == at:
                    self._left.remove(one)
                    raise one[1](f"at {at}")
            await self._does[what](number)
        return "end"

    async def lives(self) -> str:
        # Equal purchases in a row are meant here, and no loop that the model is told of.
        unwatched = Checks(watch=Watching(hint_after=None, interrupt_after=None))
        try:
            options: dict[str, Any] = {"checks": unwatched, "environment": self.environment}
            return str(await Agent(self.works, self._policy, **options).run("t"))
        except (TriageEscalationError, TriageSuspendedError) as error:
            return type(error).__name__


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(deeds=deeds, fails=failures, action=actions)
def test_every_effect_of_a_random_agent_happens_as_often_as_it_is_meant_to_or_is_asked_about(
    backend: str, deeds: list[tuple[str, int]], fails: list[Failure], action: Any
) -> None:
    course = Course(deeds, fails, action)
    ended = anyio.run(course.lives, backend=backend)
    meant = Counter(number for what, number in deeds if what in ("charge", "inner", "talk"))
    assert not Counter(course.charged) - meant, "an effect was repeated"
    if ended == "end" and action is not None:
        # Told in words of its own, the scripted model may have no wish to buy.
        assert Counter(course.charged) == meant


async def test_a_second_purchase_with_other_arguments_is_asked_about() -> None:
    till, provider = Till(), Provider({"how much?": ["300", "310"]})
    client = record(provider.client())

    async def works(task: str) -> str:
        found = await answer(client, "how much?")
        receipt = await till.charge(int(found))
        till.fail_once()
        return receipt

    agent = Agent(works, always(Retry(hint=HINT)))
    asked = await question_of(agent.run("t"), match="may it run again")
    assert till.charged == [300]
    assert await agent.resume(asked.token, rerun()) == "receipt 310"


async def test_a_purchase_that_never_ran_is_not_compared(anyio_backend: str) -> None:
    only_on_asyncio(anyio_backend)
    till = Till()
    rules = (
        Rule(says("done"), "receipt"),
        Rule(asks(tool_call("charge", cents=300)), "cents"),
        Rule(asks(tool_call("charge", cents="many"))),
    )
    world = World(Script(rules))
    graph = create_agent(ScriptedChat(world=world), [till.charge])
    result = await triage.wrap(graph).run({"messages": [("user", "pay")]})
    last = result["messages"][-1]
    assert isinstance(last, AIMessage)
    assert last.text == "done"
    assert till.charged == [300]
