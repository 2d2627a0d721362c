"""Where a plan-first run goes next, case by case."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace
from tables import table

from triage import Diagnosis, FailureType, Severity, UsageError
from triage.core import Cause, PlanFailed
from triage.plan import Decision, ExecutionPlan, PlanLimits, PlanState, Target, route, validate
from triage.strategies import Backoff, Preset

from .values import GOOD, SMALL, Journal, failed, plan, running, step

AT_ONCE = Preset(100, Backoff(0))
OPEN = PlanLimits(retries=100, total_retries=100, replans=100, reclassifications=100)


def after(target: str, severity: Severity, key: str = "") -> PlanState:
    """The state in which this has just failed."""
    journal = running(done=1)
    journal.enter(Decision(Target(target), key))
    return journal.fail(target, severity, key)


# By severity --------------------------------------------------------------------------------------

S = Severity
BY_SEVERITY: list[tuple[str, Severity, tuple[str, str, str]]] = [
    ("step", S.RETRIABLE, ("step", "b", "retries")),
    ("step", S.REPLANNING, ("planner", "", "replans")),
    ("step", S.RECLASSIFICATION, ("selector", "", "reclassifications")),
    ("step", S.CRITICAL, ("report", "", "")),
    ("step", S.FATAL, ("stop", "", "")),
    ("planner", S.RETRIABLE, ("planner", "", "retries")),
    ("planner", S.REPLANNING, ("planner", "", "replans")),
    ("planner", S.RECLASSIFICATION, ("selector", "", "reclassifications")),
    ("planner", S.CRITICAL, ("report", "", "")),
    ("planner", S.FATAL, ("stop", "", "")),
    ("selector", S.RETRIABLE, ("selector", "", "retries")),
    ("selector", S.REPLANNING, ("selector", "", "reclassifications")),
    ("selector", S.RECLASSIFICATION, ("selector", "", "reclassifications")),
    ("selector", S.CRITICAL, ("report", "", "")),
    ("selector", S.FATAL, ("stop", "", "")),
    ("approver", S.RETRIABLE, ("report", "", "")),
    ("approver", S.REPLANNING, ("planner", "", "replans")),
    ("approver", S.RECLASSIFICATION, ("selector", "", "reclassifications")),
    ("approver", S.CRITICAL, ("report", "", "")),
    ("approver", S.FATAL, ("stop", "", "")),
]


def test_a_failure_is_routed_by_its_severity() -> None:
    every = {(target.value, s) for target in Target if not target.ends for s in Severity}
    assert {(target, severity) for target, severity, _ in BY_SEVERITY} == every
    none = PlanLimits(retries=0, replans=0, reclassifications=0)
    for target, severity, expected in BY_SEVERITY:
        state = after(target, severity, "b" if target == "step" else "")
        before = tuple(state)
        decision = route(state)
        assert route(state) == decision, "the same again, and nothing is changed"
        assert tuple(state) == before
        assert decision[:3] == expected, (target, severity)
        assert decision.reason
        assert (decision.delay_s > 0) is (decision.counter == "retries")
        assert (decision.remaining is None) is (decision.counter == "")
        used_up = route(state, none)
        assert used_up.target is (Target.STOP if expected[0] == "stop" else Target.REPORT)
        assert used_up.delay_s == 0
        if expected[2]:
            assert f"{expected[2]}: all 0 are used up" in used_up.reason


# Retries ------------------------------------------------------------------------------------------


def test_retries_go_to_the_same_step_with_growing_delays_and_then_to_the_report() -> None:
    journal = running()
    journal.enter(route(journal.state))
    delays: list[float] = []
    for _ in range(10):
        state = journal.fail("step", S.RETRIABLE, "a")
        decision = route(state, OPEN, retry=Backoff.CAPABILITY)
        if decision.target is not Target.STEP:
            break
        delays.append(decision.delay_s)
        journal.enter(decision)
    assert delays == [0.5, 0.75], "three attempts wait twice"
    assert decision.target is Target.REPORT
    assert journal.state.step_retries == 2


def test_the_delay_is_drawn_and_never_less_than_asked_for() -> None:
    state = running().state
    entered = state._replace(at=None, pending="failure")
    asked = failed(S.RETRIABLE, retry_after_s=30.0)
    slow = entered._replace(failure=PlanFailed("r", 1, 0.0, "step", asked, "a"))
    assert route(slow, draw=0.5).delay_s == 30.0
    quick = entered._replace(failure=PlanFailed("r", 1, 0.0, "step", failed(S.RETRIABLE), "a"))
    assert [route(quick, draw=draw).delay_s for draw in (0.0, 0.5, 1.0)] == [0.25, 0.375, 0.5]


@table(
    ("target", "preset"),
    [("step", Backoff.CAPABILITY), ("planner", Backoff.LLM), ("selector", Backoff.CLASSIFY)],
)
def test_each_kind_has_its_own_way_of_trying_again(target: str, preset: Preset) -> None:
    journal = running()
    delays: list[float] = []
    while True:
        decision = route(journal.fail(target, S.RETRIABLE, "a" if target == "step" else ""))
        if decision.target.ends:
            break
        delays.append(decision.delay_s)
        journal.enter(decision)
    expected = [preset.backoff.delay(n) for n in range(1, preset.attempts)]
    assert delays == expected


def test_a_capability_may_allow_fewer_retries_than_the_limit_and_never_more() -> None:
    state = after("step", S.RETRIABLE, "b")
    assert route(state, retry=Preset(1, Backoff())).target is Target.REPORT
    spent = state._replace(step_retries=2)
    assert route(spent, PlanLimits(retries=2), retry=AT_ONCE).target is Target.REPORT
    assert route(spent, PlanLimits(retries=3), retry=AT_ONCE).remaining == 0


def test_a_limit_that_cuts_the_own_retries_of_what_failed_is_named() -> None:
    state = after("step", S.RETRIABLE, "b")._replace(step_retries=4, total_retries=4)
    many = Preset(8, Backoff(100.0))
    assert route(state, retry=many).remaining == 2
    assert route(state, retry=many).cut == ""
    assert route(state, retry=Preset(5, Backoff())).cut == ""
    for limits in (
        PlanLimits(retries=3),
        PlanLimits(total_retries=4),
        PlanLimits(seconds=5),
        PlanLimits(entries=1),
    ):
        decision = route(state._replace(entries=1), limits, retry=many)
        assert decision.target is Target.REPORT
        assert next(
            name
            for name in ("total_retries", "retries", "seconds", "entries")
            if name in decision.cut
        )
        assert decision.cut.split(";")[0] in decision.reason
    climbed = route(state._replace(active=("a",)), PlanLimits(retries=3, climb=True), retry=many)
    assert (climbed.target, climbed.cut) == (
        Target.PLANNER,
        "retries: all 3 are used up, its own preset has 7",
    )


def test_a_step_that_may_have_happened_is_not_tried_again() -> None:
    journal = running()
    journal.enter(route(journal.state))
    state = journal.fail("step", S.RETRIABLE, "a", doubt=True)
    decision = route(state)
    assert decision.target is Target.REPORT
    assert "may have happened" in decision.reason
    assert route(state, PlanLimits(climb=True)).target is Target.PLANNER


def test_success_clears_its_own_error_and_its_own_counter_only() -> None:
    journal = running()
    journal.enter(route(journal.fail("step", S.RETRIABLE, "a")))
    before = journal.state._replace(planner_retries=2, selector_retries=1, replans=1)
    journal.state = before
    state = journal.finish("a")
    assert (state.failure, state.step_retries) == (None, 0)
    kept = ("planner_retries", "selector_retries", "total_retries", "replans", "rejections")
    assert [getattr(state, name) for name in kept] == [2, 1, 1, 1, 0]


# Budgets are spent on entering --------------------------------------------------------------------


def entered(journal: Journal, limits: PlanLimits, severity: Severity) -> list[str]:
    """What is entered, in order, where everything fails with this severity."""
    seen: list[str] = []
    while not (decision := route(journal.state, limits, retry=AT_ONCE)).target.ends:
        seen.append(decision.target.value)
        journal.enter(decision)
        journal.fail(decision.target.value, severity, decision.step)
    return [*seen, decision.target.value]


def test_a_selector_that_always_fails_is_called_four_times_by_a_policy_of_four_attempts() -> None:
    journal, slept = Journal(), 0.0
    while not (decision := route(journal.state, retry=Backoff.CLASSIFY)).target.ends:
        slept += decision.delay_s
        journal.enter(decision)
        journal.fail("selector", S.RETRIABLE)
    assert journal.state.entries == 4
    assert slept == pytest.approx(1 + 1.8 + 1.8**2)
    assert decision.target is Target.REPORT


def test_the_first_plan_and_the_first_selection_are_not_counted() -> None:
    journal = running()
    assert (journal.state.replans, journal.state.version) == (0, 1)
    decision = route(journal.fail("step", S.REPLANNING, "a"), PlanLimits(replans=1))
    assert (decision.target, decision.remaining) == (Target.PLANNER, 0)
    decision = route(journal.fail("step", S.RECLASSIFICATION, "a"))
    assert (decision.target, decision.remaining) == (Target.SELECTOR, 0)


def test_a_reclassification_begins_planning_afresh_and_keeps_what_is_done() -> None:
    journal = running(done=2)
    journal.enter(route(journal.fail("step", S.RECLASSIFICATION, "c")))
    state = journal.state
    assert (state.plan, state.active, state.position, state.planned) == (None, None, 0, False)
    assert [done.step.context_key for done in state.done] == ["a", "b"]
    assert state.failure is not None, "the selector sees what failed"
    state = journal.select("find", "respond")
    assert state.failure is not None, "so does the planner"
    assert route(state)[:3] == ("planner", "", "")
    journal.make(plan(step("d")))
    assert journal.state.failure is None


def test_a_replan_refills_no_budget_of_the_run() -> None:
    journal = running()
    limits = PlanLimits(total_retries=3)
    retried = 0
    for _ in range(10):
        decision = route(journal.fail("step", S.RETRIABLE, "a"), limits, retry=AT_ONCE)
        if decision.target.ends:
            break
        retried += 1
        journal.enter(decision)
        journal.enter(route(journal.fail("step", S.REPLANNING, "a"), OPEN))
        journal.make()
        journal.enter(route(journal.state))
    assert retried == 3
    assert "total_retries" in decision.reason


# Limits -------------------------------------------------------------------------------------------

TIGHT: dict[str, tuple[Any, Any, PlanState]] = {
    "retries": (0, 1, after("step", S.RETRIABLE, "b")),
    "total_retries": (0, 1, after("step", S.RETRIABLE, "b")),
    "replans": (0, 1, after("step", S.REPLANNING, "b")),
    "reclassifications": (0, 1, after("step", S.RECLASSIFICATION, "b")),
    "rejections": (0, 1, running().state._replace(pending="rejection")),
    "entries": (2, 3, running().state),
    "seconds": (10.0, 11.0, running().state),
}


def test_every_limit_is_enforced() -> None:
    for name, (least, enough, state) in TIGHT.items():
        refused = route(state, PlanLimits(**{name: least}), elapsed_s=10.0)
        assert refused.target is Target.REPORT, name
        assert f"{name}: all" in refused.reason
        assert not route(state, PlanLimits(**{name: enough}), elapsed_s=10.0).target.ends, name
    fields = {field.name for field in dataclasses.fields(PlanLimits)}
    assert fields - set(TIGHT) == {"steps", "climb"}
    long = ExecutionPlan(tuple(step(f"k{at}") for at in range(3)))
    assert not validate(long, SMALL, limits=PlanLimits(steps=3)).ok
    assert validate(long, SMALL, limits=PlanLimits(steps=4)).ok


def test_a_wait_that_would_pass_the_deadline_is_not_begun() -> None:
    asked = failed(S.RETRIABLE, retry_after_s=30.0)
    state = after("step", S.RETRIABLE, "b")
    assert state.failure is not None
    slow = state._replace(failure=replace(state.failure, diagnosis=asked))
    decision = route(slow, PlanLimits(seconds=40), elapsed_s=11.0)
    assert (decision.target, decision.delay_s) == (Target.REPORT, 0.0)
    assert "waiting 30 s would pass 40" in decision.reason
    assert route(slow, PlanLimits(seconds=40), elapsed_s=10.0).delay_s == 30.0


@table(
    ("severity", "expected"),
    [
        (S.RETRIABLE, ["step", "step", "planner", "selector", "report"]),
        (S.REPLANNING, ["step", "planner", "selector", "report"]),
        (S.RECLASSIFICATION, ["step", "selector", "report"]),
        (S.CRITICAL, ["step", "report"]),
        (S.FATAL, ["step", "stop"]),
    ],
)
def test_with_climbing_each_rung_is_tried_before_the_report(
    severity: Severity, expected: list[str]
) -> None:
    limits = PlanLimits(retries=1, total_retries=1, replans=1, reclassifications=1, climb=True)
    assert entered(running(), limits, severity) == expected


@table(
    ("fields", "named"),
    [
        ({"retries": -1}, "PlanLimits.retries must be a whole number from 0"),
        ({"total_retries": 1.0}, "PlanLimits.total_retries"),
        ({"replans": None}, "PlanLimits.replans"),
        ({"reclassifications": True}, "PlanLimits.reclassifications"),
        ({"rejections": "3"}, "PlanLimits.rejections"),
        ({"steps": 0}, "PlanLimits.steps must be a whole number from 1"),
        ({"entries": 0}, "PlanLimits.entries"),
        ({"seconds": 0}, "PlanLimits.seconds must be a finite number of seconds above 0"),
        ({"seconds": float("inf")}, "PlanLimits.seconds"),
        ({"climb": 1}, "PlanLimits.climb"),
    ],
)
def test_a_wrong_limit_is_refused_by_its_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        PlanLimits(**fields)


# The straight way ---------------------------------------------------------------------------------


def test_a_run_without_failures_goes_from_selection_to_end() -> None:
    journal = Journal()
    seen: list[tuple[str, str]] = []
    while not (decision := route(journal.state)).target.ends:
        seen.append((decision.target.value, decision.step))
        journal.enter(decision)
        match decision.target:
            case Target.SELECTOR:
                journal.select(*SMALL.names)
            case Target.PLANNER:
                journal.make()
            case _:
                journal.finish(decision.step)
    steps = [("step", one.context_key) for one in GOOD.steps]
    assert seen == [("selector", ""), ("planner", ""), *steps]
    assert decision.target is Target.END
    assert journal.enter(decision).ended is Target.END
    assert route(journal.state).target is Target.END


def test_a_plan_without_steps_goes_back_to_the_planner_and_spends_a_replan() -> None:
    journal = running(plan())
    assert route(journal.state)[:3] == ("planner", "", "replans")
    assert route(journal.state, PlanLimits(replans=0)).target is Target.REPORT


def test_what_was_entered_and_has_not_ended_is_entered_again() -> None:
    journal = running()
    journal.enter(route(journal.state))
    assert route(journal.state)[:3] == ("step", "a", "")
    # It has used up its share when it was entered.
    assert route(journal.state, PlanLimits(entries=3)).target is Target.STEP
    journal.finish("a")
    assert route(journal.state, PlanLimits(entries=3)).target is Target.REPORT


@table("target", [Target.REPORT, Target.STOP, Target.END])
def test_an_end_is_an_end(target: Target) -> None:
    journal = running()
    journal.enter(Decision(target))
    journal.fail("step", S.RETRIABLE, "a")
    assert route(journal.state, PlanLimits(entries=1)).target is target


def test_a_diagnosis_of_an_unknown_tool_says_where_to_go() -> None:
    """What is not registered any more when it is to be run is an ordinary failure."""
    journal = running()
    journal.enter(route(journal.state))
    gone = Diagnosis(FailureType.WRONG_TOOL_CALLED, cause=Cause.UNKNOWN_TOOL)
    journal.add(PlanFailed, "step", gone, "a")
    assert route(journal.state).target is Target.PLANNER
