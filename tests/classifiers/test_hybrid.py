"""Classifiers made of classifiers: rules before a model, one after another, async ones for sync code."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import anyio
import pytest
from llm_server import fails, says, serving
from msgspec.structs import replace
from support import FakeEnvironment, Says, always
from tables import table

from classifiers.test_llm_classifier import DRIFT, asking
from triage import (
    Agent,
    Checks,
    Diagnosis,
    Escalate,
    FailureType,
    Retry,
    Severity,
    Trajectory,
    TriageEscalationError,
    Usage,
    UsageError,
    diagnose,
)
from triage.classifiers import (
    BlockingClassifier,
    ChainClassifier,
    HybridClassifier,
    RulesClassifier,
    consult,
)
from triage.core import Cause, ErrorInfo, Evidence

pytestmark = pytest.mark.anyio

STRANGE = Trajectory(error=ErrorInfo("StrangeError", message="that is strange"))
REFUSED = Trajectory(
    error=ErrorInfo("APIError", mro=("lib.APIError",), status_code=503, message="unavailable")
)
UNKNOWN, DRIFTED, LOOP = FailureType.UNKNOWN, FailureType.GOAL_DRIFT, FailureType.LOOP_DETECTED
USED = Usage(10, 1, 0.5, 1, "m")
DRIFT_SAID = Diagnosis(
    DRIFTED, confidence=0.7, evidence=(Evidence("llm:quote", '"that is strange"'),), usage=USED
)
NOTHING = Diagnosis(
    UNKNOWN, confidence=0.0, evidence=(Evidence("llm:refused", "no"),), usage=USED, classifier="llm"
)


class Asked:
    """An async classifier with one answer; counts how often it is asked."""

    def __init__(self, answer: Any = DRIFT_SAID) -> None:
        self.answer = answer
        self.times = 0

    async def classify(self, trajectory: Trajectory, task: Any) -> Any:
        self.times += 1
        await anyio.lowlevel.checkpoint()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Hangs:
    deadline = 0.05

    async def classify(self, trajectory: Trajectory, task: Any) -> Any:
        await anyio.sleep_forever()


class Later:
    """Sync, with an awaitable for an answer that never comes."""

    deadline = 0.05

    def classify(self, trajectory: Trajectory, task: Any) -> Any:
        return self

    def __await__(self) -> Generator[Any, Any, Any]:
        return anyio.sleep_forever().__await__()


async def broken(task: str) -> str:
    raise RuntimeError("who knows")


def rules(found: FailureType = UNKNOWN, confidence: float = 0.2, **more: Any) -> Says:
    return Says(Diagnosis(found, confidence=confidence, classifier="rules", **more))


def seen(diagnosis: Diagnosis) -> list[str]:
    return [item.rule for item in diagnosis.evidence]


# Hybrid -------------------------------------------------------------------------------------------


async def test_the_model_is_asked_where_the_rules_abstain_and_both_are_heard() -> None:
    llm = Asked()
    found = await HybridClassifier(llm).classify(REFUSED)
    assert (found, llm.times) == (RulesClassifier().classify(REFUSED), 0)
    found = await HybridClassifier(llm).classify(STRANGE)
    assert (found.failure_type, found.confidence, found.usage) == (DRIFTED, 0.7, USED)
    assert (seen(found)[0], len(seen(found))) == ("llm:quote", 2)


@table("said", [NOTHING, replace(DRIFT_SAID, confidence=0.3)])
async def test_what_the_model_does_not_know_either_stays_unknown(said: Diagnosis) -> None:
    found = await HybridClassifier(Asked(said)).classify(STRANGE)
    assert (found.failure_type, found.classifier, found.usage) == (UNKNOWN, "rules", USED)
    assert said.evidence[0] in found.evidence
    assert DRIFTED not in found.candidates or said.failure_type is DRIFTED


async def test_it_is_asked_below_eight_tenths_and_never_about_a_stop() -> None:
    cases: list[tuple[Says, dict[str, Any], int]] = [
        (rules(LOOP, 0.4), {}, 1),
        (rules(LOOP, 0.79), {}, 1),
        (rules(LOOP, 0.8), {}, 0),
        (rules(LOOP, 0.9, candidates=(DRIFTED,)), {}, 0),
        (rules(LOOP, 0.85), {"confidence": 0.9}, 1),
        (rules(LOOP, 0.79), {"confidence": 0.1}, 1),
        (rules(FailureType.EXTERNAL_FAULT, 0.3, severity=Severity.CRITICAL), {}, 0),
        (rules(severity=Severity.FATAL), {}, 0),
    ]
    for ruled, options, times in cases:
        llm = Asked()
        await HybridClassifier(llm, ruled, **options).classify(STRANGE)
        assert llm.times == times, (ruled.answer, options)


async def test_of_two_answers_the_surer_is_taken() -> None:
    weak = rules(LOOP, 0.4, evidence=(Evidence("loop", "3 times"),))
    found = await HybridClassifier(Asked(), weak).classify(STRANGE)
    assert (found.failure_type, found.confidence) == (DRIFTED, 0.7)
    assert (found.candidates, seen(found)) == ((LOOP,), ["llm:quote", "loop"])

    less = replace(DRIFT_SAID, confidence=0.55)
    strong = rules(LOOP, 0.6, candidates=(FailureType.PLAN_INCOMPLETE,))
    found = await HybridClassifier(Asked(less), strong).classify(STRANGE)
    assert (found.failure_type, found.confidence) == (LOOP, 0.6)
    assert found.candidates == (DRIFTED, FailureType.PLAN_INCOMPLETE)


async def test_agreement_makes_surer() -> None:
    said = replace(DRIFT_SAID, critical_step=3)
    found = await HybridClassifier(Asked(said), rules(DRIFTED, 0.4)).classify(STRANGE)
    assert (found.failure_type, found.classifier, found.critical_step) == (DRIFTED, "rules", 3)
    assert found.confidence == pytest.approx(0.82)


async def test_a_model_does_not_talk_a_stop_away() -> None:
    fatal = rules(FailureType.EXTERNAL_FAULT, 0.3, severity=Severity.FATAL)
    found = await HybridClassifier(Asked(), fatal, when=lambda _ruled: True).classify(STRANGE)
    assert (found.failure_type, found.severity) == (FailureType.EXTERNAL_FAULT, Severity.FATAL)


async def test_when_decides_in_place_of_the_usual_conditions() -> None:
    llm = Asked()
    never = HybridClassifier(llm, when=lambda _ruled: False)
    assert (await never.classify(STRANGE)).failure_type is UNKNOWN
    failing = HybridClassifier(llm, when=lambda ruled: ruled.nothing)  # type: ignore[attr-defined]
    assert (await failing.classify(STRANGE)).failure_type is UNKNOWN
    assert llm.times == 0
    always_asked = HybridClassifier(llm, when=lambda ruled: ruled.classifier == "rules")
    await always_asked.classify(REFUSED)
    assert llm.times == 1


def too_short(result: str) -> bool:
    return len(result) > 10


async def refused(llm: Any, **options: Any) -> Diagnosis:
    """The diagnosis of a run whose result a check refuses."""

    async def answers(task: str) -> str:
        return "short"

    agent = Agent(
        answers,
        always(Escalate()),
        classifier=HybridClassifier(llm, **options),
        checks=Checks(verify=[too_short]),
    )
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run("x")
    found = caught.value.diagnosis
    assert found is not None
    return found


async def test_when_decides_about_a_refused_result_too() -> None:
    llm = Asked()
    found = await refused(llm, when=lambda _refused: False)
    assert (seen(found), llm.times) == (["check:too_short"], 0)


async def test_a_check_that_stops_the_run_is_not_asked_about() -> None:
    llm = Asked()
    stopped = Diagnosis(FailureType.CONSTRAINT_IGNORED, severity=Severity.CRITICAL)
    assert await consult(HybridClassifier(llm).after_check(stopped), STRANGE, None) == stopped
    assert llm.times == 0


async def test_a_check_that_knows_why_keeps_its_type_against_a_surer_model() -> None:
    form = Diagnosis(FailureType.SCHEMA_MISMATCH, cause=Cause.INVALID_RESULT, confidence=0.9)
    sure = HybridClassifier(Asked(replace(DRIFT_SAID, confidence=1.0)))
    found = await consult(sure.after_check(form), STRANGE, None)
    assert (found.failure_type, found.candidates) == (FailureType.SCHEMA_MISMATCH, (DRIFTED,))


async def test_a_result_that_a_check_refused_is_always_asked_about() -> None:
    llm = Asked(replace(DRIFT_SAID, hint="Read the task.", critical_step=0))
    found = await refused(llm)
    assert (llm.times, found.failure_type, found.critical_step) == (1, DRIFTED, 0)
    assert seen(found) == ["llm:quote", "check:too_short"]
    assert found.hint is not None
    assert found.hint.startswith("The result was refused by a check")
    assert found.hint.endswith("Read the task.")
    # What is sure of its own kind of failure keeps it, and the model's view is a candidate.
    sure = Diagnosis(FailureType.SCHEMA_MISMATCH, cause=Cause.INVALID_RESULT, classifier="checks")
    found = await consult(HybridClassifier(llm).after_check(sure), STRANGE, None)
    assert (found.failure_type, found.candidates) == (FailureType.SCHEMA_MISMATCH, (DRIFTED,))


@table("said", [NOTHING, KeyError("a table"), "junk"])
async def test_a_checks_diagnosis_stands_where_the_model_gives_none(said: Any) -> None:
    found = await refused(Asked(said))
    assert (found.failure_type, found.cause) == (FailureType.PLAN_INCOMPLETE, Cause.CHECK_FAILED)
    assert seen(found)[0] == "check:too_short"
    assert len(seen(found)) == 2
    capped = await refused(Asked(), max_calls_per_run=0)
    assert (capped.cause, seen(capped)[-1]) == (Cause.CHECK_FAILED, "hybrid:cap")


async def test_each_run_may_ask_so_many_times() -> None:
    llm = Asked(replace(DRIFT_SAID, usage=None))
    agent = Agent(
        broken,
        always(lambda context: Retry() if context.attempt < 4 else Escalate()),
        classifier=HybridClassifier(llm, max_calls_per_run=2),
    )
    for asked in (2, 4):
        with pytest.raises(TriageEscalationError) as caught:
            await agent.run("x")
        assert llm.times == asked
        assert caught.value.diagnosis is not None
        assert caught.value.diagnosis.failure_type is UNKNOWN
        assert seen(caught.value.diagnosis)[-1] == "hybrid:cap"


async def test_a_trajectory_says_of_which_run_it_is() -> None:
    llm = Asked(replace(DRIFT_SAID, usage=None))
    hybrid = HybridClassifier(llm, max_calls_per_run=1)
    for run_id, asked in (("a", 1), ("a", 1), ("b", 2), (None, 3), (None, 4)):
        trajectory = Trajectory(STRANGE.steps, error=STRANGE.error, run_id=run_id)
        await hybrid.classify(trajectory[:])
        assert llm.times == asked


async def test_concurrent_runs_are_counted_apart() -> None:
    llm = Asked()
    agent = Agent(broken, always(Escalate()), classifier=HybridClassifier(llm, max_calls_per_run=1))

    async def one() -> None:
        with pytest.raises(TriageEscalationError):
            await agent.run("x")

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(one)
    assert llm.times == 20


async def test_the_answer_of_the_rules_stands_where_the_model_fails() -> None:
    down = fails(500, "The server had an error")
    with serving(down, down, down, says({**DRIFT, "evidence": []})) as server:
        llm = asking(server, "openai", environment=FakeEnvironment())
        found = await HybridClassifier(llm, rules(LOOP, 0.4)).classify(STRANGE)
    assert (found.failure_type, found.confidence) == (LOOP, 0.4)
    assert seen(found) == ["llm:failed"]
    assert found.usage is not None
    assert found.usage.calls == 3


# Chain --------------------------------------------------------------------------------------------


async def test_the_first_confident_answer_wins() -> None:
    last = Asked()
    chain = ChainClassifier(Says(UNKNOWN), rules(DRIFTED, 0.4), Asked(), last, confidence=0.6)
    found = await chain.classify(STRANGE)
    assert (found, last.times) == (DRIFT_SAID, 0)


@table(
    ("failing", "words"),
    [
        (Asked(KeyError("a table")), "Asked failed with KeyError: 'a table'"),
        (Asked(TimeoutError("of the database")), "Asked failed with TimeoutError: of the database"),
        (Asked("goal_drift"), "must answer with a Diagnosis or a FailureType, not str"),
        (Hangs(), "Hangs took longer than 0.05 s"),
        (Later(), "Later took longer than 0.05 s"),
    ],
)
async def test_one_that_fails_is_passed_over_and_noted(
    failing: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = await ChainClassifier(failing, Says(DRIFTED)).classify(STRANGE)
    assert found.failure_type is DRIFTED
    assert found.evidence[-1].rule == "classifier:failed"
    assert words in found.evidence[-1].text
    assert type(failing).__name__ in caplog.text


async def test_where_none_is_sure_the_surest_is_taken_else_unknown_with_the_evidence_of_all() -> (
    None
):
    said = replace(DRIFT_SAID, confidence=0.4)
    found = await ChainClassifier(rules(LOOP, 0.3), Asked(said), Asked(NOTHING)).classify(STRANGE)
    assert (found.failure_type, found.confidence) == (DRIFTED, 0.4)
    assert found.usage == Usage(20, 2, 1.0, 2, "m")
    assert seen(found) == ["llm:quote", "llm:refused"]

    guess = rules(UNKNOWN, 0.2, evidence=(Evidence("none", "no rule"),), candidates=(DRIFTED,))
    found = await ChainClassifier(Asked(NOTHING), guess).classify(STRANGE)
    assert (found.failure_type, found.confidence) == (UNKNOWN, 0.2)
    assert (seen(found), found.candidates) == (["none", "llm:refused"], (DRIFTED,))


async def test_a_run_waits_for_all_of_a_chain() -> None:
    chain = ChainClassifier(Hangs(), Later(), Asked())
    assert chain.deadline == pytest.approx(31.1)
    with pytest.raises(TriageEscalationError) as caught:
        await Agent(broken, always(Escalate()), classifier=chain).run("x")
    assert caught.value.context is not None
    assert caught.value.context.failure_type is DRIFTED
    assert caught.value.context.usage == replace(USED, model=None)


# Use ----------------------------------------------------------------------------------------------


def test_sync_code_may_use_an_async_classifier() -> None:
    found = diagnose(ValueError("that is strange"), classifier=BlockingClassifier(Asked()))
    assert found == replace(DRIFT_SAID, classifier="Asked")
    assert BlockingClassifier(RulesClassifier()).name == "rules"
    assert BlockingClassifier(Hangs()).deadline == 0.05
    with pytest.raises(KeyError):
        diagnose(None, classifier=BlockingClassifier(Asked(KeyError("a table"))))


async def test_async_code_is_told_to_await() -> None:
    with pytest.raises(UsageError, match="await the classify"):
        BlockingClassifier(Asked()).classify(STRANGE)


def test_a_wrong_argument_is_refused_at_once() -> None:
    wrong: list[tuple[Any, str]] = [
        (ChainClassifier, "at least one"),
        (lambda: ChainClassifier(RulesClassifier), "not the class RulesClassifier"),  # type: ignore[arg-type]
        (lambda: ChainClassifier(Asked(), 5), "classifier 2 must have a method classify"),  # type: ignore[arg-type]
        (lambda: ChainClassifier(Asked(), confidence=2), "confidence must be a number from 0 to 1"),
        (lambda: HybridClassifier(None), "llm must have a method classify"),  # type: ignore[arg-type]
        (lambda: HybridClassifier(Asked(), 5), "rules must have a method"),  # type: ignore[arg-type]
        (lambda: HybridClassifier(Asked(), when=True), "when must be a function"),  # type: ignore[arg-type]
        (lambda: HybridClassifier(Asked(), max_calls_per_run=-1), "a whole number from 0"),
        (lambda: BlockingClassifier(7), "must have a method classify"),  # type: ignore[arg-type]
    ]
    for make, words in wrong:
        with pytest.raises(UsageError, match=words):
            make()


async def test_one_thread_serves_one_diagnosis_after_another() -> None:
    chain = ChainClassifier(Says(UNKNOWN), HybridClassifier(Asked()))
    await chain.classify(STRANGE)
    before = set(threading.enumerate())
    for _ in range(20):
        await chain.classify(STRANGE)
    assert set(threading.enumerate()) <= before
