"""What a report of a plan-first run tells: the steps of its plans, what was used up, what can be done."""

from __future__ import annotations

from collections.abc import Iterator

from triage.reports import CapabilityFacts, CounterFacts, Facts, StepFacts

from ._limits import PlanLimits
from ._plan import PlannedStep
from ._registry import Registry
from ._state import PlanState, Target


def facts_of_plan(
    facts: Facts, state: PlanState, registry: Registry, limits: PlanLimits, agent: str
) -> Facts:
    """The facts of a failure with those of its plan."""
    known = tuple(CapabilityFacts(one.name, one.description) for one in registry)
    facts = facts._replace(agent=facts.agent or agent, capabilities=known)
    if not state.run_id:
        return facts
    steps = tuple(_steps(state))
    if state.at is Target.STEP and facts.ended != "suspended":
        # Not the router's failure: what ended the run (a limit, a call in doubt) met it in this step.
        steps = tuple(
            step._replace(outcome="failed", error=facts.error or facts.reason, decisive=True)
            if step.outcome == "open" and at == len(steps) - _left(state)
            else step
            for at, step in enumerate(steps)
        )
    failed = _failed(state)
    return facts._replace(
        run_id=facts.run_id or state.run_id,
        failed=failed or facts.failed,
        question=facts.question or ("" if state.asked is None else state.asked.question),
        reason=_reason(state) or facts.reason,
        # The calls of planners and selectors are no steps of the work.
        steps=steps,
        counters=(*_counters(state, limits), *facts.counters),
    )


def _left(state: PlanState) -> int:
    """How many steps of the plan are not done."""
    return 0 if state.plan is None else len(state.plan.steps) - state.position


def _steps(state: PlanState) -> Iterator[StepFacts]:
    """What earlier plans have done, then the whole of the last one."""
    plan = state.plan or state.previous
    version = state.version
    for at, (step, made, _) in enumerate(state.done):
        if made != version:
            yield _step(at + 1, step, "done", made)
    if plan is None:
        return
    done = {step.context_key for step, made, _ in state.done if made == version}
    failures = {failure.step: failure for failure in state.failures if failure.step}
    for at, step in enumerate(plan.steps):
        key = step.context_key
        failure = failures.get(key)
        open_here = key not in done
        if open_here and failure is not None and _is_last(state, key):
            error = str(failure.error) if failure.error else failure.diagnosis.technical_details
            yield _step(at + 1, step, "failed", version)._replace(error=error, decisive=True)
        else:
            yield _step(at + 1, step, "open" if open_here else "done", version)


def _is_last(state: PlanState, key: str) -> bool:
    """Whether the last failure of a step was this one's: of an earlier plan it may have been another's."""
    last = next((failure for failure in reversed(state.failures) if failure.step), None)
    return last is not None and last.step == key


def _step(number: int, step: PlannedStep, outcome: str, version: int) -> StepFacts:
    return StepFacts(
        number=number,
        name=step.capability,
        outcome=outcome,
        objective=step.task_objective,
        criteria=step.success_criteria,
        given=dict(step.parameters) or None,
        attempt=version,
    )


def _failed(state: PlanState) -> str:
    failure = state.failure
    if failure is None:
        return ""
    if failure.target != Target.STEP:
        return f"the {failure.target}"
    plan = state.plan or state.previous
    steps = () if plan is None else plan.steps
    for at, step in enumerate(steps):
        if step.context_key == failure.step:
            return f"step {at + 1}, {step.capability}"
    return f"the step {failure.step}"


def _reason(state: PlanState) -> str:
    return state.decisions[-1].reason if state.ended is not None and state.decisions else ""


def _counters(state: PlanState, limits: PlanLimits) -> Iterator[CounterFacts]:
    used = {
        "retries": (state.total_retries, limits.total_retries),
        "replans": (state.replans, limits.replans),
        "reclassifications": (state.reclassifications, limits.reclassifications),
        "rejections": (state.rejections, limits.rejections),
        "entries": (state.entries, limits.entries),
    }
    for name, (count, limit) in used.items():
        yield CounterFacts(name, count, limit)
