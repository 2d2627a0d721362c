"""What is told of a plan-first run: a report when it cannot be done, and its progress meanwhile."""

from __future__ import annotations

import pickle
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from support import FakeEnvironment

import triage
from triage import Severity, TriageError, TriageEscalationError, TriageSuspendedError
from triage.core import (
    ApprovalAsked,
    CapabilitiesSelected,
    Event,
    PlanFailed,
    PlanMade,
    PlanRouted,
    PlanStepMoved,
    RunFinished,
    RunStarted,
    RunSuspended,
)
from triage.core.faults import PlanInvalid
from triage.plan import Approval, Orchestrator, PlanLimits, PlannedStep, Registry, Target
from triage.reports import Analysis, Brief, ErrorReporter

from .runs import (
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
    orchestrator,
    plan,
    state_of,
    step,
)

pytestmark = pytest.mark.anyio
BROKEN = RuntimeError("the pump is broken")
CRITICAL = {"read": {"classify_error": lambda _error, _known: Severity.CRITICAL}}
KEY = "sk-proj-" + "a1B2" * 12


async def ended(work: Any) -> TriageError:
    with pytest.raises(TriageError) as caught:
        await work
    return caught.value


async def followed(made: Orchestrator) -> tuple[list[Event], TriageError]:
    """What a run that cannot be done tells, and its error."""
    told: list[Event] = []

    async def follow() -> None:
        stream = made.events("task")
        while True:  # until it raises
            told.append(await anext(stream))

    return told, await ended(follow())


async def test_a_run_that_cannot_be_done_ends_with_a_report_of_its_plan() -> None:
    wanted = PlannedStep("now", "read", "Read the value", "a number", None, {}, READ.inputs)
    made = orchestrator(
        Script(plan(FIND, wanted, PAY, ANSWER)), fails=Fails(read=BROKEN), more=CRITICAL
    )
    error = await ended(made.run("What is the beam?"))
    assert isinstance(error, TriageEscalationError)
    assert error.__cause__ is BROKEN
    report = error.report
    assert report is not None
    facts = report.facts
    assert report.completeness == "structured"
    assert [(one.name, one.outcome) for one in facts.steps] == [
        ("find", "done"), ("read", "failed"), ("pay", "open"), ("respond", "open"),
    ]  # fmt: skip
    assert facts.steps[1].criteria == "a number"
    assert facts.failed == "step 2, read"
    assert [one.name for one in facts.capabilities] == ["find", "read", "pay", "measure", "respond"]
    counters = {one.name: (one.used, one.limit) for one in facts.counters}
    assert counters["replans"] == (0.0, 2.0)
    assert (counters["retries"][0], facts.elapsed_s) == (0.0, 0.0)
    text = report.to_text("developer")
    assert "the pump is broken" in text
    assert "the pump is broken" not in report.to_text("person")
    assert "Read the value" in report.to_markdown()


async def test_the_steps_of_two_plans_are_told_apart() -> None:
    more = {"read": {"classify_error": lambda _error, _known: Severity.REPLANNING}}
    second = plan(step("later", "read", ("ADDRESS", "where")), step("out", "respond"))
    made = orchestrator(
        Script(GOOD, second),
        fails=Fails(read=[BROKEN] * 9),
        more=more,
        limits=PlanLimits(replans=1),
    )
    report = (await ended(made.run("task"))).report
    assert report is not None
    told = [(one.attempt, one.name, one.outcome) for one in report.facts.steps]
    assert told == [(1, "find", "done"), (2, "read", "failed"), (2, "respond", "open")]


async def test_what_ends_a_run_in_a_step_is_told_of_that_step() -> None:
    doubtful = triage.Durability(on_in_doubt="fail")
    for options in ({"budget": triage.Limits(tool_calls=3)}, {"durability": doubtful}):
        made = orchestrator(Script(GOOD), fails=Fails(paid=TimeoutError()), **options)
        report = (await ended(made.run("task"))).report
        assert report is not None
        assert [one.outcome for one in report.facts.steps] == ["done", "done", "failed", "open"]


