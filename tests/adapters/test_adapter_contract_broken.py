"""The contract finds what is wrong: no scenario of it is kept by an adapter that does nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import openai
import pytest
from benches import Texts, failures_of

import triage
from triage import Agent
from triage.adapters.openai import record, run_tools
from triage.testing.adapter_contract import (
    CAPABILITIES,
    Request,
    Scenario,
    World,
    adapter_scenarios,
    check_adapter,
    check_wire,
    matrix,
    needs_of,
    not_offered,
    owed_scenarios,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


def named(scenario: str) -> Scenario:
    (chosen,) = (one for one in adapter_scenarios if getattr(one, "__name__", "") == scenario)
    return chosen


# An adapter that does nothing -----------------------------------------------------------------------


class Nothing(Texts):
    """A function around a bare client and bare tools: streams, helpers and handoffs, and no adapter."""

    name = "nothing"
    offers = frozenset(CAPABILITIES)

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        async def agent(task: str) -> str:
            plain = openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key="x", max_retries=world.script.retries
            )
            async with plain:
                told = [*world.before(), {"role": "user", "content": task}]
                return await Loop(plain, world).ends(told)

        yield Agent(agent, seam="off", **options)


class Loop:
    """What people write by hand: it asks, calls what it knows, and tells the model of its mistakes."""

    def __init__(self, client: openai.AsyncOpenAI, world: World) -> None:
        self.client = client
        self.world = world
        self.tools: dict[str, Callable[..., Any]] = {
            tool.__name__: tool for tool in world.functions()
        }
        self.helpers = world.script.helpers

    async def ends(self, messages: list[Any], *, depth: int = 0) -> str:
        for _ in range(10):
            said = await self.asked(messages)
            calls = said.get("tool_calls") or []
            if not calls:
                return str(said["content"])
            messages = [*messages, said]
            results: dict[str, str] = {}
            async with anyio.create_task_group() as group:
                for call in calls:
                    group.start_soon(self.call, call, results)
            for call in calls:
                told = results[call["id"]]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})
                name = call["function"]["name"]
                if name.startswith("transfer_to_"):
                    helper = name.removeprefix("transfer_to_")
                    messages.insert(
                        0, {"role": "system", "content": self.world.instructions(helper)}
                    )
        raise RuntimeError("no answer")

    async def asked(self, messages: list[Any]) -> dict[str, Any]:
        ask: Any = self.client.chat.completions.create
        if not self.world.script.streamed:
            answer = await ask(model="m", messages=messages)
            return dict(answer.choices[0].message.to_dict())
        said: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
        async with await ask(model="m", messages=messages, stream=True) as pieces:
            async for piece in pieces:
                for choice in piece.choices:
                    self.add(choice.delta, said)
        return {key: value for key, value in said.items() if value}

    def add(self, delta: Any, said: dict[str, Any]) -> None:
        self.world.hear(delta.content or "")
        said["content"] += delta.content or ""
        for part in delta.tool_calls or ():
            if part.id:
                about = {"name": part.function.name, "arguments": ""}
                said["tool_calls"].append({"id": part.id, "type": "function", "function": about})
            said["tool_calls"][-1]["function"]["arguments"] += part.function.arguments or ""

    async def call(self, call: dict[str, Any], results: dict[str, str]) -> None:
        name, given = call["function"]["name"], json.loads(call["function"]["arguments"])
        if name in self.helpers:
            system = {"role": "system", "content": self.world.instructions(name)}
            told = await self.ends([system, {"role": "user", "content": given["input"]}])
        elif name in self.tools and not isinstance(given.get("cents", 0), str):
            told = await self.tools[name](**given)
        else:
            told = f"{name} cannot be called with {given}"
        results[call["id"]] = told


@pytest.mark.timeout(240)
async def test_no_scenario_is_kept_by_an_adapter_that_does_nothing() -> None:
    assert set(await failures_of(Nothing())) == {one.__name__ for one in adapter_scenarios}


# Adapters with one thing wrong ----------------------------------------------------------------------


class Broken(Texts):
    """The bench of OpenAI's client, with something wrong."""

    name = "broken"

    def __init__(self, *without: str, **client: Any) -> None:
        self.offers = frozenset(CAPABILITIES) - set(without)
        self._client = {"max_retries": 0, **client}

    def made(self, client: openai.AsyncOpenAI, world: World) -> Any:
        return record(client)

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        plain = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", **self._client)
        async with plain:
            client = self.made(plain, world)

            async def agent(task: str, *, _triage_hint: str | None = None) -> str:
                messages = self.messages(task, _triage_hint)
                tools = self.tools(world)
                done = await run_tools(client, messages, model="m", tools=tools, turns=10)
                return done.text

            yield Agent(agent, seam="off", **options)

    def messages(self, task: str, hint: str | None) -> list[Any]:
        return [{"role": "user", "content": task}]

    def tools(self, world: World) -> list[Callable[..., Any]]:
        return world.tools()


class Unrecorded(Broken):
    def made(self, client: openai.AsyncOpenAI, world: World) -> Any:
        return client


class TellsTwice(Broken):
    def messages(self, task: str, hint: str | None) -> list[Any]:
        told = [{"role": "user", "content": hint}] * 2 if hint else []
        return [*super().messages(task, hint), *told]


