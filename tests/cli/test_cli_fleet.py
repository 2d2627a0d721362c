"""`triage fleet` and `triage worker`: tables, a worker that works and leaves, and misuse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import anyio
import pytest
from fleet.fleets import database, dbos_fleet

from triage import Agent
from triage.cli import main

Told = Callable[..., tuple[int, str, str]]
ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
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


@contextmanager
def started(folder: Path, *words: str) -> Generator[subprocess.Popen[str]]:
    """A command in a process of its own, killed if it has not ended by then."""
    command = [sys.executable, "-m", "triage.cli", *words]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=ENV, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def check_places(folder: Path, url: str, told: Told, worker: str) -> None:
    """Check that incidents and the page show where a run is, as the list of runs does."""
    told("incidents", "report", "it is the wrong desk", "--run-id", "order-1", "--store", url)
    told("incidents", "report", "the moon is out", "--store", url)
    output = told("incidents", "list", "--fleet", "agents:fleet", "--json")[1]
    elsewhere, placed = (json.loads(line) for line in output.splitlines())
    assert (placed["queue"], placed["engine"]) == ("desk", "dbos")
    assert (placed["worker"], "queue" in elsewhere) == (worker, False)
    assert "waited" in told("incidents", "list", "--fleet", "agents:fleet")[1]
    one = ("incidents", "show", placed["error_id"], "--fleet", "agents:fleet")
    assert json.loads(told(*one, "--json")[1])["worker"] == worker
    assert f"queue desk, {worker}, waited" in told(*one)[1]
    with started(folder, "web", "--fleet", "agents:fleet", "--port", "0") as page:
        link = next(line.strip() for line in page.stdout or () if line.startswith("http"))
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with browser.open(link, timeout=30) as response:
            assert f"desk, {worker}, waited" in response.read().decode()


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

    async def result() -> Any:
        found = await fleet.result("order-1", timeout_s=60)
        await fleet.close()
        return found

    words = ("worker", "agents:fleet", "--queue", "desk", "--concurrency", "2")
    with started(folder, *words) as worker:
        assert anyio.run(result) == ["task"]
        code, output, _ = told("runs", "list", "--fleet", "agents:fleet", "--json")
        (listed,) = [json.loads(line) for line in output.splitlines()]
        assert (listed["queue"], listed["engine"]) == ("desk", "dbos")
        assert f"-{worker.pid}-" in listed["worker"]
        assert "waited" in told("runs", "list", "--fleet", "agents:fleet")[1]
        check_places(folder, url, told, listed["worker"])
        code, output, _ = told("doctor", "--fleet", "agents:fleet")
        assert "fleet: dbos answers; 0 runs go on, 0 wait" in output
        worker.send_signal(signal.SIGTERM)
        _, error = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert "takes from desk" in error
    assert "has left, and gave back 0 runs" in error
    assert "order-1" not in told("fleet", "show", "agents:fleet")[1]


def test_a_run_that_still_waits_in_its_queue_is_cancelled_by_its_fleet(
    place: tuple[Path, str], told: Told
) -> None:
    assert told("fleet", "migrate", "agents:fleet")[0] == 0
    fleet = dbos_fleet(place[1], [Agent(desk)], name="cli")

    async def enqueue() -> None:
        # A run that has begun, and whose id begins with that of one that has not, is left alone.
        await Agent(desk, store=fleet.store).run("begun", run_id="refund-12")
        for run_id in ("refund-1", "refund-2"):
            await fleet.enqueue("desk", "task", run_id=run_id)
        await fleet.close()

    anyio.run(enqueue)
    cancel = ("runs", "cancel", "refund-1", "--fleet", "agents:fleet")
    assert told("runs", "cancel", "refund-2", "--store", place[1])[0] == 2
    assert told(*cancel) == (0, "run refund-1 is cancelled\n", "")
    again = told(*cancel)
    assert (again[0], "has ended as cancelled" in again[2]) == (1, True)
    two = told("runs", "cancel", "refund-2", "--fleet", "agents:fleet", "--json")[1]
    assert json.loads(two) == {"run_id": "refund-2", "status": "cancelled", "was": "queued"}
    assert "refund" not in told("fleet", "show", "agents:fleet")[1]
    code, _, error = told("runs", "cancel", "refund-3", "--fleet", "agents:fleet")
    assert (code, "knows no run 'refund-3'" in error) == (2, True)
    listed = [
        json.loads(line)
        for line in told("runs", "list", "--store", place[1], "--json")[1].splitlines()
    ]
    status = {one["run_id"]: one["status"] for one in listed if one["run_id"].startswith("refund")}
    assert status == {"refund-1": "cancelled", "refund-2": "cancelled", "refund-12": "done"}


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
