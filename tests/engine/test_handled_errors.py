"""A run begun while its caller handles an exception: that exception is no part of the run's own errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from support import RETRY, FakeEnvironment, Says, always, escalation_of
from tables import table

import triage
from triage import Agent, FailureType, Replan, Retry, Run, Step, Suspend, TriageSuspendedError
from triage.core import CompensatorRan, ErrorInfo, RunFinished, UsageError
from triage.core.faults import SafetyFault
from triage.stores import MemoryStore

pytestmark = pytest.mark.anyio

NEVER = SafetyFault("it must not be done")


def fails_in(run: Run, attempts: int = 1) -> str:
    """Fail in so many attempts, while an exception of the agent's own is handled."""
    if run.attempt <= attempts:
        try:
            raise KeyError("of the agent")
        except KeyError:
            raise ConnectionError("gone")  # noqa: B904 - it hides nothing
    return "done"


async def works(task: str, *, run: Run) -> str:
    return fails_in(run)


async def streams(task: str, *, run: Run) -> Any:
    yield fails_in(run)


async def run_of(agent: Agent[Any]) -> Any:
    return await agent.run("t")


async def stream_of(agent: Agent[Any]) -> Any:
    async with aclosing(agent.stream("t")) as items:  # type: ignore[type-var] # a generator
        return [item async for item in items][-1]


async def nested_of(agent: Agent[Any]) -> Any:
    async def outer(task: str) -> Any:
        try:
            raise NEVER
        except SafetyFault:
            return await agent.run(task)

    return await Agent(outer).run("t")


@table(
    ("function", "ask"),
    [
        (works, run_of),
        (streams, run_of),
        (works, nested_of),
        (works, stream_of),
        (streams, stream_of),
    ],
)
async def test_a_run_begun_while_an_exception_is_handled_recovers_from_its_own(
    function: Any, ask: Callable[[Agent[Any]], Awaitable[Any]]
) -> None:
    agent: Agent[Any] = Agent(function, environment=FakeEnvironment())
    try:
        raise NEVER
    except SafetyFault:
        assert await ask(agent) in ("done", ["done"])


async def test_an_answer_given_while_the_question_is_handled_is_no_cause_of_a_later_failure() -> (
    None
):
    async def drifts(task: str, *, run: Run) -> str:
        if run.attempt == 1:
            raise triage.hint(ValueError("another goal"), failure_type=FailureType.GOAL_DRIFT)
        return fails_in(run, attempts=2)

    seen: list[FailureType] = []

    def policy(context: triage.FailureContext) -> Any:
        seen.append(context.failure_type)
        return Suspend("go on?") if context.attempt == 1 else Retry()

    agent = Agent(drifts, always(policy))
    result = ""
    try:
        await agent.run("t")
    except TriageSuspendedError as asked:
        result = await agent.resume(asked.token, Retry())
    assert result == "done"
    assert seen == [FailureType.GOAL_DRIFT, FailureType.EXTERNAL_FAULT]


def related(error: ErrorInfo | None) -> list[str]:
    """The classes of an error and of those behind it."""
    assert error is not None
    return [info.type_name for info in error.walk()]


async def test_what_a_compensator_and_a_mistake_fail_with_is_journalled_by_itself() -> None:
    store = MemoryStore()

    def undo() -> None:
        raise RuntimeError("locked")

    async def undoes(task: str, *, run: Run) -> None:
        run.record_step(Step(action="done"))
        run.compensator(undo)
        raise ConnectionError("late")

    async def mistakes(task: str) -> None:
        raise UsageError("wrong")

    back = always(lambda _context: Replan())
    try:
        raise NEVER
    except SafetyFault:
        await escalation_of(
            Agent(undoes, back, classifier=Says(), store=store).run("t", run_id="undone")
        )
        with pytest.raises(UsageError):
            await Agent(mistakes, RETRY, store=store).run("t", run_id="mistake")
    ran = [event for event in await store.read("undone") if isinstance(event, CompensatorRan)]
    assert [related(event.error) for event in ran if not event.begins] == [["RuntimeError"]]
    (end,) = [event for event in await store.read("mistake") if isinstance(event, RunFinished)]
    assert related(end.error) == ["UsageError"]
