"""Agents of clients and frameworks whose tools nobody has declared, and the failures that they meet."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import agents as sdk
import anthropic
import httpx2
import openai
import pydantic_ai
from google.genai import types
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import triage
from adapters.langchain_agents import chat_model
from triage import Agent, TriageError, TriageEscalationError, TriageSuspendedError
from triage.adapters.anthropic import record as record_anthropic
from triage.adapters.openai import record as record_openai
from triage.testing import VirtualTime
from triage.testing.adapter_contract import (
    Fails,
    Rule,
    Script,
    World,
    asks,
    call,
    check_wire,
    provider,
    says,
)

from .own_loops import CLIENTS, Chat, Messages, genai_client, own_loop

sdk.set_tracing_disabled(disabled=True)
TASK = "Book the table."
BOOKED = says('{"answer": "booked"}')
SEARCH, CHARGE, SEND = (
    asks(call("search", query="x")),
    asks(call("charge", cents=300)),
    asks(call("send", to="ann")),
)


# Failures -------------------------------------------------------------------------------------------


class Failure(NamedTuple):
    """What goes wrong. broken: the tool whose first call fails."""

    script: Script
    broken: str = ""


FAILURES = {
    "unknown tool": Failure(
        Script(
            (
                Rule(BOOKED, "table 17"),
                Rule(SEARCH, "search"),
                Rule(asks(call("lookup", query="x"))),
            )
        )
    ),
    "wrong arguments": Failure(
        Script(
            (
                Rule(BOOKED, "table 17"),
                Rule(SEARCH, "query"),  # it is told the argument
                Rule(asks(call("search", text="x"))),
            )
        )
    ),
    "answer cut in its JSON": Failure(
        Script((Rule(BOOKED, "JSON"), Rule(says('{"answer": "boo'), "table 17"), Rule(SEARCH)))
    ),
    "loop": Failure(Script((Rule(BOOKED, "search({"), Rule(SEARCH)))),
    "provider down": Failure(
        Script(
            (Rule(BOOKED, "table 17"), Rule(SEARCH)),
            faults={at: Fails(503, "Overloaded") for at in (1, 2, 4)},
        )
    ),
    "tool fails after a payment": Failure(
        Script((Rule(BOOKED, "sent to"), Rule(SEND, "receipt 5"), Rule(CHARGE))), broken="send"
    ),
}


class Tools:
    """Three tools as anybody writes them. deeds: what they were called with, in order.

    broken: the one whose first call fails.
    """

    def __init__(self, broken: str = "") -> None:
        self.deeds: list[str] = []
        self._broken = broken

    def _done(self, tool: str, given: object, result: str) -> str:
        self.deeds.append(f"{tool}({given})")
        if tool == self._broken:
            self._broken = ""
            raise ConnectionError("the server is down")
        return result

    @property
    def sync(self) -> list[Callable[..., str]]:
        def search(query: str) -> str:
            """Look for a table. query: where."""
            return self._done("search", query, "table 17 is free")

        def charge(cents: int) -> str:
            """Charge the card. cents: how much."""
            return self._done("charge", cents, "receipt 5")

        def send(to: str) -> str:
            """Send the invitation. to: whom."""
            return self._done("send", to, f"sent to {to}")

        return [search, charge, send]

    @property
    def asynchronous(self) -> list[Callable[..., Any]]:
        return [_as_async(tool) for tool in self.sync]


def _as_async(tool: Callable[..., str]) -> Callable[..., Any]:
    @functools.wraps(tool)
    async def called(*args: Any, **kwargs: Any) -> str:
        return tool(*args, **kwargs)

    return called


def read(text: str) -> str:
    """What the agent's own code makes of the last answer."""
    return str(json.loads(text)["answer"])


# Agents ---------------------------------------------------------------------------------------------

Make: TypeAlias = Callable[..., Agent[Any]]
"""Makes the agent with options of `Agent`."""
Open: TypeAlias = Callable[[Tools, str], AbstractAsyncContextManager[Make]]


class Way(NamedTuple):
    """One way to write an agent and to wrap it. open: with these tools, at this provider's address."""

    name: str
    wrapped: str
    open: Open


