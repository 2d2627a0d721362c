from __future__ import annotations

import pickle
from inspect import isawaitable
from typing import Any

import pytest
from tables import table

from strategies.strategy_contexts import WRONG_KEY, answer, context, reason_of
from triage.core import (
    Abort,
    Action,
    Diagnosis,
    Escalate,
    FailureContext,
    FailureType,
    Replan,
    Retry,
    Severity,
    Suspend,
    UsageError,
)
from triage.strategies import (
    Backoff,
    CircuitBreaker,
    RateGate,
    RetryBudget,
    Strategy,
    always,
    backoff_and_retry,
    behind_gate,
    by_severity,
    chain,
    circuit_breaker,
    compensating_rollback,
    replan,
    resume_from_subgoal,
    retry_with_tool_manifest,
    rollback_to_checkpoint,
    sequence,
    within_budget,
)

# combining


def test_a_sequence_gives_each_failure_the_next_strategy() -> None:
    strategy = sequence(backoff_and_retry(), replan(), Abort("enough"))
    kinds = [answer(strategy, context(*[Retry()] * n)).kind for n in range(4)]
    assert kinds == ["retry", "replan", "abort", "escalate"]
    reason = reason_of(answer(strategy, context(*[Retry()] * 3)))
    assert reason == (
        "external_fault (timeout): failed 4 times, and all 3 strategies have had a turn"
    )


def test_a_chain_falls_back_when_the_first_gives_up() -> None:
    strategy = chain(rollback_to_checkpoint(max_rollbacks=1), replan())
    first = answer(strategy, context())
    assert first.kind == "rollback"
    assert answer(strategy, context(first)) == Replan(None)


def test_a_chain_falls_back_only_after_the_actions_it_names() -> None:
    assert answer(chain(Abort(), replan()), context()) == Abort()
    assert answer(chain(Abort(), replan(), after=(Abort,)), context()) == Replan()
    assert answer(chain(Escalate(), replan(), after=(Abort,)), context()) == Escalate()


@pytest.mark.anyio
async def test_combined_strategies_may_be_async() -> None:
    async def gives_up(_: FailureContext) -> Escalate:
        return Escalate("no")

    async def replans(_: FailureContext) -> Replan:
        return Replan("async")

    for strategy in (
        chain(gives_up, replans),
        chain(gives_up, Replan("async")),
        chain(Escalate(), replans),
        sequence(replans),
        by_severity(replans),
        circuit_breaker(CircuitBreaker(), replans),
    ):
        pending = strategy(context())
        assert isawaitable(pending)
        assert await pending == Replan("async")


def test_each_severity_can_have_a_strategy_of_its_own() -> None:
    strategy = by_severity(Abort(), reclassification=Suspend("Which tools?"))
    unknown = Diagnosis(FailureType.UNKNOWN, severity=Severity.RECLASSIFICATION)
    assert answer(strategy, context(diagnosis=unknown)) == Suspend("Which tools?")


@table(
    ("severity", "kind"),
    [
        (Severity.RETRIABLE, "retry"),
        (Severity.REPLANNING, "replan"),
        (Severity.RECLASSIFICATION, "suspend"),
        (Severity.CRITICAL, "escalate"),
        (Severity.FATAL, "escalate"),
    ],
)
def test_each_severity_has_its_own_answer(severity: Severity, kind: str) -> None:
    strategy = by_severity(Suspend(), retriable=backoff_and_retry(), replanning=replan())
    diagnosis = Diagnosis(FailureType.EXTERNAL_FAULT, severity=severity)
    assert answer(strategy, context(diagnosis=diagnosis)).kind == kind


def test_what_needs_a_person_may_be_answered_otherwise_only_by_name() -> None:
    assert answer(by_severity(replan()), context(diagnosis=WRONG_KEY)).kind == "escalate"
    suspending = by_severity(replan(), critical=Suspend("Which key?"))
    assert answer(suspending, context(diagnosis=WRONG_KEY)) == Suspend("Which key?")


# as values


def own(_: FailureContext) -> Action:
    return Retry()


VALUES: list[tuple[Strategy, str]] = [
    (always(Retry()), "Retry(hint=None, delay=0.0, inject={})"),
    (replan("x"), "replan(hint='x', max_replans=3)"),
    (retry_with_tool_manifest(), "retry_with_tool_manifest(max_attempts=3)"),
    (resume_from_subgoal(1), "resume_from_subgoal(max_resumes=1)"),
    (
        rollback_to_checkpoint(2),
        "rollback_to_checkpoint(checkpoint_id=2, max_rollbacks=3, hint=None)",
    ),
    (
        compensating_rollback(),
        "compensating_rollback(checkpoint_id=None, max_rollbacks=1, hint=None)",
    ),
    (
        backoff_and_retry(2, Backoff(base=0)),
        f"backoff_and_retry(max_attempts=2, backoff={Backoff(base=0)!r})",
    ),
    (sequence(replan(), Abort()), f"sequence(replan(hint=None, max_replans=3), {Abort()!r})"),
    (
        chain(replan(), Abort(), (Abort,)),
        f"chain(replan(hint=None, max_replans=3), {Abort()!r}, after=(Abort,))",
    ),
    (
        by_severity(Abort(), replanning=replan()),
        f"by_severity({Abort()!r}, replanning=replan(hint=None, max_replans=3))",
    ),
]


