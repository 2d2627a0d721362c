"""Plans and steps that a person must approve: asked once, answered once, in whatever process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plan_runs import (
    ANSWER,
    BAD,
    FIND,
    GOOD,
    PAY,
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
from support import FakeEnvironment
from tables import table

import triage
from triage import TriageEscalationError, TriageSuspendedError, UsageError, reject
from triage.core import AlreadyResumed, ApprovalAsked, ApprovalGiven, TokenExpired, UnknownRun
from triage.plan import (
    Approval,
    ApprovalMode,
    ExecutionPlan,
    Orchestrator,
    PlanLimits,
    answer_in,
    asked_in,
    unsafe_effects,
)

pytestmark = pytest.mark.anyio
EVERYTHING = Approval()
APPROVE = triage.approve()


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
    request = await made.asked("run-1")
    assert request is not None
    assert (request.kind, request.run_id) == ("plan", "run-1")
    assert [one["context_key"] for one in request.payload["steps"]] == [
        "where",
        "now",
        "bill",
        "out",
    ]
    assert await made.resume(asked.token, APPROVE, by="ann") == RESULT
    assert planner.count == 1
    assert world.effects == ["find beam", "read beam-1", "pay 5", "respond"]
    given = [e for e in await made.store.read("run-1") if isinstance(e, ApprovalGiven)]
    assert [(one.decision, one.by) for one in given] == [("approved", "ann")]
    with pytest.raises(AlreadyResumed):
        await made.resume(asked.token, APPROVE)


@table(
    ("approval", "questions"),
    [
        (Approval(ApprovalMode.OFF), 0),
        (Approval("sometimes"), 1),
        (Approval("selective"), 1),
        (Approval("selective", lambda _plan: False), 0),
        (Approval("selective", lambda _plan: (True, "it is late")), 1),
        (Approval("all", of="step"), 4),
        (Approval("selective", unsafe_effects(capabilities(Kept())), of="step"), 1),
        (Approval("selective", lambda _plan: None), 1),  # type: ignore[arg-type,return-value] # on purpose
    ],
)
async def test_what_is_asked_follows_the_mode(approval: Approval, questions: int) -> None:
    world = Kept()
    made = orchestrator(Script(GOOD), world, approval=approval)
    work = made.run("task")
    for count in range(questions):
        asked = await suspended(work)
        assert len(world.effects) == (0 if approval.of == "plan" or questions == 1 else count) or (
            world.effects == ["find beam", "read beam-1"]
        )
        work = made.resume(asked.token, APPROVE)
    assert await work == RESULT
    assert world.done()["pay 5"] == 1


@table(
    ("own", "mode", "asks"),
    [
        (None, None, False),
        (None, "all", True),
        (None, ApprovalMode.OFF, False),
        (None, "selective", True),
        (EVERYTHING, "off", False),
        (EVERYTHING, "sometimes", True),
        (Approval("all", lambda _plan: False), "selective", False),
    ],
)
async def test_each_run_may_choose_what_is_approved(own: Any, mode: Any, asks: Any) -> None:
    made = orchestrator(Script(GOOD), approval=own)
    if not asks:
        assert await made.run("task", approval_mode=mode) == RESULT
        return
    asked = await suspended(made.run("task", approval_mode=mode))
    async for progress in made.events("another", approval_mode="off"):
        assert progress.component != "approver"
    assert await made.resume(asked.token, APPROVE) == RESULT


async def test_the_mode_of_a_run_is_kept_by_whoever_goes_on_with_it(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    first = orchestrator(Script(BAD, GOOD), approval=Approval("off", of="step"), store=store)
    await suspended(first.run("task", run_id="run-1", approval_mode="all"))
    request = await asked_in(first.store, "run-1")
    assert request is not None
    await answer_in(first.store, request.answer("approved"))
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
    assert world.effects == []
    assert planner.count == 3
    assert ended.value.report is not None
    assert "was not approved" in ended.value.report.to_text()


async def test_an_edited_plan_is_checked_and_run_without_a_second_question() -> None:
    world, planner = Kept(), Script(GOOD)
    made = orchestrator(planner, world, approval=EVERYTHING)
    asked = await suspended(made.run("task", run_id="run-1"))
    cheaper = plan(FIND, READ, step("bill", "pay", cents=1), ANSWER)
    assert await made.resume(asked.token, triage.edit(cheaper.to_json())) == RESULT
    assert world.done()["pay 1"] == 1
    assert planner.count == 1
    assert (await state_of(made.store, "run-1")).version == 2


async def test_an_edited_plan_that_validation_changes_is_asked_about_again() -> None:
    made = orchestrator(Script(GOOD), approval=EVERYTHING)
    asked = await suspended(made.run("task"))
    headless = plan(FIND, READ)
    again = await suspended(made.resume(asked.token, triage.edit(headless.to_json())))
    assert '"user_response" by "respond"' in again.question
    assert await made.resume(again.token, APPROVE) == RESULT


@table(
    ("wrong", "said"),
    [
        (plan(step("x", "teleport")), "no capability.*teleport"),
        (plan(FIND, step("now", "read", ("ADDRESS", "nowhere")), ANSWER), "nowhere"),
        (plan(step("where", "find", nmae="beam")), "takes no .nmae"),
    ],
)
async def test_an_edited_plan_that_cannot_be_run_is_refused_and_the_token_stays_good(
    wrong: ExecutionPlan, said: str
) -> None:
    world, planner = Kept(), Script(GOOD)
    made = orchestrator(planner, world, approval=EVERYTHING)
    asked = await suspended(made.run("task", run_id="run-1"))
    before = await made.store.read("run-1")
    with pytest.raises(UsageError, match=said):
        await made.resume(asked.token, triage.edit(wrong.to_json()))
    request = await made.asked("run-1")
    assert request is not None
    with pytest.raises(UsageError, match=said):
        await made.answer(request.answer("edited", payload=wrong.to_json()))
    assert await made.store.read("run-1") == before
    assert await made.resume(asked.token, APPROVE) == RESULT
    assert planner.count == 1


async def test_at_the_store_alone_an_edit_is_checked_by_the_names_in_the_journal() -> None:
    made = orchestrator(Script(GOOD), approval=EVERYTHING)
    await suspended(made.run("task", run_id="run-1"))
    request = await asked_in(made.store, "run-1")
    assert request is not None
    for wrong, said in (
        (plan(step("x", "reed")), '"reed".*"read"'),
        (plan(FIND, step("now", "read", ("ADDRESS", "wear")), ANSWER), '"wear".*"where"'),
    ):
        with pytest.raises(UsageError, match=said):
            await answer_in(made.store, request.answer("edited", payload=wrong.to_json()))
    assert await asked_in(made.store, "run-1") == request


async def test_what_only_the_capabilities_can_tell_of_an_edit_is_asked_of_the_person_again() -> (
    None
):
    world, planner = Kept(), Script(GOOD)
    made = orchestrator(planner, world, approval=EVERYTHING)
    await suspended(made.run("task", run_id="run-1"))
    request = await asked_in(made.store, "run-1")
    assert request is not None
    wrong = plan(FIND, READ, step("bill", "pay", dollars=5), ANSWER)
    await answer_in(made.store, request.answer("edited", payload=wrong.to_json()))
    again = await suspended(made.recover("run-1"))
    assert 'takes no "dollars"' in again.question
    assert '"bill" by "pay"' in again.question
    state = await state_of(made.store, "run-1")
    assert (planner.count, state.replans, world.effects) == (1, 0, [])
    assert await made.resume(again.token, APPROVE) == RESULT
    assert world.done()["pay 5"] == 1
    assert (await state_of(made.store, "run-1")).failure is None


async def test_what_is_no_plan_is_refused_and_the_token_stays_good() -> None:
    made = orchestrator(Script(GOOD), approval=EVERYTHING)
    asked = await suspended(made.run("task"))
    with pytest.raises(UsageError, match="steps: is missing"):
        await made.resume(asked.token, triage.edit({"stepz": []}))
    with pytest.raises(UsageError):
        await made.resume(asked.token, triage.happened())
    with pytest.raises(UsageError):
        await made.resume("run-1~other", APPROVE)
    assert await made.resume(asked.token, APPROVE) == RESULT


async def test_a_step_cannot_be_edited_and_can_be_refused() -> None:
    world = Kept()
    planner = Script(GOOD, plan(FIND, READ, ANSWER), plan(READ, ANSWER))
    made = orchestrator(planner, world, approval=Approval(of="step"))
    asked = await suspended(made.run("task"))
    with pytest.raises(UsageError, match="step cannot be edited"):
        await made.resume(asked.token, triage.edit(FIND.to_json()))
    asked = await suspended(made.resume(asked.token, APPROVE))
    assert world.effects == ["find beam"]
    asked = await suspended(made.resume(asked.token, reject("not this one")))
    state = await state_of(made.store, (await made.store.runs())[0].run_id)
    assert state.rejections == 1
    assert state.replans == 1  # the second plan makes `where` again, which is there


async def test_a_late_answer_is_refused_and_the_run_asks_anew() -> None:
    env = FakeEnvironment()
    made = orchestrator(Script(GOOD), approval=Approval(expires_s=60), environment=env)
    asked = await suspended(made.run("task", run_id="run-1"))
    request = await made.asked("run-1")
    assert request is not None
    assert request.expires == pytest.approx(env.now + 60)
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
    request = await made.asked("run-1")
    assert request is not None
    store.at = 1061.0
    with pytest.raises(TokenExpired):
        await made.answer(request.answer("approved"))
    store.at = 1059.0
    await made.answer(request.answer("approved"))
    assert await made.recover("run-1") == RESULT


async def test_an_answer_that_does_not_fit_when_it_arrives_approves_nothing() -> None:
    world = Kept()
    made = orchestrator(Script(GOOD), world, approval=EVERYTHING)
    asked = await suspended(made.run("task", run_id="run-1"))
    request = await made.asked("run-1")
    assert request is not None
    for other in (
        request._replace(subject="0" * 64),
        request._replace(run_id="run-2"),
        request._replace(kind="step"),
    ):
        answer = other.answer("approved")._asdict()
        again = triage.Retry(inject={"approval": answer})
        asked = await suspended(made.agent.resume(asked.token, again))
        assert world.effects == []
    assert await made.resume(asked.token, APPROVE) == RESULT


async def test_another_process_answers_without_the_token_and_any_worker_goes_on(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    world = Kept()
    first = orchestrator(Script(GOOD), world, approval=EVERYTHING, store=store)
    asked = await suspended(first.run("task", run_id="run-1"))
    request = await asked_in(first.store, "run-1")
    assert request is not None
    await first.store.close()

    operator = triage.stores.open_store(store)
    stranger = request._replace(run_id="run-2")
    with pytest.raises(UnknownRun):
        await answer_in(operator, stranger.answer("approved"))
    other = request._replace(subject="0" * 64)
    with pytest.raises(UsageError, match="other content"):
        await answer_in(operator, other.answer("approved"))
    await answer_in(operator, request.answer("approved", by="ann"))
    with pytest.raises(AlreadyResumed, match="first by ann: approved"):
        await answer_in(operator, request.answer("approved"))
    await operator.close()

    second = orchestrator(
        Script(AssertionError("no second plan")), world, approval=EVERYTHING, store=store
    )
    with pytest.raises(AlreadyResumed):
        await second.resume(asked.token, APPROVE)
    (ended,) = await second.recover_all()
    assert ended.result == RESULT
    assert world.effects == ["find beam", "read beam-1", "pay 5", "respond"]
    given = [e for e in await second.store.read("run-1") if isinstance(e, ApprovalGiven)]
    assert [one.by for one in given] == ["ann"]
    await second.store.close()


async def test_an_agent_around_the_run_passes_the_answer_on() -> None:
    world = Kept()
    made = orchestrator(Script(GOOD), world, approval=EVERYTHING)

    async def outer(task: str) -> Any:
        return await made.run(task)

    agent = triage.Agent(outer)
    asked = await suspended(agent.run("task"))
    assert '"bill" by "pay"' in asked.question
    assert await agent.resume(asked.token, APPROVE) == RESULT
    assert world.effects == ["find beam", "read beam-1", "pay 5", "respond"]


async def test_an_action_answers_for_the_question_it_was_given_to_and_for_no_later_one() -> None:
    world = Kept()
    planner = Script(GOOD, plan(READ, ANSWER))
    made = orchestrator(
        planner, world, approval=Approval(of="step"), fails=Fails(find=TimeoutError())
    )
    asked = await suspended(made.run("task", run_id="run-1"))
    asked = await suspended(made.agent.resume(asked.token, triage.Retry()))
    assert world.effects == ["find beam"]
    # Cut off behind the second question, with a retry before it that nobody has said yes to this by.
    events = await made.store.read("run-1")
    cut = max(one.seq for one in events if isinstance(one, ApprovalAsked)) + 1
    store = triage.stores.MemoryStore()
    await store.append("run-1", events[:cut], at=0, epoch=0)
    again = orchestrator(planner, world, approval=Approval(of="step"), store=store)
    await suspended(again.recover("run-1"))
    assert world.effects == ["find beam"]
    asked = await suspended(made.agent.resume(asked.token, triage.Replan("not now")))
    assert "not now" in planner.requests[1].feedback


async def test_an_answer_to_an_earlier_equal_question_is_too_late() -> None:
    made = orchestrator(Script(GOOD), approval=EVERYTHING)
    asked = await suspended(made.run("task", run_id="run-1"))
    early = await made.asked("run-1")
    assert early is not None
    again = await suspended(made.resume(asked.token, reject("no")))
    with pytest.raises(AlreadyResumed, match="first: rejected: no"):
        await made.answer(early.answer("approved"))
    assert await made.resume(again.token, APPROVE) == RESULT


async def test_the_plan_of_one_run_is_never_that_of_another() -> None:
    made = orchestrator(
        lambda request: plan(step("bill", "pay", cents=request.task), ANSWERLESS),
        world := Kept(),
        approval=EVERYTHING,
    )
    first = await suspended(made.run(1))
    second = await suspended(made.run(2))
    await made.resume(second.token, APPROVE)
    assert world.done()["pay 1"] == 0
    await made.resume(first.token, APPROVE)
    assert world.done()["pay 1"] == world.done()["pay 2"] == 1


ANSWERLESS = step("out", "respond")


async def test_a_secret_in_a_plan_stays_in_the_process(tmp_path: Path) -> None:
    key = "sk-proj-" + "a1B2" * 12
    secret = plan(step("where", "find", name=key), READ, ANSWER)
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    world = Kept()
    made = orchestrator(Script(secret), world, approval=EVERYTHING, store=store)
    asked = await suspended(made.run("task", run_id="run-1"))
    request = await made.asked("run-1")
    assert request is not None
    assert key not in str(request)
    assert await made.resume(asked.token, APPROVE) == {"now": ["value of", f"{key}-1"]}
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


async def test_every_question_is_journalled_before_it_is_asked() -> None:
    made = orchestrator(Script(GOOD), approval=EVERYTHING)
    await suspended(made.run("task", run_id="run-1"))
    events = await made.store.read("run-1")
    (asked,) = [event for event in events if isinstance(event, ApprovalAsked)]
    assert asked.kind == "plan"
    assert isinstance(made, Orchestrator)
    assert PAY.capability in str(asked.payload)
