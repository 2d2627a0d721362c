"""Capabilities, plans and journals for the tests of planning first."""

from __future__ import annotations

from typing import Any

from event_values import json_objects, texts
from hypothesis import strategies as st

from triage import Diagnosis, FailureType, Severity
from triage.core import (
    ApprovalAsked,
    ApprovalGiven,
    CapabilitiesSelected,
    PlanFailed,
    PlanMade,
    PlanRouted,
    PlanStepMoved,
    RunStarted,
)
from triage.engine import Question
from triage.plan import (
    Approval,
    Capability,
    Decision,
    ExecutionPlan,
    Input,
    PlannedStep,
    PlanState,
    Registry,
    Target,
)

TYPES = ("A", "B", "C")
RUN = "run-1"


def nothing(**_given: Any) -> None:
    """What capabilities of these tests do."""


def made(name: str, **more: Any) -> Capability:
    return Capability(name, f"does {name}", nothing, **more)


SMALL = Registry([
    made("find", provides=("A",), effect="read"),
    made("join", requires=("A", "B"), provides=("C",), effect="read"),
    made("either", provides=("A", "B")),
    made("pay", effect="once"),
    made("respond"),
])  # fmt: skip


def step(key: str, capability: str = "find", *inputs: tuple[str, str], **more: Any) -> PlannedStep:
    return PlannedStep(key, capability, inputs=tuple(Input(*pair) for pair in inputs), **more)


def plan(*steps: PlannedStep, version: int = 1) -> ExecutionPlan:
    return ExecutionPlan(steps, version)


ANSWER = step("out", "respond")
GOOD = plan(
    step("a"),
    step("b", "either", expected_output="B"),
    step("c", "join", ("A", "a"), ("B", "b")),
    ANSWER,
)


def asked(content: ExecutionPlan | PlannedStep = GOOD, run_id: str = RUN) -> Question:
    """The question about a plan or a step of a run."""
    found = Approval(of="plan" if isinstance(content, ExecutionPlan) else "step").question(
        run_id, content
    )
    assert found is not None
    return found


# Journals -----------------------------------------------------------------------------------------


class Journal:
    """Events of one run, folded as they come."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.state = PlanState()
        self.add(RunStarted, "orchestrator")

    def add(self, kind: Any, *fields: Any, **named: Any) -> PlanState:
        event = kind(RUN, len(self.events), float(len(self.events)), *fields, **named)
        self.events.append(event)
        self.state = self.state.apply(event)
        return self.state

    def enter(self, decision: Decision) -> PlanState:
        """Write a decision down as an orchestrator does."""
        return self.add(PlanRouted, *decision[:5])

    def select(self, *names: str) -> PlanState:
        return self.add(CapabilitiesSelected, names)

    def make(self, made: ExecutionPlan = GOOD, version: int | None = None) -> PlanState:
        return self.add(PlanMade, made.to_json(), version or self.state.version + 1)

    def finish(self, key: str, status: str = "done") -> PlanState:
        return self.add(PlanStepMoved, key, status)

    def answer(self, question: Question, decision: str, **more: Any) -> PlanState:
        """Ask, and have a person answer."""
        self.add(ApprovalAsked, question.of, question.key)
        return self.add(ApprovalGiven, question.of, question.key, decision, **more)

    def fail(self, target: str, severity: Severity, key: str = "", **more: Any) -> PlanState:
        return self.add(PlanFailed, target, failed(severity), key, **more)


def failed(severity: Severity, **more: Any) -> Diagnosis:
    return Diagnosis(FailureType.EXTERNAL_FAULT, severity=severity, **more)


def running(made: ExecutionPlan = GOOD, *, done: int = 0) -> Journal:
    """A run with a plan, so many steps of which are done."""
    journal = Journal()
    journal.enter(Decision(Target.SELECTOR))
    journal.select(*SMALL.names)
    journal.enter(Decision(Target.PLANNER))
    journal.make(made)
    for at in range(done):
        journal.enter(Decision(Target.STEP, made.steps[at].context_key))
        journal.finish(made.steps[at].context_key)
    return journal


# Strategies ---------------------------------------------------------------------------------------

names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6)
kinds = st.lists(st.sampled_from(TYPES), unique=True, max_size=2).map(tuple)

any_step = st.builds(
    PlannedStep,
    texts,
    texts,
    texts,
    texts,
    st.none() | texts,
    json_objects,
    st.lists(st.builds(Input, texts, texts), max_size=3).map(tuple),
)
any_plan = st.builds(
    ExecutionPlan, st.lists(any_step, max_size=5).map(tuple), st.integers(1, 10**6)
)


@st.composite
def registries(draw: Any) -> Registry:
    """A few capabilities, at least one of which needs nothing, and one that responds."""
    some = draw(st.lists(names, unique_by=str.casefold, min_size=1, max_size=5))
    taken = {"respond", "clarify"}
    known = [made("start", provides=draw(kinds))] if "start" not in some else []
    known += [
        made(name, requires=draw(kinds), provides=draw(kinds), effect="read")
        for name in some
        if name.casefold() not in taken
    ]
    return Registry([*known, made("respond")])


@st.composite
def valid_plans(draw: Any, registry: Registry) -> ExecutionPlan:
    """A plan that can be run: every requirement is wired to an earlier result."""
    there: dict[str, str | None] = {}
    steps: list[PlannedStep] = []
    for at in range(draw(st.integers(1, 6))):
        usable = [
            known
            for known in registry
            if not known.responds and set(known.requires) <= set(there.values())
        ]
        if not usable:
            break
        known = draw(st.sampled_from(usable))
        inputs = tuple(
            Input(kind, draw(st.sampled_from([key for key, its in there.items() if its == kind])))
            for kind in known.requires
        )
        kind = draw(st.sampled_from(known.provides)) if known.provides else None
        steps.append(PlannedStep(f"k{at}", known.name, expected_output=kind, inputs=inputs))
        there[f"k{at}"] = kind
    return ExecutionPlan((*steps, PlannedStep("out", "respond")))
