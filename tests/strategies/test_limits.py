from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace
from tables import table

from triage.core import (
    Abort,
    Action,
    Attempt,
    Cause,
    Diagnosis,
    Escalate,
    Evidence,
    FailureContext,
    FailureType,
    Level,
    Replan,
    Resume,
    Retry,
    Rollback,
    Severity,
    Suspend,
    Trajectory,
    Usage,
    UsageError,
)
from triage.core.steps import NO_USAGE
from triage.strategies import Limits, Prices

TIMED_OUT = Diagnosis(
    FailureType.EXTERNAL_FAULT,
    cause=Cause.TIMEOUT,
    level=Level.LOW,
    evidence=(Evidence("exception", "ReadTimeout"),),
    critical_step=2,
    technical_details="ReadTimeout after 10 s",
    hint="Ask for less.",
)
AMOUNTS = [
    field.name
    for field in fields(Limits)
    if field.name not in ("calls_per_tool", "on_limit", "prices")
]
ALL_PROCEED: tuple[Action, ...] = (Retry(), Replan(), Rollback(), Resume())
ALL_STOP: tuple[Action, ...] = (Suspend(), Escalate(), Abort())


def context(
    *past: Action, failure_type: FailureType = FailureType.EXTERNAL_FAULT, **changes: Any
) -> FailureContext:
    """A failure after attempts of `failure_type` that ended with these actions."""
    earlier = replace(TIMED_OUT, failure_type=failure_type)
    history = tuple(
        Attempt(n, Trajectory(), {}, None, earlier, action, NO_USAGE, 0.0, 0.0)
        for n, action in enumerate(past, start=1)
    )
    given: dict[str, Any] = {
        "run_id": "run",
        "task": "t",
        "attempt": len(past) + 1,
        "diagnosis": TIMED_OUT,
        "attempt_history": history,
    }
    return FailureContext(**(given | changes))


def limits_of(**given: Any) -> Limits:
    """Limits by the names of their fields."""
    return Limits(**given)


def rule_of(diagnosis: Diagnosis | None) -> str:
    assert diagnosis is not None
    return diagnosis.evidence[0].rule


def test_attempts_and_the_times_of_outages_and_polling_are_the_only_limits_by_default() -> None:
    limits = Limits()
    set_ = [f.name for f in fields(limits) if getattr(limits, f.name) is not None]
    assert set_ == [
        "attempts", "refusals", "outage_seconds", "longest_wait", "polling_seconds", "on_limit",
    ]  # fmt: skip
    assert (limits.outage_seconds, limits.longest_wait) == (300.0, 120.0)
    assert (limits.attempts, limits.refusals, limits.on_limit) == (10, 2, "escalate")
    assert not limits.watches


@table("name", AMOUNTS)
@table("value", ["10", -1, True, float("nan"), float("inf"), [1]])
def test_a_wrong_value_is_refused_with_field_type_and_remedy(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        limits_of(**{name: value})
    assert re.match(rf"Limits\.{name} must be .*, not {type(value).__name__} ", str(caught.value))
    assert "None for no limit" in str(caught.value)


@table("value", ["search", 3, [("search", 3)], {"search": 0}, {"search": 1.5}, {5: 1}])
def test_counts_by_tool_are_a_mapping_of_names_to_counts(value: Any) -> None:
    with pytest.raises(UsageError, match=r"Limits\.calls_per_tool"):
        Limits(calls_per_tool=value)


def test_counts_by_tool_are_a_copy() -> None:
    given = {"search": 3}
    limits = Limits(calls_per_tool=given)
    given["search"] = 100
    assert limits.calls_per_tool == {"search": 3}


@table(("name", "value"), [("on_limit", "stop"), ("prices", {"mine": (1, 2)})])
def test_what_is_no_amount_is_checked_too(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"Limits\.{name} must be"):
        limits_of(**{name: value})


@table("name", ["retries", "replans", "rollbacks", "resumes"])
def test_zero_forbids_a_kind_of_action(name: str) -> None:
    limits = limits_of(**{name: 0})
    refused = [action for action in ALL_PROCEED if limits.allows(action, context())]
    kinds = {"retries": "retry", "replans": "replan", "rollbacks": "rollback", "resumes": "resume"}
    assert [action.kind for action in refused] == [kinds[name]]


@table("name", ["attempts", "attempts_per_type", "steps", "tokens", "seconds"])
def test_a_limit_that_allows_nothing_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"Limits\.{name}"):
        limits_of(**{name: 0})


