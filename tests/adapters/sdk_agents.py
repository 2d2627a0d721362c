"""What the tests of the OpenAI Agents SDK share: scripted models, counted tools, what was recorded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import agents
import openai
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.usage import Usage
from support import always

import triage
from triage import Agent, Retry, Step
from triage.core import Event, StepRecorded
from triage.core.capture import capture
from triage.strategies import Prices
from triage.testing.adapter_contract import World, provider

agents.set_tracing_disabled(disabled=True)

# The first exception that is read looks where packages are installed, and the first tokens are priced
# by a list that is read from a file, which no test's loop may do.
capture(triage.UsageError())
Prices()


class Refused(Exception):
    """What a client raises where its provider answers with an error."""

    def __init__(self, status: int = 503, message: str = "Overloaded") -> None:
        super().__init__(message)
        self.status_code = status


def calls(*names: str, **arguments: Any) -> list[Any]:
    """A model's turn that asks for tools: each by its name and the id of the call, `charge 1`."""
    asked = [name.split() for name in names]
    return [function_call(name, arguments, call_id=f"call_{id_}") for name, id_ in asked]


def says(text: str) -> list[Any]:
    """A model's turn of words."""
    return [assistant_message(text)]


def model(*steps: Any) -> ScriptedModel:
    """A model that follows a script."""
    used = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
    return ScriptedModel(steps, default_usage=used)


class Desk:
    """A clerk with two tools, the model it asks, and all that happened."""

    def __init__(self, *steps: Any, **options: Any) -> None:
        self.model = model(*steps)
        self.did: list[str] = []
        self.events: list[Event] = []
        self.raises: list[Exception] = []
        extra = options.pop("tools", [])
        self.clerk: agents.Agent[Any] = agents.Agent(
            name="clerk",
            model=self.model,
            tools=[agents.function_tool(self.charge), agents.function_tool(self.look), *extra],
            **options,
        )

    async def charge(self, cents: int) -> str:
        """Charge the card."""
        self.did.append(f"charge {cents}")
        self._fail()
        return f"receipt {cents}"

    async def look(self, what: str) -> str:
        """Look something up."""
        self.did.append(f"look {what}")
        self._fail()
        return f"saw {what}"

    def _fail(self) -> None:
        if self.raises:
            raise self.raises.pop(0)

    def agent(self, action: Any = None, **options: Any) -> Agent[Any]:
        """The clerk, wrapped."""
        effects = {"charge": "once", "look": "read", **options.pop("effects", {})}
        policy = always(Retry() if action is None else action)
        observers = [self.events.append]
        return triage.wrap(self.clerk, policy, effects=effects, observers=observers, **options)

    @property
    def steps(self) -> list[Step]:
        """What was recorded, reused calls left out."""
        return steps_of(self.events)

    def asked(self, at: int = -1) -> list[Any]:
        """The input of a request."""
        given = self.model.calls[at].input
        return [{"role": "user", "content": given}] if isinstance(given, str) else list(given)


@asynccontextmanager
async def over_http(
    world: World, make: Callable[..., agents.Model] | None = None, **options: Any
) -> AsyncGenerator[agents.Agent[Any]]:
    """A clerk with the tools of a world, whose model is asked over HTTP, as the helpers' that she has.

    make: gives the model, from the provider's address and OpenAI's client.
    """
    async with (
        provider(world) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        asked = agents.OpenAIResponsesModel("m", client) if make is None else make(url, client)
        tools: list[agents.Tool] = [
            agents.function_tool(tool, needs_approval=tool.__name__ in world.script.approvals)
            for tool in world.functions()
        ]
        helpers: list[Any] = [
            agents.Agent(name=name, model=asked, instructions=world.instructions(name), tools=tools)
            for name in world.script.helpers
        ]
        yield agents.Agent(name="clerk", model=asked, tools=tools, handoffs=helpers, **options)


def steps_of(events: list[Event]) -> list[Step]:
    """What was recorded, reused calls left out."""
    steps = [event.step for event in events if isinstance(event, StepRecorded)]
    return [step for step in steps if not (step.metadata or {}).get("replayed")]


def told(items: list[Any]) -> list[str]:
    """What stands in input: outputs of tools, and words."""
    return [str(item.get("output") or item.get("content") or item.get("name")) for item in items]
