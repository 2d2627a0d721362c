"""Whatever is planned, refused and fails: a run ends, within its budgets, repeats no effect and reports."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from plan_runs import (
    ANSWER,
    FIND,
    READ,
    Approval,
    Fails,
    Kept,
    Script,
    orchestrator,
    plan,
    state_of,
    step,
)

import triage
from triage import TriageError, TriageSuspendedError
from triage.events import PlanMade
from triage.faults import AmbiguousInput, PolicyRefused, ReclassificationRequired
from triage.plan import ExecutionPlan, PlanLimits

RUN = "run-1"
ERRORS: tuple[Any, ...] = (
    ConnectionRefusedError("nobody there"), ConnectionError("gone"), TimeoutError(), ValueError("no"),
    KeyError("k"), RuntimeError(), AmbiguousInput("which?"), PolicyRefused("never"),
    ReclassificationRequired("others"), None, None, None,
)  # fmt: skip


@st.composite
def plans(draw: Any) -> Any:
    """What a planner answers: plans that can be run, plans that cannot, nonsense, and failures."""
    kind = draw(st.sampled_from(("good", "good", "good", "bad", "nonsense", "error")))
    if kind == "error":
        return draw(st.sampled_from([error for error in ERRORS if error is not None]))
    if kind == "nonsense":
        return draw(st.sampled_from((None, "{", {"steps": []}, [], 7, {"steps": [None]})))
    prefix = draw(st.sampled_from(("a", "b")))
    steps = [
        step(f"{prefix}{at}", "pay", cents=draw(st.integers(1, 2)))
        for at in range(draw(st.integers(0, 3)))
    ]
    found = draw(st.booleans())
    if found:
        where = draw(st.integers(0, len(steps)))
        steps[where:where] = [
            step(f"{prefix}w", "find", name="beam"),
            step(
                f"{prefix}r", draw(st.sampled_from(("read", "measure"))), ("ADDRESS", f"{prefix}w")
            ),
        ]
    if kind == "bad":
        wrong = draw(st.sampled_from((FIND.capability, "teleport", "respond")))
        steps.insert(0, step("x", wrong, ("ADDRESS", "nowhere")))
    return plan(*steps, step(f"{prefix}out", "respond"))


HAPPENED = (ConnectionError("gone"), TimeoutError(), ValueError("no"), RuntimeError(), None)
"""What may be raised after an effect: nothing that says it was not attempted."""
raised = st.lists(st.sampled_from(ERRORS), min_size=1, max_size=4)
failures = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("find", "read", "pay", "measure", "respond"), raised),
        "paid": st.lists(st.sampled_from(HAPPENED), min_size=1, max_size=4),
    },
)
limits = st.builds(
    PlanLimits,
    retries=st.integers(0, 2),
    total_retries=st.integers(0, 4),
    replans=st.integers(0, 3),
    reclassifications=st.integers(0, 2),
    rejections=st.integers(0, 2),
    entries=st.integers(1, 40),
    seconds=st.none() | st.floats(0.5, 20),
    climb=st.booleans(),
)
approvals = st.sampled_from((None, Approval(), Approval(of="step")))
replies = st.lists(st.sampled_from(("approve", "reject", "edit")), min_size=1, max_size=4)


def truth(world: Kept, question: str, before: Counter[str]) -> Any:
    """Whether the payment that is asked about has happened."""
    cents = 1 if '"cents": 1' in question else 2
    name = f"pay {cents}"
    return triage.happened(cents) if world.done()[name] > before[name] else triage.rerun()


@settings(max_examples=100, deadline=None)
@given(st.lists(plans(), min_size=1, max_size=5), failures, limits, approvals, replies)
def test_every_run_ends_within_its_budgets_and_repeats_no_effect(
    answers: list[Any],
    failing: dict[str, list[Any]],
    limit: PlanLimits,
    approval: Approval | None,
    said: list[str],
) -> None:
    world = Kept()
    selector = Script(["find", "read", "pay", "measure"])
    made = orchestrator(
        Script(*answers),
        world,
        fails=Fails(**{name: [*errors, None] for name, errors in failing.items()}),
        selector=selector,
        limits=limit,
        approval=approval,
    )

    async def main() -> None:
        work: Any = partial(made.run, "task", run_id=RUN)
        for count in range(60):
            found = await outcome(work)
            if found is None:
                event("done")
                break
            assert found.report is not None
            assert found.report.completeness == "structured"
            assert found.report.facts.counters
            if not isinstance(found, TriageSuspendedError):
                event("ended")
                break
            work = partial(made.resume, found.token, await reply(found, count))
        else:
            pytest.fail("the run does not end")
        await check(made, world, limit)

    async def reply(asked: TriageSuspendedError, count: int) -> Any:
        if asked.question.startswith("did pay"):
            done = await completed(made)
            return truth(world, asked.question, done)
        if await made.asked(RUN) is None:  # a call that may be one of an earlier plan over again
            return triage.reject("not again")
        match said[count % len(said)]:
            case "approve":
                return triage.approve()
            case "edit" if approval is not None and approval.of == "plan":
                return triage.edit(plan(step("e", "pay", cents=1), step("eo", "respond")).to_json())
            case _:
                return triage.reject("no")

    anyio.run(main)


async def outcome(work: Any) -> TriageError | None:
    """The error that a run ends with for now, None where it is done."""
    try:
        await work()
    except TriageError as error:
        return error
    return None


async def completed(made: Any) -> Counter[str]:
    """The payments that the journal knows of as done."""
    calls = triage.fold(await made.store.read(RUN)).calls.values()
    return Counter(
        f"pay {call.arguments['cents']}"
        for call in calls
        if call.tool == "pay" and call.outcome == "done"
    )


async def check(made: Any, world: Kept, limit: PlanLimits) -> None:
    events = await made.store.read(RUN)
    state = await state_of(made.store, RUN)
    assert state.ended is not None or triage.fold(events).status == "escalated"
    for name in ("total_retries", "replans", "reclassifications", "rejections", "entries"):
        assert getattr(state, name) <= getattr(limit, name), name
    paid = Counter({name: n for name, n in world.done().items() if name.startswith("pay")})
    assert paid == await completed(made)
    wanted: Counter[str] = Counter()
    for one in events:
        if isinstance(one, PlanMade):
            steps = ExecutionPlan.from_json(one.plan).steps
            wanted |= Counter(
                f"pay {dict(s.parameters)['cents']}" for s in steps if s.capability == "pay"
            )
    assert paid <= wanted, "paid more often than any one plan wants"


def test_the_good_plan_of_these_tests_is_good() -> None:
    assert anyio.run(orchestrator(Script(plan(FIND, READ, ANSWER))).run, "task")
