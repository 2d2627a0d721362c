"""Another model in place of the one a framework would ask: which it is, and what is said without one."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from tables import table

pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")
pytest.importorskip("agents", reason="openai-agents is not installed")

import agents
import openai
import pydantic_ai
from agents.models.interface import Model, ModelProvider
from benches import langgraph, openai_agents
from benches import pydantic_ai as pydantic_ai_bench
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider

import triage
from adapters.langchain_agents import chat_model
from adapters.own_framework import Framework, Theirs, recording, steps_of
from triage import Escalate, FailurePolicy, Retry, TriageEscalationError
from triage.adapters import NoSuchModel, Seam
from triage.strategies import shrink_context, switch_model
from triage.testing.adapter_contract import (
    Bench,
    Fails,
    Rule,
    Script,
    World,
    asks,
    call,
    loopback,
    says,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


DOWN = Fails(404, "The model `m` does not exist.", code="model_not_found")
ONLY_OTHER = Script((Rule(says("done"), model="other"), Rule(DOWN)))
SWITCHING = FailurePolicy(EXTERNAL_FAULT=switch_model(["other"]))


def asked(world: World) -> list[Any]:
    return [request.body["model"] for request in world.requests]


def why(error: BaseException) -> str:
    found: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        found.append(str(cause))
        cause = cause.__cause__
    return "\n".join(found)


def trying(*names: str) -> FailurePolicy:
    """Ask these models, one after the other, whatever fails."""
    left = list(names)
    return FailurePolicy(
        default=lambda failure: Retry(model=left.pop(0)) if left else Escalate("no model is left")
    )


def check_refused(error: TriageEscalationError, said: str) -> None:
    """Each name was refused with the same words, and taken for a model that is missing."""
    assert error.context is not None
    past = [one.diagnosis for one in error.context.attempt_history[1:]]
    assert [one.cause for one in (*past, error.context.diagnosis)] == ["model_missing"] * 2
    assert said in why(error)
    assert "Retry(model='third')" in why(error)


# LangChain ------------------------------------------------------------------------------------------


async def test_a_chat_model_asks_for_the_other_name_and_stays_as_it_is() -> None:
    world = World(ONLY_OTHER)
    with loopback(world) as url:
        model = chat_model(url, temperature=0.5)
        agent = triage.wrap(model, SWITCHING)
        assert (await agent.run("Hello.")).text == "done"
        assert model.model_name == "m"
    assert asked(world) == ["m", "other"]
    assert [request.body["temperature"] for request in world.requests] == [0.5, 0.5]


async def test_a_chat_model_that_does_not_ask_over_http_is_no_other_one() -> None:
    model = FakeListChatModel(responses=["x"])
    failed: list[int] = []

    async def fails_first(text: str) -> Any:
        failed.append(1)
        if len(failed) == 1:
            raise ValueError("odd")
        return await model.ainvoke(text)

    with pytest.raises(TriageEscalationError) as caught:
        await triage.wrap(RunnableLambda(fails_first), trying("other", "third")).run("Hello.")
    check_refused(caught.value, "FakeListChatModel does not ask over HTTP")


# Pydantic AI ----------------------------------------------------------------------------------------


@table(
    ("name", "model", "wrapper"),
    [
        ("other", "other", WrapperModel),
        ("openai-chat:other", "other", None),  # the framework makes it
        ("llama3:8b", "llama3:8b", None),  # one of the same provider
    ],
)
async def test_another_name_is_asked_and_a_wrapper_stays_around_its_model(
    name: str, model: str, wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(Script((Rule(says("done"), model=model), Rule(DOWN))))
    with loopback(world) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="y", max_retries=0) as client:
            provider = OpenAIProvider(openai_client=client)
            inner = OpenAIChatModel("m", provider=provider, settings={"temperature": 0.5})
            agent = pydantic_ai.Agent(wrapper(inner) if wrapper else inner)
            policy = FailurePolicy(EXTERNAL_FAULT=switch_model([name]))
            assert (await triage.wrap(agent, policy).run("Hello.")).output == "done"
            assert inner.model_name == "m"
    assert asked(world) == ["m", model]
    if wrapper:
        assert [request.body["temperature"] for request in world.requests] == [0.5, 0.5]


async def test_a_model_without_a_provider_says_what_name_would_do() -> None:
    failed: list[int] = []

    async def look() -> str:
        failed.append(1)
        if len(failed) == 1:
            raise ValueError("odd")
        return "found"

    agent = pydantic_ai.Agent(TestModel(), tools=[look])
    with pytest.raises(TriageEscalationError) as caught:
        await triage.wrap(agent, trying("other", "third"), effects={"look": "read"}).run("Hello.")
    check_refused(caught.value, "TestModel has no provider to ask for it; give the name with its")


# OpenAI Agents SDK ----------------------------------------------------------------------------------


class Provider(ModelProvider):
    """A provider of models by name. made: the names that were asked for."""

    def __init__(self, client: openai.AsyncOpenAI, known: tuple[str, ...]) -> None:
        self.client = client
        self.known = known
        self.made: list[str | None] = []

    def get_model(self, model_name: str | None) -> Model:
        self.made.append(model_name)
        if model_name not in self.known:
            raise agents.UserError(f"no model is called {model_name}")
        return agents.OpenAIResponsesModel(model_name, self.client)


async def run_named(url: str, known: tuple[str, ...], policy: FailurePolicy, **more: Any) -> Any:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
    async with client:
        agent: agents.Agent[Any] = agents.Agent(name="clerk", model=known[0], **more)
        config = agents.RunConfig(model_provider=Provider(client, known), tracing_disabled=True)
        result = await triage.wrap(agent, policy).run("Hello.", run_config=config)
        return result.final_output


async def test_settings_that_go_with_a_models_name_are_those_of_the_one_that_is_asked() -> None:
    world = World(Script((Rule(says("done"), model="gpt-4.1"), Rule(DOWN))))
    policy = FailurePolicy(EXTERNAL_FAULT=switch_model(["gpt-5.1", "gpt-4.1"]))
    with loopback(world) as url:
        assert await run_named(url, ("gpt-5", "gpt-5.1", "gpt-4.1"), policy) == "done"
    assert asked(world) == ["gpt-5", "gpt-5.1", "gpt-4.1"]
    efforts = [request.body.get("reasoning", {}).get("effort") for request in world.requests]
    assert efforts == ["low", "none", None]


async def test_a_name_that_the_provider_does_not_know_is_passed_over() -> None:
    world = World(ONLY_OTHER)
    policy = FailurePolicy(EXTERNAL_FAULT=switch_model(["unknown", "other"]))
    with loopback(world) as url:
        assert await run_named(url, ("m", "other"), policy) == "done"
        assert asked(world) == ["m", "other"]
        with pytest.raises(TriageEscalationError) as caught:
            await run_named(url, ("m",), FailurePolicy(EXTERNAL_FAULT=switch_model(["unknown"])))
    assert "model_provider has none: no model is called unknown" in why(caught.value)


# The seam -------------------------------------------------------------------------------------------


async def falls_over(framework: Framework, seam: Seam) -> Any:
    await framework.model(seam, "first")
    answer = await framework.model(seam, "second")
    framework.did.append(f"{seam.other_model} {seam.shrink and seam.shrink.keep_last}")
    return answer["text"]


async def test_the_step_names_the_model_that_answered_also_where_it_is_given_again() -> None:
    framework = Framework(falls_over, {2: ConnectionError("down"), 3: ConnectionError("down")})
    agent, events = recording(framework, policy=trying("b", "c"))
    assert await agent.run("x") == "on second"
    named = [(step.tool_input, (step.metadata or {})["model"]) for step in steps_of(events)]
    assert named == [
        ("first", "m"),
        ("second", "m"),
        ("first", "m"),
        ("second", "b"),
        ("first", "m"),
        ("second", "c"),
    ]


class Fixed(Theirs):
    cannot: ClassVar[Mapping[str, str]] = {"switch": "it has one model", "shrink": "it sees none"}


async def test_what_an_adapter_cannot_do_is_not_asked_of_it_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    framework = Framework(falls_over, {2: ConnectionError("down")})
    policy = FailurePolicy(default=Retry(model="b", keep_last=4))
    with caplog.at_level(logging.WARNING, logger="triage.adapters"):
        agent, events = recording(framework, Fixed, policy=policy)
        await agent.run("x")
    assert framework.did == ["None None"]
    assert {(step.metadata or {})["model"] for step in steps_of(events)} == {"m"}
    assert "requests are as long as before (theirs: it sees none)" in caplog.text
    assert "the same model is asked, and not b (theirs: it has one model)" in caplog.text


async def test_an_adapter_is_told_what_its_requests_are_to_be_made_of() -> None:
    framework = Framework(falls_over, {2: ConnectionError("down")})
    policy = FailurePolicy(default=Retry(model="b", keep_last=4))
    agent, _ = recording(framework, policy=policy)
    await agent.run("x")
    assert framework.did == ["b 4"]


def test_the_error_names_the_field_and_what_gives_it() -> None:
    told = str(NoSuchModel("x", "it has none"))
    assert told == "Retry(model='x'), as of switch_model or recommended(models=…): it has none"


# Streams --------------------------------------------------------------------------------------------

PAGE = "x" * 4_000
LONG_TALK = Script(
    (
        Rule(Fails(400, "too long", code="context_length_exceeded"), longer=6_000),
        Rule(says("done"), "found 1"),
        Rule(asks(call("search", query="b")), "found 0"),
        Rule(asks(call("search", query="a"))),
    ),
    tools={"search": (f"found 0 {PAGE}", f"found 1 {PAGE}")},
    streamed=True,
)
BENCHES: list[Bench] = [langgraph.BENCH, pydantic_ai_bench.BENCH, openai_agents.BENCH]


async def streamed(bench: Bench, script: Script, policy: FailurePolicy) -> World:
    world = World(script)
    with loopback(world) as url:
        async with bench.agent(world, url, policy=policy) as agent:
            result = await agent.run("Do the work.", **bench.given(world))
        assert bench.text(result) == "done"
    return world


@table("bench", BENCHES)
async def test_streams_come_from_the_other_model(bench: Bench) -> None:
    world = await streamed(bench, ONLY_OTHER._replace(streamed=True), SWITCHING)
    assert asked(world) == ["m", "other"]


@table("bench", BENCHES)
async def test_requests_of_streams_are_made_shorter(bench: Bench) -> None:
    policy = FailurePolicy(CONTEXT_OVERFLOW=shrink_context(keep_last=2))
    world = await streamed(bench, LONG_TALK, policy)
    assert all(request.body["stream"] for request in world.requests)
    told = json.dumps(world.requests[-1].body)
    assert "[left out: 4,008 characters]" in told
    assert f"found 1 {PAGE}" in told
