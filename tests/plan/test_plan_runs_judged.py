"""Steps that are judged by their success criteria: a no is a failure, an error is none, and no question
is asked twice."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import openai  # noqa: F401 - what imports a client looks at the disk, which no event loop may
import pytest
from llm_server import says, serving
from store_kinds import Opened
from support import FakeEnvironment
from tables import table

import triage
from triage import FailureType, TriageEscalationError, TriageSuspendedError, UsageError
from triage.core import CallFinished, PlanFailed, TriageFatalError
from triage.core.faults import PolicyRefused
from triage.plan import LLMStepJudge, PlanLimits, StepOutcome
from triage.stores import MemoryStore

from .runs import (
    ANSWER,
    FIND,
    PAY,
    READ,
    RESULT,
    Kept,
    Script,
    orchestrator,
    plan,
    state_of,
    step,
)

pytestmark = pytest.mark.anyio
MET, UNMET = True, False
CRITERIA = "the value has a unit"
JUDGED = dataclasses.replace(READ, success_criteria=CRITERIA)
PLAN = plan(FIND, JUDGED, ANSWER)
AGAIN = step("other", "find", name="pump")


class Judge:
    """Answers as written, the last answer for ever; raises an exception. asked: what it was given."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.asked: list[StepOutcome] = []

    async def __call__(self, outcome: StepOutcome) -> Any:
        answer = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append(outcome)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_step_with_criteria_is_judged_by_its_result_and_no_other_step_is() -> None:
    judge = Judge(MET)
    assert await orchestrator(Script(PLAN), judge=judge).run("How much?") == RESULT
    assert judge.asked == [StepOutcome("How much?", JUDGED, ["value of", "beam-1"])]


async def test_without_a_judge_nobody_is_asked() -> None:
    made = orchestrator(Script(PLAN))
    assert await made.run("task", run_id="run-1") == RESULT
    calls = triage.core.fold(await made.store.read("run-1")).calls.values()
    assert {call.tool for call in calls} == {"planner", "find", "read", "respond"}


async def test_criteria_that_are_not_met_lead_to_another_plan_that_is_told_why() -> None:
    later = plan(AGAIN, step("now", "read", ("ADDRESS", "other")), ANSWER)
    planner, world = Script(PLAN, later), Kept()
    made = orchestrator(planner, world, judge=Judge((False, "there is no unit")))
    assert await made.run("task", run_id="run-1") == {"now": ["value of", "pump-1"]}
    told = planner.requests[1]
    assert told.results == {"where": "ADDRESS"}
    assert 'What failed: "now".' in told.feedback
    assert f'"{CRITERIA}" is not met by "now": there is no unit' in told.feedback
    (failure,) = (await state_of(made.store, "run-1")).failures
    assert failure.diagnosis.failure_type is FailureType.PLAN_INCOMPLETE
    assert not failure.doubt
    assert world.done()["find beam"] == 1


async def test_criteria_that_are_never_met_end_the_run_with_a_report_that_says_so() -> None:
    limits = PlanLimits(replans=0)
    with pytest.raises(TriageEscalationError) as ended:
        await orchestrator(Script(PLAN), judge=Judge(UNMET), limits=limits).run("task")
    report = ended.value.report
    assert report is not None
    failed = [one for one in report.facts.steps if one.outcome == "failed"]
    assert [(one.name, one.criteria) for one in failed] == [("read", CRITERIA)]
    assert "is not met" in failed[0].error
    assert report.facts.failed == "step 2, read"


async def test_an_effect_that_did_not_achieve_enough_has_happened_all_the_same() -> None:
    paid = dataclasses.replace(PAY, success_criteria="the customer has a receipt")
    planner, world = Script(plan(paid, FIND, READ, ANSWER), plan(FIND, READ, ANSWER)), Kept()
    made = orchestrator(planner, world, judge=Judge(UNMET))
    assert await made.run("task") == RESULT
    lines = planner.requests[1].feedback.splitlines()
    assert lines[0] == "Must not be repeated, whatever else is planned:"
    assert lines[1] == '- the step "bill": it may have happened'
    assert world.done()["pay 5"] == 1


