"""Virtual time: it passes only when everybody waits, and in order."""

from __future__ import annotations

import time
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tables import table

import triage
from triage import Agent, FailurePolicy, Limits, Retry, UsageError
from triage.core import Environment
from triage.strategies import Backoff, backoff_and_retry
from triage.testing import (
    FaultPlan,
    ScriptedAgent,
    VirtualTime,
    assert_escalates,
    assert_recovers,
    fails,
    faults,
    gives,
    waits,
)

pytestmark = pytest.mark.anyio


def test_virtual_time_is_an_environment() -> None:
    assert isinstance(VirtualTime(), Environment)
    assert VirtualTime(3).random() == VirtualTime(3).random() != VirtualTime(4).random()
    assert VirtualTime(start=50).time() == 50
    with pytest.raises(UsageError, match="start"):
        VirtualTime(start=float("nan"))


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    env, woken = VirtualTime(), list[tuple[str, float]]()

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await env.sleep(nap)
            woken.append((name, env.monotonic()))

    began = time.monotonic()
    async with anyio.create_task_group() as group:
        group.start_soon(sleeper, "late", 3600, 10)
        group.start_soon(sleeper, "early", 5, 5, 0, 3595)
        group.start_soon(sleeper, "middle", 60)
    assert woken == [
        ("early", 5), ("early", 10), ("early", 10), ("middle", 60), ("late", 3600), ("early", 3605),
        ("late", 3610),
    ]  # fmt: skip
    assert time.monotonic() - began < 60
    assert sorted(env.slept) == [0, 5, 5, 10, 60, 3595, 3600]


async def test_tasks_that_wait_side_by_side_use_up_an_attempts_time_once() -> None:
    env = VirtualTime()

    async def agent(_task: str) -> float:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(env.sleep, 6)
        await env.sleep(3)
        return env.monotonic()

    limits = Limits(attempt_seconds=10)
    assert await Agent(agent, limits=limits, environment=env).run("t") == 9


async def test_a_sleeper_that_is_cancelled_holds_up_nobody() -> None:
    env = VirtualTime()
    async with anyio.create_task_group() as group:

        async def cancelled() -> None:
            with anyio.CancelScope() as scope:
                group.start_soon(anyio.sleep, 0)
                scope.cancel()
                await env.sleep(5)

        group.start_soon(cancelled)
        group.start_soon(env.sleep, 50)
    assert env.monotonic() == 50


async def test_time_waits_for_those_who_are_not_done() -> None:
    env, seen = VirtualTime(), list[float]()

    async def busy() -> None:
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        seen.append(env.monotonic())

    async with anyio.create_task_group() as group:
        group.start_soon(env.sleep, 9)
        group.start_soon(busy)
    assert seen == [0]


async def test_many_runs_share_one_time() -> None:
    env, ends = VirtualTime(), list[tuple[int, float]]()

    async def one(number: int) -> None:
        agent = Agent(
            ScriptedAgent([[fails(TimeoutError("slow"))], [gives(number)]]),
            FailurePolicy(EXTERNAL_FAULT=Retry(delay=100 - number)),
            environment=env,
        )
        ends.append((await agent.run("x"), env.monotonic()))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(one, number)
    assert [number for number, _ in ends] == list(range(19, -1, -1))
    assert env.monotonic() >= 100


async def test_backoff_takes_the_seconds_it_would_and_no_real_time() -> None:
    policy = FailurePolicy(
        EXTERNAL_FAULT=backoff_and_retry(4, Backoff(base=60, jitter=False, cap=900))
    )
    agent = Agent(ScriptedAgent([fails(ConnectionResetError("cut"))]), policy)
    env, began = VirtualTime(), time.monotonic()
    done = await assert_escalates(agent, "x", environment=env)
    assert env.slept == [60, 120, 240, 480]
    assert done.seconds == 900
    assert time.monotonic() - began < 60


@table("limits", [Limits(seconds=10), Limits(attempt_seconds=10)])
async def test_an_attempt_that_waits_too_long_is_stopped_on_time(limits: Limits) -> None:
    agent = Agent(ScriptedAgent([waits(6), waits(6), gives("late")]), limits=limits)
    done = await assert_escalates(agent, "x")
    assert done.failures[0].ended - done.failures[0].started == 10


async def test_an_attempt_within_its_time_is_left_alone() -> None:
    agent = Agent(ScriptedAgent([waits(6), waits(3), gives("in time")]), limits=Limits(seconds=10))
    assert (await assert_recovers(agent, "x", result="in time")).seconds == 9


async def test_a_slow_payment_is_not_cut_off_and_its_attempt_ends_after_it() -> None:
    plan = FaultPlan({("charge", 1): faults.slow(50)})

    @plan.wrap_tool
    @triage.tool(effect="once")
    async def charge(cents: int) -> str:
        return "paid"

    async def buy(task: str, *, run: Any) -> str:
        paid = await charge(5)
        if run.attempt == 1:
            await anyio.lowlevel.checkpoint()
            run.update_state({"paid": paid})
        return paid

    agent = Agent(buy, limits=Limits(attempt_seconds=10))
    done = await assert_recovers(agent, "x", plan, result="paid", effects={"charge": 1})
    assert done.attempts == 2
    assert done.failures[0].ended - done.failures[0].started == 50


async def test_advance_moves_the_clock_for_sync_code() -> None:
    env = VirtualTime()
    env.advance(90)
    assert (env.monotonic(), repr(env)) == (90, "<VirtualTime 90 s>")
    with pytest.raises(UsageError, match="advance"):
        env.advance(-1)
