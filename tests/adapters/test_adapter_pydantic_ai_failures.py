"""Agents of Pydantic AI: what their failures are, what retries beneath them, what may be repeated."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import openai
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelRetry, Tool, UsageLimits
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.retries import AsyncHTTPX2TenacityTransport, RetryConfig
from support import always
from tables import table

import triage
from adapters.pydantic_agents import Scripted, call, staged, steps_of, tools_of
from triage import Escalate, FailureType, Limits, Retry, TriageEscalationError
from triage.core import Event
from triage.strategies.layers import _said
from triage.testing.adapter_contract import Fails, Rule, Script, World, provider, says

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]


class Bee(BaseModel):
    legs: int


def _http(kind: type[Any], status: int) -> Exception:
    headers = {"Retry-After": "7"}
    return ModelHTTPError.for_category(kind, status_code=status, model_name="m", headers=headers)


def take(what: int) -> str:
    raise ModelRetry("never")


def _breaks() -> str:
    raise ConnectionResetError("reset by peer")


CASES = [
    (call("nope"), {}, "wrong_tool_called", "unknown_tool"),
    (call("take", what="x"), {}, "schema_mismatch", "invalid_arguments"),
    (call("take", what=1), {}, "schema_mismatch", "invalid_arguments"),
    ("no number", {"output_type": Bee}, "schema_mismatch", "malformed_output"),
    (call("final_result", legs="x"), {"output_type": Bee}, "schema_mismatch", "malformed_output"),
    (_http(ModelRateLimitError, 429), {}, "external_fault", "rate_limited"),
    (_http(ModelQuotaExceededError, 402), {}, "external_fault", "quota_exhausted"),
    (_http(ModelOverloadedError, 529), {}, "external_fault", "overloaded"),
    (_http(ModelAuthenticationError, 401), {}, "external_fault", "auth"),
    (_http(ModelContextWindowExceededError, 400), {}, "context_overflow", "context_length"),
    (ModelConnectionError("m", "lost", phase="read"), {}, "external_fault", "connection"),
    (ModelTimeoutError("m", "timed out"), {}, "external_fault", "timeout"),
    (ContentFilterError("filtered"), {}, "constraint_ignored", "content_filter"),
    (call("_breaks"), {}, "external_fault", "connection"),
]


@table(("turn", "options", "failure", "cause"), CASES)
async def test_a_failure_is_diagnosed_for_what_it_is(
    turn: Any, options: dict[str, Any], failure: str, cause: str
) -> None:
    agent = PydanticAgent(Scripted(turn).model, tools=[take, _breaks], **options)
    wrapped = triage.wrap(agent, always(Escalate()), effects={"_breaks": "read", "take": "read"})
    with pytest.raises(TriageEscalationError) as caught:
        await wrapped.run("go")
    assert caught.value.context is not None
    diagnosis = caught.value.context.diagnosis
    assert (diagnosis.failure_type, diagnosis.cause) == (failure, cause)
    if cause == "rate_limited":
        assert diagnosis.retry_after_s == 7


@table("limit", ["request_limit", "tool_calls_limit", "total_tokens_limit"])
async def test_a_limit_of_the_agents_own_is_a_plan_that_came_to_no_end(limit: str) -> None:
    def look(what: int) -> str:
        return f"saw {what}"

    limits: dict[str, Any] = {limit: 3}
    model = Scripted(lambda messages: call("look", what=len(messages)))
    wrapped = triage.wrap(PydanticAgent(model.model, tools=[look]), always(Escalate()))
    with pytest.raises(TriageEscalationError) as caught:
        await wrapped.run("go", usage_limits=replace(UsageLimits(request_limit=9), **limits))
    assert caught.value.context is not None
    assert caught.value.context.failure_type is FailureType.PLAN_INCOMPLETE


async def test_models_that_are_all_unavailable_may_be_back_later() -> None:
    down = Scripted(_http(ModelUnavailableError, 503)).model
    wrapped = triage.wrap(PydanticAgent(FallbackModel(down, down)), always(Escalate()))
    with pytest.raises(TriageEscalationError) as caught:
        await wrapped.run("go")
    assert str(caught.value.diagnosis) == "external_fault (unavailable), retriable, confidence 0.95"


async def test_each_model_of_a_fallback_is_retried_by_policy_before_the_next_is_asked() -> None:
    events: list[Event] = []
    world = World(Script((Rule(Fails(503, "Overloaded"), model="m"), Rule(says("done")))))
    async with provider(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        async with client:
            asked = OpenAIProvider(openai_client=client)
            both = [OpenAIChatModel(name, provider=asked) for name in ("m", "other")]
            agent = triage.wrap(
                PydanticAgent(FallbackModel(*both)),
                always(Retry()),
                limits=Limits(attempts=3),
                observers=[events.append],
            )
            result = await agent.run("go")
    assert result.output == "done"
    assert [request.body["model"] for request in world.requests] == ["m", "m", "m", "other"]
    assert [step.error is None for step in steps_of(events)] == [False, False, False, True]


async def test_retries_beneath_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "triage.retries")
    _said.clear()
    async with staged(Script((Rule(says("done")),)), tries=2) as stage:
        model: Any = stage.agent.model
        agent = PydanticAgent(FallbackModel(WrapperModel(model), Scripted("x").model))
        triage.wrap(agent)
        stage.client._client._transport = AsyncHTTPX2TenacityTransport(RetryConfig(reraise=True))
        triage.wrap(stage.agent)
    said = [record.getMessage() for record in caplog.records]
    assert any("AsyncOpenAI retries up to 2 times by itself" in text for text in said), said
    assert any("AsyncHTTPX2TenacityTransport retries by itself" in text for text in said), said


@table(
    ("hints", "effect"),
    [
        ({"readOnlyHint": True}, "read"),
        ({"idempotentHint": True}, "idempotent"),
        ({"destructiveHint": True}, "once"),
        (None, "unknown"),
    ],
)
async def test_what_an_mcp_server_says_of_a_tool_is_its_effect(hints: Any, effect: str) -> None:
    events: list[Event] = []
    look = Tool(lambda: "saw", name="look", metadata={"annotations": hints})
    agent = PydanticAgent(Scripted(call("look"), "done").model, tools=[look])
    await triage.wrap(agent, trust_hints=True, observers=[events.append]).run("go")
    assert [step.effect for step in tools_of(events)] == [effect]


async def test_a_stream_that_is_left_has_no_answer_to_be_given_again() -> None:
    events: list[Event] = []

    async def pieces(messages: Any, info: Any) -> Any:
        for word in ("one ", "two ", "three"):
            yield word

    reader = PydanticAgent(FunctionModel(stream_function=pieces), name="reader")

    async def first_words() -> str:
        async with reader.run_stream("read") as stream:
            async for text in stream.stream_text(debounce_by=None):
                return text
        return ""

    model = Scripted(call("first_words"), "done")
    agent = PydanticAgent(model.model, tools=[first_words])
    result = await triage.wrap(agent, observers=[events.append]).run("go")
    assert result.output == "done"
    (left,) = [step for step in steps_of(events) if step.exception_type == "StreamLeft"]
    assert (left.llm_output, left.error) == (None, "the stream was left before its end")
