"""A fault that equals one judged before is answered where the run stands; all else goes to a thread."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tables import table

from triage import Diagnosis, FailureType, RulesClassifier, Severity, Step, Trajectory
from triage.classifiers import RULES, Override, Rule, consult
from triage.core import ErrorInfo

pytestmark = pytest.mark.anyio
DOWN = ErrorInfo("APIError", mro=("lib.APIError",), message="503", status_code=503)
STEP = Step(tool_called="search", tool_input={"q": 1}, tool_output="nothing")


class Told(RulesClassifier):
    """Notes the threads it was asked in."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.threads: list[threading.Thread] = []

    def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:
        self.threads.append(threading.current_thread())
        return super().classify(trajectory, task)


async def asked(classifier: Told, trajectory: Trajectory) -> Diagnosis:
    return await consult(classifier, trajectory, trajectory.task)


def knowing(**options: Any) -> Told:
    """One that has judged DOWN already."""
    classifier = Told(**options)
    classifier.classify(Trajectory(error=DOWN))
    classifier.threads.clear()
    return classifier


async def test_an_equal_fault_is_answered_without_a_thread() -> None:
    classifier = Told()
    first = await asked(classifier, Trajectory([STEP], error=DOWN, task="a"))
    again = await asked(classifier, Trajectory([STEP, STEP], error=replace(DOWN), task="b"))
    assert first == again
    [thread] = classifier.threads
    assert thread is not threading.current_thread()


BODY = {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded", "param": None}}
LIMITED = ErrorInfo(
    "RateLimitError",
    "openai",
    ("openai.RateLimitError", "openai.APIStatusError", "builtins.Exception"),
    "Error code: 429",
    429,
    "rate_limit_exceeded",
    body=BODY,
)


@table(
    "make",
    [
        lambda body: replace(LIMITED, body=body),
        lambda body: replace(LIMITED, body=[body]),
        lambda body: replace(DOWN, related=(replace(LIMITED, body=body, relation="cause"),)),
    ],
)
async def test_an_equal_answer_is_not_judged_twice(make: Callable[[Any], ErrorInfo]) -> None:
    classifier = Told()
    first = await asked(classifier, Trajectory([STEP], error=make(BODY)))
    again = await asked(classifier, Trajectory([STEP], error=make(copy.deepcopy(BODY))))
    assert len(classifier.threads) == 1
    assert first == again == RulesClassifier().classify(Trajectory([STEP], error=make(BODY)))


BODIES = (
    {"n": 1},
    {"n": True},
    {"n": 1.0},
    {"n": "1"},
    {"n": None},
    {1: "n"},
    [{"n": 1}],
    "{'n': 1}",
    None,
)


@table("known", BODIES)
def test_answers_that_differ_are_told_apart(known: object) -> None:
    classifier = RulesClassifier()
    classifier.classify(Trajectory(error=replace(DOWN, body=known)))
    for body in BODIES:
        remembered = classifier.remembered(Trajectory(error=replace(DOWN, body=body)))
        assert (remembered is not None) == (body is known)


def same(steps: int) -> list[Step]:
    return [STEP] * steps


@table(
    ("trajectory", "options"),
    [
        (Trajectory([STEP], error=replace(DOWN, message="another")), {}),
        (Trajectory([STEP], error=replace(DOWN, body={"error": "x"})), {}),
        (Trajectory([STEP]), {}),
        (Trajectory(same(3), error=DOWN), {}),
        (Trajectory(same(2) * 20, error=DOWN), {}),
        (Trajectory([STEP], error=DOWN, tools={"open": None}), {}),
        (Trajectory([STEP], error=DOWN), {"tools": ["open"]}),
        (Trajectory([STEP], error=DOWN, constraints=("nothing",)), {}),
        (Trajectory([STEP], error=DOWN), {"constraints": ["nothing"]}),
        (Trajectory([STEP], error=DOWN), {"overrides": [Override(Severity.FATAL, tool="search")]}),
    ],
)
async def test_anything_else_goes_to_classify(
    trajectory: Trajectory, options: dict[str, Any]
) -> None:
    classifier = knowing(**options)
    found = await asked(classifier, trajectory)
    assert len(classifier.threads) == 1
    assert found == RulesClassifier(**options).classify(trajectory)


async def test_no_function_of_the_users_runs_in_the_event_loop() -> None:
    threads: list[threading.Thread] = []

    def here(_: object) -> bool:
        threads.append(threading.current_thread())
        return True

    for options in ({"constraints": [here]}, {"overrides": [Override(Severity.FATAL, when=here)]}):
        classifier = knowing(**options)
        threads.clear()
        await asked(classifier, Trajectory([STEP], error=DOWN))
        await asked(classifier, Trajectory([STEP], error=DOWN, constraints=(here,)))
        assert threads
        assert threading.current_thread() not in threads


def test_what_is_remembered_is_of_one_classifier() -> None:
    gone = FailureType.EXTERNAL_FAULT
    mine = Rule("mine", gone, "gone", "status", ("503",), Severity.FATAL)
    trajectory = Trajectory(error=DOWN)
    default, own = RulesClassifier(), RulesClassifier((mine, *RULES))
    assert default.classify(trajectory).severity == "retriable"
    assert own.remembered(trajectory) is None
    assert own.classify(trajectory).severity == "fatal"
    assert own.remembered(trajectory) == own.classify(trajectory)


FAULTS: tuple[Callable[[], ErrorInfo], ...] = (
    lambda: DOWN,
    lambda: LIMITED,
    lambda: replace(LIMITED, body={"error": {"code": "insufficient_quota"}}),
    lambda: replace(DOWN, status_code=401),
    lambda: ErrorInfo("KeyError", mro=("builtins.KeyError",), message="'x'"),
    lambda: replace(DOWN, hint={"failure_type": "goal_drift"}),
)


@given(
    st.lists(
        st.tuples(st.sampled_from(FAULTS), st.integers(0, 20), st.sampled_from(["", "open"])),
        max_size=12,
    )
)
def test_what_is_remembered_is_what_would_be_said(
    cases: list[tuple[Callable[[], ErrorInfo], int, str]],
) -> None:
    classifier = RulesClassifier()
    for make, length, tool in cases:
        steps = [
            Step(tool_called=tool or "search", tool_output=str(at // 3)) for at in range(length)
        ]
        trajectory = Trajectory(steps, error=make(), tools={"search": None} if tool else None)
        remembered = classifier.remembered(trajectory)
        assert remembered in (None, RulesClassifier().classify(trajectory))
        classifier.classify(trajectory)


def test_many_threads_may_ask_one_classifier() -> None:
    classifier = RulesClassifier()
    wrong: list[object] = []

    def ask(status: Iterator[int]) -> None:
        for code in status:
            error = replace(DOWN, message=f"n {code}")
            found = classifier.classify(Trajectory(error=error))
            if found.failure_type != "external_fault":
                wrong.append(found)

    threads = [threading.Thread(target=ask, args=(iter(range(600)),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