WAYS: list[Way] = []


def way(name: str, wrapped: str) -> Callable[[Callable[[Tools, str], AsyncGenerator[Make]]], None]:
    def enter(made: Callable[[Tools, str], AsyncGenerator[Make]]) -> None:
        WAYS.append(Way(name, wrapped, asynccontextmanager(made)))

    return enter


FUNCTION = "Agent(f)"


def _loop(client: str, *, stream: bool) -> Callable[[Tools, str], AsyncGenerator[Make]]:
    async def made(tools: Tools, url: str) -> AsyncGenerator[Make]:
        named = {tool.__name__: tool for tool in tools.asynchronous}
        async with own_loop(client, url, named, stream=stream, read=read) as loop:
            yield functools.partial(Agent, loop)

    return made


for client_ in CLIENTS:
    way(client_, FUNCTION)(_loop(client_, stream=False))
    way(f"{client_}, streamed", FUNCTION)(_loop(client_, stream=True))


@way("openai", "record(client)")
async def _openai_recorded(tools: Tools, url: str) -> AsyncGenerator[Make]:
    named = {tool.__name__: tool for tool in tools.asynchronous}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        create: Any = record_openai(client).chat.completions.create

        async def agent(task: str) -> str:
            said = Chat(task)
            while calls := said.take(
                await create(model="m", messages=said.messages, tools=Chat.tools)
            ):
                said.give([(one, await named[one.name](**one.arguments)) for one in calls])
            return read(said.text)

        yield functools.partial(Agent, agent)


@way("anthropic", "record(client)")
async def _anthropic_recorded(tools: Tools, url: str) -> AsyncGenerator[Make]:
    named = {tool.__name__: tool for tool in tools.asynchronous}
    async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as client:
        create: Any = record_anthropic(client).messages.create
        given: dict[str, Any] = {"model": "m", "max_tokens": 900, "tools": Messages.tools}

        async def agent(task: str) -> str:
            said = Messages(task)
            while calls := said.take(await create(messages=said.messages, **given)):
                said.give([(one, await named[one.name](**one.arguments)) for one in calls])
            return read(said.text)

        yield functools.partial(Agent, agent)


@asynccontextmanager
async def _http() -> AsyncGenerator[tuple[httpx2.AsyncClient, httpx2.Client]]:
    async with httpx2.AsyncClient() as client:
        with httpx2.Client() as sync:
            yield client, sync


def _graph(tools: list[Any], url: str, client: Any, sync: Any) -> Any:
    return create_agent(chat_model(url, http_async_client=client, http_client=sync), tools)


def _structured(tools: Tools) -> list[Any]:
    return [
        StructuredTool.from_function(sync, coroutine)
        for sync, coroutine in zip(tools.sync, tools.asynchronous, strict=True)
    ]


