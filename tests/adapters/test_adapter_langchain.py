"""Runnables of LangChain: what is recorded, and given again to the next attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.types import Command
from tables import table

import triage
from adapters.langchain_agents import Scripted, calls_of, steps_of, turn_asking, wrapped
from triage import Agent
from triage.testing.adapter_contract import Fails, Rule, Script, World, says

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("theirs_may_block")]

HELLO = Script((Rule(says("hello"), "greet"), Rule(says("what?"))))
FAILS_ONCE = Script(HELLO.rules, faults={2: Fails(503, "overloaded")})


PARTS = [{"type": "text", "text": "part"}]


# Recording and reuse --------------------------------------------------------------------------------


async def test_outside_of_a_run_nothing_is_recorded_or_changed() -> None:
    world = World(HELLO)
    model = Scripted(world=world)
    agent, events = wrapped(model)
    await agent.run("greet")
    before = len(events)
    dangling = [HumanMessage("greet"), turn_asking("c1")]
    assert (await model.ainvoke(dangling)).text == "hello"
    assert [message["role"] for message in world.requests[-1].body["messages"]] == [
        "user",
        "assistant",
    ]
    assert len(events) == before


class Relaying(Scripted):
    """A model that asks another one."""

    async def _agenerate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        answer = await Scripted(world=self.world).ainvoke(messages)
        return ChatResult(generations=[ChatGeneration(message=answer)])


async def test_a_model_that_asks_another_one_is_one_call() -> None:
    agent, events = wrapped(Relaying(world=World(HELLO)))
    assert (await agent.run("greet")).text == "hello"
    assert [step.llm_output for step in steps_of(events)] == ["hello"]


async def test_sync_code_is_recorded_in_its_thread() -> None:
    world = World(FAILS_ONCE)
    model = Scripted(world=world)
    did: list[str] = []

    @tool
    def look(what: str) -> str:
        """Look."""
        did.append(what)
        return f"saw {what}"

    def work(task: str) -> str:
        found = look.invoke({"what": "a"})
        return f"{found}: {model.invoke('greet').text}, {model.invoke('and you').text}"

    agent, events = wrapped(RunnableLambda(work), effects={"look": "once"})
    assert await agent.run("go") == "saw a: hello, what?"
    assert did == ["a"]
    assert len(world.requests) == 3
    assert calls_of(events) == [("look", {"what": "a"}, "saw a")]


class Named(Scripted):
    """A model that answers with its name, and fails at first if it is told to."""

    model: str
    failures: int = 0

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("overloaded")
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.model))])


async def test_models_that_are_asked_the_same_are_told_apart() -> None:
    small, large = Named(world=None, model="small"), Named(world=None, model="large")

    async def both(task: str) -> list[str]:
        answers = await asyncio.gather(
            small.ainvoke(task), large.ainvoke(task), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [str(answer.content) for answer in answers if isinstance(answer, AIMessage)]

    agent, events = wrapped(RunnableLambda(both))
    # Whether a model asks over HTTP, and so where its calls are recorded, is known once it has answered.
    assert await agent.run("go") == ["small", "large"]
    small.failures = 1
    assert await agent.run("go") == ["small", "large"]
    assert len(steps_of(events)) == 2 + 3


@table(
    ("made", "kept", "told"),
    [
        (("text", None), ToolMessage("text", tool_call_id="c1", name="look"), "text"),
        ((PARTS, {"rows": [1]}), None, PARTS),
        ((Command(update={"log": ["x"]}, goto=["end"]), None), None, None),
    ],
)
async def test_results_of_every_kind_are_given_again_as_they_were(
    made: Any, kept: Any, told: Any
) -> None:
    results: list[Any] = []

    @tool(response_format="content_and_artifact")
    async def look(what: str) -> Any:
        """Look."""
        return made

    async def work(task: str) -> str:
        asked = {"name": "look", "args": {"what": "a"}, "id": "c1", "type": "tool_call"}
        results.append(await look.ainvoke(asked))
        if len(results) == 1:
            raise ConnectionError("reset")
        return "end"

    agent, events = wrapped(RunnableLambda(work), effects={"look": "once"})
    assert await agent.run("go") == "end"
    if told is not None:
        assert calls_of(events) == [("look", {"what": "a"}, told)]
    assert results[0] == results[1]
    if kept is not None:
        assert results[1] == kept


async def test_what_code_gets_from_a_tool_is_the_same_object_again() -> None:
    results: list[Any] = []

    @tool
    async def look(what: str) -> Any:
        """Look."""
        return {1, 2}

    async def work(task: str) -> str:
        results.append(await look.ainvoke({"what": "a"}))
        if len(results) == 1:
            raise ConnectionError("reset")
        return "end"

    agent, _ = wrapped(RunnableLambda(work), effects={"look": "once"})
    assert await agent.run("go") == "end"
    assert results == [{1, 2}, {1, 2}]


async def test_a_tool_of_a_server_says_itself_that_it_only_reads() -> None:
    @tool
    async def look(what: str) -> str:
        """Look."""
        return what

    look.metadata = {"readOnlyHint": True}

    async def work(task: str) -> str:
        return str(await look.ainvoke({"what": "a"}))

    agent, events = wrapped(RunnableLambda(work), trust_hints=["l*k"])
    await agent.run("go")
    assert [step.effect for step in steps_of(events)] == ["read"]


async def test_a_run_of_another_function_inside_keeps_its_own_journal() -> None:
    world = World(HELLO)
    model = Scripted(world=world)

    async def inner(task: str) -> str:
        return str((await model.ainvoke(task)).text)

    nested = Agent(inner)

    async def outer(task: str) -> str:
        return await nested.run(task)

    agent, events = wrapped(RunnableLambda(outer))
    assert await agent.run("greet") == "hello"
    own = {event.run_id for event in events}
    assert len(own) == 1
    assert not [step for step in steps_of(events) if step.action == "model"]


# Streams --------------------------------------------------------------------------------------------


class Streaming(Scripted):
    """A model that answers in pieces. broken: so many streams break off after a piece."""

    broken: int = 0
    streams: int = 0

    def _pieces(self, messages: list[BaseMessage]) -> Iterator[ChatGenerationChunk]:
        self.streams += 1
        words = self._generate(messages).generations[0].message.text
        yield ChatGenerationChunk(message=AIMessageChunk(content=words[:2]))
        if self.streams <= self.broken:
            raise ConnectionError("reset")
        yield ChatGenerationChunk(message=AIMessageChunk(content=words[2:]))

    def _stream(self, messages: Any, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        return self._pieces(messages)

    async def _astream(
        self, messages: Any, *_: Any, **__: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for piece in self._pieces(messages):
            yield piece


def _streams_in_the_loop(model: Streaming) -> Any:
    async def work(task: str) -> list[str]:
        return [str(piece.text) async for piece in model.astream(task)]

    return work


def _streams_in_a_thread(model: Streaming) -> Any:
    async def work(task: str) -> list[str]:
        return await asyncio.to_thread(lambda: [str(piece.text) for piece in model.stream(task)])

    return work


@table("kind", [_streams_in_the_loop, _streams_in_a_thread])
async def test_a_stream_is_recorded_when_it_ends_and_given_again_whole(
    kind: Callable[[Streaming], Any],
) -> None:
    model = Streaming(world=World(HELLO), broken=1)
    stream = kind(model)
    said: list[str] = []

    async def work(task: str) -> str:
        said.append("|".join(filter(None, await stream("greet"))))
        if len(said) == 1:
            raise ConnectionError("later")
        return "end"

    agent, events = wrapped(RunnableLambda(work))
    assert await agent.run("go") == "end"
    assert said == ["he|llo", "hello"]
    found = [(step.llm_output, step.error) for step in steps_of(events)]
    assert found == [(None, "reset"), ("hello", None)]
    assert model.streams == 2


async def test_a_streamed_answer_that_is_cut_off_is_no_success() -> None:
    class Cut(Streaming):
        def _pieces(self, messages: list[BaseMessage]) -> Iterator[ChatGenerationChunk]:
            message = AIMessageChunk(content="half", response_metadata={"finish_reason": "length"})
            yield ChatGenerationChunk(message=message)

    stream = _streams_in_the_loop(Cut(world=World(HELLO)))
    agent, _ = wrapped(RunnableLambda(stream), triage.Escalate())
    with pytest.raises(triage.TriageEscalationError, match="SoftFailure"):
        await agent.run("go")


@table("kind", ["astream", "stream"])
async def test_a_stream_that_is_left_at_its_last_piece_is_recorded(kind: str) -> None:
    model = Streaming(world=World(HELLO))
    said: list[str] = []

    async def work(task: str) -> str:
        words = ""
        if kind == "astream":
            async for piece in model.astream("greet"):
                words += str(piece.text)
                if piece.chunk_position == "last":
                    break
            await asyncio.sleep(0)
        else:
            for piece in model.stream("greet"):
                words += str(piece.text)
                if piece.chunk_position == "last":
                    break
        said.append(words)
        if len(said) == 1:
            raise ConnectionError("later")
        return "end"

    agent, events = wrapped(RunnableLambda(work))
    assert await agent.run("go") == "end"
    assert said == ["hello", "hello"]
    assert model.streams == 1
    assert [(step.llm_output, step.error) for step in steps_of(events)] == [("hello", None)]


async def test_a_stream_that_is_left_is_asked_again() -> None:
    model = Streaming(world=World(HELLO))
    said: list[str] = []

    async def work(task: str) -> str:
        async for piece in model.astream("greet"):
            said.append(str(piece.text))
            break
        await asyncio.sleep(0)
        if len(said) == 1:
            raise ConnectionError("later")
        return "end"

    agent, events = wrapped(RunnableLambda(work))
    assert await agent.run("go") == "end"
    assert said == ["he", "he"]
    assert all(step.error for step in steps_of(events))
