"""Recorded runs of real agents, diagnosed without a model, where the recordings are at hand.

They lie beside the repository. What is promised is asserted of all of them and of each half.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.diagnosis import ours, records, scores

RECORDINGS = Path(__file__).parents[3] / "shared" / "trajectories"

if not (RECORDINGS / records.FILE).is_file():
    pytest.skip("there are no trajectories beside the repository", allow_module_level=True)


@pytest.fixture(scope="module")
def told() -> list[scores.Pair]:
    return ours.answers(records.read(RECORDINGS))


@pytest.fixture(params=[None, 0, 1], ids=["all", "first half", "second half"])
def pairs(request: pytest.FixtureRequest, told: list[scores.Pair]) -> list[scores.Pair]:
    return [pair for pair in told if request.param is None or pair[0].half == request.param]


def of(pairs: list[scores.Pair], *sources: str) -> list[scores.Pair]:
    return [pair for pair in pairs if pair[0].source in sources]


def test_injected_faults_are_found_and_the_answers_are_right(pairs: list[scores.Pair]) -> None:
    line = scores.line("", of(pairs, "sentinel_fault", "sentinel_healthy"))
    assert line.hits is not None
    assert line.precision is not None
    assert line.hits >= 0.8
    assert line.precision >= 0.95


@pytest.mark.parametrize("source", records.HEALTHY)
def test_runs_that_went_well_are_left_alone(pairs: list[scores.Pair], source: str) -> None:
    answered = scores.line("", of(pairs, source)).answered
    assert answered is not None
    assert answered <= 0.03


def test_ten_thousand_steps_are_read_in_a_fraction_of_a_second() -> None:
    assert ours.seconds() <= 0.3  # about 0.09 on a machine that does nothing else
