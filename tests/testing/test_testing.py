"""Faults on purpose: which call fails how, and what the recommended policy makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

import triage
from triage import Agent, Checks, FailurePolicy, Limits, Retry, TriageSuspendedError, UsageError
from triage.testing import Crash, FaultPlan, assert_escalates, assert_recovers, faults

pytestmark = pytest.mark.anyio


@triage.tool(effect="once")
async def charge(cents: int) -> str:
    return f"paid {cents}"


@triage.tool(effect="read")
async def price(title: str) -> int:
    return len(title)


@triage.tool(effect="read")
def stock(title: str) -> int:
    return len(title)


def shop(plan: FaultPlan, **options: Any) -> Agent[Any]:
    """An agent that looks up a price and charges it, among the plan's faults."""
    look, pay = plan.wrap_tool(price), plan.wrap_tool(charge)

    async def buy(task: str) -> str:
        return await pay(await look(task))

    return Agent(buy, **options)


PASSING: list[Any] = [
    faults.rate_limit(retry_after=20),
    faults.rate_limit(),
    faults.timeout(),
    faults.timeout(after=True),
    faults.server_error(503),
    faults.server_error(after=True),
    faults.connection_refused(),
    faults.slow(5),
    faults.wrong_tool("prize"),
    faults.loop(2),
    ConnectionResetError("cut"),
]


async def test_a_read_that_fails_once_is_recovered() -> None:
    for fault in PASSING:
        plan = FaultPlan({("price", 1): fault})
        done = await assert_recovers(
            shop(plan), "Emma", plan, result="paid 4", effects={"charge": 1}
        )
        assert [each.name for each in done.injected] == ["price"]


async def test_what_no_waiting_cures_is_handed_over() -> None:
    for fault, because, attempts in (
        (faults.auth(), "auth", 1),
        (faults.context_length(), "context_length", 4),
    ):
        plan = FaultPlan({"price": fault})
        done = await assert_escalates(
            shop(plan), "Emma", plan, because=because, effects={"charge": 0}
        )
        assert done.attempts == attempts


async def test_a_payment_that_was_not_attempted_is_never_in_doubt() -> None:
    for fault in (faults.rate_limit(), faults.connection_refused(), faults.auth()):
        plan = FaultPlan({("charge", 1): fault})
        policy = FailurePolicy(EXTERNAL_FAULT=Retry())
        await assert_recovers(shop(plan, policy=policy), "Emma", plan, effects={"charge": 1})


async def test_a_payment_whose_answer_was_lost_is_asked_about() -> None:
    for after in (False, True):
        plan = FaultPlan({("charge", 1): faults.timeout(after=after)})
        done = await assert_escalates(
            shop(plan), "Emma", plan, because="in_doubt", ends_in=TriageSuspendedError
        )
        assert done.effects["charge"] == after


async def test_a_payment_that_is_repeated_blindly_fails_the_test() -> None:
    plan = FaultPlan({("charge", 1): faults.timeout(after=True)})
    blind = shop(plan, durability=triage.Durability(on_in_doubt="rerun"))
    with pytest.raises(AssertionError, match="charge took effect 2 times for one call"):
        await assert_recovers(blind, "Emma", plan)


async def test_what_was_undone_did_not_take_effect() -> None:
    undone: list[str] = []
    book = triage.tool(effect="once", compensate=undone.append, name="charge")(charge.__wrapped__)  # type: ignore[attr-defined] # the function inside
    plan = FaultPlan({("price", 2): ValueError("odd")})
    pay, look = plan.wrap_tool(book), plan.wrap_tool(price)

    async def buy(task: str, *, run: Any) -> str:
        await look(task)
        paid: str = await pay(run.attempt)
        await look(task * 2)
        return paid

    policy = FailurePolicy(default=triage.Replan("Otherwise."))
    agent = Agent(buy, policy)
    done = await assert_recovers(agent, "Emma", plan, effects={"charge": 1})
    assert (undone, done.attempts) == (["paid 1"], 2)


