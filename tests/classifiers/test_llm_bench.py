"""`python -m bench.diagnosis --model …` scores a model; without a key it says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from llm_server import says, serving

from classifiers.test_llm_classifier import DRIFT

ROOT = Path(__file__).parents[2]


def run(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return subprocess.run(
        [sys.executable, "-m", "bench.diagnosis", "--model", "m", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**own, **variables},
        timeout=60,
        check=False,
    )


def test_without_a_key_it_says_so_and_exits_with_2() -> None:
    told = run()
    assert told.returncode == 2
    assert "OPENAI_API_KEY is not set" in told.stderr


def test_a_model_is_scored_beside_the_rules(tmp_path: Path) -> None:
    with serving(says({**DRIFT, "evidence": [], "failure_type": "loop_detected"})) as server:
        told = run(
            "--per-source", "5", "--trajectories", str(tmp_path),
            OPENAI_API_KEY="k", OPENAI_BASE_URL=server.base_url("openai"),
        )  # fmt: skip
    assert told.returncode == 0, told.stderr
    # Five faulty and five healthy runs of each of nine sets, which need no records of real agents.
    assert len(server.requests) == 90
    assert "90 requests, 9000 tokens in, 1800 out" in told.stdout
    first = next(line for line in told.stdout.splitlines() if line.startswith("| made up "))
    cells = [cell.strip() for cell in first.split("|")]
    assert sum(map(int, cells[2:4])) == 90
    assert cells[-3:-1] == ["1.000", "1.000"]  # it says a loop of healthy runs, too
