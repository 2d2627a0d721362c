"""Any trajectory gets a diagnosis, in bounded time; what `diagnose` and classifiers answer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from diagnoses import ALL, classify, passes, said, search
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tables import table

from triage.classifiers import RulesClassifier, as_diagnosis, diagnose
from triage.core import Cause, Diagnosis, ErrorInfo, FailureType, Step, Trajectory


@table("unit", ["tool a not found ", "a", " ", "'", "connection ", "model x ", "1 of 1 ", "http 4"])
def test_long_texts_are_read_in_linear_time(unit: str) -> None:
    def seconds(size: int) -> float:
        error = said((unit * (size // len(unit) + 1))[:size])
        best = float("inf")
        for _ in range(3):
            begin = time.process_time()
            classify(error)
            best = min(best, time.process_time() - begin)
        return best

    classify(said(unit * 100))
    small, large = seconds(16_000), seconds(1_000_000)
    # 62 times the text: a quadratic reader would take 3,900 times as long.
    assert large < 60 * small + 0.01


def test_ten_thousand_steps_take_about_ten_times_as_long_as_a_thousand() -> None:
    def seconds(count: int) -> float:
        trajectory = Trajectory(
            [search("a")] * 1 + [search(str(n % 9)) for n in range(count)], error=said("x")
        )
        begin = time.process_time()
        for _ in range(2):
            ALL.classify(trajectory)
        return time.process_time() - begin

    seconds(1_000)
    assert seconds(10_000) < 30 * seconds(1_000) + 0.05


def a_step(**fields: Any) -> Step:
    return Step(**fields)


def an_error(**fields: Any) -> ErrorInfo:
    return ErrorInfo(**fields)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
names = st.none() | st.sampled_from(["search", "open", ""]) | st.text(max_size=8)
steps = st.builds(
    a_step,
    action=st.text(max_size=8),
    tool_called=names,
    tool_input=json_values,
    tool_output=json_values,
    llm_output=st.none() | st.text(max_size=20),
    error=st.none() | st.text(max_size=20),
    exception_type=st.none() | st.sampled_from(["KeyError", "X"]),
)
flat = st.builds(
    an_error,
    type_name=st.text(max_size=20),
    mro=st.lists(st.text(max_size=20), max_size=3).map(tuple),
    message=st.text(max_size=200),
    status_code=st.none() | st.integers(-1, 700),
    code=st.none() | st.text(max_size=10),
    retry_after_s=st.none() | st.floats(0, 1e6),
    body=json_values,
    notes=st.lists(st.text(max_size=20), max_size=2).map(tuple),
    relation=st.sampled_from(["cause", "context", "group"]),
)
errors = st.recursive(
    flat,
    lambda inner: st.builds(
        lambda error, related: replace(error, related=tuple(related)),
        flat,
        st.lists(inner, max_size=3),
    ),
    max_leaves=6,
)


@given(
    st.lists(steps, max_size=12),
    st.none() | errors,
    st.dictionaries(st.text(max_size=6), json_values, max_size=3),
)
def test_any_trajectory_gets_a_diagnosis(
    taken: list[Step], error: ErrorInfo | None, tools: dict[str, Any]
) -> None:
    found = classify(error, taken, tools=tools, constraints=("x",))
    assert isinstance(found, Diagnosis)
    assert bool(found.hint) is not passes(found)
    assert found.critical_step is None or found.critical_step < len(taken)


# --- arguments and answers -------------------------------------------------------------------


def test_diagnose_works_without_an_agent() -> None:
    found = diagnose(ConnectionRefusedError(111, "Connection refused"))
    assert (found.failure_type, found.cause) == (FailureType.EXTERNAL_FAULT, Cause.CONNECTION)
    assert found.classifier == "rules"
    bug = diagnose(KeyError("total"))
    assert bug.failure_type is FailureType.UNKNOWN
    assert bug.candidates[0] is FailureType.HALLUCINATED_STATE
    nothing = diagnose(None)
    assert nothing.evidence
    assert nothing.failure_type is FailureType.UNKNOWN


def test_diagnose_asks_the_classifier_it_is_given() -> None:
    class Always:
        def classify(self, trajectory: Trajectory, task: Any) -> FailureType:
            assert task == "t"
            return FailureType.GOAL_DRIFT

    found = diagnose(ValueError("x"), task="t", classifier=Always())
    assert (found.failure_type, found.classifier) == (FailureType.GOAL_DRIFT, "Always")


def test_diagnose_refuses_what_it_cannot_use() -> None:
    class Later:
        async def classify(self, trajectory: Trajectory, task: Any) -> FailureType:
            raise NotImplementedError

    with pytest.raises(TypeError, match="asynchronous classifier Later"):
        diagnose(ValueError("x"), classifier=Later())
    with pytest.raises(TypeError, match=r"diagnose\(\) error"):
        diagnose(3)  # type: ignore[arg-type] # the wrong type is the test
    with pytest.raises(TypeError, match="steps item"):
        diagnose(None, [{"action": "x"}])  # type: ignore[list-item] # the wrong type is the test


def test_as_diagnosis_takes_two_kinds_of_answers_and_names_any_other() -> None:
    signed = Diagnosis(FailureType.UNKNOWN, classifier="mine")
    assert as_diagnosis(signed, "other") is signed
    assert as_diagnosis(Diagnosis(FailureType.UNKNOWN), "other").classifier == "other"
    assert as_diagnosis(FailureType.GOAL_DRIFT, "c").failure_type is FailureType.GOAL_DRIFT
    with pytest.raises(TypeError, match=r"classifier c must answer .* not str"):
        as_diagnosis("goal_drift", "c")


@table(
    ("arguments", "field"),
    [
        ({"rules": [1]}, "rules item"),
        ({"rules": 1}, "rules"),
        ({"constraints": "word"}, "constraints"),
        ({"tools": "search"}, "tools"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(TypeError, match=field):
        RulesClassifier(**arguments)
