"""What comes out of an agent while it runs: the items of a stream, and the events of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support import RETRY, Says

import triage
from triage import (
    Agent,
    Retry,
    Run,
    Step,
    TriageEscalationError,
    UsageError,
)

pytestmark = pytest.mark.anyio


async def test_stream_yields_the_items_of_the_function() -> None:
    async def counts(task: int) -> AsyncIterator[int]:
        for number in range(task):
            yield number

    assert [item async for item in Agent(counts).stream(3)] == [0, 1, 2]
    whole: list[int] = await Agent(counts).run(3)
    assert whole == [0, 1, 2]


async def test_stream_says_where_a_new_attempt_begins() -> None:
    attempts: list[int] = []

    async def fails_late(task: str, *, run: Run) -> AsyncIterator[str]:
        attempts.append(run.attempt)
        yield f"{run.attempt}a"
        if run.attempt == 1:
            raise ConnectionError("cut")
        yield f"{run.attempt}b"

    items = [item async for item in Agent(fails_late, RETRY, classifier=Says()).stream("t")]
    assert items[0] == "1a"
    assert isinstance(items[1], triage.Restarted)
    assert items[1].attempt == 2
    assert items[1].action == Retry()
    assert items[2:] == ["2a", "2b"]


async def test_the_consumer_of_a_stream_is_never_inside_the_attempt() -> None:
    async def yields(task: str, *, run: Run) -> AsyncIterator[str]:
        assert triage.current_run() is run
        yield "a"
        assert triage.current_run() is run
        yield "b"

    async for _ in Agent(yields).stream("t"):
        with pytest.raises(UsageError, match="outside"):
            triage.current_run()


async def test_closing_a_stream_early_is_a_cancellation() -> None:
    closed: list[bool] = []

    async def endless(task: str) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    agent = Agent(endless)
    stream = agent.stream("t")
    assert await anext(stream) == 1
    await stream.aclose()  # type: ignore[attr-defined] # it is an async generator
    assert closed == [True]
    assert [info.status for info in await agent.store.runs()] == ["cancelled"]


async def test_stream_of_a_plain_function_is_its_result() -> None:
    async def answers(task: str) -> str:
        return task

    assert [item async for item in Agent(answers).stream("x")] == ["x"]


async def test_events_follow_the_run_and_its_error_comes_last() -> None:
    async def fails(task: str, *, record_step: Any) -> None:
        record_step(Step(action="try"))
        raise ConnectionError("down")

    agent = Agent(fails, triage.FailurePolicy(default=triage.Escalate("no way")))
    names: list[str] = []

    async def follow() -> None:
        async for event in agent.events("t"):
            names.append(type(event).__name__)  # noqa: PERF401 - kept although the last step raises

    with pytest.raises(TriageEscalationError, match="no way"):
        await follow()
    assert names == [
        "RunStarted", "AttemptStarted", "StepRecorded", "AttemptFailed", "ActionChosen", "RunFinished",
    ]  # fmt: skip


async def test_events_of_a_sync_agent_are_followed_from_its_thread() -> None:
    def works(task: str, *, record_step: Any) -> str:
        record_step(Step(action="one"))
        record_step(Step(action="two"))
        return "done"

    names = [type(event).__name__ async for event in Agent(works).events("t")]
    assert names == ["RunStarted", "AttemptStarted", "StepRecorded", "StepRecorded", "RunFinished"]
