"""Classifiers made of classifiers: rules before a model, one after another, async ones for sync code."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest
from llm_server import fails, says, serving
from msgspec.structs import replace
from support import FakeEnvironment, Says, always

from classifiers.test_llm_classifier import DRIFT, asking
from triage import (
    Agent,
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
)
from triage.core import ErrorInfo, Evidence

pytestmark = pytest.mark.anyio

STRANGE = Trajectory(error=ErrorInfo("StrangeError", message="that is strange"))
REFUSED = Trajectory(
    error=ErrorInfo("APIError", mro=("lib.APIError",), status_code=503, message="unavailable")
)
UNKNOWN, DRIFTED = FailureType.UNKNOWN, FailureType.GOAL_DRIFT
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
        return anyio.sleep_forever()


def rules(found: FailureType = UNKNOWN, confidence: float = 0.2, **more: Any) -> Says:
    return Says(Diagnosis(found, confidence=confidence, classifier="rules", **more))


def seen(diagnosis: Diagnosis) -> list[str]:
    return [item.rule for item in diagnosis.evidence]


# Hybrid -------------------------------------------------------------------------------------------


async def test_the_model_is_not_asked_where_the_rules_know() -> None:
    llm = Asked()
    found = await HybridClassifier(llm).classify(REFUSED)
    assert (found.failure_type, llm.times) == (FailureType.EXTERNAL_FAULT, 0)
    assert found == RulesClassifier().classify(REFUSED)


async def test_the_model_is_asked_where_the_rules_abstain_and_both_are_heard() -> None:
    found = await HybridClassifier(Asked()).classify(STRANGE)
    assert (found.failure_type, found.confidence, found.usage) == (DRIFTED, 0.7, USED)
    assert seen(found)[0] == "llm:quote"
    assert len(seen(found)) == 2


@pytest.mark.parametrize("said", [NOTHING, replace(DRIFT_SAID, confidence=0.3)])
async def test_what_the_model_does_not_know_either_stays_unknown(said: Diagnosis) -> None:
    found = await HybridClassifier(Asked(said)).classify(STRANGE)
    assert (found.failure_type, found.classifier, found.usage) == (UNKNOWN, "rules", USED)
    assert said.evidence[0] in found.evidence
    assert DRIFTED not in found.candidates or said.failure_type is DRIFTED


@pytest.mark.parametrize(
    ("ruled", "times"),
    [
        (rules(FailureType.LOOP_DETECTED, 0.4), 1),
        (rules(FailureType.LOOP_DETECTED, 0.7, candidates=(DRIFTED,)), 1),
        (rules(FailureType.LOOP_DETECTED, 0.7), 0),
        (rules(FailureType.LOOP_DETECTED, 0.9, candidates=(DRIFTED,)), 0),
        (rules(FailureType.EXTERNAL_FAULT, 0.3, severity=Severity.CRITICAL), 0),
        (rules(severity=Severity.FATAL), 0),
    ],
)
async def test_it_is_asked_where_the_rules_doubt_or_disagree(ruled: Says, times: int) -> None:
    llm = Asked()
    await HybridClassifier(llm, ruled).classify(STRANGE)
    assert llm.times == times


async def test_of_two_answers_the_surer_is_taken() -> None:
    weak = rules(FailureType.LOOP_DETECTED, 0.4, evidence=(Evidence("loop", "3 times"),))
    found = await HybridClassifier(Asked(), weak).classify(STRANGE)
    assert (found.failure_type, found.confidence) == (DRIFTED, 0.7)
    assert (found.candidates, seen(found)) == ((FailureType.LOOP_DETECTED,), ["llm:quote", "loop"])

    less = replace(DRIFT_SAID, confidence=0.55)
    strong = rules(FailureType.LOOP_DETECTED, 0.6, candidates=(FailureType.PLAN_INCOMPLETE,))
    found = await HybridClassifier(Asked(less), strong).classify(STRANGE)
    assert (found.failure_type, found.confidence) == (FailureType.LOOP_DETECTED, 0.6)
    assert found.candidates == (DRIFTED, FailureType.PLAN_INCOMPLETE)


async def test_agreement_makes_surer() -> None:
    found = await HybridClassifier(Asked(), rules(DRIFTED, 0.4)).classify(STRANGE)
    assert (found.failure_type, found.classifier) == (DRIFTED, "rules")
    assert found.confidence == pytest.approx(0.82)


async def test_a_model_does_not_talk_a_stop_away() -> None:
    fatal = rules(FailureType.EXTERNAL_FAULT, 0.3, severity=Severity.FATAL)
    found = await HybridClassifier(Asked(), fatal, when=lambda _ruled: True).classify(STRANGE)
    assert (found.failure_type, found.severity) == (FailureType.EXTERNAL_FAULT, Severity.FATAL)


async def test_when_decides_in_place_of_the_usual_words() -> None:
    llm = Asked()
    never = HybridClassifier(llm, when=lambda _ruled: False)
    assert (await never.classify(STRANGE)).failure_type is UNKNOWN
    broken = HybridClassifier(llm, when=lambda ruled: ruled.nothing)  # type: ignore[attr-defined]
    assert (await broken.classify(STRANGE)).failure_type is UNKNOWN
    assert llm.times == 0
    always_asked = HybridClassifier(llm, when=lambda ruled: ruled.classifier == "rules")
    await always_asked.classify(REFUSED)
    assert llm.times == 1


async def test_each_run_may_ask_so_many_times() -> None:
    async def broken(task: str) -> str:
        raise RuntimeError("who knows")

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
    async def broken(task: str) -> str:
        await anyio.lowlevel.checkpoint()
        raise RuntimeError("who knows")

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
        hybrid = HybridClassifier(llm, rules(FailureType.LOOP_DETECTED, 0.4))
        found = await hybrid.classify(STRANGE)
    assert (found.failure_type, found.confidence) == (FailureType.LOOP_DETECTED, 0.4)
    assert seen(found) == ["llm:failed"]
    assert found.usage is not None
    assert found.usage.calls == 3


# Chain --------------------------------------------------------------------------------------------


async def test_the_first_confident_answer_wins() -> None:
    last = Asked()
    chain = ChainClassifier(Says(UNKNOWN), rules(DRIFTED, 0.4), Asked(), last, confidence=0.6)
    found = await chain.classify(STRANGE)
    assert (found, last.times) == (DRIFT_SAID, 0)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Asked(KeyError("a table")), "Asked failed with KeyError: 'a table'"),
        (Asked("goal_drift"), "must answer with a Diagnosis or a FailureType, not str"),
        (Hangs(), "Hangs took longer than 0.05 s"),
        (Later(), "Later took longer than 0.05 s"),
    ],
)
async def test_one_that_fails_is_passed_over_and_noted(broken: Any, words: str) -> None:
    found = await ChainClassifier(broken, Says(DRIFTED)).classify(STRANGE)
    assert found.failure_type is DRIFTED
    assert found.evidence[-1].rule == "classifier:failed"
    assert words in found.evidence[-1].text


async def test_where_none_is_sure_the_surest_is_taken() -> None:
    weak = rules(FailureType.LOOP_DETECTED, 0.3)
    said = replace(DRIFT_SAID, confidence=0.4)
    found = await ChainClassifier(weak, Asked(said), Asked(NOTHING)).classify(STRANGE)
    assert (found.failure_type, found.confidence) == (DRIFTED, 0.4)
    assert found.usage == Usage(20, 2, 1.0, 2, "m")
    assert seen(found) == ["llm:quote", "llm:refused"]


async def test_where_none_knows_it_is_unknown_with_the_evidence_of_all() -> None:
    guess = rules(UNKNOWN, 0.2, evidence=(Evidence("none", "no rule"),), candidates=(DRIFTED,))
    found = await ChainClassifier(Asked(NOTHING), guess).classify(STRANGE)
    assert (found.failure_type, found.confidence) == (UNKNOWN, 0.2)
    assert (seen(found), found.candidates) == (["none", "llm:refused"], (DRIFTED,))


async def test_a_run_waits_for_all_of_a_chain() -> None:
    async def broken(task: str) -> str:
        raise RuntimeError("who knows")

    chain = ChainClassifier(Hangs(), Later(), Asked())
    assert chain.deadline == pytest.approx(31.1)
    with pytest.raises(TriageEscalationError) as caught:
        await Agent(broken, always(Escalate()), classifier=chain).run("x")
    assert caught.value.context is not None
    assert caught.value.context.failure_type is DRIFTED
    assert caught.value.context.usage == replace(USED, model=None)


# Sync code ----------------------------------------------------------------------------------------


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


# Use ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (ChainClassifier, "at least one"),
        (lambda: ChainClassifier(RulesClassifier), "not the class RulesClassifier"),  # type: ignore[arg-type]
        (lambda: ChainClassifier(Asked(), 5), "classifier 2 must have a method classify"),  # type: ignore[arg-type]
        (lambda: ChainClassifier(Asked(), confidence=2), "confidence must be a number from 0 to 1"),
        (lambda: HybridClassifier(None), "llm must have a method classify"),  # type: ignore[arg-type]
        (lambda: HybridClassifier(Asked(), 5), "rules must have a method"),  # type: ignore[arg-type]
        (lambda: HybridClassifier(Asked(), when=True), "when must be a function"),  # type: ignore[arg-type]
        (lambda: HybridClassifier(Asked(), max_calls_per_run=-1), "a whole number from 0"),
        (lambda: BlockingClassifier(7), "must have a method classify"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_refused_at_once(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


async def test_no_thread_is_left_behind() -> None:
    chain = ChainClassifier(Says(UNKNOWN), HybridClassifier(Asked()))
    await chain.classify(STRANGE)
    before = threading.active_count()
    for _ in range(20):
        await chain.classify(STRANGE)
    with anyio.fail_after(10):  # the last one is on its way out
        while threading.active_count() > before:
            await anyio.sleep(0.01)
