"""The journal says what each decision was made of, so that another policy can be held against it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from triage import Agent, Escalate, FailurePolicy, Limits, Replan, Retry, TriageError
from triage.core import ActionChosen, Basis, Event, FailureContext
from triage.core.wire import dump, load
from triage.strategies import (
    Backoff,
    CircuitBreaker,
    RateGate,
    RetryBudget,
    backoff_and_retry,
    behind_gate,
    by_severity,
    chain,
    circuit_breaker,
    replan,
    sequence,
    within_budget,
)
from triage.testing import VirtualTime

pytestmark = pytest.mark.anyio
RETRIED = backoff_and_retry(2, Backoff(base=0.0))


async def decisions(
    policy: FailurePolicy | Callable[[FailureContext], Any] | None,
    *errors: Exception,
    limits: Limits | None = None,
) -> list[Basis]:
    """What the decisions of a run were made of, in which the function raises these."""
    events: list[Event] = []
    left = iter(errors)

    async def works(task: str) -> str:
        for error in left:
            raise error
        return task

    agent = Agent(
        works,
        policy,
        limits=limits or Limits(),
        environment=VirtualTime(),
        observers=[events.append],
    )
    try:
        await agent.run("t")
    except TriageError:
        assert errors
    found = [event.basis for event in events if isinstance(event, ActionChosen)]
    assert all(one is not None for one in found)
    return [one for one in found if one is not None]


@pytest.mark.parametrize(
    ("policy", "key", "strategy"),
    [
        (FailurePolicy(EXTERNAL_FAULT=RETRIED), "EXTERNAL_FAULT", RETRIED),
        (FailurePolicy(default=chain(RETRIED, replan())), "default", RETRIED),
        (FailurePolicy(default=sequence(RETRIED, replan())), "default", RETRIED),
        (FailurePolicy(default=by_severity(replan(), retriable=RETRIED)), "default", RETRIED),
        (FailurePolicy(default=chain(Escalate(), RETRIED)), "default", RETRIED),
        (FailurePolicy(causes={"connection": Retry()}), "causes.connection", Retry()),
    ],
)
async def test_it_is_known_which_strategy_answered(
    policy: FailurePolicy, key: str, strategy: object
) -> None:
    (basis,) = await decisions(policy, ConnectionError("reset"))
    assert (basis.key, basis.strategy) == (key, repr(strategy))
    assert repr(policy) in basis.text


async def test_the_text_of_a_policy_stands_in_the_journal_once_and_its_digest_with_each_decision() -> (
    None
):
    first, second = await decisions(None, ConnectionError("reset"), ConnectionError("reset"))
    assert first.policy == second.policy
    assert first.text
    assert not second.text
    (other,) = await decisions(FailurePolicy(default=Retry()), ConnectionError("reset"))
    assert other.policy != first.policy
    (limited,) = await decisions(None, ConnectionError("reset"), limits=Limits(attempts=3))
    assert limited.policy != first.policy


async def test_what_gates_budgets_breakers_and_limits_answered_is_kept() -> None:
    clock = VirtualTime()
    gate, budget = RateGate(environment=clock), RetryBudget(1, per_second=0, environment=clock)
    breaker = CircuitBreaker(2, name="search", environment=clock)
    gate.hold("openai", 20)
    guarded = circuit_breaker(breaker, within_budget(behind_gate(RETRIED, gate, "openai"), budget))
    error = ConnectionError("reset")
    first, second = await decisions(FailurePolicy(default=guarded), error, ConnectionError("again"))
    told = dict(map(tuple, first.saw))
    assert told["gate:openai"] == pytest.approx(20, abs=1)
    assert told["budget:"] is None
    assert told["breaker:search"] is None
    assert dict(map(tuple, second.saw))["breaker:search"] == 30.0
    (at_limit,) = await decisions(None, error, limits=Limits(attempts=1))
    assert ["limit", "attempts"] in [list(one) for one in at_limit.saw]


async def test_the_draw_is_kept_and_with_it_the_delay_can_be_told_again() -> None:
    events: list[Event] = []
    failed = iter([ConnectionError("reset")])

    async def works(task: str) -> str:
        for error in failed:
            raise error
        return task

    backoff = Backoff(base=4.0)
    policy = FailurePolicy(default=backoff_and_retry(2, backoff))
    agent = Agent(works, policy, environment=VirtualTime(), observers=[events.append])
    await agent.run("t")
    (chosen,) = [event for event in events if isinstance(event, ActionChosen)]
    assert chosen.basis is not None
    assert isinstance(chosen.action, Retry)
    assert chosen.action.delay == pytest.approx(backoff.delay(1, chosen.basis.draw))


async def test_a_strategy_that_chooses_by_chance_says_how_likely_its_choice_was() -> None:
    def either(context: FailureContext) -> Retry | Replan:
        context.note("probability", 0.25)
        return Retry()

    (basis,) = await decisions(either, ConnectionError("reset"))
    assert basis.probability == 0.25
    assert basis.strategy.endswith("either>")
    assert " at 0x" not in basis.strategy


async def test_decisions_of_old_journals_have_no_basis_and_new_ones_come_back_as_they_were() -> (
    None
):
    events: list[Event] = []
    failed = iter([ConnectionError("reset")])

    async def works(task: str) -> str:
        for error in failed:
            raise error
        return task

    await Agent(works, environment=VirtualTime(), observers=[events.append]).run("t")
    (chosen,) = [event for event in events if isinstance(event, ActionChosen)]
    data = dump(chosen)
    assert load(data) == chosen
    del data["basis"]
    old = load(data)
    assert isinstance(old, ActionChosen)
    assert old.basis is None


async def test_what_a_strategy_notes_is_told_apart_by_decision() -> None:
    numbers = itertools.count()

    def counting(context: FailureContext) -> Retry:
        context.note("number", next(numbers))
        return Retry()

    found = await decisions(counting, ConnectionError("a"), ConnectionError("b"))
    assert [dict(map(tuple, one.saw))["number"] for one in found] == [0, 1]
