"""The scorer of diagnoses: its data, what an answer counts as, and rules that are switched off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tables import table

from bench import envs
from bench.diagnosis import records
from bench.diagnosis.ablate import Need, answers, needs
from bench.diagnosis.scores import Answer, Told, exception_shares, shares, tenths
from triage import Diagnosis, FailureType, Severity, Step
from triage.core.failures import ErrorInfo

TYPES = {one.value for one in FailureType}
CALL = Step(tool_called="look", tool_input={"at": 1}, tool_output="nothing")


def record(*labels: str, where: int | None = None, steps: Any = (CALL,)) -> records.Record:
    healthy = not labels
    return records.Record("a/b", "a", "task", tuple(steps), frozenset(labels), where, healthy)


def answer(kind: str, *labels: str, step: int | None = None, confidence: float = 0.9) -> Answer:
    return Answer(record(*labels, where=2 if labels else None), kind, step, confidence, "rule")


def test_the_runs_have_labels_a_decisive_step_and_ids_of_their_own() -> None:
    runs = list(records.made_up())
    assert len({one.id for one in runs}) == len(runs) > 2_000
    assert {half for one in runs if (half := records.half(one.id))} == set(records.HALVES)
    for one in runs:
        assert one.labels <= TYPES
        assert one.where is None if one.healthy else one.where in range(len(one.steps))


def test_the_exceptions_have_labels_and_the_data_is_small() -> None:
    cases = list(records.exceptions())
    assert len({one.id for one in cases}) == len(cases) > 1_000
    assert all(one.types and set(one.types) <= TYPES for one in cases)
    assert any(one.near_miss for one in cases)
    assert sum(path.stat().st_size for path in records.DATA.iterdir()) <= 2_000_000


def test_figures_of_runs() -> None:
    told = [
        answer("loop_detected", "loop_detected", step=2),
        answer("timeout", "external_fault"),
        answer("goal_drift", "loop_detected", step=1),
        answer("unknown", "schema_mismatch"),
        answer("unknown"),
        answer("external_fault"),
    ]
    found = shares(told)
    assert (found["right"], found["precision"], found["exact step"]) == (0.5, 0.5, 0.25)
    assert found["false alarms"] == 0.5
    # loop 2/3, external 1 (a false alarm is no label's), schema 0
    assert found["macro-F1"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert set(shares([]).values()) == {None}


def test_answers_are_counted_by_tenths_of_their_confidence() -> None:
    told = [answer("goal_drift", "goal_drift", confidence=one) for one in (0.5, 0.55, 1.0)]
    told.append(answer("loop_detected", "goal_drift", confidence=0.59))
    found = {one.at: (one.answers, one.right) for one in tenths([*told, answer("unknown")])}
    assert found == {5: (3, pytest.approx(2 / 3)), 9: (1, 1)}


CASE = records.Case(
    id="lib/one",
    error=ErrorInfo("E"),
    types=("external_fault",),
    causes=("rate_limited",),
    passes=True,
    retry_after_s=20.0,
    near_miss=False,
)
FOUND = Diagnosis(
    FailureType.EXTERNAL_FAULT,
    cause="rate_limited",
    severity=Severity.RETRIABLE,
    retry_after_s=20.4,
)


@table(
    ("change", "figure", "value"),
    [
        ({}, "right", 1),
        ({"failure_type": FailureType.UNKNOWN}, "right", 0),
        ({"failure_type": FailureType.UNKNOWN}, "abstained", 1),
        ({"failure_type": FailureType.UNKNOWN}, "misrouted", 0),
        ({"failure_type": FailureType.GOAL_DRIFT}, "misrouted", 1),
        ({"cause": "quota_exhausted"}, "cause", 0),
        ({"severity": Severity.CRITICAL}, "may pass", 0),
        ({"retry_after_s": None}, "delay", 0),
        ({"retry_after_s": 22.0}, "delay", 0),
        ({}, "delay", 1),
    ],
)
def test_figures_of_an_exception(change: dict[str, Any], figure: str, value: float) -> None:
    told = Told(CASE, msgspec.structs.replace(FOUND, **change))
    assert exception_shares([told])[figure] == value
    assert bool(told.faults) is (change != {})


LOOP = record("loop_detected", where=0, steps=[CALL] * 3)
ENDED = record("hallucinated_state", steps=[CALL, Step(llm_output="It is small.")])


def test_a_rule_that_is_switched_off_is_missed_where_it_was_right() -> None:
    names = ["steps.loop", "steps.post_mortem", "steps.cycle"]
    assert needs(names, [LOOP, ENDED, record()]) == [
        Need("steps.loop", 2, 2, 0),
        Need("steps.post_mortem", 1, 1, 0),
        Need("steps.cycle", 0, 0, 0),
    ]
    assert [one.kind for one in answers([LOOP, ENDED])] == ["loop_detected", "unknown"]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.diagnosis", *options]
    return subprocess.run(command, cwd=envs.ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(180)
def test_what_is_not_there_is_said_and_exceptions_have_a_column_of_each_half(
    tmp_path: Path,
) -> None:
    done = run("--only", "exceptions", "--trajectories", str(tmp_path), "--misses")
    assert done.returncode == 0, done.stderr
    assert "there are no runs of real agents" in done.stdout
    assert "right, dev" in done.stdout
    assert "right, held out" in done.stdout
    for case in records.exceptions():
        if f"\n\n{case.id}: " in done.stdout:
            assert records.half(case.id) == records.HALVES[0]
