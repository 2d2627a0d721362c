"""What planning first costs beside the work: checking a plan, deciding what comes next, a planned step.

    python -m bench.plan [--rounds 300]

Times are of this process on this machine, the middle one of so many; a step of a plan is held against the
same calls made with `run.call`, in turn. `--strict` exits with 1 where checking a plan of 100 steps and
deciding once take more than a millisecond together, or a planned step twice as long as a recorded call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import anyio

import triage
from triage import Diagnosis, FailureType, Severity
from triage.core import CapabilitiesSelected, PlanFailed, PlanMade, PlanRouted, PlanStepMoved
from triage.plan import (
    Capability,
    ExecutionPlan,
    Input,
    Orchestrator,
    PlanLimits,
    PlannedStep,
    PlanState,
    Registry,
    Target,
    fold_plan,
    route,
    validate,
)

STEPS = 100
CAPABILITIES = 30
PROMISED_S = 0.001
PROMISED_TIMES = 2.0
LIMITS = PlanLimits(steps=STEPS, entries=10 * STEPS)


def _nothing(**_given: object) -> None:
    """What the capabilities do."""


def registry() -> Registry:
    """Capabilities of which each needs what the one before it provides."""
    known = [
        Capability(
            f"capability_{at}",
            "does a part of the work",
            _nothing,
            requires=(f"TYPE_{at - 1}",) if at else (),
            provides=(f"TYPE_{at}",),
            effect="read",
        )
        for at in range(CAPABILITIES)
    ]
    return Registry([*known, Capability("respond", "answers the user", _nothing)])


def plan() -> ExecutionPlan:
    """A plan without issues: every step but the first of a row is given the result before it."""
    steps = [
        PlannedStep(
            f"result_{at}",
            f"capability_{at % CAPABILITIES}",
            f"Do part {at} of the work",
            parameters={"part": at, "how": "carefully"},
            inputs=(Input(f"TYPE_{at % CAPABILITIES - 1}", f"result_{at - 1}"),)
            if at % CAPABILITIES
            else (),
        )
        for at in range(STEPS - 1)
    ]
    return ExecutionPlan((*steps, PlannedStep("answer", "respond", "Answer the user")))


def journal(made: ExecutionPlan) -> list[Any]:
    """The events of a run that takes every step, as an orchestrator writes them."""
    events: list[Any] = []

    def add(kind: Any, *fields: Any) -> None:
        events.append(kind("run", len(events), 0.0, *fields))

    add(CapabilitiesSelected, registry().names)
    add(PlanMade, made.to_json())
    for step in made.steps:
        add(PlanRouted, Target.STEP, step.context_key)
        add(PlanStepMoved, step.context_key, "done")
    return events


def median_s(work: Callable[[], object], rounds: int) -> float:
    """The middle of so many times one call takes, in seconds."""
    taken: list[float] = []
    for _ in range(rounds + rounds // 10):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[rounds // 10 :])


def figures(rounds: int) -> dict[str, float]:
    """What is measured, each in seconds."""
    known, made = registry(), plan()
    whole = journal(made)
    half = fold_plan(whole[: len(whole) // 2])
    broken = Diagnosis(FailureType.EXTERNAL_FAULT, severity=Severity.RETRIABLE)
    failed = half.apply(PlanFailed("run", 0, 0.0, "step", broken, "result_49"))
    text = json.dumps(made.to_json())
    assert validate(made, known, limits=LIMITS).ok
    assert route(half, LIMITS).target is Target.STEP

    def fold_rest() -> PlanState:
        state = half
        for event in whole[len(whole) // 2 :]:
            state = state.apply(event)
        return state

    rest = len(whole) - len(whole) // 2
    return {
        "validate a plan of 100 steps": median_s(
            lambda: validate(made, known, limits=LIMITS), rounds
        ),
        "validate the same as JSON text": median_s(
            lambda: validate(text, known, limits=LIMITS), rounds
        ),
        "route to the next step": median_s(lambda: route(half, LIMITS), rounds),
        "route after a failure": median_s(lambda: route(failed, LIMITS), rounds),
        "take an event into the state": median_s(fold_rest, rounds) / rest,
        "hash a plan of 100 steps": median_s(lambda: ExecutionPlan(made.steps).hash, rounds),
    }


async def seconds_each(rounds: int) -> tuple[float, float, float]:
    """What a recorded call and a planned step take, and a run of 100 planned steps for each of them.

    The first two from the first of 100 to the last; runs of both in turn, the middle of so many.
    """
    at: list[float] = []

    async def work(part: int) -> int:
        at.append(time.perf_counter())
        return part

    tool = triage.tool(effect="read")(work)
    made = ExecutionPlan(
        tuple(PlannedStep(f"r{at}", "work", parameters={"part": at}) for at in range(STEPS))
    )

    async def plans(_request: Any) -> Any:
        return made

    async def calls(_task: str, *, run: triage.Run) -> None:
        for at in range(STEPS):
            await run.call(tool, at)

    registry = Registry([Capability("work", "works", work, effect="read")])
    agent = triage.Agent(calls, checks=triage.Checks(watch=False))
    orchestrator = Orchestrator(registry, plans, limits=LIMITS)
    taken: dict[str, list[float]] = {"call": [], "step": [], "run": []}
    for _ in range(rounds):
        for name, one in (("call", agent), ("step", orchestrator)):
            at.clear()
            began = time.perf_counter()
            await one.run("task")
            taken[name].append((at[-1] - at[0]) / (STEPS - 1))
        taken["run"].append((time.perf_counter() - began) / STEPS)
    called, planned, whole = map(statistics.median, taken.values())
    return called, planned, whole


def main() -> int:
    """Print the figures; 1 if the promise is not kept and `--strict` is set, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="calls to take the middle of")
    parser.add_argument("--strict", action="store_true", help="exit with 1 over the promise")
    options = parser.parse_args()
    found = figures(options.rounds)
    for name, seconds in found.items():
        print(f"{name:<34}{seconds * 1e6:>10.1f} µs")
    both = found["validate a plan of 100 steps"] + found["route to the next step"]
    print(f"{'validate and route once':<34}{both * 1e6:>10.1f} µs  (promised: below 1000)")
    called, planned, whole = anyio.run(seconds_each, max(10, options.rounds // 5))
    times = planned / called
    print(f"{'a recorded call':<34}{called * 1e6:>10.1f} µs")
    told = f"{times:.2f} times a call (promised: below {PROMISED_TIMES:g})"
    print(f"{'a planned step':<34}{planned * 1e6:>10.1f} µs  {told}")
    print(f"{'the same with making the plan':<34}{whole * 1e6:>10.1f} µs")
    return int(options.strict and (both >= PROMISED_S or times >= PROMISED_TIMES))


if __name__ == "__main__":
    sys.exit(main())
