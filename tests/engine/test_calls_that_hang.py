"""A call with an effect that never ends outlives no limit: the run ends, and somebody is asked."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tables import table

import triage
from triage import Agent, Durability, Limits
from triage.core import TriageEscalationError, TriageSuspendedError
from triage.stores import MemoryStore, Store, open_store

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triage.engine.run, "GRACE", 0.02)
    monkeypatch.setattr(triage.engine.run, "UNSTOPPABLE_GRACE", 0.1)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


Function = Callable[..., Any]


def in_loop(released: threading.Event, effect: str) -> Function:
    @triage.tool(effect=effect)
    async def pay(cents: int) -> str:
        await anyio.sleep_forever()
        return "never"

    async def agent(task: str) -> str:
        return await pay(5)

    return agent


def in_thread(released: threading.Event, effect: str) -> Function:
    @triage.tool(effect=effect)
    def pay(cents: int) -> str:
        released.wait()
        return "late"

    async def agent(task: str, *, run: Any) -> str:
        return str(await run.call(pay, 5))

    return agent


def in_sync_agent(released: threading.Event, effect: str) -> Function:
    @triage.tool(effect=effect)
    def pay(cents: int) -> str:
        released.wait()
        return "late"

    def agent(task: str) -> str:
        return pay(5)

    return agent


def beside_others(released: threading.Event, effect: str) -> Function:
    paying = in_loop(released, effect)

    async def agent(task: str) -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(paying, task)
            group.start_soon(anyio.sleep_forever)
        return "never"

    return agent


def swallowing(released: threading.Event, effect: str) -> Function:
    paying = in_thread(released, effect)

    async def agent(task: str, *, run: Any) -> str:
        try:
            return str(await paying(task, run=run))
        except Exception:
            return "no matter"

    return agent


def inside(released: threading.Event, effect: str) -> Function:
    inner = Agent(in_loop(released, effect), name="inner")

    async def agent(task: str) -> str:
        return str(await inner.run("part"))

    return agent


def inside_in_thread(released: threading.Event, effect: str) -> Function:
    inner = Agent(in_sync_agent(released, effect), name="inner")

    async def agent(task: str) -> str:
        return str(await inner.run("part"))

    return agent


KINDS = (in_loop, in_thread, in_sync_agent, beside_others, swallowing, inside, inside_in_thread)
LIMITS = (Limits(seconds=4), Limits(attempt_seconds=2), Limits(stall_seconds=2))


def store_in(kind: str, folder: Path) -> Store:
    return MemoryStore() if kind == "memory" else open_store(f"sqlite:///{folder}/runs.db")


async def asked(run: Callable[[], Awaitable[Any]]) -> TriageSuspendedError:
    with anyio.fail_after(30), pytest.raises(TriageSuspendedError) as caught:
        await run()
    return caught.value


@table(("make", "limits"), itertools.product(KINDS, LIMITS), at_once=True)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_call_that_hangs_past_a_limit_is_asked_about(
    make: Any, limits: Limits, kind: str, released: threading.Event, tmp_path: Path
) -> None:
    store = store_in(kind, tmp_path)
    await store.runs()  # opens it
    agent = Agent(make(released, "once"), limits=limits, store=store, name="pays")
    question = await asked(lambda: agent.run("x", run_id="r1"))
    assert "did pay with" in question.question
    info = await store.info("r1")
    assert info is not None
    assert info.status == "suspended"


@table("make", [in_loop, in_thread, in_sync_agent, swallowing], at_once=True)
async def test_the_answer_is_taken_and_the_call_not_repeated(
    make: Any, released: threading.Event
) -> None:
    agent = Agent(make(released, "once"), limits=Limits(attempt_seconds=0.3), name="pays")
    question = await asked(lambda: agent.run("x", run_id="r1"))
    with anyio.fail_after(10):
        result = await agent.resume(question.token, triage.happened("paid"))
    assert result == "paid"


@table("make", KINDS, at_once=True)
async def test_a_run_that_asks_nobody_escalates_with_the_question(
    make: Any, released: threading.Event
) -> None:
    durability = Durability(on_in_doubt="fail")
    agent = Agent(make(released, "once"), limits=Limits(seconds=0.3), durability=durability)
    with (
        anyio.fail_after(10),
        pytest.raises((TriageEscalationError, TriageSuspendedError)) as raised,
    ):
        await agent.run("x")
    assert "did pay with" in str(raised.value)


async def test_a_timeout_of_the_tool_is_waited_for_however_long_it_is() -> None:
    ended: list[str] = []

    @triage.tool(effect="once", timeout=30)
    async def pay(cents: int) -> str:
        await anyio.sleep(0.9)
        ended.append("paid")
        return "paid"

    async def agent(task: str) -> str:
        return await pay(5)

    with anyio.fail_after(10), pytest.raises(TriageEscalationError):
        await Agent(agent, limits=Limits(seconds=0.3)).run("x")
    assert ended == ["paid"]


async def test_a_run_cancelled_from_outside_does_not_wait_for_the_grace(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triage.engine.run, "UNSTOPPABLE_GRACE", 60)
    agent = Agent(in_loop(released, "once"), limits=Limits(seconds=0.3))
    with anyio.move_on_after(0.6) as scope:
        await agent.run("x")
    assert scope.cancelled_caught
