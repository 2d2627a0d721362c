"""Where nothing fails, a wrapped agent cannot be told from a bare one: requests, results, streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import agents as sdk
import pydantic_ai
import pytest
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from pydantic import TypeAdapter
from pydantic_ai.messages import AgentStreamEvent, ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from tables import table

import triage
from adapters.framework_ways import TASK, WAYS, Sent, Way, Wire, chat_model, wire
from triage import Agent
from triage.adapters.anthropic import record as record_anthropic
from triage.adapters.openai import record as record_openai
from triage.testing.adapter_contract import Rule, Script, World, asks, call, loopback, says

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]
CHARGE = asks(call("charge", cents=300))


async def played(
    script: Script, run: Callable[[World, Wire], Any]
) -> tuple[list[Sent], Any, list[str]]:
    """What was sent, what came of it, and what the tools did."""
    world = World(script)
    with loopback(world) as url:
        async with wire(url) as line:
            result = await run(world, line)
    return line.sent, result, world.deeds


def without(value: Any, *names: str) -> Any:
    """A value without what stands under these names, at any depth."""
    if isinstance(value, dict):
        return {name: without(item, *names) for name, item in value.items() if name not in names}
    return [without(item, *names) for item in value] if isinstance(value, list) else value


def told(result: Any) -> Any:
    """A result as far as it can be compared: without ids and times that each run makes anew."""
    if hasattr(result, "all_messages"):
        history = ModelMessagesTypeAdapter.dump_python(result.all_messages())
        return (
            result.output,
            result.usage,
            without(history, "run_id", "timestamp", "conversation_id", "provider_url"),
        )
    if isinstance(result, sdk.RunResult):
        return result.final_output, result.context_wrapper.usage, result.to_input_list()
    if isinstance(result, dict):
        messages = [
            message.model_dump(exclude={"id", "response_metadata"})
            for message in result["messages"]
        ]
        return messages, result.get("structured_response")
    return result


@table("way", WAYS)
async def test_requests_and_results_are_the_same(way: Way) -> None:
    script = Script((Rule(way.right, "receipt 5"), Rule(CHARGE)))

    async def bare(world: World, line: Wire) -> Any:
        return await way.build(world, line)[0](TASK)

    async def wrapped(world: World, line: Wire) -> Any:
        return await way.build(world, line)[1].run(TASK)

    sent, result, deeds = await played(script, bare)
    assert len(sent) == 2
    assert deeds == ["charge(300)"]
    ours, given, done = await played(script, wrapped)
    assert ours == sent
    assert done == deeds
    assert told(given) == told(result)


# Streams -----------------------------------------------------------------------------------------

Hear = Callable[[Any], None]


async def chat_stream(client: Any, hear: Hear) -> None:
    said: list[Any] = [{"role": "user", "content": TASK}]
    pieces = await client.chat.completions.create(model="m", messages=said, stream=True)
    async for piece in pieces:
        hear(piece.model_dump())


async def chat_stream_helper(client: Any, hear: Hear) -> None:
    said: list[Any] = [{"role": "user", "content": TASK}]
    async with client.chat.completions.stream(model="m", messages=said) as events:
        async for event in events:
            hear(event.model_dump())


async def responses_stream(client: Any, hear: Hear) -> None:
    async for event in await client.responses.create(model="m", input=TASK, stream=True):
        hear(event.model_dump())


async def messages_stream(client: Any, hear: Hear) -> None:
    said: list[Any] = [{"role": "user", "content": TASK}]
    async with client.messages.stream(model="m", max_tokens=100, messages=said) as events:
        async for event in events:
            hear(event.model_dump())


async def messages_text_stream(client: Any, hear: Hear) -> None:
    said: list[Any] = [{"role": "user", "content": TASK}]
    async with client.messages.stream(model="m", max_tokens=100, messages=said) as events:
        async for piece in events.text_stream:
            hear(piece)
        hear((await events.get_final_message()).model_dump())


@table(
    "stream",
    [chat_stream, chat_stream_helper, responses_stream, messages_stream, messages_text_stream],
)
async def test_clients_stream_the_same(stream: Callable[[Any, Hear], Any]) -> None:
    async def run(line: Wire, *, wrapped: bool) -> list[Any]:
        heard: list[Any] = []
        ours = stream.__name__.startswith("messages")
        client: Any = line.anthropic if ours else line.openai
        if not wrapped:
            await stream(client, heard.append)
            return heard
        recorded: Any = record_anthropic(client) if ours else record_openai(client)

        async def attempt(task: str) -> None:
            await stream(recorded, heard.append)

        await Agent(attempt).run(TASK)
        return heard

    script = Script((Rule(says("It costs ten, all in all.")),))
    sent, heard, _ = await played(script, lambda _, line: run(line, wrapped=False))
    ours, given, _ = await played(script, lambda _, line: run(line, wrapped=True))
    assert len(heard) > 1
    assert given == heard
    assert ours == sent


async def sdk_stream(world: World, line: Wire, hear: Hear, *, wrapped: bool) -> None:
    model = sdk.OpenAIResponsesModel("m", line.openai)
    tools: list[sdk.Tool] = [sdk.function_tool(tool) for tool in world.functions()]
    agent: sdk.Agent[Any] = sdk.Agent(name="clerk", model=model, tools=tools)

    def told_of(event: Any) -> None:
        data: Any = getattr(event, "data", None)
        hear((event.type, getattr(event, "name", None), data and data.model_dump()))

    if wrapped:
        await triage.wrap(agent, effects=world.effects).run(TASK, on_event=told_of)
        return
    run = sdk.Runner.run_streamed(agent, TASK)
    async for event in run.stream_events():
        told_of(event)


_EVENT: TypeAdapter[Any] = TypeAdapter(AgentStreamEvent)


async def pydantic_stream(world: World, line: Wire, hear: Hear, *, wrapped: bool) -> None:
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=line.openai))
    agent = pydantic_ai.Agent(model, tools=world.functions())

    async def handler(context: Any, events: Any) -> None:
        async for event in events:
            told = _EVENT.dump_python(event)
            hear((type(event).__name__, without(told, "timestamp")))

    run: Any = triage.wrap(agent, effects=world.effects).run if wrapped else agent.run
    await run(TASK, event_stream_handler=handler)


async def graph_stream(world: World, line: Wire, hear: Hear, *, wrapped: bool) -> None:
    model = chat_model(line)
    tools = [StructuredTool.from_function(coroutine=tool) for tool in world.functions()]
    graph: Any = create_agent(model, tools)
    asked = {"messages": [{"role": "user", "content": TASK}]}
    if wrapped:
        run = triage.wrap(graph, effects=world.effects).run
        await run(TASK, stream_mode="messages", on_chunk=lambda _, piece: hear(piece[0].text))
        return
    async for piece, _ in graph.astream(asked, stream_mode="messages"):
        hear(piece.text)


@table("stream", [sdk_stream, pydantic_stream, graph_stream])
async def test_frameworks_stream_the_same(stream: Any) -> None:
    script = Script((Rule(says("It costs ten, all in all."), "receipt 5"), Rule(CHARGE)))

    async def run(world: World, line: Wire, *, wrapped: bool) -> list[Any]:
        heard: list[Any] = []
        await stream(world, line, heard.append, wrapped=wrapped)
        return heard

    sent, heard, _ = await played(script, lambda world, line: run(world, line, wrapped=False))
    ours, given, _ = await played(script, lambda world, line: run(world, line, wrapped=True))
    assert len(heard) > 3
    assert given == heard
    assert ours == sent
