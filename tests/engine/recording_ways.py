"""One agent, written and recorded in each way there is: by hand, around a client, in a framework.

Its model is a function of how many results it has seen and of all that it was told; its tools are
functions of one text. Time passes only where a model, a tool or a wait spends it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import agents as sdk
import anthropic
import httpx2
import openai
import pydantic_ai
from langchain.agents import create_agent
from langchain.agents.middleware import before_model
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from support import FakeEnvironment

import triage
from triage import Agent, Run, Step
from triage.adapters import anthropic as with_anthropic
from triage.adapters import openai as with_openai

sdk.set_tracing_disabled(disabled=True)
TASK = "Do the work."


@dataclass(frozen=True)
class Asks:
    """The model asks for a call."""

    tool: str
    given: str = ""


Turn = str | Asks
Think = Callable[[int, str], Turn]


@dataclass
class World:
    """What an agent is made of. model_seconds, tool_seconds, wait: how long each takes; wait is spent
    before each turn of the model but the first, in neither. effects: by tool. calls: those made."""

    think: Think
    tools: Mapping[str, Callable[[str], Any]]
    effects: Mapping[str, str] = field(default_factory=dict)
    model_seconds: float = 0.0
    tool_seconds: float = 0.0
    wait: float = 0.0
    environment: FakeEnvironment = field(default_factory=FakeEnvironment)
    calls: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def answer(self, results: int, told: str) -> Turn:
        """Be the model."""
        self.environment.now += self.model_seconds
        self.asked.append(told)
        return self.think(results, told)

    def use(self, tool: str, given: str) -> Any:
        """Be a tool."""
        self.environment.now += self.tool_seconds
        self.calls.append((tool, given))
        return self.tools[tool](given)

    async def pause(self, results: int) -> None:
        """Wait between two turns."""
        if results and self.wait:
            await self.environment.sleep(self.wait)

    def functions(self, *, recorded: bool = False) -> dict[str, Callable[..., Any]]:
        """The tools as functions with names, plain or `@triage.tool`."""
        return {name: self._function(name, recorded=recorded) for name in self.tools}

    def _function(self, name: str, *, recorded: bool) -> Callable[..., Any]:
        async def tool(given: str) -> Any:
            """Do it."""
            return self.use(name, given)

        tool.__name__ = tool.__qualname__ = name
        effect: Any = self.effects.get(name, "read")
        return triage.tool(effect=effect, name=name)(tool) if recorded else tool

    # The model behind clients, over a transport that is a function ---------------------------------

    @property
    def http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self._reply))

    @property
    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url="http://model/v1", api_key="x", max_retries=0, http_client=self.http
        )

    @property
    def anthropic(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(
            base_url="http://model", api_key="x", max_retries=0, http_client=self.http
        )

    def _reply(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        told = json.dumps(body, ensure_ascii=False)
        if request.url.path.endswith("/messages"):
            blocks = [
                block
                for message in body["messages"]
                if isinstance(message["content"], list)
                for block in message["content"]
            ]
            results = sum(block["type"] == "tool_result" for block in blocks)
            return httpx2.Response(200, json=_message(self.answer(results, told), results))
        results = sum(message["role"] == "tool" for message in body["messages"])
        return httpx2.Response(200, json=_completion(self.answer(results, told), results))


def _completion(turn: Turn, number: int) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": turn}
    if isinstance(turn, Asks):
        arguments = json.dumps({"given": turn.given})
        function = {"name": turn.tool, "arguments": arguments}
        made = {"id": f"call_{number}", "type": "function", "function": function}
        said = {"role": "assistant", "content": None, "tool_calls": [made]}
    reason = "tool_calls" if isinstance(turn, Asks) else "stop"
    return {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": said, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }  # fmt: skip


def _message(turn: Turn, number: int) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": turn}
    if isinstance(turn, Asks):
        block = {
            "type": "tool_use", "id": f"toolu_{number}", "name": turn.tool, "input": {"given": turn.given},
        }  # fmt: skip
    return {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [block],
        "stop_reason": "tool_use" if isinstance(turn, Asks) else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip


def text(value: Any) -> str:
    """A result as a model is told it."""
    return value if isinstance(value, str) else json.dumps(value)


# By hand -----------------------------------------------------------------------------------------

Build = Callable[..., Agent[Any]]
WAYS: dict[str, Build] = {}
"""How the agent is written, by a name."""
UNTIMED = ("by_hand",)
"""Ways that record no durations."""
MODELLESS = ("by_hand", "by_hand_timed", "tools_alone")
"""Ways that record no model."""


def way(build: Build) -> Build:
    WAYS[build.__name__] = build
    return build


def _by_hand(world: World, *, timed: bool, **options: Any) -> Agent[Any]:
    async def agent(task: str, *, run: Run) -> Any:
        results: list[str] = []
        told = f"{task}\n{run.guidance.hint or ''}"
        while True:
            await world.pause(len(results))
            turn = world.answer(len(results), told)
            if isinstance(turn, str):
                return turn
            output, error = None, None
            try:
                output = world.use(turn.tool, turn.given)
            except Exception as raised:
                error = raised
            run.record_step(
                Step(
                    action="call",
                    tool_called=turn.tool,
                    tool_input={"given": turn.given},
                    tool_output=output,
                    error=None if error is None else str(error),
                    exception_type=None if error is None else type(error).__name__,
                    effect=world.effects.get(turn.tool, "read"),
                    duration_s=world.tool_seconds if timed else None,
                )
            )
            results.append(text(output if error is None else f"{error}"))

    return Agent(agent, environment=world.environment, **options)


@way
def by_hand(world: World, **options: Any) -> Agent[Any]:
    return _by_hand(world, timed=False, **options)


@way
def by_hand_timed(world: World, **options: Any) -> Agent[Any]:
    return _by_hand(world, timed=True, **options)


def _looping(world: World, ask: Any, options: dict[str, Any]) -> Agent[Any]:
    """A loop of its own around recorded tools."""
    tools = world.functions(recorded=True)

    async def agent(task: str, *, run: Run) -> Any:
        messages: list[Any] = [{"role": "user", "content": task}]
        results = 0
        while True:
            await world.pause(results)
            turn = await ask(run, messages, results)
            if isinstance(turn, str):
                return turn
            try:
                output = await tools[turn.tool](turn.given)
            except Exception as error:
                output = f"{type(error).__name__}: {error}"
            results += 1
            messages.append({"role": "user", "content": f"result {results}: {text(output)}"})

    return Agent(agent, environment=world.environment, **options)


@way
def tools_alone(world: World, **options: Any) -> Agent[Any]:
    async def ask(run: Run, messages: list[Any], results: int) -> Turn:
        return world.answer(results, f"{json.dumps(messages)}\n{run.guidance.hint or ''}")

    return _looping(world, ask, options)


@way
def run_model(world: World, **options: Any) -> Agent[Any]:
    async def ask(run: Run, messages: list[Any], results: int) -> Turn:
        async def model(sent: list[Any]) -> Any:
            turn = world.answer(results, json.dumps(sent))
            return turn if isinstance(turn, str) else [turn.tool, turn.given]

        hint = run.guidance.hint
        told = [{"role": "user", "content": hint}] if hint else []
        turn = await run.model(model, [*messages, *told])
        return turn if isinstance(turn, str) else Asks(*turn)

    return _looping(world, ask, options)


def _conversing(world: World, converse: Any, options: dict[str, Any]) -> Agent[Any]:
    async def agent(task: str) -> Any:
        return await converse([{"role": "user", "content": task}])

    return Agent(agent, environment=world.environment, **options)


@way
def openai_client(world: World, **options: Any) -> Agent[Any]:
    client: Any = with_openai.record(world.openai)
    tools = world.functions(recorded=True)

    async def converse(messages: list[Any]) -> Any:
        results = 0
        while True:
            await world.pause(results)
            made = await client.chat.completions.create(model="m", messages=messages)
            said = made.choices[0].message
            if not said.tool_calls:
                return said.content
            messages.append(said.model_dump(exclude_none=True))
            for asked in said.tool_calls:
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": asked.id,
                        "content": await _told(
                            tools[asked.function.name], **json.loads(asked.function.arguments)
                        ),
                    }
                )
                results += 1

    return _conversing(world, converse, options)


async def _told(tool: Callable[..., Any], **given: Any) -> str:
    try:
        return text(await tool(**given))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@way
def anthropic_client(world: World, **options: Any) -> Agent[Any]:
    client: Any = with_anthropic.record(world.anthropic)
    tools = world.functions(recorded=True)

    async def converse(messages: list[Any]) -> Any:
        results = 0
        while True:
            await world.pause(results)
            made = await client.messages.create(model="m", max_tokens=500, messages=messages)
            messages.append(
                {"role": "assistant", "content": [block.model_dump() for block in made.content]}
            )
            told = [
                {
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "content": await _told(tools[block.name], **block.input),
                }
                for block in made.content
                if block.type == "tool_use"
            ]
            if not told:
                return made.content[0].text
            results += len(told)
            messages.append({"role": "user", "content": told})

    return _conversing(world, converse, options)


class _Pausing:
    """A client for `run_tools` that waits before it is asked again."""

    def __init__(self, world: World, client: Any) -> None:
        self._world, self._client, self._asked = world, client, 0
        self.chat = self.completions = self

    async def create(self, **options: Any) -> Any:
        await self._world.pause(self._asked)
        self._asked += 1
        return await self._client.chat.completions.create(**options)


def _telling(tools: Mapping[str, Callable[..., Any]]) -> list[Any]:
    return list(tools.values())


@way
def run_tools(world: World, **options: Any) -> Agent[Any]:
    client, tools = with_openai.record(world.openai), world.functions(recorded=True)

    async def converse(messages: list[Any]) -> Any:
        asking = _Pausing(world, client)
        done = await with_openai.run_tools(
            asking, messages, model="m", tools=_telling(tools), turns=100
        )
        return done.text

    return _conversing(world, converse, options)


# Frameworks --------------------------------------------------------------------------------------


@way
def langgraph(world: World, **options: Any) -> Agent[Any]:
    model = ChatOpenAI(
        model="m", base_url="http://model/v1", api_key=SecretStr("x"), max_retries=0,
        http_async_client=world.http,
    )  # fmt: skip

    tools = [
        StructuredTool.from_function(coroutine=tool, name=name)
        for name, tool in world.functions().items()
    ]

    @before_model
    async def pauses(state: Any, runtime: Any) -> None:
        await world.pause(sum(message.type == "tool" for message in state["messages"]))

    graph: Any = create_agent(model, tools, middleware=[pauses])
    return triage.wrap(graph, effects=dict(world.effects), environment=world.environment, **options)


@way
def pydantic(world: World, **options: Any) -> Agent[Any]:
    async def pauses(messages: list[Any]) -> list[Any]:
        await world.pause(len(messages) // 2)
        return messages

    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=world.openai))
    tools = _telling(world.functions())
    made: Any = pydantic_ai.Agent(model, tools=tools, capabilities=[ProcessHistory(pauses)])
    return triage.wrap(made, effects=dict(world.effects), environment=world.environment, **options)


@way
def openai_agents(world: World, **options: Any) -> Agent[Any]:
    class Pausing(sdk.AgentHooks[Any]):
        async def on_tool_end(self, *args: Any) -> None:
            await world.pause(1)

    made = sdk.Agent(
        name="clerk",
        model=sdk.OpenAIChatCompletionsModel("m", world.openai),
        tools=[sdk.function_tool(tool) for tool in world.functions().values()],
        hooks=Pausing(),
    )
    return triage.wrap(made, effects=dict(world.effects), environment=world.environment, **options)


def words_of(result: Any) -> Any:
    """The answer in whatever a framework gives."""
    if isinstance(result, dict) and "messages" in result:
        return result["messages"][-1].content
    for name in ("final_output", "output"):
        if hasattr(result, name):
            return getattr(result, name)
    return result
