"""Recorded runs of real agents, diagnosed without a model, where the recordings are at hand.

They lie beside the repository. What is promised is asserted of all of them and of each half.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import pytest

from bench import envs
from bench.diagnosis import ours, peer, records, scores

RECORDINGS = Path(__file__).parents[3] / "shared" / "trajectories"
PEER = envs.HOME / "triage-agent" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

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
    assert line.hits >= 0.85
    assert line.precision >= 0.95


@pytest.mark.parametrize("source", records.HEALTHY)
def test_runs_that_went_well_are_left_alone(pairs: list[scores.Pair], source: str) -> None:
    answered = scores.line("", of(pairs, source)).answered
    assert answered is not None
    assert answered <= 0.03


def test_loops_are_found_as_people_see_them(pairs: list[scores.Pair]) -> None:
    assert scores.loop_f1(of(pairs, "mast_human_ag2", "mast_human_metagpt")) >= 0.55


def test_the_step_is_named_better_than_by_the_best_position(pairs: list[scores.Pair]) -> None:
    given = of(pairs, "whowhen_ag")
    exact, best = scores.line("", given).exact, scores.best_position(given)
    assert exact is not None
    assert best is not None
    assert exact > max(0.27, best[1])


@pytest.mark.parametrize("source", ["whowhen_ag", "sentinel_fault"])
def test_types_are_told_apart_better_than_by_a_constant(
    told: list[scores.Pair], source: str
) -> None:
    given = of(told, source)
    line = scores.line("", given)
    assert (line.macro_f1 or 0) > scores.constants(given, scores.macro_f1)[1]
    constant = scores.constants(given, lambda some: scores.line("", some).precision)[1]
    assert (line.precision or 0) > constant


def test_ten_thousand_steps_take_a_fifth_of_the_time_at_most() -> None:
    if not PEER.is_file():
        pytest.skip(
            "triage-agent is not installed: python -m bench.diagnosis makes its environment"
        )
    assert median(ours.seconds() / peer.seconds(PEER) for _ in range(3)) <= 0.2
