from __future__ import annotations

import math
from collections.abc import Callable
from inspect import isawaitable
from threading import Barrier, Thread
from typing import Any

import pytest
from support import FakeEnvironment, Says, on_both_backends
from tables import table

from strategies.strategy_contexts import answer, context, delay_of, reason_of
from strategies.virtual import grown
from triage import Agent, FailurePolicy, Severity, TriageEscalationError, UsageError, diagnose
from triage.core import (
    Abort,
    Cause,
    Diagnosis,
    Escalate,
    FailureContext,
    FailureType,
    Replan,
    Resume,
    Retry,
    RetryBudgetSpent,
    Rollback,
    Suspend,
)
from triage.strategies import (
    Budget,
    RateGate,
    RetryBudget,
    backoff_and_retry,
    behind_gate,
    within_budget,
)

anyio_backend = on_both_backends()

LIMITED = Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.RATE_LIMITED, retry_after_s=8)


def test_successes_earn_retries_up_to_the_full_bucket() -> None:
    budget = RetryBudget(1, per_second=0, per_success=0.1, environment=FakeEnvironment())
    assert budget.take() is None
    for _ in range(9):
        budget.success()
    assert budget.take() == math.inf
    budget.success()
    assert budget.left() == pytest.approx(1.0)
    assert budget.take() is None
    for _ in range(100):
        budget.success()
    assert budget.left() == 1.0


