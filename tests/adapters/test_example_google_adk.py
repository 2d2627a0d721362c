"""The example of a third party's adapter, for Google's ADK, keeps the contract."""

from __future__ import annotations

import ast
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="google-adk is not installed")

from benches import failures_of
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.genai import types

import triage
from examples.google_adk_adapter import GoogleADKAdapter
from triage import Agent, FailurePolicy, Retry
from triage.core import CallFinished, CallStarted
from triage.testing.adapter_contract import (
    After,
    Fails,
    Rule,
    Says,
    Script,
    World,
    asks,
    call,
    says,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


class Scripted(BaseLlm):
    """A model of ADK's that answers as a world says."""

    world: Any

    async def generate_content_async(
        self, llm_request: LlmRequest, *_: Any, **__: Any
    ) -> AsyncGenerator[LlmResponse, None]:
        turn = await self.world.ask(
            list(_chat(llm_request.contents)), model=llm_request.model or self.model
        )
        cut = isinstance(turn, Says) and turn.ended == "length"
        if isinstance(turn, Says):
            parts = [types.Part(text=turn.text)]
        else:
            parts = [
                types.Part.from_function_call(name=call.tool, args=dict(call.arguments))
                for call in turn.calls
            ]
        yield LlmResponse(
            content=types.Content(role="model", parts=parts),
            finish_reason=types.FinishReason.MAX_TOKENS if cut else types.FinishReason.STOP,
            usage_metadata=types.GenerateContentResponseUsageMetadata(
                prompt_token_count=10, candidates_token_count=5
            ),
        )


def _chat(contents: list[types.Content]) -> Iterator[dict[str, Any]]:
    """Gemini's contents as chat messages. Its calls have no ids: they are told apart by their order."""
    made = answered = 0
    for content in contents:
        parts = content.parts or []
        asked: list[Any] = []
        for asks_for in filter(None, (part.function_call for part in parts)):
            made += 1
            about = {"name": asks_for.name, "arguments": json.dumps(asks_for.args)}
            asked.append({"id": f"call_{made}", "type": "function", "function": about})
        if asked:
            yield {"role": "assistant", "content": "", "tool_calls": asked}
        for part in parts:
            if part.function_response:
                answered += 1
                told = part.function_response.response or {}
                text = told["result"] if list(told) == ["result"] else json.dumps(told)
                yield {"role": "tool", "tool_call_id": f"call_{answered}", "content": text}
            elif part.text:
                yield {"role": _ROLES[str(content.role)], "content": part.text}


_ROLES = {"model": "assistant", "user": "user"}


class _Bench:
    name = "google-adk"
    offers = ("endings", "parallel_tools", "short_requests", "other_models")
    backends = ("asyncio",)

    def text(self, result: Any) -> str:
        return "".join(part.text or "" for part in result[-1].content.parts)

    def given(self, world: World) -> Mapping[str, Any]:
        return {"max_llm_calls": 10}

    @asynccontextmanager
    async def agent(self, world: World, url: str, **options: Any) -> AsyncGenerator[Agent[Any]]:
        yield wrapped(clerk(world), effects=world.effects, **options)


def clerk(world: World, **more: Any) -> LlmAgent:
    tools: list[Any] = [*world.functions()]
    return LlmAgent(name="clerk", model=Scripted(model="m", world=world), tools=tools, **more)


def wrapped(agent: LlmAgent, **options: Any) -> Agent[Any]:
    return triage.wrap(agent, adapter=GoogleADKAdapter, **options)


@pytest.mark.timeout(240)
async def test_the_example_keeps_the_contract() -> None:
    assert await failures_of(_Bench()) == {}


async def test_an_effect_beside_a_tool_that_fails_is_finished_and_paid_once() -> None:
    both = asks(call("charge", cents=300), call("search", query="x"))
    failing = After("charge(300)", ConnectionError("search is down"))
    script = Script(
        (Rule(says("done"), "receipt 5"), Rule(both)),
        tools={"search": (failing, "found 17"), "charge": (After("search(x)", "receipt 5"),)},
    )
    world = World(script)
    events: list[Any] = []
    agent = wrapped(
        clerk(world),
        policy=FailurePolicy(default=Retry()),
        effects=world.effects,
        observers=[events.append],
    )
    result = await agent.run("Pay.")
    assert _Bench().text(result) == "done"
    assert sorted(world.deeds) == ["charge(300)", "search(x)", "search(x)"]
    ended = [one for one in events if isinstance(one, CallFinished) and one.key[:6] == "charge"]
    assert [(one.outcome, one.replayed) for one in ended] == [("done", False), ("done", True)]


async def test_the_users_agent_stays_as_it_is_and_its_callbacks_are_called() -> None:
    seen: list[str] = []

    def before(tool: Any, args: dict[str, Any], tool_context: Any) -> None:
        seen.append(tool.name)

    rules = (Rule(says("done"), "found 17"), Rule(asks(call("search", query="x"))))
    world = World(Script(rules))
    agent = clerk(world, before_tool_callback=before)
    model, tools = agent.model, list(agent.tools)
    await wrapped(agent, effects=world.effects).run("Look.")
    assert (agent.model, agent.tools) == (model, tools)
    assert seen == ["search"]


async def test_agents_that_it_hands_over_to_are_recorded_as_their_own() -> None:
    first = asks(call("transfer_to_agent", agent_name="ann"))
    world = World(Script((Rule(first),)))
    ann_world = World(
        Script((Rule(says("paid"), "receipt 5"), Rule(asks(call("charge", cents=3)))))
    )
    ann = LlmAgent(
        name="ann", model=Scripted(model="m", world=ann_world), tools=[ann_world.functions()[1]]
    )
    events: list[Any] = []
    agent = wrapped(
        clerk(world, sub_agents=[ann]),
        effects={**world.effects, "transfer_to_agent": "read"},
        observers=[events.append],
    )
    result = await agent.run("Pay.")
    assert _Bench().text(result) == "paid"
    calls = [one.tool for one in events if isinstance(one, CallStarted)]
    assert calls == [
        "google-adk clerk",
        "transfer_to_agent",
        "google-adk ann",
        "charge",
        "google-adk ann",
    ]


async def test_a_retry_hands_over_again_and_has_the_state_that_tools_wrote() -> None:
    def note(tool_context: ToolContext) -> str:
        """Note the room."""
        tool_context.state["room"] = 7
        return "noted"

    both = asks(call("note"), call("transfer_to_agent", agent_name="ann"))
    world = World(Script((Rule(both),)))
    faults = {1: Fails(503, "Overloaded")}
    ann_world = World(Script((Rule(says("paid")),), faults=faults))
    seen: list[Any] = []

    def before(callback_context: Any, llm_request: Any) -> None:
        seen.append(callback_context.state.get("room"))

    model = Scripted(model="m", world=ann_world)
    ann = LlmAgent(name="ann", model=model, before_model_callback=before)
    first = LlmAgent(
        name="clerk", model=Scripted(model="m", world=world), tools=[note], sub_agents=[ann]
    )
    result = await wrapped(first, policy=FailurePolicy(default=Retry())).run("Pay.")
    assert _Bench().text(result) == "paid"
    assert (len(world.requests), len(ann_world.requests)) == (1, 2)
    assert seen == [7, 7]


# The example itself -----------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "examples" / "google_adk_adapter.py"
MOST_LINES = 55
TREE = ast.parse(EXAMPLE.read_text(encoding="utf-8"))


def test_the_example_is_short() -> None:
    """Comments, what explains, imports and blank lines do not count."""
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    code = {at for at, line in enumerate(lines, 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(TREE):
        explains = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (
            explains or isinstance(node, ast.Import | ast.ImportFrom)
        ):
            assert node.end_lineno is not None
            code -= set(range(node.lineno, node.end_lineno + 1))
    assert len(code) <= MOST_LINES


def test_the_example_uses_nothing_private() -> None:
    used = {node.attr for node in ast.walk(TREE) if isinstance(node, ast.Attribute)}
    ours: list[str] = []
    for node in ast.walk(TREE):
        if isinstance(node, ast.ImportFrom):
            used |= {*(node.module or "").split("."), *(one.name for one in node.names)}
            ours += [node.module or ""] if (node.module or "").startswith("triage") else []
    assert ours == ["triage.adapters"]
    assert not [name for name in used - {"__future__"} if name.startswith("_")]