async def test_a_judge_that_fails_is_an_error_and_no_no() -> None:
    env, world, planner = FakeEnvironment(), Kept(), Script(PLAN)
    judge = Judge(ConnectionError("gone"), TimeoutError(), MET)
    made = orchestrator(planner, world, judge=judge, environment=env)
    assert await made.run("task", run_id="run-1") == RESULT
    assert (planner.count, len(judge.asked)) == (1, 3)
    assert len(env.slept) == 2
    assert world.done()["read beam-1"] == 1
    assert (await state_of(made.store, "run-1")).total_retries == 2


@table("answer", [None, "yes", 1, (True, 5), (True, "a", "b")])
async def test_a_judge_that_answers_rubbish_has_said_neither_yes_nor_no(answer: Any) -> None:
    planner = Script(PLAN)
    with pytest.raises(TriageEscalationError, match="the judge of a step answered"):
        await orchestrator(planner, judge=Judge(answer)).run("task")
    assert planner.count == 1


async def test_a_judge_may_forbid_what_comes_next() -> None:
    with pytest.raises(TriageFatalError, match="not for us"):
        await orchestrator(Script(PLAN), judge=Judge(PolicyRefused("not for us"))).run("task")


async def test_a_judge_may_be_sync_or_give_something_to_await() -> None:
    async def later() -> Any:
        return True, ""

    for judge in (lambda outcome: outcome.result[0] == "value of", lambda _outcome: later()):
        assert await orchestrator(Script(PLAN), judge=judge).run("task") == RESULT


async def test_what_is_no_judge_is_refused_at_once() -> None:
    for wrong in (Judge, True, "yes"):
        with pytest.raises(UsageError, match=r"Orchestrator\.judge"):
            orchestrator(Script(PLAN), judge=wrong)


@table("kind", ["memory", "sqlite"])
async def test_wherever_the_process_ends_no_judgement_is_asked_for_again(
    kind: str, tmp_path: Path
) -> None:
    paid = dataclasses.replace(PAY, success_criteria="it is booked")
    judged = plan(paid, FIND, JUDGED, ANSWER)
    first = orchestrator(Script(judged), judge=Judge(MET), store=MemoryStore())
    assert await first.run("task", run_id="run-1") == RESULT
    events = await first.store.read("run-1")
    with Opened(kind, tmp_path) as opened:
        for length in range(1, len(events), 1 if kind == "memory" else 4):
            store, world, judge = opened.new(), Kept(["pay 5"]), Judge(MET)
            await store.append("run-1", events[:length], at=0, epoch=0)
            again = orchestrator(Script(judged), world, judge=judge, store=store)
            try:
                result = await again.recover("run-1")
            except TriageSuspendedError as asked:  # the payment was cut off
                result = await again.resume(asked.token, triage.happened(5))
            assert result == RESULT
            said = [one for one in events[:length] if isinstance(one, CallFinished)]
            answered = sum(one.key.startswith("criteria:") for one in said)
            assert len(judge.asked) == 2 - answered, length
            assert not [one for one in await store.read("run-1") if isinstance(one, PlanFailed)]
            await store.close()


@table("provider", ["openai", "anthropic"])
async def test_a_model_judges(provider: str) -> None:
    answers = ({"met": False, "why": "no unit"}, {"met": True, "why": ""})
    with serving(*map(says, answers)) as server:
        base = server.base_url(provider)
        judge = LLMStepJudge(provider, "m", base_url=base, api_key="k")
        second = dataclasses.replace(AGAIN, success_criteria="it exists")
        later = plan(second, step("now", "read", ("ADDRESS", "other")), ANSWER)
        planner = Script(PLAN, later)
        assert await orchestrator(planner, judge=judge).run("How much?") == {
            "now": ["value of", "pump-1"]
        }
        shown = json.loads(server.requests[0].shown)
        assert shown == {
            "task": "How much?", "objective": "do now", "criteria": CRITERIA, "parameters": {},
            "result": ["value of", "beam-1"],
        }  # fmt: skip
    assert "no unit" in planner.requests[1].feedback


async def test_a_model_that_does_not_say_has_not_judged() -> None:
    with serving(says({"why": "hm"})) as server:
        judge = LLMStepJudge("openai", "m", base_url=server.base_url("openai"), api_key="k")
        with pytest.raises(TriageEscalationError, match="did not say whether the criteria are met"):
            await orchestrator(Script(PLAN), judge=judge).run("task")
