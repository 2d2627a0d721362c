"""Whatever can be done, is planned, refused and fails: a run ends, within its budgets, repeats no effect,
tells its planner what is so, and reports."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import anyio
from hypothesis import event, given
from hypothesis import strategies as st

from triage import Severity, TriageError
from triage.core import (
    ApprovalGiven,
    CallStarted,
    CapabilitiesSelected,
    PlanFailed,
    PlanMade,
    PlanRouted,
    PlanStepMoved,
    TriageFatalError,
)
from triage.plan import ExecutionPlan
from triage.strategies import Backoff

from .runs import ANSWER, FIND, READ, Script, plan
from .runs import orchestrator as five
from .trials import ENDS, Trial
from .worlds import ALWAYS, World, worlds


@given(backend=st.sampled_from(["asyncio", "trio"]), world=worlds())
def test_every_run_ends_within_its_budgets_and_repeats_no_effect(
    backend: str, world: World
) -> None:
    trial = Trial(world)
    result, error = anyio.run(trial.run, backend=backend)
    event("done" if error is None else type(error).__name__)
    assert not trial.told, trial.told
    it_ended(trial, result, error)
    nothing_was_used_beyond_its_limit(trial)
    each_failure_went_where_its_severity_says(trial)
    no_step_was_begun_again_once_it_was_done(trial)
    what_has_an_effect_happened_no_more_often_than_planned(trial)
    steps_were_given_the_results_they_name(trial)
    nothing_was_run_unasked(trial)


def it_ended(trial: Trial, result: Any, error: TriageError | None) -> None:
    last = trial.of(PlanRouted)[-1].target
    if error is None:
        assert last == "end"
        steps = ExecutionPlan.from_json(trial.of(PlanMade)[-1].plan).steps
        done = [one.step for one in trial.of(PlanStepMoved)]
        assert [step.context_key for step in steps] == done[len(done) - len(steps) :]
        assert result == sorted(item.key for item in steps[-1].inputs)
    else:
        assert last in ("report", "stop")
        assert (last == "stop") == isinstance(error, TriageFatalError)


def nothing_was_used_beyond_its_limit(trial: Trial) -> None:
    limits = trial.world.limits
    for name, used in trial.used().items():
        assert used <= getattr(limits, name), name
    entered = Counter(one.target for one in trial.of(PlanRouted))
    assert trial.planner.count == entered["planner"]
    doubts = sum(one.doubt for one in trial.of(PlanFailed))
    assert doubts == (len(trial.in_doubt()) if trial.world.on_in_doubt == "fail" else 0)
    if trial.world.selections is not None:
        assert len(trial.selector.requests) == entered["selector"]
    assert sum(trial.deeds.bodies.values()) <= entered["step"] + trial.answered
    presets = {one.name: one.tries for one in trial.registry}
    tried: Counter[Any] = Counter()
    made, steps = 0, dict[str, str]()
    for one in trial.events:
        if isinstance(one, PlanMade):
            planned = ExecutionPlan.from_json(one.plan).steps
            made, steps = made + 1, {step.context_key: step.capability for step in planned}
        if isinstance(one, PlanMade | CapabilitiesSelected):
            tried["planner" if isinstance(one, PlanMade) else "selector"] = 0
        if not isinstance(one, PlanRouted) or one.counter != "retries":
            continue
        what = (made, one.step) if one.target == "step" else one.target
        tried[what] += 1
        preset = {"planner": Backoff.LLM, "selector": Backoff.CLASSIFY}.get(one.target)
        preset = preset or presets[steps[one.step]]
        most = preset.retries if limits.retries is None else min(limits.retries, preset.retries)
        assert tried[what] <= most, what
        assert one.delay_s <= preset.backoff.delay(tried[what], 1.0, None)
    delays = [one.delay_s for one in trial.of(PlanRouted) if one.delay_s]
    assert trial.env.slept == delays
    assert limits.seconds is None or sum(delays) <= limits.seconds
    for one in trial.of(PlanMade):
        assert len(ExecutionPlan.from_json(one.plan).steps) <= limits.steps


LEADS = {
    Severity.REPLANNING: {"planner"},
    Severity.RECLASSIFICATION: {"selector"},
    Severity.CRITICAL: set[str](),
    Severity.FATAL: {"stop"},
}


def each_failure_went_where_its_severity_says(trial: Trial) -> None:
    climb = trial.world.limits.climb
    selected = False
    for one, then in pairwise(trial.of(PlanFailed, PlanRouted, CapabilitiesSelected)):
        if isinstance(one, CapabilitiesSelected):
            selected = True
        elif isinstance(one, PlanRouted):
            selected = selected and one.target != "selector"
            assert one.target not in ENDS or then is None
        else:
            assert isinstance(then, PlanRouted)
            severity = one.diagnosis.severity
            if severity is Severity.RETRIABLE:
                leads = {one.target} | ({"planner", "selector"} if climb else set())
                assert one.target != then.target or climb or then.counter == "retries"
            else:
                leads = LEADS[severity]
            if severity is Severity.REPLANNING and (climb or not selected):
                leads = leads | {"selector"}
            assert then.target in leads or (then.target == "report" and "stop" not in leads)


def no_step_was_begun_again_once_it_was_done(trial: Trial) -> None:
    done: set[str] = set()
    for one in trial.of(PlanRouted, PlanStepMoved):
        assert one.step not in done
        if isinstance(one, PlanStepMoved):
            done.add(one.step)


def what_has_an_effect_happened_no_more_often_than_planned(trial: Trial) -> None:
    wanted: Counter[tuple[str, int]] = Counter()
    for one in trial.of(PlanMade):
        steps = ExecutionPlan.from_json(one.plan).steps
        acts = [step for step in steps if step.capability in trial.abilities]
        wanted |= Counter((step.capability, step.parameters["n"]) for step in acts)
    completed = trial.completed()
    happened: Counter[Any] = Counter()
    for version, step in trial.done_by_version():
        if step.capability in trial.abilities:
            happened[version, step.capability, step.parameters["n"]] += 1
    for (_, *deed), count in happened.items():
        assert trial.deeds.effects[deed[0], deed[1]] >= count, "a step counts as done that was not"
    doubted = {one.key.partition(":")[0] for one in trial.in_doubt()}
    for deed, count in trial.deeds.effects.items():
        if trial.abilities[deed[0]].repeatable:
            continue
        assert count <= wanted[deed] + trial.allowed[deed], deed
        assert count == completed[deed] or deed[0] in doubted, deed


def steps_were_given_the_results_they_name(trial: Trial) -> None:
    done, planned = trial.done(), trial.planned()
    for key, results, typed in trial.deeds.given:
        wanted: dict[str, list[Any]] = {kind: [] for kind in typed}
        for kind, name in planned[key].inputs:
            made = done[name]
            result = trial.abilities[made.capability].result(made.parameters["n"])
            assert results[name] == result
            wanted[kind].append(result)
        assert len(results) == len({item.key for item in planned[key].inputs})
        for kind, told in typed.items():
            few = [None, *wanted[kind]]
            assert told == (wanted[kind] if len(few) > 2 else few[-1])


def nothing_was_run_unasked(trial: Trial) -> None:
    """Where everything is to be approved: each plan, or each step once, was."""
    approval = trial.world.approval
    unsure = approval.mode == "selective" and (approval.evaluator in (None, *ALWAYS))
    if approval.mode not in ("all", "whatever") and not unsure:
        return
    approved = edited = False
    for one in trial.events:
        if isinstance(one, ApprovalGiven):
            approved, edited = one.decision == "approved", one.decision == "edited"
        elif isinstance(one, PlanMade):
            approved, edited = edited, False
        elif isinstance(one, CallStarted) and one.tool in trial.abilities:
            assert approved, one.key
        elif isinstance(one, PlanStepMoved) and approval.of == "step":
            approved = False


def test_the_good_plan_of_these_tests_is_good() -> None:
    assert anyio.run(five(Script(plan(FIND, READ, ANSWER))).run, "task")
