"""A model is no tool: guards, manifests and limits leave it alone. Streams, and records of answers."""

from __future__ import annotations

from typing import Any

import pytest
from support import always, on_both_backends

import triage
from adapters.own_framework import Framework, read, recording, steps_of, three
from triage import Checks, Limits, Retry
from triage.adapters import Form, Seam, StreamLeft
from triage.core import CallFinished, WatchNoticed
from triage.engine import Guard, GuardedCall

pytestmark = pytest.mark.anyio
anyio_backend = on_both_backends()

# A model is no tool ---------------------------------------------------------------------------------


async def test_a_guard_of_all_tools_is_not_asked_about_models() -> None:
    looked: list[str] = []

    def decide(call: GuardedCall) -> bool:
        looked.append(call.tool)
        return True

    guard = Guard(decide, effects=("read", "once", "unknown"), tools=("*",))
    agent, _ = recording(Framework(three), checks=Checks(guard=guard))
    assert await agent.run("t") == "end"
    assert looked == ["look", "charge", "look"]


async def test_a_guard_that_changes_what_it_is_shown_changes_no_record() -> None:
    def decide(call: GuardedCall) -> bool:
        shown: Any = call.arguments
        shown["n"] = "changed"
        return True

    guard = Guard(decide, effects=("read", "once", "unknown"), tools=("*",))
    agent, events = recording(Framework(three), checks=Checks(guard=guard))
    assert await agent.run("t") == "end"
    given = [step.tool_input for step in steps_of(events) if step.tool_called is not None]
    assert given == [{"n": 1}] * 3


async def test_a_model_is_no_unknown_tool_and_its_calls_are_under_no_limit_of_tools() -> None:
    agent, events = recording(
        Framework(three),
        checks=Checks(tools=["look", "charge"]),
        limits=Limits(tool_calls=3, calls_per_tool={"theirs": 1}),
    )
    assert await agent.run("t") == "end"
    assert not [event for event in events if isinstance(event, WatchNoticed)]
    assert sum(step.tool_called is None for step in steps_of(events)) == 3


async def test_model_and_tool_calls_of_one_name_are_told_apart() -> None:
    async def course(framework: Framework, seam: Seam) -> str:
        await framework.model(seam, "first")
        await framework.tool(seam, "theirs", effect="read")
        if seam.run.attempt == 1:
            raise ConnectionError("gone")
        return str((await framework.model(seam, "second"))["text"])

    framework = Framework(course)
    agent, _ = recording(framework, policy=always(Retry()))
    assert await agent.run("t") == "on second"
    assert [said for said, _ in framework.asked] == ["first", "second"]
    assert framework.did == ["theirs"]


# Streams --------------------------------------------------------------------------------------------


class Whole(str):
    """An answer as the framework has it."""

    __slots__ = ()


STREAMED = Form(lambda whole: {"text": str(whole)}, lambda data: Whole(data["text"]), read)


async def test_a_stream_that_has_ended_is_known_to_the_next_attempt() -> None:
    asked: list[str] = []

    async def course(framework: Framework, seam: Seam) -> Any:
        stream = seam.stream(form=STREAMED, request=1, said="go")
        if stream.known is not None:
            return stream.known
        asked.append(f"told {seam.hint}")
        with stream.passing():
            stream.done(Whole("all of it"))
        await stream.durable()
        raise ConnectionError("gone")

    agent, events = recording(Framework(course), policy=always(Retry()))
    result = await agent.run("t")
    assert (type(result), result, asked) == (Whole, "all of it", ["told None"])
    assert [(step.tool_input, step.llm_output) for step in steps_of(events)] == [
        ("go", "all of it")
    ] * 2


async def test_a_stream_that_broke_off_is_asked_for_again() -> None:
    async def course(framework: Framework, seam: Seam) -> str:
        stream = seam.stream(form=STREAMED, request=1)
        assert stream.known is None
        with stream.passing():
            if seam.run.attempt == 1:
                raise ConnectionError("reset")
            stream.done(Whole("all of it"))
        return "asked again"

    agent, events = recording(Framework(course), policy=always(Retry()))
    assert await agent.run("t") == "asked again"
    assert [step.error for step in steps_of(events)] == ["reset", None]


async def test_the_error_of_a_stream_is_known_to_an_agent_that_swallows_it() -> None:
    async def course(framework: Framework, seam: Seam) -> str:
        stream = seam.stream(form=STREAMED, request=1)
        with pytest.raises(ConnectionError), stream.passing():
            raise ConnectionError("reset")
        assert isinstance(seam.last_error, ConnectionError)
        stream.done(Whole("too late"))
        return "fine"

    agent, events = recording(Framework(course), limits=Limits(attempts=1))
    with pytest.raises(triage.TriageError):
        await agent.run("t")
    assert [step.error for step in steps_of(events)] == ["reset"]


async def test_a_stream_that_is_left_is_no_error_of_the_model() -> None:
    async def course(framework: Framework, seam: Seam) -> str:
        def pieces() -> Any:
            stream = seam.stream(form=STREAMED, request=1)
            with stream.passing():
                yield "a"
                stream.done(Whole("a"))

        left = pieces()
        assert next(left) == "a"
        left.close()
        assert seam.last_error is None
        return "enough"

    agent, events = recording(Framework(course))
    assert await agent.run("t") == "enough"
    assert [step.exception_type for step in steps_of(events)] == [StreamLeft.__name__]


# Records --------------------------------------------------------------------------------------------


async def test_an_answer_that_is_changed_afterwards_changes_no_record() -> None:
    given: dict[str, Any] = {"text": "on it", "more": [1]}

    async def course(framework: Framework, seam: Seam) -> Any:
        async def ask(hint: str | None) -> Any:
            return given

        await seam.model(ask, form=Form(read=read), request=1)
        given["more"].append(2)

    agent, events = recording(Framework(course))
    await agent.run("t")
    (kept,) = [event.result for event in events if isinstance(event, CallFinished)]
    assert kept == {"text": "on it", "more": [1]}
