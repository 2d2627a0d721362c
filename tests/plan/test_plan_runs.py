"""Runs that plan first: what leads where, what is told to whom, and what is never done twice."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from support import FakeEnvironment
from tables import table

import triage
from triage import Severity, TriageEscalationError, TriageSuspendedError, UsageError
from triage.core import CapabilitiesSelected, PlanFailed, PlanRouted
from triage.core.faults import ReclassificationRequired
from triage.plan import Capability, Orchestrator, PlanLimits, Registry, Target
from triage.stores import MemoryStore

from .runs import (
    ANSWER,
    BAD,
    FIND,
    GOOD,
    PAY,
    READ,
    RESULT,
    TORN,
    Fails,
    Kept,
    Script,
    kinds,
    orchestrator,
    plan,
    state_of,
    step,
)

pytestmark = pytest.mark.anyio


async def test_a_plan_is_made_checked_and_run_step_by_step() -> None:
    world = Kept()
    planner = Script(GOOD)
    made = orchestrator(planner, world)
    assert await made.run("What is the beam?", run_id="run-1") == RESULT
    assert world.effects == ["find beam", "read beam-1", "pay 5", "respond"]
    (request,) = planner.requests
    assert request.task == "What is the beam?"
    assert [entry["name"] for entry in request.capabilities][:2] == ["find", "read"]
    assert request.capabilities[0]["parameters"] == {"name": "str"}
    assert (request.feedback, request.results, request.version) == ("", {}, 1)
    state = await state_of(made.store, "run-1")
    targets = [decision.target for decision in state.decisions]
    assert targets == ["selector", "planner", "step", "step", "step", "step", "end"]
    assert [done.step.context_key for done in state.done] == ["where", "now", "bill", "out"]


async def test_a_response_that_was_forgotten_is_given_by_the_responder() -> None:
    async def say(task: str, results: dict[str, Any], voice: str = "plain") -> str:
        return f"{task} {results} {voice}"

    async def look() -> int:
        return 7

    registry = Registry([Capability("look", "looks", look, provides=("N",), effect="read")])
    made = Orchestrator(registry, lambda _request: plan(step("n", "look")), responder=say)
    assert await made.run("How many?") == "How many? {'n': 7} plain"


async def test_a_forgotten_response_is_given_results_of_unknown_type_too() -> None:
    async def look() -> int:
        return 7

    async def say(**results: Any) -> str:
        return f"found {results}"

    registry = Registry([Capability("look", "looks", look, effect="read")])
    made = Orchestrator(registry, lambda _request: plan(step("n", "look")), responder=say)
    assert await made.run("How many?") == "found {'n': 7}"


async def test_what_the_run_fills_no_plan_replaces() -> None:
    async def look() -> int:
        return 7

    async def say(task: str, results: dict[str, Any]) -> str:
        return f"{task} {results}"

    registry = Registry([Capability("look", "looks", look, effect="read")])
    made = Orchestrator(
        registry,
        lambda _request: plan(
            step("task", "look"),
            step("out", "respond", ("N", "task"), task="Another?", results={"n": 8}),
        ),
        responder=say,
    )
    assert await made.run("How many?") == "How many? {'task': 7}"


async def test_an_invention_and_then_a_missing_key_are_told_to_the_planner() -> None:
    planner = Script(BAD, TORN, GOOD)
    made = orchestrator(planner)
    assert await made.run("task", run_id="run-1") == RESULT
    first, second, third = (request.feedback for request in planner.requests)
    assert first == ""
    assert 'there is no capability "teleport"' in second
    assert 'nothing is kept under "somewhere"' in third
    assert "teleport" not in third
    for told in (second, third):  # each issue once
        (line,) = [line for line in told.splitlines() if "steps[" in line]
        assert line.count("steps[") == 1
    state = await state_of(made.store, "run-1")
    assert (state.replans, state.version, state.reclassifications) == (2, 1, 0)


async def test_a_planner_that_only_fails_is_asked_once_and_for_each_replan() -> None:
    planner = Script(BAD)
    with pytest.raises(TriageEscalationError, match="replans: all 2 are used up"):
        await orchestrator(planner).run("task")
    assert planner.count == 3


async def test_a_planner_whose_service_fails_is_asked_again_later() -> None:
    env = FakeEnvironment()
    planner = Script(ConnectionError("gone"), TimeoutError(), GOOD)
    assert await orchestrator(planner, environment=env).run("task") == RESULT
    assert env.slept == [1.5, 3.0]  # three quarters of 2 and of 4 seconds, as chance has it
    assert [request.feedback for request in planner.requests] == ["", "", ""]
    planner = Script(BAD, ConnectionError("gone"), GOOD)
    assert await orchestrator(planner).run("task") == RESULT
    assert "teleport" in planner.requests[2].feedback
    assert "gone" not in planner.requests[2].feedback
    planner = Script(ConnectionError("gone"))
    with pytest.raises(TriageEscalationError, match="retries: all 3 are used up"):
        await orchestrator(planner).run("task")
    assert planner.count == 4


async def test_a_step_is_tried_again_and_nothing_before_it_is_repeated() -> None:
    world, env = Kept(), FakeEnvironment()
    refused = ConnectionRefusedError("nobody is there")
    fails = Fails(pay=[refused, refused], respond=TimeoutError("slow"))
    made = orchestrator(Script(GOOD), world, fails=fails, environment=env)
    assert await made.run("task", run_id="run-1") == RESULT
    assert world.done() == Counter({"find beam": 1, "read beam-1": 1, "pay 5": 1, "respond": 1})
    assert env.slept == [0.375, 0.5625, 0.375]
    state = await state_of(made.store, "run-1")
    assert (state.total_retries, state.step_retries, len(state.failures)) == (3, 0, 3)


async def test_a_step_that_is_wrong_leads_to_a_plan_that_uses_what_is_done() -> None:
    world = Kept()
    planner = Script(GOOD, plan(step("again", "read", ("ADDRESS", "where")), ANSWER_AGAIN))
    fails = Fails(read=KeyError("no such address"))
    more = {"read": {"classify_error": lambda _error, _known: Severity.REPLANNING}}
    made = orchestrator(planner, world, fails=fails, more=more)
    assert await made.run("task") == {"again": ["value of", "beam-1"]}
    assert world.done()["find beam"] == 1
    request = planner.requests[1]
    assert request.results == {"where": "ADDRESS"}
    assert 'What failed: "now".' in request.feedback
    assert '"where" of type "ADDRESS", made by "find"' in request.feedback


ANSWER_AGAIN = step("out", "respond", ("VALUE", "again"))


async def test_a_new_plan_pays_nothing_twice_and_asks_before_it_pays_otherwise() -> None:
    world = Kept()
    first = plan(PAY, FIND, READ, ANSWER)
    again = plan(step("bill2", "pay", cents=5), READ, ANSWER)
    other = plan(step("bill2", "pay", cents=9), READ, ANSWER)
    more = {"read": {"classify_error": lambda _error, _known: Severity.REPLANNING}}
    planner = Script(first, again)
    fails = Fails(read=ValueError("no"))
    made = orchestrator(planner, world, fails=fails, more=more)
    assert await made.run("task") == RESULT
    assert world.done()["pay 5"] == 1
    assert "Must not be repeated" in planner.requests[1].feedback

    world = Kept()
    made = orchestrator(Script(first, other), world, fails=Fails(read=ValueError("no")), more=more)
    with pytest.raises(TriageSuspendedError, match="may it run again") as asked:
        await made.run("task")
    assert world.done()["pay 9"] == 0
    assert await made.resume(asked.value.token, triage.approve()) == RESULT
    assert world.done() == Counter(
        {"pay 5": 1, "pay 9": 1, "find beam": 1, "read beam-1": 1, "respond": 1}
    )


async def test_a_refused_call_leads_to_another_plan() -> None:
    more = {"read": {"classify_error": lambda _error, _known: Severity.REPLANNING}}
    planner = Script(
        plan(PAY, FIND, READ, ANSWER),
        plan(step("bill2", "pay", cents=9), READ, ANSWER),
        plan(READ, ANSWER),
    )
    world = Kept()
    made = orchestrator(planner, world, fails=Fails(read=ValueError("no")), more=more)
    with pytest.raises(TriageSuspendedError) as asked:
        await made.run("task")
    assert await made.resume(asked.value.token, triage.reject("too dear")) == RESULT
    assert "too dear" in planner.requests[2].feedback
    assert world.done()["pay 9"] == 0


async def test_a_plan_after_a_refused_call_pays_nothing_twice() -> None:
    more = {"read": {"classify_error": lambda _error, _known: Severity.REPLANNING}}
    paid, dear = step("paid", "pay", cents=5), step("dear", "pay", cents=9)
    planner = Script(
        plan(PAY, step("more", "pay", cents=7), FIND, READ, ANSWER),
        plan(paid, dear, READ, ANSWER),
        plan(step("still", "pay", cents=5), READ, ANSWER),
    )
    world = Kept()
    made = orchestrator(planner, world, fails=Fails(read=ValueError("no")), more=more)
    with pytest.raises(TriageSuspendedError) as asked:
        await made.run("task")
    assert await made.resume(asked.value.token, triage.reject("too dear")) == RESULT
    assert world.done()["pay 5"] == 1


@table("happened", [True, False])
async def test_a_later_plan_goes_on_once_somebody_knows_of_its_call(happened: bool) -> None:  # noqa: FBT001 - a case
    more = {"read": {"classify_error": lambda _error, _known: Severity.REPLANNING}}
    planner = Script(plan(FIND, READ, ANSWER), plan(READ, PAY, ANSWER))
    lost = Fails(
        read=ValueError("no"), **{"paid" if happened else "pay": TimeoutError("no answer")}
    )
    world = Kept()
    made = orchestrator(planner, world, fails=lost, more=more)
    with pytest.raises(TriageSuspendedError, match="did pay") as asked:
        await made.run("task")
    answer = triage.happened(5) if happened else triage.rerun()
    assert await made.resume(asked.value.token, answer) == RESULT
    assert (world.done()["pay 5"], planner.count) == (1, 2)


async def test_two_equal_steps_of_one_plan_both_happen_whatever_fails_between() -> None:
    world = Kept()
    twice = plan(PAY, FIND, step("bill2", "pay", cents=5), READ, ANSWER)
    made = orchestrator(Script(twice), world, fails=Fails(find=TimeoutError(), read=TimeoutError()))
    assert await made.run("task") == RESULT
    assert world.done()["pay 5"] == 2


async def test_a_step_that_may_have_happened_is_asked_about() -> None:
    world = Kept()
    made = orchestrator(Script(GOOD), world, fails=Fails(paid=TimeoutError("no answer")))
    with pytest.raises(TriageSuspendedError, match="did pay") as asked:
        await made.run("task")
    assert await made.resume(asked.value.token, triage.happened(5)) == RESULT
    assert world.done()["pay 5"] == 1

    failing = triage.Durability(on_in_doubt="fail")
    fails = Fails(paid=TimeoutError("no answer"))
    made = orchestrator(Script(GOOD), world, fails=fails, durability=failing)
    with pytest.raises(TriageEscalationError, match="did pay"):
        await made.run("task")
    assert world.done()["pay 5"] == 2


async def test_a_capability_outside_of_the_selection_leads_to_another_selection() -> None:
    selector = Script(["find"], ["find", "read", "pay"])
    planner = Script(GOOD)
    made = orchestrator(planner, selector=selector)
    assert await made.run("task", run_id="run-1") == RESULT
    assert selector.count == planner.count == 2
    assert "is not among the active capabilities" in selector.requests[1].feedback
    assert [one["name"] for one in planner.requests[0].capabilities] == ["find", "respond"]
    state = await state_of(made.store, "run-1")
    assert (state.reclassifications, state.replans) == (1, 0)

    selector = Script(["find"])
    with pytest.raises(TriageEscalationError, match="reclassifications: all 1 are used up"):
        await orchestrator(Script(GOOD), selector=selector).run("task")
    assert selector.count == 2


async def test_a_capability_that_needs_others_asks_for_another_selection() -> None:
    selector = Script(["find", "read", "pay"])
    fails = Fails(find=ReclassificationRequired("a map is needed"))
    made = orchestrator(Script(GOOD), fails=fails, selector=selector)
    assert await made.run("task") == RESULT
    assert "a map is needed" in selector.requests[1].feedback


async def test_a_selector_that_fails_is_an_error_and_is_tried_again() -> None:
    env = FakeEnvironment()
    selector = Script(ConnectionError("gone"), ["find", "read", "pay"])
    made = orchestrator(Script(GOOD), selector=selector, environment=env)
    assert await made.run("task", run_id="run-1") == RESULT
    assert env.slept == [0.75]
    assert kinds(await made.store.read("run-1"))[CapabilitiesSelected.__name__] == 1


@table("answer", [["find", "fly"], "find", None, [1]])
async def test_a_selector_that_answers_nonsense_has_failed(answer: Any) -> None:
    selector = Script(answer, ["find", "read", "pay"])
    made = orchestrator(Script(GOOD), selector=selector)
    assert await made.run("task", run_id="run-1") == RESULT
    state = await state_of(made.store, "run-1")
    assert [failure.target for failure in state.failures] == ["selector"]
    assert state.reclassifications == 1
    assert "respond" in selector.requests[1].feedback


async def test_a_result_without_a_json_form_is_passed_on() -> None:
    seen: list[Any] = []

    async def look() -> object:
        return object()

    def use(raw: object, results: dict[str, Any]) -> bool:
        seen.append(raw)
        return results["it"] is raw

    registry = Registry(
        [
            Capability("look", "looks", look, provides=("RAW",), effect="read"),
            Capability("use", "uses", use, requires=("RAW",), effect="once"),
            Capability("respond", "says", lambda **results: results["used"], effect="read"),
        ]
    )
    the_plan = plan(
        step("it", "look"),
        step("used", "use", ("RAW", "it")),
        step("out", "respond", ("X", "used")),
    )
    assert await Orchestrator(registry, lambda _request: the_plan).run("task") is True
    assert len(seen) == 1


async def test_a_budget_of_the_whole_run_ends_it() -> None:
    limits = PlanLimits(entries=4)
    with pytest.raises(TriageEscalationError, match="entries: all 4 are used up"):
        await orchestrator(Script(GOOD), limits=limits).run("task")
    limits = PlanLimits(seconds=3.0)
    env = FakeEnvironment()
    planner = Script(ConnectionError("gone"))
    made = orchestrator(planner, limits=limits, environment=env)
    with pytest.raises(TriageEscalationError):
        await made.run("task")
    assert sum(env.slept) <= 3.0
    made = orchestrator(Script(GOOD), budget=triage.Limits(tool_calls=2))
    with pytest.raises(TriageEscalationError, match="2 of 2 tool calls"):
        await made.run("task")


async def test_one_orchestrator_serves_many_runs_at_once() -> None:
    import anyio

    world = Kept()
    made = orchestrator(
        lambda request: plan(step("bill", "pay", cents=request.task), step("out", "respond")), world
    )
    async with anyio.create_task_group() as group:
        for cents in range(8):
            group.start_soon(made.run, cents)
    assert world.done() == Counter({"respond": 8, **{f"pay {cents}": 1 for cents in range(8)}})


async def test_every_decision_is_in_the_journal_before_what_it_leads_to() -> None:
    written: list[Any] = []
    decided: list[Any] = []

    def note() -> None:
        """What was decided last, as something begins; whatever dies in it has used up its share."""
        decided.append(next(one for one in reversed(written) if isinstance(one, PlanRouted)))

    class Waits(FakeEnvironment):
        async def sleep(self, seconds: float) -> None:
            note()
            assert decided.pop().delay_s == seconds
            await super().sleep(seconds)

    def planner(request: Any) -> Any:
        note()
        return GOOD if request.feedback else BAD

    failing = Fails(read=TimeoutError())

    def fails(name: str) -> None:
        if name != "paid":
            note()
        failing(name)

    env = Waits()
    made = orchestrator(planner, fails=fails, environment=env, observers=[written.append])
    await made.run("task", run_id="run-1")
    assert len(env.slept) == 1
    entered = [one for one in written if isinstance(one, PlanRouted)]
    assert decided == [one for one in entered if one.target in ("planner", "step")]
    events = await made.store.read("run-1")
    for at, event in enumerate(events):
        if isinstance(event, PlanFailed):
            after = events[at + 1]
            assert isinstance(after, PlanRouted)
            assert after.counter in ("replans", "retries")
    assert (await state_of(made.store, "run-1")).ended is Target.END

    # So it is where a process went away before it had decided.
    failed = max(at for at, event in enumerate(events) if isinstance(event, PlanFailed))
    store, env = triage.stores.MemoryStore(), Waits()
    await store.append("run-1", events[: failed + 1], at=0, epoch=0)
    written.clear()
    again = orchestrator(planner, store=store, environment=env, observers=[written.append])
    assert await again.recover("run-1") == RESULT
    assert len(env.slept) == 1


@table(
    ("given", "named"),
    [
        ({"registry": []}, "Orchestrator.registry"),
        ({"planner": None}, "Orchestrator.planner"),
        ({"selector": 3}, "Orchestrator.selector"),
        ({"approval": "all"}, "Orchestrator.approval"),
        ({"limits": triage.Limits()}, "Orchestrator.limits"),
        ({"budget": PlanLimits()}, "Orchestrator.budget"),
        ({"reporter": print}, "Orchestrator.reporter"),
        ({"responder": print}, "Orchestrator.responder"),
        ({"checks": "strict"}, "Agent(checks=…)"),
    ],
)
async def test_what_cannot_be_used_is_refused_at_once(given: dict[str, Any], named: str) -> None:
    options: dict[str, Any] = {"registry": Registry([RESPOND]), "planner": Script(GOOD), **given}
    with pytest.raises(UsageError, match=re.escape(named)):
        Orchestrator(options.pop("registry"), options.pop("planner"), **options)


@table("option", ["durabilty", "plan_limits", "policy"])
def test_an_option_that_does_not_exist_is_refused_by_name(option: str) -> None:
    options: dict[str, Any] = {option: None}
    with pytest.raises(TypeError, match=option):
        Orchestrator(Registry([RESPOND]), Script(GOOD), **options)


RESPOND = Capability("respond", "answers", print)


async def test_a_failure_that_nobody_knows_is_critical_and_mended_by_no_plan_and_no_selection() -> (
    None
):
    planner, selector = Script(GOOD), Script(["find", "read", "pay"])
    made = orchestrator(planner, selector=selector, fails=Fails(read=RuntimeError("odd")))
    with pytest.raises(TriageEscalationError) as ended:
        await made.run("task", run_id="run-1")
    assert (planner.count, selector.count) == (1, 1)
    failure = (await state_of(made.store, "run-1")).failures[0]
    assert failure.diagnosis.severity is Severity.CRITICAL
    report = ended.value.report
    assert report is not None
    assert report.facts.failed == "step 2, read"
    assert "What can be done" in report.to_text()
    assert "Something went wrong in read" in report.to_text()
    assert "Look at what read logged." in report.to_text()


async def test_a_run_of_the_agent_underneath_is_reported_with_its_plan_where_it_is_kept() -> None:
    made = orchestrator(Script(GOOD), fails=Fails(read=RuntimeError("odd")))
    elsewhere = MemoryStore()
    with pytest.raises(TriageEscalationError) as ended:
        await made.agent.stored_in(elsewhere).run("task")
    report = await made.report(ended.value, store=elsewhere)
    assert ended.value.report is report
    assert report.facts.failed == "step 2, read"
    assert (await made.report(ended.value)).facts.failed != "step 2, read"
