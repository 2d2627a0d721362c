"""Fleets of real processes: in a storm they lose and repeat nothing, and over workers limits hold."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from store_kinds import POSTGRES

from bench.fleet.storm import Storm
from fleet.fleets import database

ROOT = Path(__file__).parents[2]
LONGEST_S = 240
"""Seconds for a program that takes some twenty on a machine of its own."""


def last_line(*words: str) -> dict[str, Any]:
    """What a program of the bench has found."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TRIAGE_TEST_POSTGRES": POSTGRES}
    command = [sys.executable, "-m", *words]
    pipe = subprocess.PIPE
    program = subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)
    try:
        output, errors = program.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        program.terminate()  # it has a database to drop
        program.communicate(timeout=20)
        raise
    assert output, errors
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.timeout(280)
def test_a_small_storm_loses_nothing_and_repeats_nothing_beyond_what_is_promised() -> None:
    size = ["--runs", "12", "--kills", "4", "--workers", "2", "--restarts", "1"]
    found = last_line("bench.fleet", *size, "--lease", "3", "--seed", "5", "--patience", "60")
    # How long a takeover takes is judged where the machine is not busy with other tests.
    kept = ("lost", "repeated_beyond", "dead_letters", "runs", "kills", "stops", "restarts", "cuts")
    assert {name: found[name] for name in kept} == {
        "lost": 0,
        "repeated_beyond": 0,
        "dead_letters": 0,
        "runs": 12,
        "kills": 4,
        "stops": 1,
        "restarts": 1,
        "cuts": 3,
    }, found
    assert found["questions"] == found["answered"]


@pytest.mark.anyio
async def test_a_worker_that_dies_at_its_start_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STORE", "EFFECTS", "LEASE_S", "DRAIN_S"):
        monkeypatch.setenv(f"STORM_{name}", "")  # the storm sets them; afterwards they are unset
    with database() as url:
        storm = Storm(url, tmp_path, 1, 1, 1, 10.0, 1.0, random.Random(1))
        async with storm.workers_may_begin():
            beginning = asyncio.ensure_future(storm.begin_worker())
            while not storm.failed_starts:  # there are no tables
                await asyncio.sleep(0.02)
            await storm.fleet.migrate()
            await beginning
            assert len(storm.living) == 1
        await storm.fleet.close()
    assert "takes from" not in (tmp_path / "worker-0").read_text()


@pytest.mark.timeout(280)
def test_workers_that_are_restarted_one_by_one_hand_their_runs_over() -> None:
    size = ["--runs", "12", "--kills", "0", "--workers", "2", "--restarts", "1", "--drain", "0"]
    found = last_line("bench.fleet", *size, "--seed", "5", "--patience", "60")
    kept = ("lost", "repeated_beyond", "dead_letters", "kills", "restarts", "takeovers")
    assert {name: found[name] for name in kept} == dict.fromkeys(kept, 0) | {"restarts": 1}, found
    assert found["handovers"] > 0


@pytest.mark.timeout(280)
def test_limits_hold_over_several_workers() -> None:
    found = last_line("bench.fleet.limits", "--count", "7")
    assert found["runs"] == found["wanted"]
    beyond = {name: one for name, one in found["limits"].items() if one["seen"] > one["allowed"]}
    assert beyond == {}
