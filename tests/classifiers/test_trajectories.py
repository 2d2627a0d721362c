"""Recorded runs of real agents, diagnosed without a model, where the recordings are at hand.

They lie beside the repository. What is promised is asserted of all of them and of each half.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.diagnosis import records
from bench.diagnosis.ablate import answers
from bench.diagnosis.scores import Answer, shares
from triage import RulesClassifier, Step, Trajectory

RECORDINGS = Path(__file__).parents[3] / "shared" / "trajectories"

if not (RECORDINGS / records.RECORDED).is_file():
    pytest.skip("there are no trajectories beside the repository", allow_module_level=True)


@pytest.fixture(scope="module")
def told() -> list[Answer]:
    return answers(records.recorded(RECORDINGS))


@pytest.fixture(params=[None, *records.HALVES])
def some(request: pytest.FixtureRequest, told: list[Answer]) -> list[Answer]:
    return [one for one in told if request.param in (None, records.half(one.record.id))]


def test_injected_faults_are_found_and_the_answers_are_right(some: list[Answer]) -> None:
    found = shares([one for one in some if one.record.source.startswith("sentinel")])
    assert found["right"] is not None
    assert found["precision"] is not None
    assert found["right"] >= 0.8
    assert found["precision"] >= 0.95


def test_runs_that_went_well_are_left_alone(some: list[Answer]) -> None:
    for source in records.HEALTHY:
        alarms = shares([one for one in some if one.record.source == source])["false alarms"]
        assert alarms is not None
        assert alarms <= 0.03


def test_ten_thousand_steps_are_read_in_a_fraction_of_a_second() -> None:
    texts = [f"result {at} " + "x" * 50 for at in range(10_000)]
    steps = [
        Step(action="search", tool_called="search", tool_input={"page": at}, tool_output=text)
        for at, text in enumerate(texts)
    ]
    long, seconds = Trajectory(steps, task="find the page"), []
    for _ in range(5):
        begun = time.process_time()
        RulesClassifier().classify(long)
        seconds.append(time.process_time() - begun)
    assert min(seconds) <= 0.3  # about 0.09 on a machine that does nothing else
