"""Approvals: when one is needed, what it is bound to, and that nothing is run without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_values import ANSWER, GOOD, SMALL, Journal, any_plan, plan, running, step
from tables import table

from triage import Severity, UsageError
from triage.core import ApprovalAsked, ApprovalGiven, PlanMade
from triage.plan import (
    ApprovalAnswer,
    ApprovalRequest,
    ExecutionPlan,
    Target,
    ask,
    matches,
    mismatch,
    needs_approval,
    route,
    subject_of,
    unsafe_effects,
    validate,
)

S = Severity


# When ---------------------------------------------------------------------------------------------


async def _later(_content: Any) -> bool:
    return False


def _raises(_content: Any) -> bool:
    raise RuntimeError("cannot say")


@table(
    ("mode", "evaluator", "needed"),
    [
        ("off", None, False),
        ("off", lambda _: True, False),
        ("all", None, True),
        ("all", lambda _: False, True),
        ("selective", lambda _: True, True),
        ("selective", lambda _: False, False),
        ("selective", lambda _: (True, "it writes"), True),
        ("selective", lambda _: (False, "it reads"), False),
        ("selective", None, True),
        ("selective", _raises, True),
        ("selective", _later, True),
        ("selective", lambda _: None, True),
        ("selective", lambda _: 0, True),
        ("selective", lambda _: "no", True),
        ("selective", lambda _: (False, 3), True),
        ("selective", lambda _: (False, "x", "y"), True),
        ("of", None, True),
        ("of", lambda _: False, True),
        ("OFF", None, True),
        ("", None, True),
        (None, None, True),
    ],
)
def test_what_is_not_known_to_need_no_approval_needs_it(
    mode: Any, evaluator: Any, *, needed: bool
) -> None:
    need = needs_approval(mode, GOOD, evaluator)
    assert (need.needed, bool(need)) == (needed, needed)
    assert need.why
    said = needs_approval("selective", GOOD, lambda _: (True, "it writes"))
    assert said.why == "it writes"


def test_effects_that_must_not_happen_twice_need_approval() -> None:
    evaluator = unsafe_effects(SMALL)
    reads = plan(step("a"), step("b"))
    assert not needs_approval("selective", reads, evaluator)
    for content in (plan(step("a"), step("p", "pay")), step("p", "pay"), step("x", "nobody")):
        need = needs_approval("selective", content, evaluator)
        assert need
        assert "has the effect" in need.why


# Bound to run, kind and content -------------------------------------------------------------------


def asked(**more: Any) -> ApprovalRequest:
    return ask("q1", "run-1", "plan", GOOD, now=100.0, **more)


def test_a_question_shows_what_is_asked() -> None:
    request = asked(expires_s=60.0)
    assert (request.payload, request.expires) == (GOOD.to_json(), 160.0)
    assert request.question == "May this plan be run?"


@table(
    ("other", "why"),
    [
        (ask("q2", "run-1", "plan", GOOD), "it answers another question"),
        (ask("q1", "run-2", "plan", GOOD), "it answers another run"),
        (ask("q1", "run-1", "step", GOOD), "it answers something of another kind"),
        (ask("q1", "run-1", "plan", plan(ANSWER)), "it answers other content"),
    ],
)
def test_an_answer_to_anything_else_does_not(other: ApprovalRequest, why: str) -> None:
    answer = other.answer("approved")
    assert mismatch(asked(), answer, now=0.0) == why
    assert not matches(asked(), answer, now=0.0)


def test_an_answer_counts_once_and_in_time() -> None:
    request = asked(expires_s=60.0)
    answer = request.answer("approved")
    assert matches(request, request.answer("rejected", by="ann", reason="so"), now=160.0)
    assert matches(request, answer, now=160.0)
    assert mismatch(request, answer, now=160.1) == "the question had to be answered sooner"
    assert mismatch(request, answer, now=0.0, used={"q1"}) == "the question has been answered"
    wild = answer._replace(decision="sure")
    assert mismatch(request, wild, now=0.0) == '"sure" is no decision'


@table(
    ("given", "named"),
    [
        (lambda: asked().answer("yes"), r"decision must be one of approved, rejected, edited"),  # type: ignore[arg-type] # wrong on purpose
        (lambda: asked().answer("edited"), r"answer\(\) payload"),
        (lambda: asked().answer("approved", payload={}), r"answer\(\) payload"),
        (lambda: asked(expires_s=0), r"ask\(\) expires_s"),
        (lambda: ask("", "r", "plan", GOOD), r"ask\(\) id"),
        (lambda: ask("q", "r", " ", GOOD), r"ask\(\) kind"),
        (lambda: ask("q", "r", "code", {1}), r"subject_of\(\) content"),
    ],
)
def test_a_wrong_question_or_answer_is_refused_by_its_field(given: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        given()


@settings(max_examples=40)
@given(any_plan, any_plan, st.sampled_from(["r1", "r2"]), st.sampled_from(["plan", "step"]))
def test_subjects_are_equal_for_equal_run_kind_and_content_only(
    one: ExecutionPlan, other: ExecutionPlan, run_id: str, kind: str
) -> None:
    same = one.hash == other.hash and (run_id, kind) == ("r1", "plan")
    assert (subject_of("r1", "plan", one) == subject_of(run_id, kind, other)) is same


def test_a_plan_of_another_run_in_the_same_file_is_not_the_approved_one(tmp_path: Path) -> None:
    path = tmp_path / "pending.json"
    mine, theirs = plan(step("a"), ANSWER), plan(step("p", "pay"), ANSWER)
    mine.save(path)
    request = ask("q1", "mine", "plan", mine)
    answer = request.answer("approved")
    theirs.save(path)
    loaded = ExecutionPlan.load(path)
    assert not matches(ask("q1", "mine", "plan", loaded), answer, now=0.0)
    edited = step("p", "nobody")
    ExecutionPlan((edited,)).save(path)
    assert not validate(ExecutionPlan.load(path), SMALL).ok, "a file is checked as any plan is"


# Approval -----------------------------------------------------------------------------------------

ASKED = ask("q1", "run-1", "plan", GOOD)


def test_nothing_that_needs_approval_is_entered_without_it() -> None:
    journal = running()
    assert route(journal.state, approval=ASKED).target is Target.APPROVER
    journal.approve(ASKED)
    assert route(journal.state, approval=ASKED)[:2] == ("step", "a")


def test_approval_is_for_one_plan_only_even_if_the_next_is_equal() -> None:
    journal = running()
    journal.approve(ASKED)
    journal.enter(route(journal.fail("step", S.REPLANNING, "a")))
    assert journal.state.approved == frozenset(), "nothing is approved where there is no plan"
    journal.make()
    assert journal.state.plan == GOOD
    assert route(journal.state, approval=ASKED).target is Target.APPROVER


def test_approval_of_a_step_is_used_up_when_it_is_entered() -> None:
    pay = step("p", "pay")
    journal = running(plan(pay, ANSWER))
    request = ask("q1", "run-1", "step", pay)
    journal.approve(request)
    journal.enter(route(journal.state, approval=request))
    assert journal.state.at is Target.STEP
    assert journal.state.approved == frozenset()
    journal.enter(route(journal.fail("step", S.RETRIABLE, "p")))
    assert journal.state.approved == frozenset()


def test_an_answer_that_nobody_asked_for_changes_nothing() -> None:
    journal = running()
    journal.add(ApprovalGiven, "plan", ASKED.subject, "approved")
    assert route(journal.state, approval=ASKED).target is Target.APPROVER
    journal.add(ApprovalAsked, "plan", ASKED.subject)
    journal.add(ApprovalGiven, "plan", "other", "approved")
    journal.add(ApprovalGiven, "plan", ASKED.subject, "perhaps")
    assert route(journal.state, approval=ASKED).target is Target.APPROVER
    journal.add(ApprovalGiven, "plan", ASKED.subject, "approved")
    assert journal.state.approved == frozenset(), "the question was used up by the answer before"


def test_questions_about_calls_are_not_about_the_plan() -> None:
    journal = running()
    before = journal.state
    journal.add(ApprovalAsked, "call", "pay:1")
    journal.add(ApprovalGiven, "call", "pay:1", "approved")
    assert journal.state == before


def test_an_edited_plan_needs_no_second_question_unless_it_was_changed_again() -> None:
    edited = plan(step("x"), ANSWER)
    journal = running()
    journal.enter(route(journal.state, approval=ASKED))
    state = journal.edit(ASKED, edited.to_json())
    assert state.plan is None, "the old plan cannot be run any more"
    assert route(state).target is Target.APPROVER, "what was answered must still become a plan"
    again = ask("q2", "run-1", "plan", edited)
    for made, target in (
        (edited, Target.STEP),
        (plan(step("x"), step("y"), ANSWER), Target.APPROVER),
    ):
        other = Journal()
        other.state = state
        other.add(PlanMade, made.to_json(), 2)
        now = again if made is edited else ask("q2", "run-1", "plan", made)
        assert route(other.state, approval=now).target is target


def test_an_edit_that_is_no_plan_approves_nothing() -> None:
    journal = running()
    journal.enter(route(journal.state, approval=ASKED))
    journal.edit(ASKED, {"steps": [3]})
    journal.make()
    assert route(journal.state, approval=ASKED).target is Target.APPROVER


def test_an_answer_has_the_fields_of_its_question() -> None:
    answer = ASKED.answer("edited", by="ann", payload={"steps": []})
    assert answer == ApprovalAnswer(*ASKED[:4], "edited", "ann", "", {"steps": []})