@table(("strategy", "written"), VALUES)
def test_a_strategy_is_a_frozen_value_printed_as_it_is_written(strategy: Any, written: str) -> None:
    assert repr(strategy) == written
    copy = pickle.loads(pickle.dumps(strategy))
    assert copy == strategy
    assert copy is not strategy
    assert strategy != replan("another")
    with pytest.raises(AttributeError):
        strategy.anything = 1


def test_equal_strategies_are_found_in_a_set() -> None:
    assert len({replan("x"), replan("x"), replan("y"), compensating_rollback()}) == 3
    assert compensating_rollback(1, 3) != rollback_to_checkpoint(1, 3)


def test_a_breaker_is_printed_with_its_numbers() -> None:
    strategy = circuit_breaker(CircuitBreaker(2, 5.0), own)
    assert repr(strategy).startswith(
        "circuit_breaker(breaker=CircuitBreaker(failures=2, cooldown_s=5.0), inner=<function own"
    )


@table(
    ("make", "arguments", "said"),
    [
        (backoff_and_retry, {"max_attempts": "5"}, "backoff_and_retry.max_attempts"),
        (backoff_and_retry, {"max_attempts": True}, "backoff_and_retry.max_attempts"),
        (backoff_and_retry, {"backoff": 2.0}, "backoff_and_retry.backoff must be a Backoff"),
        (backoff_and_retry, {"backoff": Backoff.LLM}, "backoff_and_retry.preset"),
        (retry_with_tool_manifest, {"max_attempts": -1}, "retry_with_tool_manifest.max_attempts"),
        (replan, {"hint": 5}, "replan.hint must be a text or None"),
        (replan, {"max_replans": None}, "replan.max_replans"),
        (
            rollback_to_checkpoint,
            {"checkpoint_id": "run:4"},
            "rollback_to_checkpoint.checkpoint_id",
        ),
        (compensating_rollback, {"max_rollbacks": 1.0}, "compensating_rollback.max_rollbacks"),
        (resume_from_subgoal, {"max_resumes": "2"}, "resume_from_subgoal.max_resumes"),
        (circuit_breaker, {"breaker": 5, "inner": own}, "circuit_breaker.breaker"),
        (circuit_breaker, {"breaker": CircuitBreaker(), "inner": 5}, "circuit_breaker.inner"),
        (CircuitBreaker, {"failures": 0}, "CircuitBreaker.failures"),
        (CircuitBreaker, {"cooldown_s": 0}, "CircuitBreaker.cooldown_s"),
        (CircuitBreaker, {"environment": 5}, "CircuitBreaker.environment"),
        (CircuitBreaker, {"counts": 5}, "CircuitBreaker.counts"),
        (CircuitBreaker, {"name": 5}, "CircuitBreaker.name"),
        (within_budget, {"inner": own, "budget": 5}, "within_budget.budget must be a RetryBudget"),
        (within_budget, {"inner": 5, "budget": RetryBudget()}, "within_budget.inner"),
        (within_budget, {"inner": own, "budget": RetryBudget(), "key": 5}, "within_budget.key"),
        (
            within_budget,
            {"inner": own, "budget": RetryBudget(), "otherwise": 5},
            "within_budget.otherwise",
        ),
        (behind_gate, {"inner": own, "gate": 5}, "behind_gate.gate must be a RateGate"),
        (behind_gate, {"inner": own, "gate": RateGate(), "key": None}, "behind_gate.key"),
        (chain, {"primary": replan, "fallback": own}, "chain.primary .* make one: replan"),
        (chain, {"primary": own, "fallback": own, "after": (replan,)}, "chain.after item"),
        (chain, {"primary": own, "fallback": own, "after": 5}, "chain.after item"),
        (by_severity, {"otherwise": None}, "by_severity.otherwise"),
        (by_severity, {"otherwise": own, "critical": "x"}, "by_severity.critical"),
        (sequence, {}, "at least one strategy"),
        (always, {"action": Retry}, "always.action"),
    ],
)
def test_a_wrong_argument_is_named(make: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make(**arguments)
