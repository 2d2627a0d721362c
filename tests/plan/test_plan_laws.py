"""Laws of validation, over random registries and plans."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from event_values import json_values
from hypothesis import assume, given
from hypothesis import strategies as st
from tables import table

from triage import Severity
from triage.plan import (
    ExecutionPlan,
    Input,
    Issue,
    PlanLimits,
    PlannedStep,
    Registry,
    Validation,
    feedback,
    validate,
)

from .values import any_plan, made, registries, valid_plans


class Case(NamedTuple):
    registry: Registry
    plan: ExecutionPlan


@st.composite
def cases(draw: Any) -> Case:
    registry = draw(registries())
    return Case(registry, draw(valid_plans(registry)))


@given(cases())
def test_a_plan_made_by_the_rules_has_no_issues(case: Case) -> None:
    assert validate(case.plan, case.registry) == Validation(case.plan)


@given(cases())
def test_without_its_response_it_is_fixed_and_then_has_nothing_to_fix(case: Case) -> None:
    assume(len(case.plan.steps) > 1)
    cut = ExecutionPlan(case.plan.steps[:-1])
    found = validate(cut, case.registry, task="x")
    assert found.ok
    assert [fix.code for fix in found.fixes] == ["appended_response"]
    assert validate(found.plan, case.registry) == Validation(found.plan)


# Planted faults -----------------------------------------------------------------------------------


def _with(plan: ExecutionPlan, at: int, **fields: Any) -> ExecutionPlan:
    steps = [*plan.steps]
    steps[at] = dataclasses.replace(steps[at], **fields)
    return ExecutionPlan(tuple(steps))


def _early(plan: ExecutionPlan, at: int) -> ExecutionPlan:
    added = PlannedStep("early", "respond")
    return ExecutionPlan((*plan.steps[:at], added, *plan.steps[at:]))


def _twice(plan: ExecutionPlan, at: int) -> ExecutionPlan:
    again = dataclasses.replace(plan.steps[at], inputs=plan.steps[at].inputs)
    return ExecutionPlan((*plan.steps[: at + 1], again, *plan.steps[at + 1 :]))


def _given(plan: ExecutionPlan, at: int, kind: str, key: str) -> ExecutionPlan:
    return _with(plan, at, inputs=(*plan.steps[at].inputs, Input(kind, key)))


PLANTED: dict[str, tuple[Callable[[ExecutionPlan, int], ExecutionPlan], int]] = {
    "blank_capability": (lambda plan, at: _with(plan, at, capability=" "), 0),
    "unknown_capability": (lambda plan, at: _with(plan, at, capability="!no such one!"), 0),
    "blank_key": (lambda plan, at: _with(plan, at, context_key="\t"), 0),
    "duplicate_key": (_twice, 1),
    "unknown_reference": (lambda plan, at: _given(plan, at, "A", "!nowhere!"), 0),
    "forward_reference": (lambda plan, at: _given(plan, at, "A", "out"), 0),
    "self_reference": (lambda plan, at: _given(plan, at, "A", plan.steps[at].context_key), 0),
    "early_response": (_early, 0),
}


@table("code", PLANTED)
@given(case=cases(), data=st.data())
def test_every_planted_fault_is_found_where_it_was_planted(
    code: str, case: Case, data: Any
) -> None:
    assume(len(case.plan.steps) > 1)
    at = data.draw(st.integers(0, len(case.plan.steps) - 2))
    plant, offset = PLANTED[code]
    found = validate(plant(case.plan, at), case.registry)
    assert (code, at + offset) in [(issue.code.value, issue.step) for issue in found.issues]


@st.composite
def wired(draw: Any) -> tuple[Case, int]:
    """A case with a step that is given what it requires, and where that step stands."""
    case = draw(cases())
    kinds = draw(st.lists(st.sampled_from("XYZ"), unique=True, min_size=1))
    maker, user = made("!maker", provides=tuple(kinds)), made("!user", requires=tuple(kinds))
    at = draw(st.integers(0, len(case.plan.steps) - 1))
    added = [PlannedStep(f"!{kind}", "!maker", expected_output=kind) for kind in kinds]
    inputs = tuple(Input(kind, f"!{kind}") for kind in kinds)
    use = PlannedStep("!use", "!user", inputs=inputs)
    steps = (*added, *case.plan.steps[:at], use, *case.plan.steps[at:])
    registry = Registry([*case.registry, maker, user])
    return Case(registry, ExecutionPlan(steps)), len(added) + at


@given(wired())
def test_a_requirement_that_is_not_wired_is_missed(found_at: tuple[Case, int]) -> None:
    case, at = found_at
    assert validate(case.plan, case.registry).ok
    found = validate(_with(case.plan, at, inputs=()), case.registry)
    expected = [("missing_requirement", at, item.key) for item in case.plan.steps[at].inputs]
    assert [(issue.code.value, issue.step, issue.nearest) for issue in found.issues] == expected


@given(wired())
def test_a_wrong_type_is_found(found_at: tuple[Case, int]) -> None:
    case, at = found_at
    first, *rest = case.plan.steps[at].inputs
    wrong = _with(case.plan, at, inputs=(Input("!other!", first.key), *rest))
    assert {(issue.code.value, issue.step) for issue in validate(wrong, case.registry).issues} == {
        ("input_type", at),
        ("missing_requirement", at),
    }
    maker = _with(case.plan, 0, expected_output="!other!")
    assert ("output_type", 0) in [
        (issue.code.value, issue.step) for issue in validate(maker, case.registry).issues
    ]


@given(cases())
def test_what_is_not_active_is_outside_and_never_invented(case: Case) -> None:
    found = validate(case.plan, case.registry, active=[])
    used = dict.fromkeys(
        step.capability for step in case.plan.steps if step.capability != "respond"
    )
    assert found.outside == tuple(used)
    assert found.invented == ()
    assert found.severity is (Severity.RECLASSIFICATION if used else None)


# Every issue is real ------------------------------------------------------------------------------


def real(issue: Issue, plan: ExecutionPlan, registry: Registry, limits: PlanLimits) -> bool:
    """Whether what an issue says is so, worked out anew from the plan alone."""
    steps = plan.steps
    if issue.step is None:
        return (issue.code == "empty_plan" and not steps) or (
            issue.code == "too_many_steps" and len(steps) >= limits.steps
        )
    step = steps[issue.step]
    before = [one.context_key for one in steps[: issue.step] if one.context_key.strip()]
    after = [one.context_key for one in steps[issue.step + 1 :] if one.context_key.strip()]
    own = [step.context_key] if step.context_key.strip() else []
    used = {item.key for item in step.inputs} - {*before}
    known = registry.get(step.capability)
    facts = {
        "blank_capability": not step.capability.strip(),
        "unknown_capability": step.capability.casefold() not in map(str.casefold, registry.names),
        "blank_key": not own,
        "duplicate_key": step.context_key in before,
        "unknown_reference": bool(used - {*after, *own}),
        "forward_reference": bool(used & {*after}),
        "self_reference": step.context_key in used,
        "input_type": any(item.key in before for item in step.inputs),
        "output_type": known is not None and step.expected_output not in known.provides,
        "missing_requirement": known is not None
        and not set(known.requires) <= {item.type for item in step.inputs},
        "early_response": bool(known and known.responds and len(steps) > issue.step + 1),
    }
    return facts[issue.code]


@given(registries(), st.data())
def test_every_issue_of_a_random_plan_is_real(registry: Registry, data: Any) -> None:
    keys = st.sampled_from(["a", "b", "c", "d", " "])
    known = st.sampled_from([*registry.names, "nobody", "", registry.names[0].upper()])
    kinds = st.sampled_from(["A", "B", "C"])
    steps = st.builds(
        PlannedStep,
        keys,
        known,
        expected_output=st.none() | kinds,
        inputs=st.lists(st.builds(Input, kinds, keys), max_size=2).map(tuple),
    )
    plan = ExecutionPlan(tuple(data.draw(st.lists(steps, max_size=6))))
    limits = PlanLimits(steps=data.draw(st.integers(1, 6)))
    found = validate(plan, registry, limits=limits)
    for issue in found.issues:
        assert real(issue, plan, registry, limits), issue
        assert issue.nearest is None or issue.nearest in (*registry.names, *"abcdABC")
    if found.ok:
        assert validate(found.plan, registry, limits=limits) == Validation(found.plan)


@given(any_plan)
def test_any_plan_whatever_is_judged_the_same_as_a_value_and_as_json(plan: ExecutionPlan) -> None:
    registry = Registry([made("respond")])
    found = validate(plan, registry)
    again = validate(json.dumps(plan.to_json()), registry)
    assert [issue[:2] for issue in found.issues] == [issue[:2] for issue in again.issues]
    assert found.fixes == again.fixes


mess = st.recursive(
    json_values | st.sampled_from([b"", object(), {1, 2}, float("nan"), PlannedStep("a", "b")]),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "steps": inner | st.lists(inner, max_size=3), "context_key": inner, "capability": inner,
            "inputs": inner, "parameters": inner, "expected_output": inner, "version": inner, "v": inner,
        },
    ),
    max_leaves=6,
)  # fmt: skip


@given(mess)
def test_nothing_a_planner_answers_makes_validation_raise(answer: Any) -> None:
    found = validate(answer, Registry([made("respond")]))
    assert found.ok is (found.severity is None)
    assert found.plan is not None or found.issues
    assert len(feedback(found.issues, max_chars=100)) <= 100
