"""The table of the fault lab: what is counted as right, and what is said where there is no lab."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tables import table

from bench import envs
from bench.diagnosis import lab

FAULT: dict[str, Any] = {
    "id": "lib/one", "near_miss": False, "rule": "auth", "types": ["external_fault"],
    "severities": ["critical"], "retry_after": None, "retry_tolerance": 0.5, "retry_optional": False,
    "answer": "external_fault", "severity": "critical", "delay": None, "crashed": None,
}  # fmt: skip


def values(*changes: dict[str, Any]) -> dict[str, float | None]:
    found = [{**FAULT, "id": str(at), **change} for at, change in enumerate(changes)]
    return {figure.title: figure.value for figure in lab.figures(found)}


@table(
    ("change", "title", "value"),
    [
        ({}, "right", 1),
        ({"answer": "unknown"}, "right", 0),
        ({"answer": "unknown"}, "misrouted", 0),
        ({"answer": "loop_detected"}, "misrouted", 1),
        ({"crashed": "KeyError"}, "misrouted", 1),
        ({"severity": "retriable"}, "severity right", 0),
        ({"severity": None}, "severity right", 0),
        ({"retry_after": 3.0, "delay": 3.4}, "retry_after right", 1),
        ({"retry_after": 3.0}, "retry_after right", 0),
        ({"retry_after": 3.0, "retry_optional": True}, "retry_after right", None),
        ({}, "never to be retried", 1),
        ({"severity": "retriable"}, "never to be retried", 0),
        ({"rule": "timeout"}, "never to be retried", None),
        ({"types": ["unknown"], "answer": "unknown"}, "right", None),
        ({"near_miss": True, "types": ["unknown"]}, "near misses fallen for", 1),
        (
            {"near_miss": True, "types": ["unknown"], "answer": "unknown"},
            "near misses fallen for",
            0,
        ),
    ],
)
def test_a_record_counts_as_what_it_is(
    change: dict[str, Any], title: str, value: float | None
) -> None:
    assert values(change)[title] == value


def test_a_promise_is_kept_or_not() -> None:
    kept = {figure.title: figure.met for figure in lab.figures([FAULT] * 99)}
    assert all(kept.values())
    broken = lab.figures([*[FAULT] * 96, *[{**FAULT, "answer": "goal_drift"}] * 4])
    assert {figure.title for figure in broken if not figure.met} == {
        "right", "misrouted", "never to be retried",
    }  # fmt: skip


def test_given_interpreters_are_taken_in_their_order(tmp_path: Path) -> None:
    python = Path(sys.executable)
    assert lab.pythons(tmp_path, [python], make=False) == [python, None]
    assert lab.pythons(tmp_path, [python, python], make=False) == [python, python]


@pytest.mark.timeout(180)
def test_what_is_not_there_is_said_and_is_no_failure(tmp_path: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bench.diagnosis", "--no-peer", *options]
        command += ["--trajectories", str(tmp_path / "a"), "--faultlab", str(tmp_path / "b")]
        return subprocess.run(command, cwd=envs.ROOT, capture_output=True, text=True, check=False)

    done = run("--only", "trajectories", "faultlab", "--looks", "first look", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "there are no trajectories" in done.stdout
    assert "there is no fault lab" in done.stdout
    assert run("--only", "faultlab", "--strict").returncode == 1
