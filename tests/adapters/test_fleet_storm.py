"""A fleet of real processes that are killed, stopped, restarted and cut off loses and repeats nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_kinds import POSTGRES

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(180)
def test_a_small_storm_loses_nothing_and_repeats_nothing_beyond_what_is_promised() -> None:
    command = [
        sys.executable,
        "-m",
        "bench.fleet",
        "--runs",
        "20",
        "--kills",
        "5",
        "--workers",
        "2",
    ]
    command += ["--lease", "3", "--seed", "5", "--patience", "60"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TRIAGE_TEST_POSTGRES": POSTGRES}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=170, check=False
    )
    found = json.loads(done.stdout.splitlines()[-1])
    # How long a takeover takes is judged where the machine is not busy with other tests.
    kept = ("lost", "repeated_beyond", "dead_letters", "runs", "kills", "stops", "restarts", "cuts")
    assert {name: found[name] for name in kept} == {
        "lost": 0,
        "repeated_beyond": 0,
        "dead_letters": 0,
        "runs": 20,
        "kills": 4,
        "stops": 1,
        "restarts": 2,
        "cuts": 3,
    }, found
    assert found["questions"] == found["answered"]
