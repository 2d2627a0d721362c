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


def kinds(
    *steps: Step, task: Any = "Find the 3 oldest bridges."
) -> tuple[FailureType, FailureType]:
    """What is said of a live run, and in a post-mortem."""
    trajectory = Trajectory(steps, task=task)
    live = RulesClassifier().classify(trajectory)
    late = RulesClassifier(failed=True).classify(trajectory)
    assert late.confidence < 0.6 or live.failure_type is late.failure_type
    return live.failure_type, late.failure_type


@table(
    ("steps", "kind"),
    [
        ([LOOK, LOOK, LOOK, OPEN, DONE], FailureType.LOOP_DETECTED),
        ([LOOK, Step(action="write", tool_called="write", tool_input="42")], FailureType.PLAN_INCOMPLETE),
        ([DONE, Step(llm_output="It is **the Ponte Maria**.")], FailureType.HALLUCINATED_STATE),
    ],
)  # fmt: skip
def test_the_likeliest_type_is_named_where_a_live_run_gets_unknown(
    steps: list[Step], kind: FailureType
) -> None:
    assert kinds(*steps) == (FailureType.UNKNOWN, kind)


def test_of_an_answer_that_may_be_anything_a_guess_is_made_that_names_no_step() -> None:
    answer = Step(action="model", llm_output="The three oldest ones are A, B and C. " * 3)
    assert kinds(LOOK, answer) == (FailureType.UNKNOWN, FailureType.HALLUCINATED_STATE)
    late = diagnose(None, [LOOK, answer], task="Find the 3 oldest bridges.", failed=True)
    assert (late.confidence, late.critical_step) == (0.4, None)


def test_an_error_that_says_nothing_leaves_the_guess_to_the_steps() -> None:
    for error in (RuntimeError("agent gave up"), AssertionError("wrong answer")):
        assert diagnose(error, (LOOK, DONE)).failure_type is FailureType.UNKNOWN
        late = diagnose(error, (LOOK, DONE), failed=True)
        assert late.failure_type is diagnose(None, (LOOK, DONE), failed=True).failure_type
        assert 0.3 < late.confidence < 0.6


def test_the_first_step_that_states_facts_from_nowhere_is_named() -> None:
    steps = [
        Step(action="expert", llm_output="Let us begin."),
        Step(action="expert", llm_output="The oldest one was built by Gustave Eiffel."),
        Step(action="checker", llm_output="Gustave Eiffel it is."),
    ]
    found = diagnose(None, steps, task="Which bridge is the oldest?", failed=True)
    assert (found.failure_type, found.critical_step) == (FailureType.HALLUCINATED_STATE, 1)
    assert found.confidence == 0.5


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
