"""Where a plan-first run goes next: one pure function of its state and its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, assert_never

from triage.taxonomy import Severity

from ._approval import ApprovalRequest
from ._limits import LIMITS, PlanLimits
from ._state import PlanState, Target, retries_of

if TYPE_CHECKING:
    from triage.strategies.backoff import Preset


class Decision(NamedTuple):
    """What is entered next.

    target: see `Target`. step: the key of the step, empty for others. counter: what entering it uses up
    one of, `retries`, `replans`, `reclassifications`, `rejections` or nothing. reason: why. delay_s:
    seconds to wait before. The first five are the fields of `PlanRouted`. remaining: how many are left
    of the counter after this, None without one.
    """

    target: Target
    step: str = ""
    counter: str = ""
    reason: str = ""
    delay_s: float = 0.0
    remaining: int | None = None


def route(
    state: PlanState,
    limits: PlanLimits = LIMITS,
    *,
    retry: Preset | None = None,
    draw: float = 1.0,
    elapsed_s: float = 0.0,
    approval: ApprovalRequest | None = None,
) -> Decision:
    """Where the run goes next. Pure: it waits for nothing and changes nothing.

    Whoever asks writes the decision down as `PlanRouted`, which raises the counter, waits `delay_s`
    seconds, and only then enters the target; so what fails, and what a process dies in, has used up its
    share. retry: how often and after how long what has failed may be tried again; None is
    `Backoff.CAPABILITY` for a step, `LLM` for the planner, `CLASSIFY` for the selector. draw: a random
    number from 0 to 1 for the delay. elapsed_s: seconds since the start of the run. approval: what must
    have been approved before the next step is entered, None for nothing.

    A failure is decided about first, by its severity: RETRIABLE goes to the same again, REPLANNING to
    the planner (to the selector where nothing is selected), RECLASSIFICATION to the selector, CRITICAL
    to the report, FATAL stops. Then a person's refusal, then what was entered and has not ended, then
    the next of selection, plan, approval, steps and END. What a limit does not allow goes to the report.
    """
    if state.ended is not None:
        return Decision(state.ended, reason="the run has ended")
    decision = _next(state, limits, retry, draw, approval)
    if decision.target.ends:
        return decision
    entered = state.at is not None and not state.pending  # it has used up its share already
    if not entered and state.entries >= limits.entries:
        return _report(f"entries: all {limits.entries} are used up")
    if limits.seconds is not None:
        if elapsed_s >= limits.seconds:
            return _report(f"seconds: all {limits.seconds:g} are used up")
        if elapsed_s + decision.delay_s > limits.seconds:
            waiting = f"waiting {decision.delay_s:g} s would pass {limits.seconds:g}"
            return _report(f"seconds: {waiting}")
    return decision


def _next(
    state: PlanState,
    limits: PlanLimits,
    retry: Preset | None,
    draw: float,
    approval: ApprovalRequest | None,
) -> Decision:
    if state.pending == "failure":
        return _after_failure(state, limits, retry, draw)
    if state.pending == "rejection":
        why = "a person refused the plan"
        return _again(Target.PLANNER, "rejections", state.rejections, limits.rejections, why)
    if state.at is not None:
        return Decision(state.at, state.step, reason="it was entered and has not ended")
    return _forward(state, limits, approval)


def _forward(state: PlanState, limits: PlanLimits, approval: ApprovalRequest | None) -> Decision:
    """The next of selection, plan, approval, steps and end; nothing has failed."""
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
    if approval is not None and (approval.kind, approval.subject) not in state.approved:
        return Decision(Target.APPROVER, step.context_key, reason=f"this {approval.kind} needs it")
    count = f"step {state.position + 1} of {len(state.plan.steps)}"
    return Decision(Target.STEP, step.context_key, "", count)


def _report(reason: str) -> Decision:
    return Decision(Target.REPORT, reason=reason)


def _again(target: Target, counter: str, used: int, allowed: int, why: str) -> Decision:
    """A target that is entered once more for a reason that is counted, or the report."""
    if used >= allowed:
        return _report(f"{why}; {counter}: all {allowed} are used up")
    return Decision(
        target, "", counter, f"{why}; {counter} {used + 1} of {allowed}", 0.0, allowed - used - 1
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
                decision = _replanned(state, limits, why)
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
    """The same again after a delay, where that is known to be safe and is still allowed."""
    from triage.strategies.backoff import Backoff

    failure = state.failure
    assert failure is not None
    try:
        target = Target(failure.target)
    except ValueError:
        return _report(why)
    counter = retries_of(target)
    if not counter:
        return _report(f"{why}; it cannot be tried again")
    if failure.doubt:
        return _report(f"{why}, so it is not tried again")
    preset = retry
    if preset is None:
        preset = {Target.PLANNER: Backoff.LLM, Target.SELECTOR: Backoff.CLASSIFY}.get(
            target, Backoff.CAPABILITY
        )
    used = int(getattr(state, counter))
    allowed = min(limits.retries, preset.retries)
    left = min(allowed - used, limits.total_retries - state.total_retries)
    if left <= 0:
        spent = f"retries: all {allowed}" if used >= allowed else "total_retries: all"
        return _report(f"{why}; {spent} are used up")
    delay = preset.backoff.delay(used + 1, draw, failure.diagnosis.retry_after_s)
    text = f"{why}; retry {used + 1} of {allowed}"
    return Decision(target, failure.step, "retries", text, delay, left - 1)


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