async def test_a_plan_that_ends_as_a_call_is_in_doubt_says_that_it_may_have_happened() -> None:
    world = Kept()
    fails = Fails(paid=TimeoutError("no answer"))
    doubtful = triage.Durability(on_in_doubt="fail")
    made = orchestrator(Script(GOOD), world, fails=fails, durability=doubtful)
    report = (await ended(made.run("task", run_id="run-1"))).report
    assert report is not None
    assert report.facts.failed == "step 3, pay"
    assert report.facts.reason.endswith("it may have happened")
    state = await state_of(made.store, "run-1")
    (failure,) = state.failures
    assert (failure.target, failure.step, failure.doubt) == ("step", "bill", True)
    assert str(failure.error) == "TimeoutError: no answer"
    assert state.ended is Target.REPORT
    assert world.done()["pay 5"] == 1

    # So it is where the process died in the call, or another plan would make it otherwise.
    events = await made.store.read("run-1")
    cut = next(at for at, one in enumerate(events) if getattr(one, "tool", "") == "pay") + 1
    store = triage.stores.MemoryStore()
    await store.append("run-1", events[:cut], at=0, epoch=0)
    made = orchestrator(Script(GOOD), world, store=store, durability=doubtful)
    report = (await ended(made.recover("run-1"))).report
    assert report is not None
    assert report.facts.reason.endswith("it may have happened")
    assert [one.doubt for one in (await state_of(store, "run-1")).failures] == [True]
    more = {"read": {"classify_error": lambda _error, _known: Severity.REPLANNING}}
    planner = Script(plan(PAY, FIND, READ), plan(step("dear", "pay", cents=9), READ))
    made = orchestrator(planner, fails=Fails(read=BROKEN), more=more, durability=doubtful)
    report = (await ended(made.run("task", run_id="run-3"))).report
    assert report is not None
    assert report.facts.failed == "step 1, pay"
    assert not (await state_of(made.store, "run-3")).failures[-1].doubt

    # Where somebody is asked, nothing has failed yet.
    made = orchestrator(Script(GOOD), fails=Fails(paid=TimeoutError("no answer")))
    with pytest.raises(triage.TriageSuspendedError):
        await made.run("task", run_id="run-2")
    assert (await state_of(made.store, "run-2")).failures == ()


async def test_a_planner_that_fails_leaves_a_report_without_steps() -> None:
    report = (await ended(orchestrator(Script(BAD)).run("task"))).report
    assert report is not None
    assert report.facts.steps == ()
    assert report.facts.failed == "the planner"
    assert "teleport" in report.to_text("developer")


async def test_the_facts_are_complete_before_the_analyst_is_asked() -> None:
    seen: list[Any] = []

    async def explain(brief: Brief) -> Analysis:
        seen.append(brief)
        return Analysis("The pump is old.", ("Replace it.",))

    reporter = ErrorReporter(explain)
    made = orchestrator(Script(GOOD), fails=Fails(read=BROKEN), more=CRITICAL, reporter=reporter)
    told, error = await followed(made)
    report = error.report
    assert report is not None
    assert (report.completeness, report.analysis) == ("full", await explain(seen[0]))
    (brief, _) = seen
    assert brief.capabilities == ("find", "read", "pay", "measure", "respond")
    assert [one.name for one in report.facts.steps] == ["find", "read", "pay", "respond"]
    assert isinstance(told[-1], RunFinished), "all is told before the report is made"


async def test_an_analyst_that_hangs_or_fails_costs_the_report_nothing() -> None:
    async def hang(_brief: Brief) -> str:
        await anyio.sleep_forever()
        return ""

    def fail(_brief: Brief) -> str:
        raise BROKEN

    for analyst in (hang, fail):
        reporter = ErrorReporter(analyst, 0.05)
        made = orchestrator(
            Script(GOOD), fails=Fails(read=BROKEN), more=CRITICAL, reporter=reporter
        )
        report = (await ended(made.run("task"))).report
        assert report is not None
        assert report.completeness == "structured"
        assert report.missing
        assert len(report.facts.steps) == 4


async def test_a_question_is_reported_and_explained_by_nobody() -> None:
    def fail(_brief: Brief) -> str:
        raise AssertionError("nobody is to be asked")

    made = orchestrator(Script(GOOD), approval=Approval(), reporter=ErrorReporter(fail))
    report = (await ended(made.run("task"))).report
    assert report is not None
    assert report.missing == ""
    assert '"bill" by "pay"' in report.facts.question
    assert [one.outcome for one in report.facts.steps] == ["open"] * 4


async def test_the_error_travels_with_its_report_which_holds_no_secret() -> None:
    broken = RuntimeError(f"Authorization: Bearer {KEY}")
    made = orchestrator(Script(GOOD), fails=Fails(read=broken), more=CRITICAL)
    error = await ended(made.run("task"))
    report = error.report
    assert report is not None
    assert pickle.loads(pickle.dumps(error)).report == report
    assert [one.name for one in report.facts.steps] == ["find", "read", "pay", "respond"]
    for text in (report.to_text("developer"), report.to_json(), report.to_markdown()):
        assert KEY not in text


async def test_the_report_comes_although_the_store_has_failed() -> None:
    class Unreadable(triage.stores.MemoryStore):
        async def read(self, run_id: str, after: int = -1) -> Any:
            raise triage.core.errors.StoreUnavailable("gone")

    made = orchestrator(Script(GOOD), fails=Fails(read=BROKEN), more=CRITICAL, store=Unreadable())
    error = await ended(made.run("task"))
    assert error.report is not None
    assert "the pump is broken" in error.report.to_text("developer")
    assert "without the plan" in str(error.__notes__)