class SaysOurs(Broken):
    def messages(self, task: str, hint: str | None) -> list[Any]:
        return [{"role": "user", "content": task, "name": "triage"}]


class Careless(Broken):
    """It takes every tool for one that reads."""

    def tools(self, world: World) -> list[Callable[..., Any]]:
        return [triage.tool(effect="read")(each) for each in world.functions()]


class Swaps(Broken):
    """Two calls of one turn, each with the other's result."""

    def tools(self, world: World) -> list[Callable[..., Any]]:
        search, charge = world.tools()

        async def swapped(query: str) -> Any:
            return await search({"a": "b", "b": "a"}.get(query, query))

        return [triage.tool(effect="read", name="search")(swapped), charge]


class Forgets(Broken):
    """It begins at the task, whatever was said before it."""


class Pieces(Broken):
    """It gives an answer on in pieces, once it has it all."""

    def made(self, client: openai.AsyncOpenAI, world: World) -> Any:
        return Chopped(record(client), world)


class Chopped:
    def __init__(self, client: Any, world: World) -> None:
        self._client = client
        self._world = world
        self.chat = self.completions = self

    async def create(self, **options: Any) -> Any:
        answer = await self._client.chat.completions.create(**options)
        for letter in answer.choices[0].message.content or "":
            self._world.hear(letter)
        return answer


BREAKS = [
    (Unrecorded(), "healthy", "0 steps of model calls, not 3"),
    (Unrecorded(), "crash_and_resume", "5 requests, not 3"),
    (Unrecorded(), "budget", "10 requests, not 3"),
    (TellsTwice(), "malformed_output", "the hint stands so often in the requests: [0, 2]"),
    (SaysOurs(), "healthy", "a word of triage's own"),
    (Careless(), "healthy", "the steps of the tools are"),
    (Careless(), "approval", "10 of 10 attempts used"),
    (Swaps(), "parallel_tools", "found 17 b"),
    (Pieces(), "streaming", "the answer was complete before the caller was given any of it"),
    (Broken(), "streaming", "the caller was given []"),
    (Forgets(), "open_call", "what was said before is not in the request"),
    (Broken(), "nested_retries", "what is said of the client's"),
]


async def test_an_adapter_that_breaks_a_promise_is_told_which() -> None:
    for bench, scenario, told in BREAKS:
        with pytest.raises(AssertionError) as raised:
            await check_adapter(bench, named(scenario))
        assert told in str(raised.value)


async def test_what_needs_more_than_is_offered_is_not_played_and_says_so() -> None:
    without = Unrecorded("sub_agents", "parallel_tools", "handoffs")
    assert await check_adapter(without, named("handoff")) == "not offered: handoffs"
    both = "not offered: parallel_tools, sub_agents"
    assert await check_adapter(without, named("parallel_agents")) == both
    assert not_offered(without, named("streaming")) is None


async def test_what_is_owed_is_played_though_nothing_is_offered() -> None:
    least = Unrecorded(*CAPABILITIES)
    for scenario in owed_scenarios:
        assert not_offered(least, scenario) is None
    with pytest.raises(AssertionError, match="broken, healthy: 0 steps of model calls, not 3"):
        await check_adapter(least, named("healthy"))


def test_every_capability_is_needed_by_some_scenario_and_told_in_words() -> None:
    needed = [needs_of(scenario) for scenario in adapter_scenarios]
    assert frozenset().union(*needed) == set(CAPABILITIES)
    assert all(CAPABILITIES.values())
    assert set(owed_scenarios) == {
        one for one, needs in zip(adapter_scenarios, needed, strict=True) if not needs
    }


async def test_an_offer_of_no_capability_is_refused() -> None:
    odd = Broken()
    odd.offers |= {"streems"}
    told = r"broken\.offers names no capability: streems; there are: endings, parallel_tools"
    with pytest.raises(AssertionError, match=told):
        await check_adapter(odd, adapter_scenarios[0])


# Requests -------------------------------------------------------------------------------------------


def history(*messages: Any) -> Request:
    return Request("chat", {"messages": list(messages)}, "")


CALLS = {"role": "assistant", "tool_calls": [{"id": "a"}]}


REFUSED = [
    history(CALLS),
    history(CALLS, {"role": "user", "content": "go on"}),
    history({"role": "tool", "tool_call_id": "a"}),
    Request("responses", {"input": [{"type": "function_call", "call_id": "a"}]}, ""),
    Request("responses", {"input": [{"type": "function_call_output", "call_id": "a"}]}, ""),
    Request(
        "anthropic",
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]},
        "",
    ),
    Request(
        "anthropic",
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]},
        "",
    ),
]


def test_a_history_that_a_provider_refuses_is_refused() -> None:
    for sent in REFUSED:
        with pytest.raises(AssertionError, match="request 1 would be refused"):
            check_wire([sent])


def test_the_table_says_what_is_owed_and_what_is_not_offered() -> None:
    table = matrix([Broken("sub_agents")]).splitlines()
    assert table[:3] == [
        "| scenario | needs | broken |",
        "|---|---|---|",
        "| healthy | owed | yes |",
    ]
    assert "| streaming | `streams` | yes |" in table
    assert "| parallel agents | `parallel_tools` and `sub_agents` | not offered |" in table