@table("name", [*AMOUNTS, "calls_per_tool", "on_limit", "prices"])
def test_every_limit_says_whether_it_must_be_watched(name: str) -> None:
    watched = {
        "steps", "tool_calls", "calls_per_tool", "input_tokens", "output_tokens", "tokens", "cost_usd",
    }  # fmt: skip
    others = {"calls_per_tool": {"search": 1}, "on_limit": "suspend", "prices": Prices()}
    assert limits_of(**{name: others.get(name, 1)}).watches is (name in watched)


def test_nothing_is_exceeded_while_everything_is_open() -> None:
    open_limits = Limits(attempts=None)
    busy = context(attempt=1000, elapsed_s=1e9, usage=Usage(10**9, 10**9, 1e6))
    assert open_limits.exceeded(busy, steps=10**6, tool_calls=10**6) is None
    assert all(open_limits.allows(action, busy) is None for action in ALL_PROCEED)


@table(("attempt", "stops"), [(1, False), (2, False), (3, True), (4, True)])
def test_the_last_attempt_is_followed_by_no_other(attempt: int, *, stops: bool) -> None:
    found = Limits(attempts=3).exceeded(context(attempt=attempt))
    assert (found is not None) is stops


def test_a_reached_limit_keeps_what_is_known_of_the_failure() -> None:
    found = Limits(attempts=1).exceeded(context())
    assert found is not None
    assert found.failure_type is FailureType.EXTERNAL_FAULT
    assert (found.cause, found.severity, found.level) == (
        Cause.LIMIT,
        Severity.CRITICAL,
        Level.HIGH,
    )
    assert found.evidence == (
        Evidence("limit:attempts", "1 of 1 attempts used"),
        *TIMED_OUT.evidence,
    )
    assert found.technical_details.startswith("limit attempts: used 1, allowed 1; ")
    assert "external_fault (timeout)" in found.technical_details
    assert "ReadTimeout after 10 s" in found.technical_details
    assert (found.critical_step, found.hint) == (2, "Ask for less.")
    assert found.suggestions[0] == "Raise Limits(attempts=…) if the run was making progress."
    assert found.user_message == "The run has reached its limit of 1 attempts."


def test_a_critical_level_is_not_lowered_by_a_limit() -> None:
    paged = replace(TIMED_OUT, level=Level.CRITICAL)
    found = Limits(attempts=1).exceeded(context(diagnosis=paged))
    assert found is not None
    assert found.level is Level.CRITICAL


@table(
    ("limits", "changes"),
    [
        (Limits(seconds=60), {"elapsed_s": 60.0}),
        (Limits(seconds=60), {"elapsed_s": 61.0}),
        (Limits(seconds=60), {"elapsed_s": 10.0, "seconds_left": 0.0}),
        (Limits(), {"elapsed_s": 10.0, "seconds_left": -1.0}),
    ],
)
def test_a_passed_deadline_ends_the_run(limits: Limits, changes: dict[str, Any]) -> None:
    assert rule_of(limits.exceeded(context(**changes))) == "limit:seconds"


def test_before_the_deadline_the_run_goes_on() -> None:
    assert Limits(seconds=60).exceeded(context(elapsed_s=59.0, seconds_left=1.0)) is None


