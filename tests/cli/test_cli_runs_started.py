"""`triage run` with a store: the run outlives the command, and `triage runs` goes on with it."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from cli.cli_runs import Office, runs_of_stores
from cli.test_cli_runs_going_on import program
from triage.cli import main
from triage.cli.options import suggested

__all__ = ["runs_of_stores"]


def test_a_run_is_kept_under_its_id(runs: Office, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "agents:look", "fly", "--store", runs.text, "--run-id", "trip-1", "--quiet"]
    assert main([*command, "--arg", "days=3"]) == 0
    assert json.loads(capsys.readouterr().out)["days"] == 3
    assert runs.info("trip-1").status == "done"
    assert main(command) == 2
    assert "trip-1 is taken" in capsys.readouterr().err


def test_an_id_alone_takes_the_store_of_the_environment(
    runs: Office, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "agents:look", "fly", "--run-id", "trip-2", "--quiet"]) == 0
    assert runs.info("trip-2").status == "done"
    monkeypatch.delenv("TRIAGE_STORE")
    capsys.readouterr()
    assert main(["run", "agents:look", "fly", "--run-id", "trip-3", "--quiet"]) == 2
    assert "say where the runs are" in capsys.readouterr().err


def test_the_store_of_the_environment_is_meant_without_an_id_too(runs: Office) -> None:
    assert main(["run", "agents:look", "fly", "--quiet"]) == 0
    (info,) = runs.do(lambda store: store.runs())
    assert (info.agent, info.status) == ("look", "done")


def test_what_is_suggested_can_be_typed_with_a_store_that_must_be_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRIAGE_STORE", raising=False)
    office = Office(f"sqlite:///{tmp_path}/of ann's.db", tmp_path)
    office.leave("r1", "look")
    assert main(["runs", "show", "r1", "--store", office.text]) == 0
    (suggested,) = re.findall(r"recover  triage (.*)", capsys.readouterr().out)
    assert shlex.split(suggested) == [
        "runs", "recover", "r1", "module:agent", "--store", office.text,
    ]  # fmt: skip
    (tmp_path / "here.py").write_text("async def look(task): ...\nseen = Agent(look)")
    assert main(["runs", "resolve", "r2", "rerun", "--store", office.text]) == 2
    assert shlex.quote(office.text) in capsys.readouterr().err
    assert main(["runs", "show", "r1", "--store", office.text]) == 0
    assert "triage runs recover r1 here:seen --store" in capsys.readouterr().out
    monkeypatch.setenv("TRIAGE_STORE", office.text)
    assert main(["runs", "show", "r1", "--store", office.text]) == 0
    assert "triage runs recover r1 here:seen\n" in capsys.readouterr().out


def test_a_password_is_not_repeated_in_what_is_suggested() -> None:
    url = "postgresql://ann:hunter22hunter22@db/runs"
    told = suggested("runs", "show", "r 1", store=url)
    assert told == """triage runs show 'r 1' --store "$TRIAGE_STORE\""""


def test_a_store_may_be_new(tmp_path: Path, runs: Office) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    assert main(["run", "agents:look", "fly", "--store", url, "--quiet"]) == 0
    assert (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--store", "memory:"], "name another"),
        (["--run-id", "no id"], "must be 1 to 128"),
        (["--arg", "run_id=3"], "leave it out"),
    ],
)
def test_what_cannot_be_kept_is_said_and_exits_with_2(
    options: list[str], said: str, runs: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "agents:look", "fly", "--store", runs.text, "--quiet"]
    assert main([*command, *options]) == 2
    assert said in capsys.readouterr().err


def test_one_that_waits_is_answered_by_its_token(
    runs: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "agents:desk", "fly", "--store", runs.text, "--run-id", "ask-1", "--quiet"]
    assert main(command) == 3
    err = capsys.readouterr().err
    (suggested,) = re.findall(r"triage (runs resume .*)", err)
    assert main([*shlex.split(suggested), "--quiet"]) == 3
    token = re.findall(r"token (\S+):", capsys.readouterr().err)[0]
    answer = ["edit", "--payload", '{"days": 2}', "--quiet"]
    assert runs("resume", token, "agents:desk", *answer) == 0
    assert json.loads(capsys.readouterr().out) == ["fly", 2, None]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_one_whose_process_was_stopped_is_gone_on_with(how: Any, runs: Office) -> None:
    started = ["run", "agents:waits", "the work", "--store", runs.text, "--run-id", "w-1"]
    with program(*started, "--quiet") as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "ready\n"
        child.send_signal(how)
        _, err = child.communicate(timeout=60)
    if how == signal.SIGINT:
        assert child.returncode == 130
        assert "triage runs recover w-1 agents:waits goes on" in err
    (runs.folder / "go").touch()
    force = ["--force"] if how == signal.SIGKILL else []
    with program("runs", "recover", "w-1", "agents:waits", *force) as recovering:
        out, err = recovering.communicate(timeout=60)
    assert (recovering.returncode, out) == (0, "the work is done\n"), err
