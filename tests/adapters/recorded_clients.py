"""What the tests of recorded clients share: a provider, a client of it, and a run around its use."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import anthropic
import openai
from support import always

import triage
from triage import Agent, Retry, Step
from triage.adapters.anthropic import record as record_anthropic
from triage.adapters.openai import record as record_openai
from triage.core import Event, StepRecorded
from triage.core.capture import capture
from triage.strategies import Prices
from triage.testing.adapter_contract import Rule, Script, World, loopback, provider, says

# The first exception that is read looks where packages are installed, and the first tokens are priced
# by a list that is read from a file, which no test's loop may do.
capture(triage.UsageError())
Prices()

USER: list[Any] = [{"role": "user", "content": "hello"}]
ANSWERS = Script((Rule(says("hello there")),))


def _ask_once() -> None:
    """A client's first request reads what machine it is on, which no test's loop may do."""
    with loopback(World(ANSWERS)) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
            client.post("/chat/completions", cast_to=object, body={"messages": []})
        with anthropic.Anthropic(base_url=url, api_key="x") as other:
            other.post("/v1/messages", cast_to=object, body={"messages": []})


_ask_once()


class Line(NamedTuple):
    """A client and the provider at its other end. plain: the client before it was recorded."""

    world: World
    plain: Any
    client: Any


@asynccontextmanager
async def openai_line(script: Script = ANSWERS, **options: Any) -> AsyncGenerator[Line]:
    world = World(script)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(provider(world))
        made = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        plain = await stack.enter_async_context(made)
        yield Line(world, plain, record_openai(plain, **options))


@asynccontextmanager
async def anthropic_line(script: Script = ANSWERS, **options: Any) -> AsyncGenerator[Line]:
    world = World(script)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(provider(world))
        made = anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0)
        plain = await stack.enter_async_context(made)
        yield Line(world, plain, record_anthropic(plain, **options))


class Twice:
    """An agent whose first attempt fails after its work, so that the second one does it again.

    results: what the work gave, by attempt. steps: what was recorded.
    """

    def __init__(self, work: Callable[[], Any], action: Any = None, **options: Any) -> None:
        self.work = work
        self.results: list[Any] = []
        self.events: list[Event] = []
        policy = always(Retry() if action is None else action)
        self.agent = Agent(self._attempt, policy, observers=[self.events.append], **options)

    async def _attempt(self, task: str) -> Any:
        self.results.append(await self.work())
        if len(self.results) == 1:
            raise ConnectionError("reset")
        return "end"

    @property
    def steps(self) -> list[Step]:
        return [event.step for event in self.events if isinstance(event, StepRecorded)]

    async def run(self) -> None:
        assert await self.agent.run("t") == "end"