@table(
    ("limits", "usage"),
    [
        (Limits(input_tokens=100), Usage(100, 0)),
        (Limits(output_tokens=100), Usage(0, 100)),
        (Limits(tokens=100), Usage(60, 40)),
        (Limits(cost_usd=0.5), Usage(1, 1, 0.5)),
    ],
)
def test_spent_usage_pays_for_no_further_attempt(limits: Limits, usage: Usage) -> None:
    given = (name for name in AMOUNTS if getattr(limits, name) != getattr(Limits(), name))
    (name,) = given
    assert rule_of(limits.exceeded(context(usage=usage))) == f"limit:{name}"
    assert limits.watch(0, 0, usage) is None
    assert rule_of(limits.watch(0, 0, usage.plus(Usage(1, 1, 0.01)))) == f"limit:{name}"


def test_an_unknown_cost_does_not_count() -> None:
    limits = Limits(cost_usd=0.01)
    assert limits.watch(0, 0, Usage(10**6, 10**6)) is None
    assert limits.exceeded(context(usage=Usage(10**6, 10**6))) is None


@table(
    ("steps", "calls", "rule"),
    [(3, 2, None), (4, 2, "limit:steps"), (3, 3, "limit:tool_calls"), (4, 3, "limit:steps")],
)
def test_a_count_may_be_used_up_but_not_passed(steps: int, calls: int, rule: str | None) -> None:
    limits = Limits(steps=3, tool_calls=2)
    watched = limits.watch(steps, calls, NO_USAGE)
    after = limits.exceeded(context(), steps=steps, tool_calls=calls)
    for found in (watched, after):
        assert (None if found is None else rule_of(found)) == rule


@pytest.mark.parametrize(("times", "stops"), [(3, False), (4, True)])
def test_a_cost_that_sums_up_to_the_limit_is_within_it(times: int, *, stops: bool) -> None:
    limits = Limits(cost_usd=0.1).raised({"cost_usd": 2})
    usage = Usage(cost_usd=sum([0.1] * times), calls=times)
    assert (limits.watch(0, 0, usage) is not None) is stops


def test_a_breach_while_recording_is_an_incomplete_plan_and_not_a_loop() -> None:
    found = Limits(steps=3).watch(4, 0, NO_USAGE)
    assert found is not None
    assert found.failure_type is FailureType.PLAN_INCOMPLETE
    assert (found.cause, found.severity) == (Cause.LIMIT, Severity.CRITICAL)
    assert found.technical_details == "limit steps: used 4, allowed 3"


def test_a_limit_that_is_the_diagnosis_already_is_not_said_twice() -> None:
    limits = Limits(steps=3)
    breach = limits.watch(4, 0, NO_USAGE)
    assert breach is not None
    assert limits.exceeded(context(diagnosis=breach), steps=4) == breach


@table("action", ALL_PROCEED)
def test_actions_of_a_kind_are_counted_over_all_failure_types(action: Action) -> None:
    names = {"retry": "retries", "replan": "replans", "rollback": "rollbacks", "resume": "resumes"}
    name = names[action.kind]
    limits = limits_of(**{name: 2})
    once = context(action, failure_type=FailureType.GOAL_DRIFT)
    twice = context(action, action, failure_type=FailureType.GOAL_DRIFT)
    assert limits.allows(action, once) is None
    assert rule_of(limits.allows(action, twice)) == f"limit:{name}"


def test_one_failure_type_may_end_only_so_many_attempts() -> None:
    limits = Limits(attempts_per_type=2)
    assert limits.allows(Retry(), context()) is None
    assert rule_of(limits.allows(Retry(), context(Retry()))) == "limit:attempts_per_type"
    others = context(Retry(), Retry(), failure_type=FailureType.GOAL_DRIFT)
    assert limits.allows(Retry(), others) is None


@table("action", [Retry(delay=5), Replan(delay=5)])
def test_a_delay_past_the_deadline_is_refused_before_waiting(action: Action) -> None:
    limits = Limits(seconds=60)
    assert limits.allows(action, context(elapsed_s=50.0)) is None
    found = limits.allows(action, context(elapsed_s=58.0))
    assert rule_of(found) == "limit:seconds"
    assert found is not None
    assert "waiting another 5 s" in found.technical_details


