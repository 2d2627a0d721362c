"""`triage supervise` as a process: what it does, how it is asked, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from cli_incidents import DIED, Room, room_of_file

import triage
from triage.cli import main
from triage.incidents import Status

__all__ = ["room_of_file"]
ROOT = Path(triage.__file__).parents[1]
KEY = "sk-" + "a1" * 20


class Process:
    """A supervisor in the current directory."""

    def __init__(self, *arguments: str) -> None:
        self._stderr = Path("stderr.txt").open("wb")  # noqa: SIM115 - closed when it has ended
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "triage.cli", "supervise", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )

    def tell(self, which: signal.Signals) -> None:
        self._process.send_signal(which)

    def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        code = self._process.wait()
        self._stderr.close()
        assert self._process.stdout is not None
        assert self._process.stdout.read() == b""
        return code

    @property
    def said(self) -> list[str]:
        return Path("stderr.txt").read_text(encoding="utf-8").splitlines()

    def until(self, true: Callable[[], Any]) -> Any:
        """What it brings about, at last, unless it ends before."""
        while not (found := true()):
            assert self._process.poll() is None, "\n".join(self.said)
            time.sleep(0.01)
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stderr.close()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextlib.contextmanager
def supervised(*arguments: str) -> Generator[Process]:
    process = Process("--interval", "0.05", *arguments)
    try:
        yield process
    finally:
        process.kill()


def lines(name: str) -> list[str]:
    path = Path(name)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_a_lost_run_is_found_gone_on_with_and_told_of(room: Room) -> None:
    room.leave("run-1")
    room.report(f"Merge conflict in a.py \x1b[31m api_key={KEY}", task_id="TASK-2")
    sinks = ("--sink", "file:rest.jsonl", "--sink", "architect=agents:mail")
    with supervised("--agent", "agents:looker", *sinks, "--health", "h.json") as process:
        process.until(lambda: len(lines("mail.txt")) == 2 and len(lines("rest.jsonl")) == 3)
        process.tell(signal.SIGTERM)
        assert process.ended() == 0
        said = process.said
    assert sorted(lines("mail.txt")) == ["architect detected", "architect escalated"]
    kinds = [json.loads(line)["kind"] for line in lines("rest.jsonl")]
    assert sorted(kinds) == ["detected", "handling", "recovered"]
    assert room.run("run-1").status == "done"
    assert "looking at fly" in said
    assert any(line.endswith("supervises; SIGTERM stops it") for line in said)
    assert any("err-002: auto_restart, done" in line for line in said)
    assert said[-1].endswith("has stopped")
    assert not any(KEY in line or "\x1b" in line for line in [*said, *lines("rest.jsonl")])


def test_told_to_stop_it_finishes_what_it_holds(room: Room) -> None:
    for number in range(3):
        room.report(task_id=f"TASK-{number}")
    with supervised("--hook", "restart=agents:waits", "--at-once", "1") as process:
        process.until(lambda: lines("inside"))
        process.tell(signal.SIGTERM)
        process.until(lambda: any("is told to stop" in line for line in process.said))
        Path("go-on").touch()
        assert process.ended() == 0
    numbers = room.do(lambda desk: desk.stats())["by_status"]
    assert (numbers["recovered"], numbers["detected"], numbers["recovering"]) == (1, 2, 0)


@pytest.mark.parametrize(
    ("hook", "in_doubt", "status"),
    [("waits", "rerun", Status.WAITING), ("hangs", "escalate", Status.ESCALATED)],
)
def test_a_second_signal_does_not_wait_and_gives_back(
    hook: str, in_doubt: str, status: Status, room: Room
) -> None:
    room.report()
    options = ("--hook", f"restart=agents:{hook}", "--on-in-doubt", in_doubt, "--grace", "3600")
    with supervised(*options) as process:
        process.until(lambda: lines("inside"))
        process.tell(signal.SIGTERM)
        process.until(lambda: any("is told to stop" in line for line in process.said))
        process.tell(signal.SIGTERM)
        assert process.ended() == 0
        behind = any("left behind" in line for line in process.said)
    one = room.incident()
    assert (one.status, one.owner, one.lease_until) == (status, None, None)
    assert behind is (hook == "hangs")  # a function in a thread cannot be stopped by anybody


def test_what_is_killed_is_taken_up_by_another_when_its_lease_ends(room: Room) -> None:
    room.report()
    with supervised("--hook", "restart=agents:waits") as process:
        key = process.until(lambda: lines("inside"))
        process.kill()
    one = room.incident()
    assert one.status is Status.RECOVERING
    Path("inside").unlink()
    Path("go-on").touch()
    with supervised("--hook", "restart=agents:waits", "--on-in-doubt", "rerun") as process:
        process.until(lambda: any("supervises" in line for line in process.said))
        assert not Path("inside").exists()  # its lease lives
        room.execute("UPDATE incidents SET lease_until = lease_until - 60")
        assert process.until(lambda: lines("inside")) == key
        process.until(lambda: room.incident().status is Status.RECOVERED)
        process.tell(signal.SIGTERM)
        assert process.ended() == 0
    assert room.incident().attempt == 2


def test_how_it_does_can_be_asked(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    def status() -> dict[str, Any]:
        capsys.readouterr()
        code = main(["supervise", "--status", "h.json"])
        out, err = capsys.readouterr()
        return {**json.loads(out), "code": code, "said": err}

    with supervised("--quiet", "--health", "h.json", "--owner", "orch-1") as process:
        process.until(lambda: lines("h.json") and status()["state"] == "running")
        told = status()
        assert (told["code"], told["healthy"], told["owner"]) == (0, True, "orch-1")
        room.execute("ALTER TABLE incidents RENAME TO gone")
        process.until(lambda: status()["state"] == "failing")
        told = status()
        assert told["code"] == 1
        assert re.search(r"it is failing: (look|recover|tell): StoreCorrupt", told["said"])
        room.execute("ALTER TABLE gone RENAME TO incidents")
        process.until(lambda: status()["code"] == 0)
        process.tell(signal.SIGUSR1)
        line = process.until(lambda: [line for line in process.said if line.startswith("{")])[0]
        assert json.loads(line)["pid"] == told["pid"]
        process.tell(signal.SIGINT)
        assert process.ended() == 0
    told = status()
    assert (told["code"], told["state"]) == (1, "stopped")
    # One that was killed writes no more.
    silent = {**told, "state": "running", "healthy": True, "written": time.time() - 60}
    Path("h.json").write_text(json.dumps(silent), encoding="utf-8")
    told = status()
    assert told["code"] == 1
    assert "nobody has written it for 60 s" in told["said"]


def test_one_round_can_be_asked_for(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    room.report()
    sink = ("--sink", "file:mail.jsonl")
    assert main(["supervise", "--once", "--hook", "restart=agents:restart", *sink]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"detected": 0, "handled": 1, "failed": 0, "unheard": 0, "delivered": 2}
    assert len(lines("mail.jsonl")) == 2
    room.report(task_id="TASK-2")
    assert main(["supervise", "--once", "--quiet", "--hook", "restart=agents:refuses"]) == 1
    assert json.loads(capsys.readouterr().out)["failed"] == 1
    sys.modules.pop("agents", None)


def test_the_desk_may_be_ones_own(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    room.report(DIED)
    assert main(["supervise", "--once", "--quiet", "--desk", "agents:desk"]) == 0
    assert json.loads(capsys.readouterr().out)["handled"] == 1
    assert room.do(lambda desk: world.log())[-1].by == "ours"
    sys.modules.pop("agents", None)