async def test_a_hanging_tool_ends_with_the_attempts_time() -> None:
    plan = FaultPlan({("price", 1): faults.hang()})
    agent = shop(plan, limits=Limits(attempt_seconds=30))
    done = await assert_recovers(agent, "Emma", plan, result="paid 4")
    assert 30 < done.seconds < 32
    assert done.failures[0].diagnosis.evidence[0].rule == "limit:attempt_seconds"


async def test_a_hanging_tool_ends_with_its_own_timeout() -> None:
    plan = FaultPlan({("wait", 1): faults.hang()})

    @plan.wrap_tool
    @triage.tool(effect="read", timeout=45)
    async def wait() -> str:
        return "came"

    async def patient(task: str) -> str:
        return await wait()

    done = await assert_recovers(patient, "x", plan, result="came")
    assert 45 < done.seconds < 47


async def test_what_nothing_ends_is_said_to_hang() -> None:
    plan = FaultPlan({("price", 1): faults.hang()})
    with pytest.raises(AssertionError, match=r"hangs: 0\.5 s of real time(?s:.*)price, call 1"):
        await assert_recovers(shop(plan), "Emma", plan, real_seconds=0.5)


async def test_a_sync_agent_that_comes_back_too_late_is_said_to_hang() -> None:
    def slow(task: str) -> str:
        time.sleep(0.1)  # in a thread, where nothing can cancel it
        return "late"

    with pytest.raises(AssertionError, match=r"hangs: 0\.01 s of real time"):
        await assert_recovers(slow, "x", FaultPlan({}), real_seconds=0.01)


async def test_an_agent_that_keeps_the_event_loop_too_long_is_said_to_hang() -> None:
    async def busy(task: str) -> str:
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass
        return "late"

    with pytest.raises(AssertionError, match=r"hangs: 0\.01 s of real time"):
        await assert_recovers(busy, "x", FaultPlan({}), real_seconds=0.01)


async def test_a_sync_tool_that_hangs_for_good_is_refused_with_the_remedy() -> None:
    plan = FaultPlan({"stock": faults.hang()})
    look = plan.wrap_tool(stock)

    async def count(task: str) -> int:
        return look(task)

    with pytest.raises(UsageError, match="stock is sync and was to hang"):
        await assert_recovers(count, "x", plan)


async def test_a_sync_tool_fails_and_waits_like_an_async_one() -> None:
    plan = FaultPlan({("stock", 1): faults.server_error(503), ("stock", 2): faults.slow(7)})
    look = plan.wrap_tool(stock)

    async def count(task: str, *, run: triage.Run) -> Any:
        return await run.call(look, task)

    done = await assert_recovers(count, "Emma", plan, result=4)
    assert done.seconds > 7


async def test_a_wrapped_tool_keeps_its_options_and_its_instance() -> None:
    class Desk:
        def __init__(self) -> None:
            self.calls = 0

        @triage.tool(effect="idempotent", name="ring", ignore=("why",), retries=2)
        async def bell(self, why: str) -> int:
            self.calls += 1
            return self.calls

    desk, plan = Desk(), FaultPlan({("ring", 1): faults.connection_refused()})
    bell = plan.wrap_tool(desk.bell)

    async def guest(task: str) -> int:
        return await bell(task)

    done = await assert_recovers(guest, "x", plan, result=1, at_most_attempts=1)
    steps = done.state.steps
    assert (steps[-1].tool_called, steps[-1].tool_input, steps[-1].effect) == (
        "ring",
        {},
        "idempotent",
    )
    assert plan.calls("ring") == 2


async def test_an_answer_that_is_no_json_is_a_schema_mismatch() -> None:
    plan = FaultPlan({("fetch", 1): faults.malformed_json()})

    @plan.wrap_tool
    async def fetch() -> str:
        return '{"a": 1}'

    async def read(task: str) -> Any:
        return json.loads(await fetch())

    done = await assert_recovers(read, "x", plan, result={"a": 1})
    assert done.failures[0].failure_type == "schema_mismatch"


