"""Plans and steps that a person must approve: asked once, answered once, in whatever process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import FakeEnvironment
from tables import table

import triage
from triage import TriageEscalationError, TriageSuspendedError, UsageError, edit, reject
from triage.core import AlreadyResumed, ApprovalAsked, ApprovalGiven, TokenExpired, UnknownRun
from triage.plan import (
    Approval,
    ApprovalMode,
    ExecutionPlan,
    PlanLimits,
    answer_in,
    asked_in,
    unsafe_effects,
)

from .runs import (
    ANSWER,
    BAD,
    FIND,
    GOOD,
    READ,
    RESULT,
    Fails,
    Kept,
    Script,
    capabilities,
    orchestrator,
    plan,
    state_of,
    step,
)

pytestmark = pytest.mark.anyio
EVERYTHING = Approval()
APPROVE = triage.approve()
ALL_DONE = ["find beam", "read beam-1", "pay 5", "respond"]


async def suspended(work: Any) -> TriageSuspendedError:
    """The question a run ends with for now."""
    with pytest.raises(TriageSuspendedError) as caught:
        await work
    return caught.value


async def test_a_step_that_fails_after_an_answer_is_diagnosed_by_its_own_error() -> None:
    fails = Fails(read=ConnectionError("gone"))
    made = orchestrator(Script(GOOD), fails=fails, approval=EVERYTHING)
    result = None
    try:
        await made.run("task")
    except TriageSuspendedError as asked:  # what is raised here has the question as its context
        result = await made.resume(asked.token, APPROVE)
    assert result == RESULT


async def test_nothing_is_run_before_the_plan_is_approved() -> None:
    world, planner = Kept(), Script(GOOD)
    made = orchestrator(planner, world, approval=EVERYTHING)
    asked = await suspended(made.run("task", run_id="run-1"))
    assert world.effects == []
    assert '"bill" by "pay"' in asked.question
    question = await made.asked("run-1")
    assert question is not None
    assert (question.of, question.arguments) == ("plan", {"steps": GOOD.to_json()["steps"]})
    (journalled,) = [e for e in await made.store.read("run-1") if isinstance(e, ApprovalAsked)]
    assert (journalled.kind, journalled.payload) == ("plan", question.arguments)
    assert await made.resume(asked.token, APPROVE, by="ann") == RESULT
    assert (planner.count, world.effects) == (1, ALL_DONE)
    given = [e for e in await made.store.read("run-1") if isinstance(e, ApprovalGiven)]
    assert [(one.decision, one.by) for one in given] == [("approved", "ann")]
    with pytest.raises(AlreadyResumed):
        await made.resume(asked.token, APPROVE)


@table(
    ("own", "mode", "questions"),
    [
        (None, None, 0),
        (None, "all", 1),
        (None, "selective", 1),
        (EVERYTHING, "off", 0),
        (EVERYTHING, "sometimes", 1),
        (Approval("all", lambda _plan: False), "selective", 0),
        (Approval(ApprovalMode.OFF), None, 0),
        (Approval("sometimes"), None, 1),
        (Approval("selective", lambda _plan: False), None, 0),
        (Approval("selective", lambda _plan: (True, "it is late")), None, 1),
        (Approval("all", of="step"), None, 4),
        (Approval("selective", unsafe_effects(capabilities(Kept())), of="step"), None, 1),
    ],
)
async def test_what_is_asked_follows_the_mode(own: Any, mode: Any, questions: int) -> None:
    world = Kept()
    made = orchestrator(Script(GOOD), world, approval=own)
    work = made.run("task", approval_mode=mode)
    for count in range(questions):
        asked = await suspended(work)
        done = {1: 0, 4: count}[questions] if own is None or own.evaluator is None else 2
        assert world.effects == ALL_DONE[: done if own is None or own.of == "step" else 0]
        work = made.resume(asked.token, APPROVE)
    assert await work == RESULT
    assert world.effects == ALL_DONE


async def test_the_mode_of_a_run_is_kept_by_whoever_goes_on_with_it(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    first = orchestrator(Script(BAD, GOOD), approval=Approval("off", of="step"), store=store)
    await suspended(first.run("task", run_id="run-1", approval_mode="all"))
    await answer_in(first.store, "run-1", APPROVE)
    other = orchestrator(Script(GOOD), approval=Approval("off", of="step"), store=store)
    again = await suspended(other.recover("run-1"))
    assert '"now" by "read"' in again.question
    with pytest.raises(UsageError, match="off, selective or all"):
        await other.run("task", approval_mode=3)  # type: ignore[arg-type] # wrong on purpose
    for made in (first, other):
        await made.store.close()


async def test_a_refusal_is_told_to_the_planner_with_its_reason() -> None:
    world = Kept()
    planner = Script(GOOD, plan(FIND, READ, ANSWER))
    made = orchestrator(planner, world, approval=EVERYTHING)
    asked = await suspended(made.run("task"))
    asked = await suspended(made.resume(asked.token, reject("do not pay anything")))
    assert "do not pay anything" in planner.requests[1].feedback
    assert await made.resume(asked.token, APPROVE) == RESULT
    assert world.effects == ["find beam", "read beam-1", "respond"]


async def test_refusals_that_are_used_up_end_the_run_and_nothing_is_run_unasked() -> None:
    world, planner = Kept(), Script(GOOD)
    limits = PlanLimits(rejections=2)
    made = orchestrator(planner, world, approval=EVERYTHING, limits=limits)
    asked = await suspended(made.run("task"))
    for _ in range(2):
        asked = await suspended(made.resume(asked.token, reject("no")))
    with pytest.raises(TriageEscalationError, match="rejections: all 2 are used up") as ended:
        await made.resume(asked.token, reject("never"))
    assert (world.effects, planner.count) == ([], 3)
    assert ended.value.report is not None
    assert "was not approved" in ended.value.report.to_text()


async def test_an_edited_plan_is_checked_and_run_without_a_second_question() -> None:
    world, planner = Kept(), Script(GOOD)
    made = orchestrator(planner, world, approval=EVERYTHING)
    asked = await suspended(made.run("task", run_id="run-1"))
    cheaper = plan(FIND, READ, step("bill", "pay", cents=1), ANSWER)
    assert await made.resume(asked.token, edit(cheaper.to_json())) == RESULT
    assert (world.done()["pay 1"], planner.count) == (1, 1)
    assert (await state_of(made.store, "run-1")).version == 2


async def test_an_edited_plan_that_validation_changes_is_asked_about_again() -> None:
    made = orchestrator(Script(GOOD), approval=EVERYTHING)
    asked = await suspended(made.run("task"))
    headless = plan(FIND, READ)
    again = await suspended(made.resume(asked.token, edit(headless.to_json())))
    assert '"user_response" by "respond"' in again.question
    assert await made.resume(again.token, APPROVE) == RESULT


@table(
    ("wrong", "said"),
    [
        (plan(step("x", "teleport")).to_json(), "no capability.*teleport"),
        (plan(FIND, step("now", "read", ("ADDRESS", "wear"))).to_json(), '"wear".*"where"'),
        ({"stepz": []}, "steps: is missing"),
    ],
)
async def test_an_edited_plan_that_cannot_be_run_is_refused_and_the_token_stays_good(
    wrong: Any, said: str
) -> None:
    planner = Script(GOOD)
    made = orchestrator(planner, approval=EVERYTHING)
    asked = await suspended(made.run("task", run_id="run-1"))
    before = await made.store.read("run-1")
    for work in (
        made.resume(asked.token, edit(wrong)),
        made.answer("run-1", edit(wrong)),
        answer_in(made.store, "run-1", edit(wrong)),
    ):
        with pytest.raises(UsageError, match=said):
            await work
    for misfit in (triage.happened(), "yes"):
        with pytest.raises(UsageError):
            await made.resume(asked.token, misfit)
    with pytest.raises(UsageError):
        await made.resume("run-1~other", APPROVE)
    assert await made.store.read("run-1") == before
    assert await made.resume(asked.token, APPROVE) == RESULT
    assert planner.count == 1


async def test_what_only_the_capabilities_can_tell_of_an_edit_is_asked_of_the_person_again() -> (
    None
):
    world, planner = Kept(), Script(GOOD)
    made = orchestrator(planner, world, approval=EVERYTHING)
    await suspended(made.run("task", run_id="run-1"))
    wrong = plan(FIND, READ, step("bill", "pay", dollars=5), ANSWER).to_json()
    with pytest.raises(UsageError, match='takes no "dollars"'):
        await made.answer("run-1", edit(wrong))
    await answer_in(made.store, "run-1", edit(wrong))
    again = await suspended(made.recover("run-1"))
    assert 'takes no "dollars"' in again.question
    assert '"bill" by "pay"' in again.question
    state = await state_of(made.store, "run-1")
    assert (planner.count, state.replans, world.effects) == (1, 0, [])
    assert await made.resume(again.token, APPROVE) == RESULT
    assert world.done()["pay 5"] == 1
    assert (await state_of(made.store, "run-1")).failure is None


async def test_a_step_can_be_refused_and_an_edit_of_it_is_told_to_the_planner() -> None:
    planner = Script(GOOD, plan(FIND, READ, ANSWER), plan(READ, ANSWER))
    made = orchestrator(planner, world := Kept(), approval=Approval(of="step"))
    asked = await suspended(made.run("task", run_id="run-1"))
    asked = await suspended(made.resume(asked.token, APPROVE))
    assert world.effects == ["find beam"]
    await suspended(made.resume(asked.token, edit({"parameters": {"n": 1}})))
    state = await state_of(made.store, "run-1")
    assert (state.rejections, state.replans) == (1, 1)  # the second plan makes `where` again
    assert '{\\"parameters\\": {\\"n\\": 1}} instead' in planner.requests[1].feedback


async def test_a_late_answer_is_refused_and_the_run_asks_anew() -> None:
    env = FakeEnvironment()
    made = orchestrator(Script(GOOD), approval=Approval(expires_s=60), environment=env)
    asked = await suspended(made.run("task", run_id="run-1"))
    env.now += 61
    with pytest.raises(TokenExpired):
        await made.resume(asked.token, APPROVE)
    again = await suspended(made.recover("run-1", force=True))
    assert await made.resume(again.token, APPROVE) == RESULT


async def test_an_answer_at_the_store_expires_by_the_clock_of_the_store() -> None:
    class Clocked(triage.stores.MemoryStore):
        at = 1000.0

        async def now(self) -> float:
            return self.at

    store = Clocked()
    made = orchestrator(Script(GOOD), approval=Approval(expires_s=60), store=store)
    await suspended(made.run("task", run_id="run-1"))
    store.at = 1061.0
    with pytest.raises(TokenExpired):
        await made.answer("run-1", APPROVE)
    store.at = 1059.0
    await answer_in(store, "run-1", APPROVE)
    assert await made.recover("run-1") == RESULT


async def test_the_time_to_answer_survives_a_crash_before_the_run_is_suspended() -> None:
    env = FakeEnvironment()
    made = orchestrator(Script(GOOD), approval=Approval(expires_s=60), environment=env)
    await suspended(made.run("task", run_id="run-1"))
    events = await made.store.read("run-1")
    cut = next(at for at, one in enumerate(events) if isinstance(one, ApprovalAsked)) + 2
    store = triage.stores.MemoryStore()
    await store.append("run-1", events[:cut], at=0, epoch=0)
    again = orchestrator(Script(GOOD), approval=Approval(), environment=env, store=store)
    asked = await suspended(again.recover("run-1"))
    env.now += 61
    with pytest.raises(TokenExpired):
        await again.resume(asked.token, APPROVE)


async def test_another_process_answers_without_the_token_and_any_worker_goes_on(
    tmp_path: Path,
) -> None:
    text = f"sqlite:///{tmp_path / 'runs.db'}"
    world = Kept()
    first = orchestrator(Script(GOOD), world, approval=EVERYTHING, store=text)
    asked = await suspended(first.run("task", run_id="run-1"))
    await first.store.close()

    operator = triage.stores.open_store(text)
    for look in (asked_in(operator, "run-2"), answer_in(operator, "run-2", APPROVE)):
        with pytest.raises(UnknownRun):
            await look
    with pytest.raises(AlreadyResumed):
        await answer_in(operator, "run-1", APPROVE, question="0" * 64)
    await answer_in(operator, "run-1", APPROVE, by="ann")
    assert await asked_in(operator, "run-1") is None
    with pytest.raises(AlreadyResumed, match="first by ann: approved"):
        await answer_in(operator, "run-1", APPROVE)
    await operator.close()

    planner = Script(AssertionError("no second plan"))
    second = orchestrator(planner, world, approval=EVERYTHING, store=text)
    with pytest.raises(AlreadyResumed):
        await second.resume(asked.token, APPROVE)
    (ended,) = await second.recover_all()
    assert ended.result == RESULT
    assert world.effects == ALL_DONE
    given = [e for e in await second.store.read("run-1") if isinstance(e, ApprovalGiven)]
    assert [one.by for one in given] == ["ann"]
    await second.store.close()


async def test_an_agent_around_the_run_passes_each_answer_on() -> None:
    world = Kept()
    planner = Script(GOOD, GOOD)
    made = orchestrator(planner, world, approval=EVERYTHING)

    async def outer(task: str) -> Any:
        return await made.run(task)

    agent = triage.Agent(outer)
    asked = await suspended(agent.run("task", run_id="outer"))
    assert '"bill" by "pay"' in asked.question
    asked = await suspended(agent.resume(asked.token, reject("too dear")))
    assert "too dear" in planner.requests[1].feedback
    inner = await asked_in(agent.store, "outer")
    assert inner is None or inner.of == "call"  # the plan's run is in a store of its own
    cheaper = plan(FIND, READ, step("bill", "pay", cents=1), ANSWER).to_json()["steps"]
    assert await agent.resume(asked.token, edit({"steps": cheaper})) == RESULT
    assert world.effects == ["find beam", "read beam-1", "pay 1", "respond"]


@table("answer", [triage.Retry(), triage.Retry(inject={"approval": {"decision": "approved"}})])
async def test_an_action_approves_nothing(answer: Any) -> None:
    world = Kept()
    made = orchestrator(Script(GOOD), world, approval=EVERYTHING)
    asked = await suspended(made.run("task"))
    asked = await suspended(made.resume(asked.token, answer))
    assert world.effects == []
    assert await made.resume(asked.token, APPROVE) == RESULT


async def test_an_answer_to_an_earlier_equal_question_is_too_late() -> None:
    made = orchestrator(Script(GOOD), approval=EVERYTHING)
    asked = await suspended(made.run("task"))
    again = await suspended(made.resume(asked.token, reject("no")))
    with pytest.raises(AlreadyResumed, match="first: rejected: no"):
        await made.answer(asked.token, APPROVE)
    assert await made.resume(again.token, APPROVE) == RESULT


async def test_the_plan_of_one_run_is_never_that_of_another() -> None:
    def bill(request: Any) -> ExecutionPlan:
        return plan(step("bill", "pay", cents=request.task), step("out", "respond"))

    made = orchestrator(bill, world := Kept(), approval=EVERYTHING)
    first = await suspended(made.run(1))
    second = await suspended(made.run(2))
    await made.resume(second.token, APPROVE)
    assert world.done()["pay 1"] == 0
    await made.resume(first.token, APPROVE)
    assert world.done()["pay 1"] == world.done()["pay 2"] == 1


async def test_a_secret_in_a_plan_stays_in_the_process(tmp_path: Path) -> None:
    key = "sk-proj-" + "a1B2" * 12
    secret = plan(step("where", "find", name=key), READ, ANSWER)
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    world = Kept()
    made = orchestrator(Script(secret), world, approval=EVERYTHING, store=store)
    asked = await suspended(made.run("task", run_id="run-1"))
    assert key not in str(await made.asked("run-1"))
    with pytest.raises(UsageError, match="what looks like a secret"):
        await made.answer("run-1", edit(secret.to_json()))
    assert await made.resume(asked.token, edit(secret.to_json())) == {
        "now": ["value of", f"{key}-1"]
    }
    await made.store.close()

    planner = Script(secret, GOOD)
    made = orchestrator(planner, world, approval=EVERYTHING, store=store)
    asked = await suspended(made.run("task", run_id="run-2"))
    await made.store.close()
    again = orchestrator(planner, world, approval=EVERYTHING, store=store)
    asked = await suspended(again.resume(asked.token, APPROVE))
    assert "[" not in "".join(world.effects)
    assert await again.resume(asked.token, APPROVE) == RESULT
    await again.store.close()
