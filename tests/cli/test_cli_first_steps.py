"""`triage init`, `triage doctor` and completion: what a user meets before the first run."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.text import Text

import triage
from cli.cli_runs import Office, runs_of_file, three_runs
from triage.cli import doctor, main
from triage.cli.app import app
from triage.cli.output import Listing, print_listing

__all__ = ["runs_of_file", "three_runs"]

ROOT = Path(triage.__file__).parents[1]


class TestInit:
    def test_what_it_writes_runs_as_it_stands_by_the_command_it_prints(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["init", "my agent"]) == 0
        change, run = re.findall(r"^  (.*)$", capsys.readouterr().out, re.MULTILINE)
        assert shlex.split(change) == ["cd", "my agent"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("TRIAGE_STORE", None)
        for command in (["agents.py"], ["-m", "triage.cli", *shlex.split(run)[1:]]):
            done = subprocess.run(
                [sys.executable, "-W", "error", *command],
                cwd=tmp_path / "my agent",
                env=environment,
                capture_output=True,
                encoding="utf-8",
                timeout=60,
                check=True,
            )
            assert done.stdout == "It opens at nine.\n"
        assert "attempt  2" in done.stderr

    def test_nothing_is_overwritten_unless_it_is_asked_for(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mine = tmp_path / "agents.py"
        mine.write_text("mine", encoding="utf-8")
        assert main(["init", str(tmp_path)]) == 2
        assert "agents.py would be overwritten; --force does so" in capsys.readouterr().err
        assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
        assert main(["init", str(tmp_path), "--force", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert [Path(path).name for path in report["written"]] == ["policy.toml", "agents.py"]
        assert mine.read_text() != "mine"

    def test_a_directory_that_cannot_be_made_is_said(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").touch()
        assert main(["init", str(tmp_path / "file" / "below")]) == 2
        assert "cannot be written" in capsys.readouterr().err


class TestDoctor:
    def newer(self) -> set[str]:
        """Return the packages of which another version is installed than the one tested with."""
        pins = dict(
            re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
        )
        return {
            package.name
            for package in doctor.PACKAGES
            if version(package.name) != pins[package.name]
        }

    def test_what_is_here_is_what_was_tested_and_the_store_is_well(
        self, three: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = three.do(lambda store: store.runs())
        capsys.readouterr()
        assert main(["doctor", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        states = {check["check"]: check["state"] for check in report["checks"]}
        assert report["wrong"] == 0
        assert {name for name, state in states.items() if state != "ok"} <= self.newer()
        assert {"Python", "openai", "langgraph", "store", "clock"} <= set(states)
        assert three.do(lambda store: store.runs()) == before
        assert main(["doctor"]) == 0
        assert "ok  store: answers, may be written, holds runs\n" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("spoil", "told"),
        [
            (lambda file: file.unlink(), "there is no file"),
            (lambda file: file.chmod(0o400), "StoreReadOnly"),
            (lambda file: file.write_bytes(b"no database" * 99), "StoreCorrupt"),
        ],
    )
    def test_a_store_that_is_not_well_is_wrong(
        self, spoil: object, told: str, three: Office, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert callable(spoil)
        spoil(three.folder / "runs.db")
        capsys.readouterr()
        assert main(["doctor"]) == 1
        assert re.search(rf"^ +wrong  store: .*{told}", capsys.readouterr().out, re.MULTILINE)

    @pytest.mark.parametrize(
        ("package", "state", "told"),
        [
            (("no-such", "mcp", "1.0", "1.0"), "absent", 'pip install "triage-recovery[mcp]"'),
            (("no-such", "", "1.0", "1.0"), "wrong", "is missing"),
            (("anyio", "", "99.1", "99.2"), "wrong", "is older than 99.1"),
            (("anyio", "", "1.0", "1.1"), "untested", "tested with 1.1"),
        ],
    )
    def test_a_package_that_is_another_than_what_was_tested_is_named(
        self,
        package: tuple[str, str, str, str],
        state: str,
        told: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.delenv("TRIAGE_STORE", raising=False)
        monkeypatch.setattr(doctor, "PACKAGES", (doctor.Package(*package),))
        assert main(["doctor"]) == (state == "wrong")
        out = capsys.readouterr().out
        assert re.search(rf"^ +{state}  {package[0]}: .*{re.escape(told)}", out, re.MULTILINE)
        assert "absent  store: none is named" in out

    def test_a_clock_that_is_apart_from_the_stores_is_wrong(
        self, three: Office, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(doctor, "now", lambda: 1_000_000_000.0)
        capsys.readouterr()
        assert main(["doctor"]) == 1
        out = capsys.readouterr().out
        assert "clock: it is years behind" in out
        assert "s from that of the store; questions expire" in out

    def test_its_table_is_what_is_declared_and_what_the_tests_are_run_with(self) -> None:
        with (ROOT / "pyproject.toml").open("rb") as file:
            project = tomllib.load(file)["project"]
        extras = {"": project["dependencies"], **project["optional-dependencies"]}
        del extras["all"]
        constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
        tested = dict(re.findall(r"^([\w-]+)==(\S+)$", constraints, re.MULTILINE))
        declared = {
            (*re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:,<\d+)?", text).groups(), extra)  # type: ignore[union-attr]
            for extra, texts in extras.items()
            for text in texts
            if not text.startswith("triage-recovery[")
        }
        assert {(one.name, one.least, one.extra) for one in doctor.PACKAGES} == declared
        assert {one.name: one.tested for one in doctor.PACKAGES}.items() <= tested.items()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_its_options(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--install-completion", "--shell", shell]) == 0
    scripts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    script = max(scripts, key=len)
    for name in app.resolved_commands():
        assert name.strip("-") in script
    for word in ("recover", "on-in-doubt", "dead_letter"):
        assert word in script


class Screen:
    """`triage` on a terminal of some height, with a pager that marks its lines."""

    def __init__(self, *arguments: str, lines: int = 5) -> None:
        self._reader, terminal = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LINES": str(lines),
                       "COLUMNS": "80", "TERM": "xterm", "PAGER": "sed s/^/paged:/"}  # fmt: skip
        command = [sys.executable, "-m", "triage.cli", *arguments]
        self.process = subprocess.Popen(command, stdin=terminal, stdout=terminal, env=environment)
        os.close(terminal)

    def read(self, until: Callable[[str], bool] = lambda _: False) -> str:
        """What is printed until then, or to the end."""
        printed = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while not until(printed.decode(errors="replace")):
                printed += os.read(self._reader, 65_536)
        return printed.decode()

    def close(self) -> int:
        code = self.process.wait(timeout=60)
        os.close(self._reader)
        return code


def test_what_is_longer_than_the_screen_goes_through_the_pager(three: Office) -> None:
    def shown(*arguments: str) -> str:
        screen = Screen("runs", "show", "waits-1", *arguments)
        printed = screen.read()
        assert screen.close() == 0
        return printed

    assert "paged:" in shown()
    assert "paged:" not in shown("--json")


def test_a_list_that_is_watched_is_drawn_anew_on_a_terminal(three: Office) -> None:
    screen = Screen("runs", "list", "--watch", lines=24)
    first = screen.read(lambda printed: "done-1" in printed)
    three.leave("new-1", "look")
    second = screen.read(lambda printed: printed.count("done-1") > 0 and "new-1" in printed)
    screen.process.send_signal(signal.SIGINT)
    screen.read()
    assert screen.close() == 130
    assert first.count("waits-1") == 1
    assert "\x1b[2J" in second


def test_a_watched_list_ends_though_the_interrupt_came_while_something_was_collected() -> None:
    class Garbage:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def look() -> Listing:
        Garbage()
        return Listing([Text("run-1")], ["run-1"])

    with pytest.raises(KeyboardInterrupt):
        print_listing(look, watch=True)
