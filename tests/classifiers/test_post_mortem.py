"""Runs that are known to have failed: every finding counts, and nothing is claimed with confidence."""

from __future__ import annotations

from typing import Any

import pytest
from tables import table

from triage import FailureType, RulesClassifier, Step, Trajectory
from triage.classifiers import diagnose

LOOK = Step(action="look", tool_called="look", tool_input={"at": 1}, tool_output="nothing new")
OPEN = Step(action="open", tool_called="open", tool_input={"at": 2}, tool_output="a map")
DONE = Step(action="model", llm_output="I could not find it.")


def said(text: str, who: str = "model") -> Step:
    return Step(action=who, llm_output=text)


ASKED = Step(action="chief", llm_output="Please go on until you have found it, or say why not.")
TURN = (ASKED, Step(action="scout", tool_called="look", tool_input={"at": 7}, tool_output="fog"))
LONG = said("The three oldest ones are A, B and C, as the list of the city says. " * 2)


@table(
    ("steps", "kind", "confidence", "at"),
    [
        ([LOOK, LOOK, LOOK, OPEN, DONE], FailureType.LOOP_DETECTED, 0.5, 0),
        ([LOOK, *TURN, *TURN], FailureType.LOOP_DETECTED, 0.6, 1),
        ([LOOK, *(said(f"{LONG.llm_output} {at}", f"agent {at % 3}") for at in range(8))],
         FailureType.PLAN_INCOMPLETE, 0.6, None),
        ([LOOK, ASKED, said("TERMINATE", "scout")], FailureType.PLAN_INCOMPLETE, 0.6, None),
        ([DONE, said("It is **the Ponte Maria**.")], FailureType.HALLUCINATED_STATE, 0.6, None),
        ([LOOK, LONG], FailureType.HALLUCINATED_STATE, 0.5, None),
        ([LOOK, Step(tool_called="open", error="no map here")], FailureType.HALLUCINATED_STATE, 0.5, 1),
    ],
)  # fmt: skip
def test_the_likeliest_type_is_named_by_the_form_of_the_run_where_a_live_run_gets_unknown(
    steps: list[Step], kind: FailureType, confidence: float, at: int | None
) -> None:
    trajectory = Trajectory(steps, task="Find the 3 oldest bridges.")
    assert RulesClassifier().classify(trajectory).failure_type is FailureType.UNKNOWN
    late = RulesClassifier(failed=True).classify(trajectory)
    assert (late.failure_type, late.confidence, late.critical_step) == (kind, confidence, at)


def test_a_guess_says_that_a_model_can_say_more() -> None:
    late = diagnose(None, [LOOK, LONG], failed=True)
    assert late.evidence[0].text.endswith("for what the run means, ask a model (`LLMClassifier`)")


def test_an_error_that_says_nothing_leaves_the_guess_to_the_steps() -> None:
    for error in (RuntimeError("agent gave up"), AssertionError("wrong answer")):
        assert diagnose(error, (LOOK, DONE)).failure_type is FailureType.UNKNOWN
        late = diagnose(error, (LOOK, DONE), failed=True)
        assert late.failure_type is diagnose(None, (LOOK, DONE), failed=True).failure_type
        assert late.confidence == 0.5


def test_what_is_sure_is_said_with_the_same_confidence() -> None:
    steps = [LOOK] * 4
    live, late = (diagnose(None, steps, failed=failed) for failed in (False, True))
    assert (live.failure_type, live.confidence) == (late.failure_type, late.confidence)


def test_another_value_or_classifier_is_refused_by_name() -> None:
    wrong: Any = "yes"
    with pytest.raises(TypeError, match=r"RulesClassifier\.failed must be True or False"):
        RulesClassifier(failed=wrong)
    with pytest.raises(TypeError, match=r"RulesClassifier\(failed=True\)"):
        diagnose(None, [LOOK], classifier=RulesClassifier(), failed=True)
