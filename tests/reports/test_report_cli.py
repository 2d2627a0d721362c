"""Reports in a terminal: of a run that has just failed, and of one in a store."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from triage.cli import main
from triage.reports import Report

AGENT = """
from triage import Agent, Escalate, FailurePolicy, Step
from triage.core import faults
from triage.plan import Capability, ExecutionPlan, Orchestrator, PlannedStep, Registry

async def fails(task, *, record_step):
    record_step(Step(tool_called="search", tool_output=["a"]))
    raise faults.ConfigurationFault(setting="API_URL")

async def works(task):
    return "fine"

def locked(): raise PermissionError("the door is locked")

step = PlannedStep("open", "door", "Open it", success_criteria="it is open")
door = Capability("door", "opens the door", locked, effect="read", retry=0)
planned = Orchestrator(Registry([door]), lambda request: ExecutionPlan((step,)))
policy = FailurePolicy(default=Escalate())
kept = Agent(fails, policy, store="sqlite:///runs.db", name="kept")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The current directory, with agents in a module of a name of its own."""
    name = f"agents_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(AGENT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


@pytest.mark.parametrize(
    ("form", "begins"), [("markdown", "# This did"), ("text", "This did"), ("json", "{")]
)
@pytest.mark.parametrize("audience", ["person", "developer"])
def test_a_run_that_fails_is_reported(
    folder: str, form: str, begins: str, audience: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", f"{folder}:fails", "Find it", "--quiet", "--report", form]
    assert main([*command, "--audience", audience]) == 1
    told = capsys.readouterr().out
    assert told.startswith(begins)
    assert "Find it" in told
    assert ("ConfigurationFault" in told) == (audience == "developer")


@pytest.mark.parametrize("store", [[], ["--store", "sqlite:///runs.db"]])
def test_the_report_of_a_planned_run_has_its_plan(
    folder: str, store: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"{folder}:planned", "Open", "--quiet", "--report", "json", *store]) == 1
    facts = Report.from_json(capsys.readouterr().out).facts
    told = [(one.name, one.outcome, one.objective, one.criteria) for one in facts.steps]
    assert told == [("door", "failed", "Open it", "it is open")]
    assert "replans" in [counter.name for counter in facts.counters]


def test_a_run_that_works_has_no_report(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{folder}:works", "x", "--quiet", "--report", "text"]) == 0
    assert capsys.readouterr().out == "fine\n"


def test_a_run_in_a_store_is_reported(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"{folder}:kept", "Find it", "--quiet", "--json"]) == 1
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    shown = ["runs", "show", run_id, "--store", "sqlite:///runs.db", "--report"]
    assert main([*shown, "json"]) == 0
    report = Report.from_json(capsys.readouterr().out)
    assert (report.facts.run_id, report.facts.agent) == (run_id, "kept")
    assert report.facts.user_message.startswith("Something is not set up rightly.")
    assert main([*shown, "text", "--audience", "person"]) == 0
    assert run_id not in capsys.readouterr().out
