"""What is promised of diagnoses as a whole: one of ten types, by steps and error together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter
from tables import table

from triage import Diagnosis, ErrorInfo, FailureType, RulesClassifier, Step, Trajectory, diagnose
from triage.core.capture import capture

UNKNOWN_ERROR = ErrorInfo("ValueError", mro=("builtins.ValueError",), message="something is off")
SEARCH = Step(tool_called="search", tool_input={"q": "hotel"}, tool_output="none")


def found(steps: list[Step], error: ErrorInfo | None = UNKNOWN_ERROR, **more: Any) -> Diagnosis:
    return RulesClassifier().classify(Trajectory(steps, error=error, **more))


def test_there_are_ten_failure_types() -> None:
    assert len(FailureType) == 10
    with pytest.raises(ValueError, match="bad_luck"):
        FailureType("bad_luck")


def test_one_exception_means_what_the_steps_before_it_say() -> None:
    kinds = {
        name: found(steps, tools={"search": None}).failure_type
        for name, steps in {
            "nothing": [],
            "a loop": [SEARCH] * 3,
            "an unknown tool": [SEARCH, Step(tool_called="serch", tool_input={})],
        }.items()
    }
    assert kinds == {
        "nothing": FailureType.UNKNOWN,
        "a loop": FailureType.LOOP_DETECTED,
        "an unknown tool": FailureType.WRONG_TOOL_CALLED,
    }


def test_the_critical_step_need_not_be_the_last() -> None:
    steps = [Step(action="plan", llm_output="I will search."), *[SEARCH] * 3]
    told = found(steps)
    assert told.failure_type is FailureType.LOOP_DETECTED
    assert told.critical_step is not None
    assert told.critical_step < len(steps) - 1


def schema_error(kind: str) -> BaseException:
    """A form that is wrong, as different libraries say it."""
    try:
        if kind == "json":
            json.loads("{")
        TypeAdapter(int).validate_python("x")
    except ValueError as error:
        return error
    raise AssertionError(kind)


@table("kind", ["json", "pydantic"])
def test_a_wrong_form_is_known_by_the_class_of_its_error(kind: str) -> None:
    error = schema_error(kind)
    assert diagnose(error).failure_type is FailureType.SCHEMA_MISMATCH
    # Its words do not matter.
    renamed = capture(error)
    silent = ErrorInfo(renamed.type_name, mro=renamed.mro, message="?")
    assert found([], silent).failure_type is FailureType.SCHEMA_MISMATCH
