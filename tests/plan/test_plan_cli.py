"""`triage approve`: what a person does at the store alone, while no process of the run lives."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from triage import Agent, TriageError, TriageSuspendedError
from triage.cli import main
from triage.plan import ExecutionPlan
from triage.reports import Report
from triage.stores import open_store

from .runs import (
    ANSWER,
    FIND,
    GOOD,
    READ,
    RESULT,
    Approval,
    Fails,
    Kept,
    Script,
    orchestrator,
    plan,
)


class Place:
    """A store with one run that waits for approval."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.text = f"sqlite:///{folder / 'runs.db'}"
        self.world = Kept()
        self.options: dict[str, Any] = {"approval": Approval(), **options}
        self.planner = Script(GOOD, plan(FIND, READ, ANSWER))
        assert isinstance(self.go("run", "task", run_id="run-1"), TriageSuspendedError)

    def go(self, verb: str, *args: Any, **options: Any) -> Any:
        """Have a fresh orchestrator do something: its result, or its question."""

        made = orchestrator(self.planner, self.world, store=self.text, **self.options)

        async def work() -> Any:
            try:
                return await getattr(made, verb)(*args, **options)
            except TriageSuspendedError as asked:
                return asked
            finally:
                await made.store.close()

        return anyio.run(work)

    def __call__(self, *arguments: str) -> int:
        return main(["approve", "run-1", "--store", self.text, *arguments])


def test_it_shows_what_is_asked_and_answers_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path)
    assert place() == 0
    shown = capsys.readouterr().out
    assert "May this plan be run" in shown
    assert "3. pay do bill" in shown
    assert '{"cents": 5}' in shown
    assert place("--json") == 0
    request = json.loads(capsys.readouterr().out)
    assert (request["run_id"], request["kind"]) == ("run-1", "plan")
    assert place.world.effects == []


def test_what_is_approved_goes_on_when_it_is_recovered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path)
    assert place("--yes", "--by", "ann") == 0
    assert "goes on once it is recovered" in capsys.readouterr().out
    assert place("--yes") == 1
    assert "first by ann: approved" in capsys.readouterr().err
    assert place.go("recover", "run-1") == RESULT
    assert place.world.done()["pay 5"] == 1


def test_what_is_rejected_is_planned_anew(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place("--reject", "do not pay") == 0
    asked = place.go("recover", "run-1")
    assert isinstance(asked, TriageSuspendedError)
    assert "do not pay" in place.planner.requests[1].feedback
    assert place("--yes") == 0
    assert place.go("recover", "run-1") == RESULT
    assert place.world.done()["pay 5"] == 0


def test_a_plan_is_saved_edited_and_run_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file = Place(tmp_path), tmp_path / "plan.json"
    assert place("--save", str(file)) == 0
    saved = json.loads(file.read_text())
    saved["steps"][2]["parameters"]["cents"] = 1
    file.write_text(json.dumps(saved))
    assert place("--plan", str(file)) == 0
    assert place.go("recover", "run-1") == RESULT
    assert place.world.done()["pay 1"] == 1
    assert place.planner.count == 1
    assert ExecutionPlan.load(file).steps[2].parameters["cents"] == 1


def test_names_that_the_run_does_not_know_are_refused_before_anything_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file = Place(tmp_path), tmp_path / "plan.json"
    assert place("--save", str(file)) == 0
    text = file.read_text()
    file.write_text(text.replace('"pay"', '"pya"'))
    assert place("--plan", str(file)) == 2
    said = capsys.readouterr().err
    assert 'no capability "pya"' in said
    assert 'did you mean "pay"' in said
    file.write_text(text)
    assert place("--plan", str(file)) == 0
    assert place.go("recover", "run-1") == RESULT
    assert place.planner.count == 1


def test_what_cannot_be_answered_so_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, approval=Approval(of="step"))
    file = tmp_path / "plan.json"
    assert place("--plan", str(file)) == 2
    file.write_text("{}")
    assert place("--plan", str(file)) == 2
    assert "steps: is missing" in capsys.readouterr().err
    GOOD.save(file)
    assert place("--plan", str(file)) == 2
    assert "a step is asked about, not a plan" in capsys.readouterr().err
    assert place("--save", str(file)) == 2
    assert main(["approve", "nobody", "--store", place.text]) == 2
    assert place("--yes", "--reject", "no") == 2