def test_threads_never_take_more_than_there_is() -> None:
    budget = RetryBudget(10, per_second=0)
    together, taken = Barrier(8), list[float | None]()

    def take() -> None:
        together.wait()
        taken.extend(budget.take("x") for _ in range(10))

    threads = [Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken.count(None) == 10


def test_full_buckets_are_forgotten() -> None:
    time = FakeEnvironment()
    budget = RetryBudget(1, per_second=1, environment=time)

    def use(number: int) -> None:
        budget.take(f"tenant-{number}")
        time.now += 2

    assert grown(use) < 2_000_000


@pytest.mark.anyio
async def test_around_calls_first_ones_are_free_and_successes_count() -> None:
    budget = RetryBudget(1, per_second=0, per_success=0.5, environment=FakeEnvironment())
    async with budget.through("x", retry=True):
        pass
    assert budget.left("x") == 0.5
    with pytest.raises(ValueError, match="no"):
        async with budget.through("x"):
            raise ValueError("no")
    with pytest.raises(RetryBudgetSpent, match="budget of x is spent") as caught:
        async with budget.through("x", retry=True):
            pytest.fail("the call was made")
    assert (caught.value.key, caught.value.retry_after_s) == ("x", math.inf)
    found = diagnose(caught.value)
    assert (found.failure_type, found.severity) == (FailureType.EXTERNAL_FAULT, Severity.CRITICAL)


def test_a_sync_function_can_be_a_retry() -> None:
    budget = RetryBudget(1, per_second=0, per_success=0)

    @budget.through("x", retry=True)
    def again() -> str:
        return "yes"

    assert again() == "yes"
    with pytest.raises(RetryBudgetSpent):
        again()


# strategies


@table("action", [Retry(), Replan(), Rollback(), Resume()])
def test_each_action_that_calls_again_takes_a_token(action: Any) -> None:
    budget = RetryBudget(1, per_second=0.5, environment=FakeEnvironment())
    strategy = within_budget(action, budget, "x")
    assert answer(strategy, context()) == action
    reason = reason_of(answer(strategy, context()))
    assert reason == ("external_fault (timeout): the retry budget of x is spent; one is due in 2 s")


@table("action", [Escalate(), Abort(), Suspend("?")])
def test_an_action_that_ends_the_run_is_free(action: Any) -> None:
    budget = RetryBudget(1, per_second=0)
    assert answer(within_budget(action, budget), context()) == action
    assert budget.left() == 1


def test_a_spent_budget_can_be_answered_otherwise() -> None:
    budget = RetryBudget(1, per_second=0)
    strategy = within_budget(Retry(), budget, otherwise=Suspend("Go on later?"))
    answer(strategy, context())
    assert answer(strategy, context()) == Suspend("Go on later?")


@pytest.mark.anyio
async def test_an_async_strategy_may_stand_within() -> None:
    async def replans(_: FailureContext) -> Replan:
        return Replan("async")

    for strategy in (
        within_budget(replans, RetryBudget()),
        behind_gate(replans, RateGate(environment=FakeEnvironment())),
    ):
        pending = strategy(context())
        assert isawaitable(pending)
        assert await pending == Replan("async")


@pytest.mark.anyio
async def test_many_runs_share_one_budget() -> None:
    budget = RetryBudget(3, per_second=0)
    calls = 0

    async def down(task: str) -> str:
        nonlocal calls
        calls += 1
        raise ConnectionError("down")

    policy = FailurePolicy(default=within_budget(Retry(), budget, "x"))
    agent = Agent(down, policy, classifier=Says(), environment=FakeEnvironment())
    for _ in range(10):
        with pytest.raises(TriageEscalationError, match="budget of x is spent"):
            await agent.run("x")
    assert calls == 10 + 3


def test_a_delay_heard_by_one_run_delays_the_others() -> None:
    time = FakeEnvironment()
    gate = RateGate(environment=time)
    strategy = behind_gate(backoff_and_retry(), gate, "x")
    assert delay_of(answer(strategy, context(diagnosis=LIMITED, draw=0.0))) == 8.0
    time.now += 3
    assert delay_of(answer(strategy, context(draw=0.0))) == 5.0
    assert delay_of(answer(strategy, context(draw=1.0))) == 6.25
    assert gate.wait_s("x") == 5.0


def test_an_open_gate_and_other_actions_change_nothing() -> None:
    gate = RateGate(environment=FakeEnvironment())
    assert answer(behind_gate(Retry(delay=2), gate), context()) == Retry(delay=2)
    gate.hold("", 9)
    assert answer(behind_gate(Abort(), gate), context()) == Abort()


def test_a_policy_file_can_have_a_budget_of_its_own() -> None:
    table = {"strategy": "within_budget", "retries": 2, "key": "x", "inner": "replan"}
    strategy = FailurePolicy.from_dict({"UNKNOWN": table}).strategies[FailureType.UNKNOWN]
    assert isinstance(strategy, within_budget)
    assert isinstance(strategy.budget, RetryBudget)
    assert (strategy.budget.retries, strategy.key) == (2, "x")
    gate = RateGate()
    given = FailurePolicy.from_dict({"UNKNOWN": {"strategy": "behind_gate", "gate": gate}})
    assert given.strategies == {FailureType.UNKNOWN: behind_gate(backoff_and_retry(), gate)}
    with pytest.raises(UsageError, match=r"UNKNOWN: RetryBudget\.retries"):
        FailurePolicy.from_dict({"UNKNOWN": {"strategy": "within_budget", "retries": 0}})


def test_a_budget_is_one_by_its_protocol_and_printed_as_written() -> None:
    assert isinstance(RetryBudget(), Budget)
    assert repr(RetryBudget(5)) == "RetryBudget(retries=5, per_success=0.1, per_second=0.1)"


@table(
    ("do", "said"),
    [
        (lambda: RetryBudget(0), r"RetryBudget\.retries"),
        (lambda: RetryBudget(per_success=-1), r"RetryBudget\.per_success"),
        (lambda: RetryBudget(per_second=float("nan")), r"RetryBudget\.per_second"),
        (lambda: RetryBudget(environment=5), r"RetryBudget\.environment"),  # type: ignore[arg-type]
        (lambda: RetryBudget().take(5), r"RetryBudget\.take key must be text"),  # type: ignore[arg-type]
        (lambda: RetryBudget().through("x", retry=1), r"retry must be True or False"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_value_is_named(do: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        do()
