"""The words of failures mean the same in every part of planning."""

from __future__ import annotations

from typing import Any

import pytest

from triage import ErrorInfo, RulesClassifier, Severity, Trajectory
from triage.plan import ExecutionPlan, validate

from .values import ANSWER, SMALL, plan, step


def test_a_severity_is_one_of_five_and_no_other_word_is_taken_for_one() -> None:
    assert [one.value for one in Severity] == [
        "retriable", "replanning", "reclassification", "critical", "fatal",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="re_planning"):
        Severity("re_planning")


def test_an_invented_capability_asks_for_a_plan_and_one_outside_for_a_selection() -> None:
    invented = validate(plan(step("a", "teleport"), ANSWER), SMALL, active=["find"])
    assert invented.severity is Severity.REPLANNING
    outside = validate(plan(step("a", "pay"), ANSWER), SMALL, active=["find"])
    assert outside.severity is Severity.RECLASSIFICATION


def test_a_rate_limit_is_tried_again_and_not_planned_anew() -> None:
    limited = ErrorInfo("APIError", mro=("lib.APIError",), message="slow down", status_code=429)
    assert RulesClassifier().classify(Trajectory(error=limited)).severity is Severity.RETRIABLE


def test_inputs_mean_the_same_in_each_of_their_forms() -> None:
    forms: list[Any] = [[{"A": "where"}], [{"type": "A", "key": "where"}]]
    made = [
        ExecutionPlan.from_json(
            {"steps": [{"context_key": "now", "capability": "join", "inputs": inputs}]}
        )
        for inputs in forms
    ]
    assert made[0].hash == made[1].hash