async def test_a_whole_agent_fails_as_planned() -> None:
    async def answer(task: str) -> dict[str, str]:
        return {"to": task}

    checks = Checks(result_type=dict[str, str], tools={"search": None})
    agent = Agent(answer, name="clerk", checks=checks)
    for fault, found in (
        (faults.loop(4), "loop_detected"),
        (faults.wrong_tool("serch"), "wrong_tool_called"),
        (faults.timeout(), "external_fault"),
        (faults.malformed_json(), "schema_mismatch"),
    ):
        plan = FaultPlan({("clerk", 1): fault})
        done = await assert_recovers(agent, "x", plan, result={"to": "x"})
        assert [each.failure_type for each in done.failures] == [found]


async def test_a_stream_fails_after_its_items() -> None:
    plan = FaultPlan({("poem", 1): faults.timeout(after=True)})

    async def poem(task: str) -> Any:
        yield "fog"

    items = [
        item
        async for item in Agent(plan.wrap(poem), FailurePolicy(EXTERNAL_FAULT=Retry())).stream("x")
    ]
    assert [getattr(item, "attempt", item) for item in items] == ["fog", 2, "fog"]


@pytest.mark.parametrize("fault", [faults.crash(), faults.crash(after=True)], ids=repr)
async def test_a_crash_leaves_the_store_as_a_killed_process_does(
    fault: Any, tmp_path: Path
) -> None:
    plan = FaultPlan({("charge", 1): fault})
    agent = shop(plan, store=f"sqlite:///{tmp_path / 'runs.db'}")
    with pytest.raises(Crash, match="died in charge"):
        await agent.run("Emma", run_id="r1")
    kinds = [type(event).__name__ for event in await agent.store.read("r1")]
    assert kinds[-1] == "CallStarted"
    info = await agent.store.info("r1")
    assert info is not None
    assert info.lease_until is not None
    with pytest.raises(TriageSuspendedError, match="did charge with"):
        await agent.recover("r1")
    await agent.store.close()


def test_a_crash_with_an_exit_code_ends_the_process(tmp_path: Path) -> None:
    program = """
from triage.testing import FaultPlan, faults
plan = FaultPlan({("go", 2): faults.crash(exit_code=137)})
def go():
    print("went", flush=True)
go = plan.wrap_tool(go)
go()
go()
print("never")
"""
    root = str(Path(triage.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": root},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (137, "went\n"), done.stderr


async def test_a_run_is_recovered_after_a_crash_of_a_read(tmp_path: Path) -> None:
    plan = FaultPlan({("price", 1): faults.crash(), ("charge", 1): faults.rate_limit()})
    agent = shop(plan, store=f"sqlite:///{tmp_path / 'runs.db'}")
    done = await assert_recovers(agent, "Emma", plan, result="paid 4", effects={"charge": 1})
    assert done.restarts == 1
    await agent.store.close()


async def test_a_crash_in_one_of_many_tasks_is_recovered_too(tmp_path: Path) -> None:
    plan = FaultPlan({("price", 3): faults.crash()})
    look, found = plan.wrap_tool(price), list[int]()

    async def many(task: str) -> int:
        async def one(title: str) -> None:
            found.append(await look(title))

        found.clear()
        async with anyio.create_task_group() as group:
            for number in range(1, 6):
                group.start_soon(one, task * number)
        return sum(found)

    agent = Agent(many, store=f"sqlite:///{tmp_path / 'runs.db'}")
    done = await assert_recovers(agent, "x", plan, result=15)
    assert done.restarts == 1
    await agent.store.close()


async def test_a_crash_without_a_durable_store_names_the_remedy() -> None:
    plan = FaultPlan({("price", 1): faults.crash()})
    with pytest.raises(UsageError, match="needs a durable store"):
        await assert_recovers(shop(plan), "Emma", plan)
