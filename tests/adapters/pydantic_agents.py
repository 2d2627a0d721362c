"""What the tests of Pydantic AI's adapter share: a model that follows a script, and what a run recorded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import openai
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import triage
from triage import Step
from triage.core import Event, StepRecorded
from triage.core.capture import capture
from triage.strategies import Prices
from triage.testing.adapter_contract import Script, World, provider

# The first exception that is read looks where packages are installed, and the first tokens are priced
# by a list that is read from a file, which no test's loop may do.
capture(triage.UsageError())
Prices()

Turn = Any
"""What a model does: words, calls, a message, an exception it raises, or what makes one of the messages."""


class Scripted:
    """A model that does one thing after the other, the last for ever. seen: what it was sent."""

    def __init__(self, *turns: Turn) -> None:
        self._turns = list(turns)
        self.seen: list[list[ModelMessage]] = []
        self.model = FunctionModel(self._answer)

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen.append(list(messages))
        turn = self._turns[0] if len(self._turns) == 1 else self._turns.pop(0)
        if callable(turn) and not isinstance(turn, type):
            turn = turn(messages)
        if isinstance(turn, BaseException):
            raise turn
        return turn if isinstance(turn, ModelResponse) else ModelResponse(parts=_parts(turn))


def _parts(turn: Any) -> list[Any]:
    if isinstance(turn, str):
        return [TextPart(turn)]
    return turn if isinstance(turn, list) else [turn]


def call(tool: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments)


class Stage(NamedTuple):
    """A script as it is played over a real client."""

    world: World
    agent: PydanticAgent[None, Any]
    client: openai.AsyncOpenAI


@asynccontextmanager
async def staged(script: Script, *, tries: int = 0, **options: Any) -> AsyncGenerator[Stage]:
    world = World(script)
    async with provider(world) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=tries)
        async with client:
            model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
            options.setdefault("tools", world.functions())
            yield Stage(world, PydanticAgent(model, **options), client)


def steps_of(events: list[Event]) -> list[Step]:
    """What was recorded, reused calls left out."""
    steps = [event.step for event in events if isinstance(event, StepRecorded)]
    return [step for step in steps if not (step.metadata or {}).get("replayed")]


def tools_of(events: list[Event]) -> list[Step]:
    return [step for step in steps_of(events) if step.tool_called is not None]


def models_of(events: list[Event]) -> list[Step]:
    return [step for step in steps_of(events) if step.tool_called is None]


def kinds_of(messages: list[ModelMessage]) -> list[list[str]]:
    return [[part.part_kind for part in message.parts] for message in messages]


def failing(errors: list[BaseException], result: Any) -> Callable[..., Any]:
    """An async tool without arguments that raises these one after the other, and then gives the result."""

    async def tool() -> Any:
        if errors:
            raise errors.pop(0)
        return result

    return tool
