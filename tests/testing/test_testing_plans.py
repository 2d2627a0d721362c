"""Plans of faults: which call is meant, what is told of them, and what a test may expect."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tables import table

import triage
import triage.testing
from triage import Agent, FailurePolicy, UsageError
from triage.strategies import backoff_and_retry
from triage.testing import (
    FaultPlan,
    assert_escalates,
    assert_recovers,
    assert_recovers_sync,
    at,
    faults,
)

pytestmark = pytest.mark.anyio


@triage.tool(effect="once")
async def charge(cents: int) -> str:
    return f"paid {cents}"


@triage.tool(effect="read")
async def price(title: str) -> int:
    return len(title)


def shop(plan: FaultPlan, **options: Any) -> Agent[Any]:
    """An agent that looks up a price and charges it, among the plan's faults."""
    look, pay = plan.wrap_tool(price), plan.wrap_tool(charge)

    async def buy(task: str) -> str:
        return await pay(await look(task))

    return Agent(buy, **options)


async def test_the_same_seed_gives_the_same_faults() -> None:
    kinds = [faults.timeout(), faults.rate_limit(retry_after=1)]
    seen = []
    for _ in range(2):
        plan = FaultPlan("seven", faults=kinds, rate=0.5, only=["price"], most=3)
        done = await assert_recovers(shop(plan), "Emma", plan, effects={"charge": 1})
        seen.append([(each.call, each.fault) for each in done.injected])
    assert seen[0] == seen[1]
    assert repr(plan) == (
        "FaultPlan('seven', faults=[faults.timeout(), faults.rate_limit(retry_after=1)], rate=0.5, "
        "only=['price'], most=3)"
    )


async def test_a_plan_can_name_the_attempt_and_is_written_as_it_was_given() -> None:
    plan = FaultPlan({at("price", call=1, attempt=2): faults.timeout(), ("price", 1): OSError("x")})
    done = await assert_recovers(shop(plan), "Emma", plan)
    assert [(each.attempt, each.call) for each in done.injected] == [(1, 1), (2, 2)]
    again = eval(repr(plan), {"FaultPlan": FaultPlan, "faults": faults, "at": at})
    assert repr(again) == repr(plan)
    assert plan.report().startswith("price, call 1 (attempt 1): faults.raises(OSError('x'))")


async def test_a_fault_that_never_came_fails_the_test() -> None:
    plan = FaultPlan({("price", 3): faults.timeout(), "prize": faults.timeout()})
    with pytest.raises(AssertionError) as raised:
        await assert_recovers(shop(plan), "Emma", plan)
    assert "price, call 3 (price was called 1 time)" in str(raised.value)
    assert "prize, every call (prize was never called; called were: charge, price)" in str(
        raised.value
    )
    await assert_recovers(shop(plan), "Emma", plan, allow_unreached=True)


@table(
    ("expected", "said"),
    [
        ({"result": "paid 5"}, "the result is 'paid 4', not 'paid 5'"),
        ({"result": str.isdigit}, "the result is wrong: isdigit refused 'paid 4'"),
        ({"at_most_attempts": 1}, "it took 2 attempts, and 1 were allowed"),
        ({"within_s": 1}, "it took 20 s, and 1 s were allowed"),
        ({"effects": {"charge": 2}}, "charge took effect 1 times, not 2"),
    ],
)
async def test_what_was_expected_is_held_against_the_run(expected: Any, said: str) -> None:
    plan = FaultPlan({("price", 1): faults.rate_limit(retry_after=20)})
    policy = FailurePolicy(
        EXTERNAL_FAULT=backoff_and_retry(backoff=triage.strategies.Backoff(base=0))
    )
    with pytest.raises(AssertionError) as raised:
        await assert_recovers(shop(plan, policy=policy), "Emma", plan, **expected)
    assert str(raised.value).startswith(said)


async def test_a_failed_test_tells_attempts_diagnoses_actions_and_faults() -> None:
    plan = FaultPlan({"price": faults.server_error(503)})
    agent = shop(plan, policy=FailurePolicy(EXTERNAL_FAULT=backoff_and_retry(1)))
    with pytest.raises(AssertionError) as raised:
        await assert_recovers(agent, "Emma", plan)
    text = str(raised.value)
    for said in (
        "attempt 2: external_fault",
        "503",
        "then Retry",
        "then Escalate",
        "price, call 2",
    ):
        assert said in text
    assert isinstance(raised.value.__cause__, triage.TriageEscalationError)
    with pytest.raises(AssertionError, match="was to stop"):
        await assert_escalates(shop(FaultPlan({})), "Emma")
    plan.reset()
    with pytest.raises(AssertionError, match="not of auth"):
        await assert_escalates(agent, "Emma", plan, because="auth")


@table("backend", ["asyncio", "trio"])
def test_plain_functions_have_a_sync_form(backend: str) -> None:
    plan = FaultPlan({("price", 1): faults.timeout()})
    assert assert_recovers_sync(shop(plan), "Emma", plan, backend=backend).attempts == 2


def any_(value: Any) -> Any:
    """What a type checker would have refused."""
    return value


@table(
    ("mistake", "said"),
    [
        (lambda: FaultPlan({("price", 0): faults.timeout()}), "whole number from 1"),
        (lambda: FaultPlan(any_({"price": faults.timeout})), r"write faults\.timeout\(…\)"),
        (lambda: FaultPlan(any_({"price": TimeoutError})), "write TimeoutError"),
        (lambda: FaultPlan(any_({3: faults.timeout()})), "FaultPlan key"),
        (lambda: FaultPlan(3), "a list of faults"),
        (lambda: FaultPlan(3, faults=[]), "is empty"),
        (lambda: FaultPlan(3, faults=[faults.hang()], rate=2), "from 0 to 1"),
        (lambda: FaultPlan({}, rate=0.5), r"takes no rate"),
        (lambda: FaultPlan({}).wrap_tool("price"), "wrap_tool"),
        (lambda: FaultPlan({}).wrap_client("price"), "wrap_client"),
        (lambda: FaultPlan({}).wrap(3), "wrap"),
        (lambda: faults.rate_limit(retry_after=-1), "retry_after"),
        (lambda: faults.rate_limit(client=any_("opnai")), "did you mean 'openai'"),
        (lambda: faults.server_error(404), "500"),
        (lambda: faults.loop(1), "one call is no loop"),
        (lambda: faults.crash(exit_code=300), "exit_code"),
        (lambda: at("price", call=0), "counted from 1"),
        (lambda: assert_recovers_sync(3, "x"), "must be a function"),
        (lambda: assert_recovers_sync(shop(FaultPlan({})), "x", effects={"a": -1}), "effects"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_remedy(mistake: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        mistake()


def test_every_public_name_is_there_and_described() -> None:
    page = Path(__file__).parents[2] / "docs" / "testing.md"
    stores = page.with_name("stores.md")
    words = set(re.findall(r"\w+", page.read_text("utf-8") + stores.read_text("utf-8")))
    for name in triage.testing.__all__:
        assert getattr(triage.testing, name) is not None
    assert set(faults.__all__) | set(triage.testing.__all__) <= words
    assert callable(triage.testing.store_contract)