def _asked(task: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": task}]}


@way("LangGraph", "wrap(graph)")
async def _graph_wrapped(tools: Tools, url: str) -> AsyncGenerator[Make]:
    class State(MessagesState):
        answer: str

    def answer(state: State) -> dict[str, str]:
        return {"answer": read(state["messages"][-1].text)}

    async with _http() as clients:
        builder = StateGraph(State)
        builder.add_node("agent", _graph(_structured(tools), url, *clients))
        builder.add_node("answer", answer)
        builder.add_edge(START, "agent")
        builder.add_edge("agent", "answer")
        builder.add_edge("answer", END)
        yield functools.partial(triage.wrap, builder.compile())


@way("LangGraph", FUNCTION)
async def _graph_inside(tools: Tools, url: str) -> AsyncGenerator[Make]:
    async with _http() as clients:
        graph = _graph(_structured(tools), url, *clients)

        async def agent(task: str) -> str:
            return read((await graph.ainvoke(_asked(task)))["messages"][-1].text)

        yield functools.partial(Agent, agent)


@way("LangGraph, sync", FUNCTION)
async def _graph_inside_sync(tools: Tools, url: str) -> AsyncGenerator[Make]:
    async with _http() as clients:
        graph = _graph(_structured(tools), url, *clients)

        def agent(task: str) -> str:
            return read(graph.invoke(_asked(task))["messages"][-1].text)

        yield functools.partial(Agent, agent)


@way("LangGraph, streamed", FUNCTION)
async def _graph_inside_streamed(tools: Tools, url: str) -> AsyncGenerator[Make]:
    async with _http() as clients:
        graph = _graph(_structured(tools), url, *clients)

        async def agent(task: str) -> str:
            last: Any = None
            async for mode, piece in graph.astream(
                _asked(task), stream_mode=["messages", "values"]
            ):
                last = piece if mode == "values" else last
            return read(last["messages"][-1].text)

        yield functools.partial(Agent, agent)


@asynccontextmanager
async def _pydantic(tools: Tools, url: str) -> AsyncGenerator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
        yield pydantic_ai.Agent(model, tools=tools.asynchronous)


@way("Pydantic AI", "wrap(agent)")
async def _pydantic_wrapped(tools: Tools, url: str) -> AsyncGenerator[Make]:
    async with _pydantic(tools, url) as made:
        made.output_validator(read)
        yield functools.partial(triage.wrap, made)


@way("Pydantic AI", FUNCTION)
async def _pydantic_inside(tools: Tools, url: str) -> AsyncGenerator[Make]:
    async with _pydantic(tools, url) as made:

        async def agent(task: str) -> str:
            return read((await made.run(task)).output)

        yield functools.partial(Agent, agent)


@way("Pydantic AI, sync", FUNCTION)
async def _pydantic_inside_sync(tools: Tools, url: str) -> AsyncGenerator[Make]:
    def agent(task: str) -> str:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
        made = pydantic_ai.Agent(model, tools=tools.sync)
        try:
            return read(made.run_sync(task).output)
        finally:
            loop = asyncio.get_event_loop()  # it made one, and leaves it to the thread
            loop.run_until_complete(client.close())
            loop.close()
            asyncio.set_event_loop(None)

    yield functools.partial(Agent, agent)


@way("Pydantic AI, streamed", FUNCTION)
async def _pydantic_inside_streamed(tools: Tools, url: str) -> AsyncGenerator[Make]:
    async with _pydantic(tools, url) as made:

        async def agent(task: str) -> str:
            async with made.run_stream(task) as said:
                return read(await said.get_output())

        yield functools.partial(Agent, agent)


@asynccontextmanager
async def _sdk(tools: Tools, url: str, **options: Any) -> AsyncGenerator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        yield sdk.Agent(
            name="clerk",
            model=sdk.OpenAIResponsesModel("m", client),
            tools=[
                sdk.function_tool(tool, failure_error_function=None) for tool in tools.asynchronous
            ],
            **options,
        )


@way("OpenAI Agents", "wrap(agent)")
async def _sdk_wrapped(tools: Tools, url: str) -> AsyncGenerator[Make]:
    @sdk.output_guardrail
    async def readable(context: Any, agent: Any, output: str) -> sdk.GuardrailFunctionOutput:
        return sdk.GuardrailFunctionOutput(output_info=read(output), tripwire_triggered=False)

    async with _sdk(tools, url, output_guardrails=[readable]) as made:
        yield functools.partial(triage.wrap, made)


@way("OpenAI Agents", FUNCTION)
async def _sdk_inside(tools: Tools, url: str) -> AsyncGenerator[Make]:
    async with _sdk(tools, url) as made:

        async def agent(task: str) -> str:
            return read((await sdk.Runner.run(made, task)).final_output)

        yield functools.partial(Agent, agent)


@way("OpenAI Agents, streamed", FUNCTION)
async def _sdk_inside_streamed(tools: Tools, url: str) -> AsyncGenerator[Make]:
    async with _sdk(tools, url) as made:

        async def agent(task: str) -> str:
            result = sdk.Runner.run_streamed(made, task)
            async for _ in result.stream_events():
                pass
            return read(result.final_output)

        yield functools.partial(Agent, agent)


@way("google-genai, its own loop", FUNCTION)
async def _genai_loop(tools: Tools, url: str) -> AsyncGenerator[Make]:
    config = types.GenerateContentConfig(tools=[*tools.asynchronous])
    async with genai_client(url).aio as client:

        async def agent(task: str) -> str:
            done = await client.models.generate_content(model="m", contents=task, config=config)
            return read(done.text or "")

        yield functools.partial(Agent, agent)


@way("Google ADK", FUNCTION)
async def _adk_inside(tools: Tools, url: str) -> AsyncGenerator[Make]:
    adk: Any = import_module("google.adk.agents")
    runners: Any = import_module("google.adk.runners")
    model = import_module("google.adk.models").Gemini(model="gemini-m")
    client = vars(model)["api_client"] = genai_client(url)
    clerk = adk.LlmAgent(name="clerk", model=model, tools=tools.asynchronous)

    async def agent(task: str) -> str:
        runner = runners.InMemoryRunner(clerk, app_name="app")
        session = await runner.session_service.create_session(app_name="app", user_id="u")
        said = types.UserContent(task)
        last = ""
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=said):
            if event.is_final_response() and event.content:
                last = "".join(part.text or "" for part in event.content.parts or ())
        return read(last)

    async with client.aio:
        yield functools.partial(Agent, agent)


