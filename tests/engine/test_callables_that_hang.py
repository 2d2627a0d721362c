"""No function that a user gives holds up a run beyond its deadline, nor the event loop."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import anyio
import pytest
from pydantic import AfterValidator, BeforeValidator, PlainValidator
from support import Says, always
from tables import table

import triage
from triage import Agent, Checks, Diagnosis, FailurePolicy, FailureType, Limits, Retry
from triage.core import Cause, TriageError, TriageEscalationError
from triage.strategies import chain, sequence, shrink_context

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each function of a table that hangs: the rows wait at once, and not for each other."""
    monkeypatch.setattr("triage.core.asking.THREADS", 40)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


Hangs = Callable[..., Any]


def hanging(way: str, released: threading.Event) -> Hangs:
    """A function that never returns: one that waits in the event loop, one that blocks its thread."""

    async def waits(*_: Any) -> Any:
        await anyio.sleep_forever()

    def blocks(*_: Any) -> Any:
        released.wait()

    def gives_what_waits(*_: Any) -> Any:
        return waits()

    return {"async": waits, "sync": blocks, "awaitable": gives_what_waits}[way]


class Dispatching:
    """A policy of the user's own."""

    def __init__(self, dispatch: Hangs) -> None:
        self.dispatch = dispatch


async def fails(task: str) -> str:
    raise ConnectionError("gone")


OVERFLOW = Says(Diagnosis(FailureType.CONTEXT_OVERFLOW))


def by(policy: Any, **options: Any) -> Agent[str]:
    return Agent(fails, policy, limits=Limits(seconds=0.5), **options)


DECIDING: dict[str, Callable[[Hangs], Agent[str]]] = {
    "strategy": lambda hangs: by(FailurePolicy(EXTERNAL_FAULT=hangs)),
    "default": lambda hangs: by(always(hangs)),
    "cause": lambda hangs: by(FailurePolicy(causes={"connection": hangs})),
    "policy": by,
    "dispatch": lambda hangs: by(Dispatching(hangs)),
    "chain": lambda hangs: by(always(chain(hangs, Retry()))),
    "sequence": lambda hangs: by(always(sequence(hangs, Retry()))),
    "summarize": lambda hangs: by(
        always(shrink_context(keep_last=1, summarize=hangs)), classifier=OVERFLOW
    ),
    "on_limit": lambda hangs: Agent(
        fails, always(Retry()), limits=Limits(attempts=1, seconds=0.5, on_limit=hangs)
    ),
}


async def ended(agent: Agent[str]) -> TriageError:
    """What a run ends with, while the event loop goes on."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await anyio.sleep(0.01)
            beats += 1

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            with pytest.raises(TriageError) as caught:
                await agent.run("x")
            group.cancel_scope.cancel()
    assert beats > 1
    return caught.value


@table(("name", "way"), itertools.product(DECIDING, ("async", "sync", "awaitable")), at_once=True)
async def test_what_decides_is_given_up_at_the_deadline_and_the_diagnosis_kept(
    name: str, way: str, released: threading.Event
) -> None:
    error = await ended(DECIDING[name](hanging(way, released)))
    assert isinstance(error, TriageEscalationError)
    context = error.context
    assert context is not None
    assert context.error is not None
    assert "gone" in context.error.message
    expected = FailureType.CONTEXT_OVERFLOW if name == "summarize" else FailureType.EXTERNAL_FAULT
    assert context.diagnosis.failure_type is expected
    assert "deadline" in str(error) or "limit reached" in str(error)


@table(
    ("name", "way"), itertools.product(("verify", "constraint"), ("async", "sync")), at_once=True
)
async def test_a_check_is_given_up_at_the_deadline(
    name: str, way: str, released: threading.Event
) -> None:
    async def answers(task: str) -> str:
        return "42"

    hangs = hanging(way, released)
    if (name, way) == ("constraint", "async"):
        return  # refused: constraints are sync
    checks = Checks(verify=hangs) if name == "verify" else Checks(constraints=(hangs,))
    agent = Agent(answers, checks=checks, limits=Limits(seconds=0.5))
    if name == "constraint":  # one that says nothing lets the result pass, as one that raises
        with anyio.fail_after(20):
            assert await agent.run("x") == "42"
        return
    error = await ended(agent)
    assert isinstance(error, TriageEscalationError)
    assert error.context is not None
    assert error.context.diagnosis.cause is Cause.LIMIT or "took longer" in str(error)


@table("over", [AfterValidator, BeforeValidator, PlainValidator], at_once=True)
async def test_a_validator_of_a_results_type_is_given_up_at_the_deadline(
    over: Any, released: threading.Event
) -> None:
    async def answers(task: str) -> str:
        return "42"

    checks = Checks(result_type=Annotated[str, over(lambda _: released.wait())])
    error = await ended(Agent(answers, checks=checks, limits=Limits(seconds=0.5)))
    assert isinstance(error, TriageEscalationError)
    assert error.context is not None
    assert "result_type did not answer before the run's deadline" in str(error)


@table(("way", "where"), itertools.product(("async", "sync"), ("loop", "thread")), at_once=True)
async def test_a_guard_is_given_up_at_the_deadline_and_its_call_asked_about(
    way: str, where: str, released: threading.Event
) -> None:
    paid: list[int] = []

    @triage.tool(effect="once")
    async def pay(cents: int) -> None:
        paid.append(cents)

    @triage.tool(effect="once")
    def pay_here(cents: int) -> None:
        paid.append(cents)

    async def pays(task: str) -> None:
        await pay(5)

    def pays_in_a_thread(task: str) -> None:
        pay_here(5)

    agent: Any = Agent(
        pays_in_a_thread if where == "thread" else pays,
        checks=Checks(guard=hanging(way, released)),
        limits=Limits(seconds=0.5),
    )
    error = await ended(agent)
    assert not paid
    assert "may pay" in str(error) or "deadline" in str(error) or "seconds" in str(error)


async def test_a_strategy_has_the_time_that_it_says(released: threading.Event) -> None:
    class Slow:
        deadline = 0.2

        def __call__(self, context: Any) -> Any:
            released.wait()

    agent = Agent(fails, always(Slow()))
    error = await ended(agent)
    assert "took longer than 0.2 s" in str(error)


async def test_a_compensator_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def undoes(result: str) -> None:
        await anyio.sleep_forever()

    @triage.tool(effect="once", compensate=undoes)
    async def pay(cents: int) -> str:
        return "paid"

    async def pays(task: str) -> str:
        await pay(5)
        raise ConnectionError("gone")

    policy = always(triage.Escalate(compensate=True))
    monkeypatch.setattr(triage.engine.compensation, "LEAST_SECONDS", 0.1)
    error = await ended(Agent(pays, policy, limits=Limits(seconds=0.5)))
    assert any("pay" in effect for effect in error.not_undone)
