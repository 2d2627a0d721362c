"""`triage fleet` and `triage worker`: tables, a worker that works and leaves, and misuse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from fleets import database, dbos_fleet

from triage import Agent
from triage.cli import main

Told = Callable[..., tuple[int, str, str]]
AGENTS = """
from triage import Agent
from triage.adapters.dbos import Fleet

async def desk(task):
    return [task]

fleet = Fleet([Agent(desk)], {url!r}, name="cli")
other = 7
"""


async def desk(task: Any) -> Any:
    return [task]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("fleet")
    with database() as url:
        (folder / "agents.py").write_text(AGENTS.format(url=url), encoding="utf-8")
        yield folder, url


@pytest.fixture
def told(
    place: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Told:
    """Carry out a command in the folder of the fleet: its exit code and what it has printed."""
    monkeypatch.chdir(place[0])
    monkeypatch.syspath_prepend(str(place[0]))

    def tell(*words: str) -> tuple[int, str, str]:
        sys.modules.pop("agents", None)
        code = main(words)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return tell


def test_a_fleet_begins_with_its_tables_and_a_worker_works_until_it_is_told_to_stop(
    place: tuple[Path, str], told: Told
) -> None:
    folder, url = place
    code, _, error = told("worker", "agents:fleet")
    assert (code, "triage fleet migrate" in error) == (2, True)
    assert "triage fleet migrate" in told("doctor", "--fleet", "agents:fleet")[1]
    assert told("fleet", "migrate", "agents:fleet")[0] == 0
    fleet = dbos_fleet(url, [Agent(desk)], name="cli")

    async def enqueue() -> None:
        await fleet.enqueue("desk", "task", run_id="order-1")
        await fleet.close()

    anyio.run(enqueue)
    code, output, _ = told("fleet", "show", "agents:fleet", "--json")
    (shown,) = json.loads(output)
    assert (shown["run_id"], shown["queue"], shown["state"]) == ("order-1", "desk", "queued")
    assert "a worker of queue desk, version cli:1" in told("fleet", "show", "agents:fleet")[1]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [sys.executable, "-m", "triage.cli", "worker", "agents:fleet"]
    words += ["--queue", "desk", "--concurrency", "2"]
    worker = subprocess.Popen(words, cwd=folder, env=env, stderr=subprocess.PIPE, text=True)

    async def result() -> Any:
        found = await fleet.result("order-1", timeout_s=60)
        await fleet.close()
        return found

    assert anyio.run(result) == ["task"]
    code, output, _ = told("runs", "list", "--fleet", "agents:fleet", "--json")
    (listed,) = [json.loads(line) for line in output.splitlines()]
    assert (listed["queue"], listed["engine"]) == ("desk", "dbos")
    assert f"-{worker.pid}-" in listed["worker"]
    assert "waited" in told("runs", "list", "--fleet", "agents:fleet", "--no-pager")[1]
    code, output, _ = told("doctor", "--fleet", "agents:fleet")
    assert "fleet: dbos answers; 0 runs go on, 0 wait" in output
    worker.send_signal(signal.SIGTERM)
    _, error = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert "takes from desk" in error
    assert "has left, and gave back 0 runs" in error
    assert "order-1" not in told("fleet", "show", "agents:fleet")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("worker", "agents:other"), "is no Fleet but int"),
        (("fleet", "migrate", "agents:none"), "there is no 'none'"),
        (("worker", "agents:fleet", "--queue", "none"), "no queue 'none'; it has desk"),
        (("worker", "agents:fleet", "--concurrency", "0"), "Worker.concurrency"),
    ],
)
def test_a_fleet_that_is_none_is_said_to_be(words: tuple[str, ...], said: str, told: Told) -> None:
    code, _, error = told(*words)
    assert code == 2
    assert said in error