def test_a_deadline_from_outside_counts_too() -> None:
    assert Limits().allows(Retry(delay=5), context(elapsed_s=1.0, seconds_left=2.0)) is not None
    assert Limits().allows(Retry(delay=5), context(elapsed_s=1.0)) is None


@table("action", ALL_STOP)
def test_stopping_is_always_allowed(action: Action) -> None:
    strict = Limits(
        attempts=1, attempts_per_type=1, retries=0, replans=0, rollbacks=0, resumes=0, seconds=1
    )
    assert strict.allows(action, context(elapsed_s=100.0)) is None


# Counted -----------------------------------------------------------------------------------------


def test_only_new_plans_after_such_a_failure_are_reclassifications() -> None:
    limits = Limits(reclassifications=1)
    unsure = replace(TIMED_OUT, severity=Severity.RECLASSIFICATION)

    def after(*actions: Action) -> FailureContext:
        past = [replace(one, diagnosis=unsure) for one in context(*actions).attempt_history]
        return context(*actions, diagnosis=unsure, attempt_history=tuple(past))

    assert limits.allows(Replan(), after()) is None
    assert limits.allows(Replan(), after(Retry(), Retry())) is None
    assert limits.allows(Retry(), after(Replan(), Replan())) is None
    assert rule_of(limits.allows(Replan(), after(Replan()))) == "limit:reclassifications"
    assert limits.allows(Replan(), context(Replan(), Replan())) is None


def test_waiting_is_counted_over_all_actions() -> None:
    limits = Limits(slept_seconds=10)
    assert limits.allows(Retry(delay=4), context(Retry(delay=3), Replan(delay=3))) is None
    assert rule_of(limits.allows(Retry(delay=5), context(Retry(delay=3), Replan(delay=3)))) == (
        "limit:slept_seconds"
    )
    assert limits.allows(Retry(), context(Retry(delay=100))) is None


@table(
    ("calls", "of_tool", "rule"),
    [(0, 0, None), (2, 1, None), (3, 0, "limit:tool_calls"), (2, 2, "limit:calls_per_tool:search")],
)
def test_a_call_is_refused_where_its_limit_is_used_up(
    calls: int, of_tool: int, rule: str | None
) -> None:
    limits = Limits(tool_calls=3, calls_per_tool={"search": 2})
    found = limits.before_call("search", calls, of_tool)
    assert (None if found is None else rule_of(found)) == rule
    assert limits.before_call("other", 2, 100) is None


# Allowed once more --------------------------------------------------------------------------------


@given(
    st.dictionaries(st.sampled_from(AMOUNTS), st.integers(1, 1000)),
    st.dictionaries(st.sampled_from([*AMOUNTS, "calls_per_tool:search"]), st.integers(1, 5)),
    st.integers(1, 50),
)
def test_what_is_granted_is_the_same_amount_each_time(
    given_: dict[str, int], grants: dict[str, int], calls: int
) -> None:
    limits = limits_of(**{"attempts": None, **given_}, calls_per_tool={"search": calls, "other": 1})
    raised = limits.raised(grants)
    for name in AMOUNTS:
        allowed = getattr(limits, name)
        wanted = None if allowed is None else allowed * (1 + grants.get(name, 0))
        assert getattr(raised, name) == wanted
    times = 1 + grants.get("calls_per_tool:search", 0)
    assert raised.calls_per_tool == {"search": calls * times, "other": 1}
    assert raised.raised({}) == raised


def test_one_that_allows_nothing_allows_as_many_as_were_granted() -> None:
    assert Limits(retries=0).raised({"retries": 2}).retries == 2


def test_grants_of_limits_that_are_not_set_any_more_do_nothing() -> None:
    limits = Limits(calls_per_tool={"other": 1})
    assert limits.raised({"tokens": 1, "calls_per_tool:search": 1, "gone": 1}) == limits
