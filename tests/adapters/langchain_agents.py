"""What the tests of LangChain's adapters share: a model that follows a script, and what a run recorded."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from support import always

import triage
from triage import Agent, Retry, Step
from triage.core import Event, StepRecorded
from triage.core.capture import capture
from triage.strategies import Prices
from triage.testing.adapter_contract import Asks, Fails, Says, World

# The first exception that is read looks where packages are installed, and the first tokens are priced
# by a list that is read from a file, which no test's loop may do.
capture(triage.UsageError())
Prices()


class Refused(Exception):
    """What a client raises where its provider answers with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status


class Scripted(BaseChatModel):
    """A chat model that does as its world says. streams: whether it can answer in pieces."""

    world: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self.bind(tools=[{"name": getattr(tool, "name", str(tool))} for tool in tools])

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        turn = self.world.answer("own", {"messages": convert_to_openai_messages(messages)})
        return ChatResult(generations=[ChatGeneration(message=self._message(turn))])

    def _message(self, turn: Any) -> AIMessage:
        number = len(self.world.requests)
        used = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        match turn:
            case Says(text, ended):
                about = {"finish_reason": ended}
                return AIMessage(text, usage_metadata=used, response_metadata=about)
            case Asks(calls):
                asked = [
                    {"name": call.tool, "args": dict(call.arguments), "id": f"call_{number}_{at}"}
                    for at, call in enumerate(calls)
                    if not isinstance(call.arguments, str)
                ]
                return AIMessage("", tool_calls=asked, usage_metadata=used)
            case Fails(status, message, _):
                raise Refused(status, message)
            case _:
                raise AssertionError(turn)


class Log(TypedDict):
    """The state of a graph that writes down what its nodes did."""

    log: Annotated[list[Any], operator.add]


def chat_model(url: str, **more: Any) -> ChatOpenAI:
    """OpenAI's model at this address."""
    options: dict[str, Any] = {"max_retries": 0, **more}
    return ChatOpenAI(model="m", base_url=f"{url}/v1", api_key=SecretStr("x"), **options)


def tools_of(world: World) -> list[StructuredTool]:
    return [StructuredTool.from_function(coroutine=tool) for tool in world.functions()]


def steps_of(events: list[Event]) -> list[Step]:
    """What was recorded, reused calls left out."""
    steps = [event.step for event in events if isinstance(event, StepRecorded)]
    return [step for step in steps if not (step.metadata or {}).get("replayed")]


def calls_of(events: list[Event]) -> list[tuple[str | None, Any, Any]]:
    """Tool, input and output of the tool calls that ran."""
    return [
        (step.tool_called, step.tool_input, step.tool_output)
        for step in steps_of(events)
        if step.tool_called is not None
    ]


def turn_asking(*calls: str) -> AIMessage:
    """A model's turn that asks for a look, with calls of these ids."""
    asked = [{"name": "look", "args": {}, "id": each} for each in calls]
    return AIMessage("", tool_calls=asked)


def wrapped(target: Any, action: Any = None, **options: Any) -> tuple[Agent[Any], list[Event]]:
    """The target as an agent that answers each failure with this action, Retry for None; its events."""
    events: list[Event] = []
    policy = always(Retry() if action is None else action)
    return triage.wrap(target, policy, observers=[events.append], **options), events
