"""Where a plan-first run goes next: one pure function of its state and its limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, assert_never

from triage.core.errors import UsageError, check_count, check_number, misuse
from triage.core.events import (
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
from triage.core.quoting import json_text
from triage.core.redaction import HIDDEN
from triage.core.taxonomy import Severity
from triage.engine.questions import Question
from triage.strategies.ready_made import Backoff, Preset

from .approval import subject_of
from .capabilities import Registry, output_of
from .plans import ExecutionPlan, PlannedStep

# How much a plan-first run may use.


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """How much one plan-first run may use.

    retries: the most for one step, one selection or one plan, whatever a capability's `retry` allows;
    None, the default, leaves it to that, and to `Backoff.CLASSIFY` and `Backoff.LLM` for selector and
    planner. total_retries: retries in the whole run, 10. replans: new plans after a failure, 2, not
    counting the first plan. reclassifications: new selections of capabilities after a failure, 1, not
    counting the first. rejections: new plans after a person has refused one, 3; then the run ends, and
    nothing runs without approval. steps: in one plan, 50. entries: how often the run may enter the
    selector, the planner, the approver and steps, 200; this ends a run that goes round in circles.
    seconds: from the start of the run, waits included; None for no limit. climb: False ends the run when
    retries, replans or reclassifications are used up; True tries the next of the three first.

    Every count is a whole number from 0 (steps and entries from 1), seconds a finite number above 0.
    Raises UsageError, which names the field, for anything else.
    """

    retries: int | None = None
    total_retries: int = 10
    replans: int = 2
    reclassifications: int = 1
    rejections: int = 3
    steps: int = 50
    entries: int = 200
    seconds: float | None = None
    climb: bool = False

    def __post_init__(self) -> None:
        for name in ("retries", "total_retries", "replans", "reclassifications", "rejections"):
            if name != "retries" or self.retries is not None:
                check_count(f"PlanLimits.{name}", getattr(self, name), 0, "0 forbids them")
        for name in ("steps", "entries"):
            check_count(f"PlanLimits.{name}", getattr(self, name), 1)
        if self.seconds is not None:
            remedy = "None for no limit"
            check_number("PlanLimits.seconds", self.seconds, "seconds", above=True, remedy=remedy)
        if not isinstance(self.climb, bool):
            raise misuse("PlanLimits.climb", self.climb, "True or False")


LIMITS = PlanLimits()
"""The default limits."""


# The state of a plan-first run, read from its events.


class Target(StrEnum):
    """What a plan-first run can enter next.

    SELECTOR chooses capabilities, PLANNER makes a plan, APPROVER asks a person, STEP runs the next step.
    Three end the run: REPORT with a report of what failed, STOP at once, END with all steps done. ends:
    True for these three.
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
    """A completed step. version: of the plan it belongs to. call: the key of its recorded call."""

    step: PlannedStep
    version: int
    call: str = ""


