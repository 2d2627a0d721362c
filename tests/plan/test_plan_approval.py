"""Approvals: when one is needed, what it is bound to, and that nothing is entered without it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from triage import Severity, UsageError
from triage.core import ApprovalAsked, ApprovalGiven, PlanMade
from triage.plan import Approval, ExecutionPlan, Target, route, subject_of, unsafe_effects

from .values import ANSWER, GOOD, SMALL, Journal, any_plan, asked, plan, running, step

S = Severity
ASKED = asked()


async def _later(_content: Any) -> bool:
    return False


def _raises(_content: Any) -> bool:
    raise RuntimeError("cannot say")


@table(
    ("mode", "evaluator", "why"),
    [
        ("off", None, None),
        ("off", lambda _: True, None),
        ("all", lambda _: False, "everything is approved"),
        ("selective", lambda _: True, "the evaluator says so"),
        ("selective", lambda _: False, None),
        ("selective", lambda _: (True, "it writes"), "it writes"),
        ("selective", lambda _: (False, "it reads"), None),
        ("selective", None, "there is no evaluator"),
        ("selective", _raises, "the evaluator raised RuntimeError"),
        ("selective", _later, "the evaluator answered coroutine"),
        ("selective", lambda _: None, "answered NoneType"),
        ("selective", lambda _: 0, "answered int"),
        ("selective", lambda _: (False, 3), "answered tuple"),
        ("selective", lambda _: (False, "x", "y"), "answered tuple"),
        ("of", lambda _: False, 'there is no mode "of"'),
        ("OFF", None, "there is no mode"),
        ("", None, "there is no mode"),
    ],
)
def test_what_is_not_known_to_need_no_approval_needs_it(
    mode: Any, evaluator: Any, why: str | None
) -> None:
    approval = Approval(mode, evaluator)
    found, question = approval.why(GOOD), approval.question("run-1", GOOD)
    if why is None:
        assert (found, question) == (None, None)
    else:
        assert found is not None
        assert question is not None
        assert why in found
        assert found in question.text


@table(
    ("fields", "named"),
    [
        ({"mode": None}, "Approval.mode"),
        ({"evaluator": 3}, "Approval.evaluator"),
        ({"of": "call"}, "Approval.of"),
        ({"expires_s": 0}, "Approval.expires_s"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(fields: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Approval(**fields)


def test_effects_that_must_not_happen_twice_need_approval() -> None:
    approval = Approval("selective", unsafe_effects(SMALL))
    assert approval.why(plan(step("a"), step("b"))) is None
    for content in (plan(step("a"), step("p", "pay")), step("p", "pay"), step("x", "nobody")):
        assert "has the effect" in (approval.why(content) or "")


def test_a_question_shows_what_is_asked_and_only_a_plan_can_be_edited() -> None:
    of_plan, of_step = asked(), asked(GOOD.steps[0])
    assert of_plan.arguments == {"steps": GOOD.to_json()["steps"]}
    assert of_step.arguments == GOOD.steps[0].to_json()
    assert (of_plan.editable, of_step.editable) == (("steps",), ())


@settings(max_examples=40)
@given(any_plan, any_plan, st.sampled_from(["r1", "r2"]), st.sampled_from(["plan", "step"]))
def test_subjects_are_equal_for_equal_run_kind_and_content_only(
    one: ExecutionPlan, other: ExecutionPlan, run_id: str, kind: str
) -> None:
    same = one.hash == other.hash and (run_id, kind) == ("r1", "plan")
    assert (subject_of("r1", "plan", one) == subject_of(run_id, kind, other)) is same


def test_nothing_that_needs_approval_is_entered_without_it() -> None:
    journal = running()
    assert route(journal.state, approval=ASKED).target is Target.APPROVER
    journal.answer(ASKED, "approved")
    assert route(journal.state, approval=ASKED)[:2] == ("step", "a")
    for other in (asked(GOOD, "run-2"), asked(plan(ANSWER)), asked(GOOD.steps[0])):
        assert route(journal.state, approval=other).target is Target.APPROVER


def test_approval_is_for_one_plan_only_even_if_the_next_is_equal() -> None:
    journal = running()
    journal.answer(ASKED, "approved")
    journal.enter(route(journal.fail("step", S.REPLANNING, "a")))
    assert journal.state.approved == frozenset(), "nothing is approved where there is no plan"
    journal.make()
    assert journal.state.plan == GOOD
    assert route(journal.state, approval=ASKED).target is Target.APPROVER


def test_approval_of_a_step_is_used_up_when_it_is_entered() -> None:
    pay = step("p", "pay")
    journal = running(plan(pay, ANSWER))
    journal.answer(asked(pay), "approved")
    journal.enter(route(journal.state, approval=asked(pay)))
    assert journal.state.at is Target.STEP
    assert journal.state.approved == frozenset()
    journal.enter(route(journal.fail("step", S.RETRIABLE, "p")))
    assert journal.state.approved == frozenset()


def test_an_answer_that_nobody_asked_for_changes_nothing() -> None:
    journal = running()
    journal.add(ApprovalGiven, "plan", ASKED.key, "approved")
    journal.add(ApprovalAsked, "plan", ASKED.key)
    journal.add(ApprovalGiven, "plan", "other", "approved")
    journal.add(ApprovalGiven, "plan", ASKED.key, "perhaps")
    assert route(journal.state, approval=ASKED).target is Target.APPROVER
    journal.add(ApprovalGiven, "plan", ASKED.key, "approved")
    assert journal.state.approved == frozenset(), "the question was used up by the answer before"
    before = journal.state
    journal.add(ApprovalAsked, "call", "pay:1")
    journal.add(ApprovalGiven, "call", "pay:1", "approved")
    assert journal.state == before, "questions about calls are not about the plan"


def test_an_edited_plan_needs_no_second_question_unless_it_was_changed_again() -> None:
    edited = plan(step("x"), ANSWER)
    journal = running()
    journal.enter(route(journal.state, approval=ASKED))
    state = journal.answer(ASKED, "edited", payload=edited.to_json())
    assert state.plan is None, "the old plan cannot be run any more"
    assert route(state).target is Target.APPROVER, "what was answered must still become a plan"
    for made, target in (
        (edited, Target.STEP),
        (plan(step("x"), step("y"), ANSWER), Target.APPROVER),
    ):
        other = Journal()
        other.state = state
        other.add(PlanMade, made.to_json(), 2)
        assert route(other.state, approval=asked(made)).target is target


def test_an_edit_that_is_no_plan_or_lost_a_secret_approves_nothing() -> None:
    journal = running()
    journal.enter(route(journal.state, approval=ASKED))
    hidden = plan(step("a", parameters={"key": "[redacted]"}), ANSWER)
    state = journal.answer(ASKED, "edited", payload=hidden.to_json())
    assert (state.plan, state.edited) == (GOOD, None), "the store kept another plan than was given"
    assert route(state, approval=ASKED).target is Target.APPROVER
    journal.answer(ASKED, "edited", payload={"steps": [3]})
    journal.make()
    assert route(journal.state, approval=ASKED).target is Target.APPROVER