async def test_a_report_counts_the_retries_and_the_seconds_of_its_run() -> None:
    env = FakeEnvironment()
    slow = [TimeoutError("slow")]
    for failing, retries, failed in (
        (Fails(find=slow * 9, read=BROKEN), 2, "step 1, find"),
        (Fails(find=[*slow, None], read=BROKEN), 1, "step 2, read"),
    ):
        before = len(env.slept)
        made = orchestrator(Script(GOOD), fails=failing, more=CRITICAL, environment=env)
        report = (await ended(made.run("task"))).report
        assert report is not None
        facts = report.facts
        assert facts.failed == failed
        counters = {one.name: (one.used, one.limit) for one in facts.counters}
        assert counters["retries"][0] == retries
        assert env.slept[before:]
        assert facts.elapsed_s == pytest.approx(sum(env.slept[before:]))


async def test_another_process_is_told_the_same_of_a_run_that_has_ended(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    made = orchestrator(Script(GOOD), fails=Fails(read=BROKEN), more=CRITICAL, store=store)
    first = (await ended(made.run("task", run_id="run-1"))).report
    await made.store.close()
    again = orchestrator(Script(GOOD), more=CRITICAL, store=store)
    second = (await ended(again.recover("run-1"))).report
    assert first is not None
    assert second is not None
    assert second.facts.steps == first.facts.steps
    assert second.facts.counters[:5] == first.facts.counters[:5]
    await again.store.close()


async def test_a_run_tells_of_each_thing_that_happens() -> None:
    made = orchestrator(Script(BAD, GOOD), fails=Fails(pay=ConnectionRefusedError("no")))
    told = [event async for event in made.events("task", background="b")]
    assert [one.seq for one in told] == list(range(len(told)))
    assert isinstance(told[0], RunStarted)
    assert told[0].agent == "orchestrator"
    assert [_said(one) for one in told if _said(one)] == [
        "selector", "selected", "planner", "planner failed", "planner", "plan 1",
        "step where", "where done", "step now", "now done",
        "step bill", "step failed", "step bill", "bill done", "step out", "out done", "end",
    ]  # fmt: skip
    assert told == await made.store.read(told[0].run_id)


def _said(event: Event) -> str:
    match event:
        case PlanRouted(target=target, step=step):
            return f"{target} {step}".strip()
        case CapabilitiesSelected():
            return "selected"
        case PlanMade(version=version):
            return f"plan {version}"
        case PlanFailed(target=target):
            return f"{target} failed"
        case PlanStepMoved(step=step, status=status):
            return f"{step} {status}"
        case _:
            return ""


async def test_progress_of_a_failed_and_of_a_waiting_run_ends_with_its_error() -> None:
    told, error = await followed(orchestrator(Script(BAD)))
    assert (isinstance(told[-1], RunFinished), error.report is not None) == (True, True)
    made = orchestrator(Script(GOOD), approval=Approval())
    told, asked = await followed(made)
    assert isinstance(asked, TriageSuspendedError)
    assert [one.kind for one in told if isinstance(one, ApprovalAsked)] == ["plan"]
    assert isinstance(told[-1], RunSuspended)
    assert await made.resume(asked.token, triage.approve()) == RESULT


async def test_who_stops_listening_cancels_the_run() -> None:
    left: list[bool] = []

    async def planner(_request: Any) -> Any:
        try:
            await anyio.sleep_forever()
        finally:
            left.append(True)

    made = orchestrator(planner)
    async with aclosing(made.events("task")) as events:  # type: ignore[type-var] # it is a generator
        async for event in events:
            if isinstance(event, CapabilitiesSelected):
                break
    assert left == [True]
    assert [info.status for info in await made.store.runs()] == ["cancelled"]


async def test_in_development_the_error_comes_out_as_it_is() -> None:
    for error in (
        RuntimeError("r"),
        ImportError("i"),
        AttributeError("a"),
        KeyError("k"),
        ValueError("v"),
    ):
        planner, env = Script(GOOD), FakeEnvironment()
        made = orchestrator(planner, fails=Fails(read=[error] * 5), environment=env)
        with pytest.raises(type(error)) as caught:
            await made.run("task", development=True)
        assert caught.value is error
        assert error.__cause__ is None
        assert error.__context__ is None
        assert planner.count == 1
        assert env.slept == []
    with pytest.raises(ConnectionError):
        await orchestrator(Script(ConnectionError("gone"))).run("task", development=True)
    with pytest.raises(PlanInvalid, match="teleport"):
        await orchestrator(Script(BAD)).run("task", development=True)
    with pytest.raises(ConnectionError):
        async for _ in orchestrator(Script(ConnectionError("gone"))).events("t", development=True):
            pass


async def test_an_error_without_words_is_reported_by_its_name() -> None:
    registry = Registry([triage.plan.Capability("respond", "says", _times_out, retry=0)])
    made = Orchestrator(
        registry, Script(plan(step("out", "respond"))), environment=FakeEnvironment()
    )
    error = await ended(made.run("task"))
    assert error.report is not None
    assert "TimeoutError" in error.report.to_text("developer")


async def _times_out() -> None:
    raise TimeoutError
