"""A plan-first run as its events tell it: `PlanState`, an immutable value, and `fold_plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple

from triage.errors import UsageError
from triage.events import (
    ApprovalAsked,
    ApprovalGiven,
    CapabilitiesSelected,
    Event,
    PlanFailed,
    PlanMade,
    PlanRouted,
    PlanStepMoved,
    RunStarted,
)
from triage.taxonomy import Severity

from ._approval import subject_of
from ._plan import ExecutionPlan, PlannedStep
from ._registry import Registry, output_of


class Target(StrEnum):
    """What a plan-first run can enter next.

    SELECTOR chooses capabilities, PLANNER makes a plan, APPROVER asks a person, STEP runs the next step.
    REPORT, STOP and END are ends: with a report of what failed, at once, with all steps done. ends: True
    for these three.
    """

    SELECTOR = "selector"
    PLANNER = "planner"
    APPROVER = "approver"
    STEP = "step"
    REPORT = "report"
    STOP = "stop"
    END = "end"

    ends: bool

    def __init__(self, word: str) -> None:
        self.ends = word in ("report", "stop", "end")


class DoneStep(NamedTuple):
    """A step that has been done. version: of the plan it belongs to. call: key of its recorded call."""

    step: PlannedStep
    version: int
    call: str = ""


class PlanState(NamedTuple):
    """Everything the journal says about a plan-first run so far. It never changes; `apply` gives another.

    active: names of the selected capabilities, None before the selection. plan: the one to be run,
    None while there is none. previous: the one before it. planned: a plan has been made since the
    selection. version: of the newest plan, 0 before the first. position: index of the next step. done:
    the steps done so far, of all plans.

    at, step: what has been entered and has not ended, None for nothing; the key of the step. pending:
    what must be decided about, `failure`, `rejection` or nothing. failure: the last failure that has
    not been made good. told: the one that whoever plans or selects next is told of: the same, but where
    only asking them has failed. rejection: a person's refusal of the last plan. asked: the question that
    waits for an answer. edited: an answer that waits to become a plan. approved: kind and subject of
    what may be run. ended: how the run has ended, None before.

    step_retries, planner_retries, selector_retries: of what is tried at present; total_retries: of all.
    replans, reclassifications, rejections: plans and selections entered for that reason. entries: all that
    has been entered. decisions, failures: all of them, in order.
    """

    run_id: str = ""
    active: tuple[str, ...] | None = None
    plan: ExecutionPlan | None = None
    previous: ExecutionPlan | None = None
    planned: bool = False
    version: int = 0
    position: int = 0
    done: tuple[DoneStep, ...] = ()
    at: Target | None = None
    step: str = ""
    pending: str = ""
    failure: PlanFailed | None = None
    told: PlanFailed | None = None
    rejection: ApprovalGiven | None = None
    asked: ApprovalAsked | None = None
    edited: ApprovalGiven | None = None
    approved: frozenset[tuple[str, str]] = frozenset()
    ended: Target | None = None
    step_retries: int = 0
    planner_retries: int = 0
    selector_retries: int = 0
    total_retries: int = 0
    replans: int = 0
    reclassifications: int = 0
    rejections: int = 0
    entries: int = 0
    decisions: tuple[PlanRouted, ...] = ()
    failures: tuple[PlanFailed, ...] = ()

    @property
    def next_step(self) -> PlannedStep | None:
        """The step that comes next, None without a plan and at its end."""
        if self.plan is None or self.position >= len(self.plan.steps):
            return None
        return self.plan.steps[self.position]

    def context(self, registry: Registry) -> dict[str, str | None]:
        """The results that are there, key to type, as `validate` takes them; None for an unknown type."""
        return {
            step.context_key: output_of(step, registry.get(step.capability))
            for step, _, _ in self.done
        }

    def apply(self, event: Event) -> PlanState:
        """The state after this event. Events that say nothing of plans change nothing."""
        apply = _APPLY.get(type(event))
        return self if apply is None else apply(self, event)


def fold_plan(events: Iterable[Event]) -> PlanState:
    """The state of a plan-first run after these events, in order."""
    state = PlanState()
    for event in events:
        state = state.apply(event)
    return state


# What each step of a plan changes is put in its place, in a third of the time of `_replace`.
_new = tuple.__new__
_POSITION, _DONE, _AT, _STEP, _PENDING, _FAILURE, _TOLD, _APPROVED, _RETRIES, _ENTRIES, _DECISIONS = map(
    PlanState._fields.index,
    (
        "position", "done", "at", "step", "pending", "failure", "told", "approved", "step_retries",
        "entries", "decisions",
    ),
)  # fmt: skip


def _started(state: PlanState, event: RunStarted) -> PlanState:
    return state._replace(run_id=event.run_id)


_COUNTED = frozenset({"replans", "reclassifications", "rejections"})
_RETRIED = {
    Target.SELECTOR: "selector_retries",
    Target.PLANNER: "planner_retries",
    Target.STEP: "step_retries",
}


def retries_of(target: Target) -> str:
    """The counter of retries of what can be entered; empty for the approver and the ends."""
    return _RETRIED.get(target, "")


def _routed(state: PlanState, event: PlanRouted) -> PlanState:
    target = _target(event)
    if target is None:  # of a later release
        return state
    decisions = (*state.decisions, event)
    if target.ends:
        return state._replace(ended=target, at=None, pending="", decisions=decisions)
    values: list[Any] = list(state)
    values[_AT], values[_STEP], values[_PENDING] = target, event.step, ""
    values[_ENTRIES] += 1
    values[_DECISIONS] = decisions
    if state.approved and target is Target.STEP:  # that of this one step is used up
        values[_APPROVED] = frozenset(item for item in state.approved if item[0] == "plan")
    state = _new(PlanState, values)
    if event.counter:
        state = _counted(state, event.counter, target)
    if target is Target.SELECTOR:
        # A new selection begins with nothing of the old one; what has been done stays done.
        return _without_plan(state)._replace(active=None, planned=False)
    return _without_plan(state) if target is Target.PLANNER else state


def _target(event: PlanRouted) -> Target | None:
    if isinstance(event.target, Target):
        return event.target
    try:
        return Target(event.target)
    except ValueError:
        return None


def _counted(state: PlanState, counter: str, target: Target) -> PlanState:
    names = {counter} & _COUNTED
    if counter == "retries":
        names = {"total_retries"} | {retries_of(target)} - {""}
    return state._replace(**{name: getattr(state, name) + 1 for name in names})


def _without_plan(state: PlanState) -> PlanState:
    """No plan may be run, and none is approved."""
    return state._replace(
        plan=None,
        previous=state.plan or state.previous,
        position=0,
        step_retries=0,
        approved=frozenset(),
        asked=None,
        edited=None,
    )


def _selected(state: PlanState, event: CapabilitiesSelected) -> PlanState:
    own = state.failure is not None and state.failure.target == Target.SELECTOR
    kept = state.told is not None and state.told.target != Target.SELECTOR
    return state._replace(
        active=event.names,
        at=None,
        pending="",
        failure=None if own else state.failure,
        told=state.told if kept else None,
        selector_retries=0,
    )


def _made(state: PlanState, event: PlanMade) -> PlanState:
    edited = state.edited
    plan = _plan_of(event)
    approved = frozenset[tuple[str, str]]()
    if plan is not None and edited is not None:
        # What a person wrote need not be approved again; what was changed since must be.
        subject = subject_of(event.run_id, edited.kind, plan)
        if subject == _subject_of_edit(edited):
            approved = frozenset({(edited.kind, subject)})
    return _without_plan(state)._replace(
        plan=plan,
        planned=True,
        version=event.version,
        at=None,
        pending="",
        failure=None,
        told=None,
        rejection=None,
        approved=approved,
        planner_retries=0,
    )


def _plan_of(event: PlanMade) -> ExecutionPlan | None:
    """The plan, None if it is not the one that was made, as a store keeps no secrets."""
    try:
        plan = ExecutionPlan.from_json(event.plan)
    except UsageError:
        return None
    if event.subject and event.subject != subject_of(event.run_id, "plan", plan):
        return None
    return plan


def _subject_of_edit(answer: ApprovalGiven) -> str | None:
    try:
        return subject_of(answer.run_id, answer.kind, ExecutionPlan.from_json(answer.payload))
    except UsageError:
        return None


def _failed(state: PlanState, event: PlanFailed) -> PlanState:
    asking = event.target in (Target.PLANNER, Target.SELECTOR)
    later = asking and event.diagnosis.severity is Severity.RETRIABLE
    return state._replace(
        at=None,
        pending="failure",
        failure=event,
        told=state.told if later else event,
        failures=(*state.failures, event),
    )


def _moved(state: PlanState, event: PlanStepMoved) -> PlanState:
    step = state.next_step
    if step is None or step.context_key != event.step:
        return state  # of a plan that is not run any more
    if event.status not in ("done", "skipped"):
        return state
    values: list[Any] = list(state)
    if event.status == "done":
        values[_DONE] = (*state.done, DoneStep(step, state.version, event.detail))
    values[_POSITION] += 1
    values[_AT], values[_RETRIES] = None, 0
    failure = state.failure
    if failure is not None and failure.target == Target.STEP and failure.step == event.step:
        values[_FAILURE], values[_TOLD], values[_PENDING] = None, None, ""
    return _new(PlanState, values)


def _asked(state: PlanState, event: ApprovalAsked) -> PlanState:
    return state if event.kind == "call" else state._replace(asked=event)


def _answered(state: PlanState, event: ApprovalGiven) -> PlanState:
    asked = state.asked
    if asked is None or (asked.kind, asked.subject) != (event.kind, event.subject):
        return state  # nobody asked this, or not any more
    state = state._replace(asked=None)
    match event.decision:
        case "approved":
            return state._replace(
                approved=state.approved | {(event.kind, event.subject)}, at=None, pending=""
            )
        case "rejected":
            voided = _without_plan(state)
            return voided._replace(rejection=event, at=None, pending="rejection")
        case "edited" if event.kind == "plan":
            return _without_plan(state)._replace(edited=event)
        case _:
            return state


_APPLY: dict[type, Callable[[PlanState, Any], PlanState]] = {
    RunStarted: _started,
    CapabilitiesSelected: _selected,
    PlanMade: _made,
    PlanRouted: _routed,
    PlanFailed: _failed,
    PlanStepMoved: _moved,
    ApprovalAsked: _asked,
    ApprovalGiven: _answered,
}
