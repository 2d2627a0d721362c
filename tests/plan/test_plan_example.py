"""The analyst that `make demo-plan` runs: real rows, a real lock, a real wait for a person."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from llm_server import says, serving

from examples.plan.analyst import DATA, TASK, Desk
from examples.plan.planner import GOOD, INVENTED, TORN
from triage.plan import validate

# Each test waits for a demonstration.
pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).parents[2]


def shown(**more: str) -> str:
    """What the demonstration prints."""
    environment = {name: value for name, value in os.environ.items() if "OPENAI" not in name}
    finished = subprocess.run(
        [sys.executable, "-m", "examples.plan"],
        cwd=ROOT,
        env=environment | {"PYTHONIOENCODING": "utf-8"} | more,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def missed() -> dict[str, int]:
    """What each region was short of in October, by the shipped files alone."""
    with (DATA / "targets.csv").open(newline="", encoding="utf-8") as file:
        targets = {row["region"]: int(row["target"]) for row in csv.DictReader(file)}
    with closing(sqlite3.connect(f"file:{DATA / 'sales.sqlite'}?mode=ro", uri=True)) as database:
        sold = database.execute(
            "SELECT region, SUM(units) FROM sales WHERE substr(day, 1, 7) = '2025-10' GROUP BY 1"
        )
        return {region: targets[region] - n for region, n in sold if n < targets[region]}


def test_the_analyst_is_corrected_waits_and_publishes_once() -> None:
    text = shown()
    figures: dict[str, Any] = json.loads(text.splitlines()[-1])
    assert figures == {
        "done": True, "plans": 1, "replans": 2, "retries": 1, "steps": 5, "published": 1,
    }  # fmt: skip
    ((region, short),) = missed().items()
    assert f"{region} sold" in text
    assert f"{short} short (published as number 1)" in text
    for part in ('there is no capability "forecast"', 'nothing is kept under "targets"',
                 "query  failed", "asked  May this step be run"):  # fmt: skip
        assert part in text, part
    # Another process goes on: what was done before the question is not told, or done, again.
    assert text.count("query  done") == text.count("compare  done") == 1


def test_a_model_plans_where_there_is_a_key() -> None:
    with serving(says(INVENTED.to_json()), says(GOOD.to_json())) as server:
        text = shown(
            OPENAI_API_KEY="k", OPENAI_MODEL="m", OPENAI_BASE_URL=server.base_url("openai")
        )
        first, second = server.requests
    assert json.loads(first.shown)["task"] == TASK
    assert "forecast" in json.loads(second.shown)["feedback"]
    assert json.loads(text.splitlines()[-1])["replans"] == 1


def test_the_three_plans_of_the_script_are_wrong_wrong_and_right(tmp_path: Path) -> None:
    registry = Desk(tmp_path).registry()
    codes = [
        {issue.code for issue in validate(plan, registry).issues} for plan in (INVENTED, TORN, GOOD)
    ]
    assert codes == [{"unknown_capability"}, {"unknown_reference"}, set()]


def test_the_shipped_database_is_the_shipped_script() -> None:
    with (
        closing(sqlite3.connect(f"file:{DATA / 'sales.sqlite'}?mode=ro", uri=True)) as shipped,
        closing(sqlite3.connect(":memory:")) as built,
    ):
        built.executescript((DATA / "sales.sql").read_text(encoding="utf-8"))
        assert list(shipped.iterdump()) == list(built.iterdump())


def test_the_desk_reads_and_changes_nothing_by_reading(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.load("managers.csv")[0] == {"region": "north", "manager": "Ines Duarte"}
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        desk.query("DELETE FROM sales")
    with pytest.raises(ValueError, match="not the name of a file"):
        desk.load("../analyst.py")