class PlanState(NamedTuple):
    """Everything the journal says about a plan-first run so far. Immutable; `apply` returns the next state.

    active: names of the selected capabilities, None before the selection. plan: the current plan, None if
    there is none. previous: the plan before it. planned: whether a plan has been made since the
    selection. version: of the newest plan, 0 before the first. position: index of the next step. done:
    the completed steps of all plans.

    at: what has been entered and has not ended, None for nothing. step: the key of that step. pending:
    what has to be decided about: `failure`, `rejection` or empty. failure: the last unresolved failure.
    told: the failure that the next planner or selector is told about; unlike `failure`, never a failed
    request to planner or selector that is only retried. rejection: a person's refusal of the last plan.
    asked: the question that waits for an answer. edited: an edit that has not become a plan yet. approved:
    kind and subject of what may be run. ended: how the run has ended, None before.

    step_retries, planner_retries, selector_retries: of the current step, plan and selection.
    total_retries: of the whole run. replans, reclassifications, rejections: plans and selections entered
    for that reason. entries: of anything. decisions, failures: all of them, in order.
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
        """The next step; None without a plan and at its end."""
        if self.plan is None or self.position >= len(self.plan.steps):
            return None
        return self.plan.steps[self.position]

    def context(self, registry: Registry) -> dict[str, str | None]:
        """The available results, key to type, as `validate` takes them; None for an unknown type."""
        return {
            step.context_key: output_of(step, registry.get(step.capability))
            for step, _, _ in self.done
        }

    def apply(self, event: Event) -> PlanState:
        """The state after this event. Events that do not concern plans change nothing."""
        match event:
            case RunStarted():
                return self._replace(run_id=event.run_id)
            case CapabilitiesSelected():
                changed = _selected(self, event)
            case PlanMade():
                changed = _planned(self, event)
            case PlanRouted():
                changed = _routed(self, event)
            case PlanFailed():
                changed = _failed(self, event)
            case PlanStepMoved():
                changed = _moved(self, event)
            case ApprovalAsked() if event.kind != "call":
                changed = self._replace(asked=event)
            case ApprovalGiven():
                changed = _answered(self, event)
            case _:
                return self
        return changed


def fold_plan(events: Iterable[Event]) -> PlanState:
    """The state of a plan-first run after these events, in order."""
    state = PlanState()
    for event in events:
        state = state.apply(event)
    return state


_RETRIES = {
    Target.SELECTOR: "selector_retries",
    Target.PLANNER: "planner_retries",
    Target.STEP: "step_retries",
}
"""What can be retried, and the field that counts it."""
_PRESETS = {
    Target.SELECTOR: Backoff.CLASSIFY,
    Target.PLANNER: Backoff.LLM,
    Target.STEP: Backoff.CAPABILITY,
}


def _routed(state: PlanState, event: PlanRouted) -> PlanState:
    try:
        target = Target(event.target)
    except ValueError:  # of a later release
        return state
    decisions = (*state.decisions, event)
    if target.ends:
        return state._replace(ended=target, at=None, pending="", decisions=decisions)
    entries = state.entries + 1
    state = state._replace(
        at=target, step=event.step, pending="", entries=entries, decisions=decisions
    )
    if target is Target.STEP:  # this uses up the approval of the step
        approved = frozenset(item for item in state.approved if item[0] == "plan")
        state = state._replace(approved=approved)
    counters: tuple[str, ...] = ()
    if event.counter == "retries":
        counters = ("total_retries", *filter(None, [_RETRIES.get(target)]))
    elif event.counter in ("replans", "reclassifications", "rejections"):
        counters = (event.counter,)
    state = state._replace(**{name: getattr(state, name) + 1 for name in counters})
    if target is Target.SELECTOR:
        # A new selection keeps nothing of the old one; completed steps stay completed.
        return _without_plan(state)._replace(active=None, planned=False)
    return _without_plan(state) if target is Target.PLANNER else state


def _without_plan(state: PlanState) -> PlanState:
    """The state without a current plan and without approvals."""
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


def _planned(state: PlanState, event: PlanMade) -> PlanState:
    edited = state.edited
    plan = _plan_of(event)
    approved = frozenset[tuple[str, str]]()
    if plan is not None and edited is not None:
        # A plan a person wrote needs no approval unless validation changed it.
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
    """The plan of an event; None if the store has changed it, since stores keep no secrets."""
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
    if event.target == Target.APPROVER and state.edited is not None:
        # Drop the edit that cannot be run; the plan it was to replace is asked about again.
        state = state._replace(plan=state.previous, edited=None)
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
        return state  # a step of an earlier plan
    if event.status not in ("done", "skipped"):
        return state
    failure = state.failure
    if failure is not None and failure.target == Target.STEP and failure.step == event.step:
        state = state._replace(failure=None, told=None, pending="")
    if event.status == "done":
        state = state._replace(done=(*state.done, DoneStep(step, state.version, event.detail)))
    return state._replace(position=state.position + 1, at=None, step_retries=0)


def _answered(state: PlanState, event: ApprovalGiven) -> PlanState:
    asked = state.asked
    if asked is None or (asked.kind, asked.subject) != (event.kind, event.subject):
        return state  # not the open question
    state = state._replace(asked=None)
    if state.failure is not None and state.failure.target == Target.APPROVER:
        state = state._replace(failure=None, told=None)  # the person has answered again
    match event.decision:
        case "approved":
            return state._replace(
                approved=state.approved | {(event.kind, event.subject)}, at=None, pending=""
            )
        case "rejected":
            voided = _without_plan(state)
            return voided._replace(rejection=event, at=None, pending="rejection")
        case "edited" if event.kind == "plan" and HIDDEN not in json_text(event.payload):
            # Else the store has hidden a secret in it: the plan is asked about again.
            return _without_plan(state)._replace(edited=event)
        case _:
            return state


class Decision(NamedTuple):
    """What to enter next.

    target: see `Target`. step: the key of the step, empty for other targets. counter: what entering uses
    up one of: `retries`, `replans`, `reclassifications`, `rejections`, or empty. reason: why. delay_s:
    seconds to wait first. remaining: how many of the counter are left after this, None without a
    counter. cut: names the limit that forbids a retry which the failed part's own preset still allows,
    and how many it allows; else empty.
    """

    target: Target
    step: str = ""
    counter: str = ""
    reason: str = ""
    delay_s: float = 0.0
    remaining: int | None = None
    cut: str = ""

    @property
    def recorded(self) -> dict[str, Any]:
        """The fields of the `PlanRouted` event that records this decision."""
        fields = self._asdict()
        del fields["remaining"], fields["cut"]
        return fields


def route(
    state: PlanState,
    limits: PlanLimits = LIMITS,
    *,
    retry: Preset | None = None,
    draw: float = 1.0,
    elapsed_s: float = 0.0,
    approval: Question | None = None,
) -> Decision:
    """Decide where the run goes next. Pure: waits for nothing and changes nothing.

    The caller journals the decision as `PlanRouted`, which raises the counter, then waits `delay_s`
    seconds, and only then enters the target. A target that fails, or in which the process dies, has
    therefore used up its share.

    retry: how often the failed part may be retried and how long to wait; None is `Backoff.CAPABILITY` for
    a step, `LLM` for the planner, `CLASSIFY` for the selector. draw: a random number from 0 to 1 for the
    delay. elapsed_s: seconds since the start of the run. approval: the question that must be approved
    before the next step, see `Approval.question`; None for nothing.

    An edited plan that cannot be run goes back to the person. Any other failure is decided by its
    severity: RETRIABLE retries the same, REPLANNING enters the planner (the selector if nothing is
    selected), RECLASSIFICATION the selector, CRITICAL the report, FATAL stops. Without a failure, a
    person's refusal comes first, then what was entered and has not ended, then the next of selection,
    plan, approval, steps and END. What a limit forbids goes to the report.
    """
    if state.ended is not None:
        return Decision(state.ended, reason="the run has ended")
    step, failure = state.next_step, state.failure
    edit_failed = failure is not None and failure.target == Target.APPROVER
    if state.pending == "failure" and edit_failed and step is not None and approval is not None:
        assert failure is not None
        why = f"the edited plan cannot be run: {failure.diagnosis}"
        decision = Decision(Target.APPROVER, step.context_key, reason=why)
    elif state.pending == "failure":
        decision = _after_failure(state, limits, retry, draw)
    elif state.pending == "rejection":
        why = "a person refused the plan"
        decision = _again(Target.PLANNER, "rejections", state.rejections, limits.rejections, why)
    elif state.at is not None:
        decision = Decision(state.at, state.step, reason="it was entered and has not ended")
    else:
        decision = _forward(state, limits, approval)
    if decision.target.ends:
        return decision
    entered = state.at is not None and not state.pending  # it has used up its share already
    if not entered and state.entries >= limits.entries:
        return _over(decision, f"entries: all {limits.entries} are used up")
    if limits.seconds is not None:
        if elapsed_s >= limits.seconds:
            return _over(decision, f"seconds: all {limits.seconds:g} are used up")
        if elapsed_s + decision.delay_s > limits.seconds:
            waiting = f"waiting {decision.delay_s:g} s would pass {limits.seconds:g}"
            return _over(decision, f"seconds: {waiting}")
    return decision


def _over(decision: Decision, reason: str) -> Decision:
    """The report, because a limit of the whole run forbids a decision."""
    cut = f"{reason}; it had retries left" if decision.counter == "retries" else ""
    return _report(reason)._replace(cut=cut)


def _forward(state: PlanState, limits: PlanLimits, approval: Question | None) -> Decision:
    """The next of selection, plan, approval, steps and end, when nothing has failed."""
    if state.active is None:
        return Decision(Target.SELECTOR, reason="no capabilities are selected")
    if state.plan is None or not state.plan.steps:
        if not state.planned:
            return Decision(Target.PLANNER, reason="there is no plan")
        why = "the plan has no steps that can be run"
        return _again(Target.PLANNER, "replans", state.replans, limits.replans, why)
    step = state.next_step
    if step is None:
        return Decision(Target.END, reason="every step is done")
    if approval is not None and (approval.of, approval.key) not in state.approved:
        return Decision(Target.APPROVER, step.context_key, reason=f"this {approval.of} needs it")
    count = f"step {state.position + 1} of {len(state.plan.steps)}"
    return Decision(Target.STEP, step.context_key, reason=count)


def _report(reason: str) -> Decision:
    return Decision(Target.REPORT, reason=reason)


def _again(target: Target, counter: str, used: int, allowed: int, why: str) -> Decision:
    """Enter a target again if the counter allows it, else the report."""
    if used >= allowed:
        return _report(f"{why}; {counter}: all {allowed} are used up")
    return Decision(
        target,
        counter=counter,
        reason=f"{why}; {counter} {used + 1} of {allowed}",
        remaining=allowed - used - 1,
    )


def _after_failure(
    state: PlanState, limits: PlanLimits, retry: Preset | None, draw: float
) -> Decision:
    failure = state.failure
    if failure is None:
        return _report("it is not known what has failed")
    why = f"{failure.target} failed: {failure.diagnosis}"
    if failure.doubt:
        why += "; it may have happened"
    decision: Decision
    match failure.diagnosis.severity:
        case Severity.RETRIABLE:
            decision = _retried(state, limits, retry, draw, why)
            if decision.target.ends and limits.climb:
                decision = _replanned(state, limits, why)._replace(cut=decision.cut)
        case Severity.REPLANNING:
            decision = _replanned(state, limits, why)
        case Severity.RECLASSIFICATION:
            decision = _reclassified(state, limits, why)
        case Severity.CRITICAL:
            decision = _report(why)
        case Severity.FATAL:
            decision = Decision(Target.STOP, reason=why)
        case _:
            assert_never(failure.diagnosis.severity)
    return decision


def _retried(
    state: PlanState, limits: PlanLimits, retry: Preset | None, draw: float, why: str
) -> Decision:
    """Retry after a delay if that is safe and still allowed, else the report."""
    failure = state.failure
    assert failure is not None
    try:
        target = Target(failure.target)
    except ValueError:
        return _report(why)
    counter = _RETRIES.get(target)
    if counter is None:
        return _report(f"{why}; it cannot be tried again")
    if failure.doubt:
        return _report(f"{why}, so it is not tried again")
    preset = retry or _PRESETS[target]
    used = int(getattr(state, counter))
    allowed = preset.retries if limits.retries is None else min(limits.retries, preset.retries)
    left = min(allowed - used, limits.total_retries - state.total_retries)
    if left <= 0:
        spent = f"retries: all {allowed}" if used >= allowed else "total_retries: all"
        own = f"its own preset has {preset.retries}" if used < preset.retries else ""
        decision = _report(f"{why}; {spent} are used up{own and f', {own}'}")
        return decision._replace(cut=f"{spent} are used up, {own}" if own else "")
    delay = preset.backoff.delay(used + 1, draw, failure.diagnosis.retry_after_s)
    text = f"{why}; retry {used + 1} of {allowed}"
    return Decision(
        target, failure.step, counter="retries", reason=text, delay_s=delay, remaining=left - 1
    )


def _replanned(state: PlanState, limits: PlanLimits, why: str) -> Decision:
    if state.active is None:
        return _reclassified(state, limits, why)
    decision = _again(Target.PLANNER, "replans", state.replans, limits.replans, why)
    if decision.target.ends and limits.climb:
        return _reclassified(state, limits, why)
    return decision


def _reclassified(state: PlanState, limits: PlanLimits, why: str) -> Decision:
    used, allowed = state.reclassifications, limits.reclassifications
    return _again(Target.SELECTOR, "reclassifications", used, allowed, why)