def test_the_report_of_a_run_that_has_ended_shows_its_plan_without_the_orchestrator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"sqlite:///{tmp_path / 'runs.db'}"
    store = open_store(text)
    made = orchestrator(Script(GOOD), store=store, fails=Fails(read=PermissionError("no")))

    async def work() -> Report:
        with pytest.raises(TriageError) as ended:
            await made.run("task", run_id="run-1")
        assert isinstance(ended.value.report, Report)
        await store.close()
        return ended.value.report

    told = anyio.run(work)
    assert main(["runs", "show", "run-1", "--store", text, "--report", "json"]) == 0
    shown = Report.from_json(capsys.readouterr().out)
    assert [step.outcome for step in shown.facts.steps] == ["done", "failed", "open", "open"]
    assert shown.facts.steps == told.facts.steps
    assert shown.facts.failed == "step 2, read"
    assert [(one.name, one.used) for one in shown.facts.counters] == [
        (one.name, one.used) for one in told.facts.counters
    ]
    assert {one.name for one in shown.facts.capabilities} == {
        one.name for one in told.facts.capabilities
    }


class Inside:
    """A store with a run that waits for approval inside two others, the outermost `run-1`."""

    def __init__(self, folder: Path) -> None:
        self.text = f"sqlite:///{folder / 'runs.db'}"
        self.world = Kept()
        self.planner = Script(GOOD, plan(FIND, READ, ANSWER))
        assert isinstance(self.go("run", "task", run_id="run-1"), TriageSuspendedError)

    def go(self, verb: str, *args: Any, **options: Any) -> Any:
        made = orchestrator(self.planner, self.world, approval=Approval())
        desk = Agent(made.run, name="desk")
        office = Agent(desk.run, name="office", store=open_store(self.text))

        async def work() -> Any:
            try:
                return await getattr(office, verb)(*args, **options)
            except TriageSuspendedError as asked:
                return asked
            finally:
                await office.store.close()

        return anyio.run(work)

    def __call__(self, *arguments: str, run: str = "run-1") -> int:
        return main(["approve", run, "--store", self.text, *arguments])

    def show(self, *arguments: str) -> int:
        return main(["runs", "show", "run-1", "--store", self.text, *arguments])


def test_a_plan_inside_other_runs_is_shown_rejected_edited_and_approved_by_the_outermost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside, file = Inside(tmp_path), tmp_path / "plan.json"
    assert inside.show() == 0
    shown = capsys.readouterr().out
    assert "triage runs resolve run-1 approve" in shown
    assert "doubt" not in shown
    assert "happened" not in shown
    assert inside() == 0
    assert "3. pay do bill" in capsys.readouterr().out
    assert inside("--reject", "do not pay") == 0
    assert isinstance(inside.go("recover", "run-1"), TriageSuspendedError)
    assert "do not pay" in inside.planner.requests[1].feedback
    assert inside("--save", str(file)) == 0
    GOOD.save(file)
    assert inside("--plan", str(file)) == 0
    assert inside("--yes") == 1
    assert inside.go("recover", "run-1") == RESULT
    assert inside.planner.count == 2
    assert inside.world.done()["pay 5"] == 1


def test_a_plan_inside_other_runs_is_answered_by_its_own_id_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = Inside(tmp_path)

    async def innermost() -> str:
        store = open_store(inside.text)
        (own,) = [run.run_id for run in await store.runs() if run.agent == "orchestrator"]
        await store.close()
        return own

    own = anyio.run(innermost)
    assert own != "run-1"
    assert inside("--yes", run=own) == 0
    assert inside.show("--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] == "running"
    assert inside.go("recover", "run-1") == RESULT


ROOM = """
from triage.plan import Approval, Orchestrator, Registry, capability


@capability("measure", "measures a sensor", provides="READING", effect="read")
async def measure(sensor: str):
    return {"sensor": sensor, "value": 21}


def planner(request):
    return {"steps": [{"context_key": "t", "capability": "measure", "parameters": {"sensor": "hall"}}]}


async def say(reading):
    return f"{reading['value']} degrees in the {reading['sensor']}"


room = Orchestrator(Registry([measure]), planner, responder=say, approval=Approval())
"""


def test_an_orchestrator_is_named_as_an_agent_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rooms.py").write_text(ROOM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "rooms", raising=False)
    monkeypatch.setenv("TRIAGE_STORE", "sqlite:///runs.db")
    assert main(["run", "rooms:room", "How warm is it?", "--run-id", "warm", "--quiet"]) != 0
    said = capsys.readouterr().err
    assert "May this plan be run" in said
    assert said.endswith("an answer without the token: triage approve warm\n")
    assert main(["approve", "warm", "--yes"]) == 0
    assert capsys.readouterr().out.endswith("or: triage runs recover warm rooms:room\n")
    assert main(["runs", "recover", "warm", "rooms:room", "--quiet"]) == 0
    assert capsys.readouterr().out == "21 degrees in the hall\n"
    assert main(["supervise", "--agent", "rooms:room", "--once", "--quiet"]) == 0
