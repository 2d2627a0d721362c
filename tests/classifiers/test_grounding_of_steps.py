"""Facts of the last answer that nothing holds, as the rules find them in a recorded run on request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tables import table

from triage import Diagnosis, FailureType, RulesClassifier, Step, Trajectory
from triage.classifiers import Grounds
from triage.cli import main
from triage.core import Cause, ErrorInfo

FARE = Step(tool_called="fare", tool_input={"to": "Porto"}, tool_output="40 EUR")


def says(text: str) -> Step:
    return Step(action="model", llm_output=text)


def grounded(
    *steps: Step, task: Any = None, grounding: bool | Grounds = True, **more: Any
) -> Diagnosis:
    return RulesClassifier(grounding=grounding).classify(Trajectory(steps, task=task, **more), task)


def test_a_fact_of_the_answer_without_a_source_is_told_with_the_step_that_states_it() -> None:
    found = grounded(FARE, says("The fare is 57 EUR."))
    assert (found.failure_type, found.cause) == (FailureType.HALLUCINATED_STATE, Cause.UNGROUNDED)
    [evidence] = found.evidence
    assert (evidence.rule, evidence.step, found.critical_step) == ("steps.ungrounded", 1, 1)
    assert '"57"' in evidence.text
    assert found.hint is not None
    assert '"57" has no source' in found.hint


def test_the_earliest_answer_that_states_it_is_the_decisive_one() -> None:
    steps = (says("I think it is 57 EUR."), FARE, says("The fare is 57 EUR, and 40 EUR back."))
    found = grounded(*steps)
    assert found.critical_step == 0
    assert [evidence.step for evidence in found.evidence] == [0]


def test_it_is_looked_for_on_request_alone() -> None:
    found = grounded(FARE, says("The fare is 57 EUR."), grounding=False)
    assert found.failure_type is FailureType.UNKNOWN
    assert RulesClassifier().classify(Trajectory([FARE, says("57 EUR")])).cause is None


@table(
    ("steps", "task", "grounding"),
    [
        ((FARE, says("The fare is 40 EUR.")), None, True),
        ((FARE, says("Not 57 EUR but 40 EUR.")), "Is it 57 EUR?", True),
        ((FARE, says("The fare is 57 EUR.")), None, Grounds(sources="All fares are 57 EUR.")),
        ((FARE, says("The fare is 57 EUR.")), None, Grounds(at_least=2)),
        ((FARE, says("The fare is 57 EUR.")), None, Grounds(kinds=("url",))),
        ((FARE,), None, True),
        ((), None, True),
        (
            (FARE, Step(action="user", metadata={"user_input": "57?"}), says("57, you say")),
            None,
            True,
        ),
    ],
)
def test_what_has_a_source_is_let_through(
    steps: tuple[Step, ...], task: Any, grounding: Any
) -> None:
    assert grounded(*steps, task=task, grounding=grounding).failure_type is FailureType.UNKNOWN


def test_what_an_exception_says_stands_against_it() -> None:
    error = ErrorInfo("APIError", mro=("lib.APIError",), status_code=401)
    found = grounded(FARE, says("The fare is 57 EUR."), error=error)
    assert found.failure_type is FailureType.EXTERNAL_FAULT


def test_no_secret_of_an_answer_is_told() -> None:
    found = grounded(FARE, says("See https://bob:hunter2secret@lab.example/x for it."))
    assert found.failure_type is FailureType.HALLUCINATED_STATE
    assert "hunter2secret" not in repr(found)


@table("value", [1, "yes", None, ["number"]])
def test_another_value_is_refused_by_name(value: Any) -> None:
    with pytest.raises(
        TypeError, match=r"RulesClassifier\.grounding must be True, False or a Grounds"
    ):
        RulesClassifier(grounding=value)


class TestCommand:
    """`triage diagnose --ground`."""

    @pytest.fixture
    def recording(self, tmp_path: Path) -> str:
        steps = [
            {"tool_called": "fare", "tool_input": "Porto", "tool_output": "40 EUR"},
            {"llm_output": "Fine.", "user_input": "And 9 EUR for the bag."},
            {"llm_output": "That is 57 EUR, and 9 EUR for the bag."},
        ]
        file = tmp_path / "run.jsonl"
        file.write_text(json.dumps({"steps": steps, "task": "Ask for the fare."}))
        return str(file)

    def test_it_is_asked_for(self, recording: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["diagnose", "--json", recording]) == 0
        assert json.loads(capsys.readouterr().out)["diagnosis"]["failure_type"] == "unknown"
        assert main(["diagnose", "--json", "--ground", recording]) == 0
        told = json.loads(capsys.readouterr().out)["diagnosis"]
        assert told["failure_type"] == "hallucinated_state"
        assert [entry["step"] for entry in told["evidence"]] == [2]
        assert "57 EUR" in told["evidence"][0]["quoted"]

    def test_another_classifier_is_told_how(
        self, recording: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["diagnose", "--ground", "--classifier", "mine:one", recording]) == 2
        assert "RulesClassifier(grounding=True)" in capsys.readouterr().err


def test_how_often_a_tool_was_called_needs_no_source() -> None:
    pages = [
        Step(tool_called="page", tool_input={"at": at}, tool_output="rows")
        for at in "abcdefghijklmnopqrstuvwxyzäöü"
    ]
    assert grounded(*pages, says("There were 29 pages.")).failure_type is FailureType.UNKNOWN
    wrong = grounded(*pages, says("There were 47 pages."))
    assert wrong.failure_type is FailureType.HALLUCINATED_STATE