# Outcomes -------------------------------------------------------------------------------------------

RECOVERED, ASKS, TELLS = "recovered", "asks", "tells"


async def outcome(way: Way, failure: Failure, **options: Any) -> str:
    """What comes of a failure: it is recovered, a person is asked, or the run ends and tells the changes.

    Anything else is said as it is.
    """
    tools, world = Tools(failure.broken), World(failure.script)
    async with provider(world) as url, way.open(tools, url) as made:
        try:
            given = await made(environment=VirtualTime(), **options).run(TASK)
        except TriageSuspendedError as waits:
            found = ASKS if _names_a_change(str(waits.question)) else f"asks {waits.question}"
        except TriageEscalationError as error:
            found = TELLS if _names_a_change(str(error)) else f"fails: {error}"
        except TriageError as error:
            found = f"fails: {error}"
        else:
            found = RECOVERED if "booked" in str(given) else f"gives {given!r}"
    paid = tools.deeds.count("charge(300)")
    if paid > 1:
        return f"pays {paid} times, and {found}"
    if found == RECOVERED and not tools.deeds:
        return f"{found}, and did nothing"
    try:
        check_wire(world.requests)
    except AssertionError as error:
        return f"{found}, but {error}"
    return found


def _names_a_change(text: str) -> bool:
    return "charge" in text or "send" in text


# The page -------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "your-own-loop.md"
OPENS, CLOSES = "<!-- saved -->\n", "<!-- end of saved -->"


def shown() -> dict[tuple[str, str], list[str]]:
    """The outcomes on the page, by agent and by how it is wrapped."""
    text = PAGE.read_text(encoding="utf-8").partition(OPENS)[2].partition(CLOSES)[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    return {(name, wrapped.strip("`")): cells for name, wrapped, *cells in rows}


def row_of(way: Way) -> tuple[str, str]:
    """The row of a way: whole and streamed answers share one."""
    return way.name.removesuffix(", streamed"), way.wrapped


async def main() -> None:
    """Play everything, and write the page anew."""
    found: dict[tuple[str, str], list[list[str]]] = {}
    for way in WAYS:
        outcomes = [await outcome(way, failure) for failure in FAILURES.values()]
        found.setdefault(row_of(way), []).append(outcomes)
    lines = [f"| agent | wrapped as | {' | '.join(FAILURES)} |", "|---" * (len(FAILURES) + 2) + "|"]
    for (name, wrapped), played in found.items():
        cells = [" or ".join(dict.fromkeys(column)) for column in zip(*played, strict=True)]
        lines.append(f"| {name} | `{wrapped}` | {' | '.join(cells)} |")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(OPENS)
    table = "\n".join(lines)
    PAGE.write_text(
        f"{before}{OPENS}{table}\n{CLOSES}{rest.partition(CLOSES)[2]}", encoding="utf-8"
    )
