"""Questions of a fleet's runs, answered by the command line, the page and a signed webhook.

The runs are carried out by a worker in a process of its own, which goes on with them wherever they are
answered.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from fleet.fleets import database
from triage import approve
from triage.adapters.dbos import Fleet
from triage.cli import main
from triage.cli.fleet import fleet_of
from triage.engine.answering import waits_for
from triage.incidents import signature_fits
from triage.incidents.notifications import signature
from triage.web import Person, Role, app

pytestmark = [pytest.mark.usefixtures("theirs_may_block"), pytest.mark.timeout(280)]

ROOT = Path(__file__).parents[2]
SECRET = "the secret of the webhook"
WAIT_S = 60.0
AGENTS = """
import os

import triage
from triage import Agent, Checks, Suspend
from triage.adapters.dbos import Fleet, Queue


@triage.tool(effect="once")
async def pay(to: str) -> str:
    return f"{to} is paid by {os.getpid()}"


async def desk(task):
    return await pay(task)


asks = Checks(guard=lambda call: Suspend("may it be paid?"))
fleet = Fleet([Agent(desk, checks=asks)], URL, queues=[Queue("desk", polling_s=0.1)])
"""


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


@pytest.fixture
def fleet(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The fleet of `AGENTS`, imported as the commands import it."""
    (tmp_path / "askers.py").write_text(AGENTS.replace("URL", repr(url)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "askers", raising=False)
    found = fleet_of("askers:fleet")
    assert isinstance(found, Fleet)
    return found


@pytest.fixture
def worker(fleet: Fleet, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the fleet."""
    anyio.run(fleet.migrate)
    words = [sys.executable, "-m", "triage.cli", "worker", "askers:fleet"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, cwd=tmp_path, env=env) as made:
        yield made
        made.send_signal(signal.SIGTERM)


async def asked(fleet: Fleet, *run_ids: str) -> None:
    """Enqueue these runs and wait until each of them asks."""
    for run_id in run_ids:
        await fleet.enqueue("desk", run_id, run_id=run_id)
    with anyio.fail_after(WAIT_S):
        for run_id in run_ids:
            while await fleet.status(run_id) != "suspended":
                await anyio.sleep(0.05)
    await fleet.close()


def by_page(fleet: Fleet, run_id: str) -> None:
    """Click the button of the question."""
    page = app(fleet, who=lambda _: Person("ann", Role.ANSWER))
    headers = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    question = waits_for(anyio.run(fleet.store.read, run_id))
    assert question is not None
    form = {"question": question.token_digest, "answer": "approve"}
    with TestClient(page, base_url="http://localhost", headers=headers) as browser:
        assert browser.post(f"/runs/{run_id}/answer", data=form).status_code == 200


def by_webhook(fleet: Fleet, run_id: str) -> None:
    """Send the run's id, first with a wrong signature and then with the right one."""

    async def answers(request: Request) -> Response:
        body, headers = await request.body(), request.headers
        given = headers["Triage-Signature"]
        if not signature_fits(SECRET, headers["Triage-Timestamp"], body, given, now=time.time()):
            return Response(status_code=401)
        await fleet.answer(body.decode(), approve(), by="webhook")
        return Response(status_code=204)

    service = Starlette(routes=[Route("/answers", answers, methods=["POST"])])
    now = str(time.time())
    with TestClient(service) as sender:
        for secret, status in (("another secret, not ours", 401), (SECRET, 204)):
            signed = signature(secret, now, run_id.encode())
            headers = {"Triage-Timestamp": now, "Triage-Signature": signed}
            assert sender.post("/answers", content=run_id, headers=headers).status_code == status


def by_command(url: str, run_id: str) -> None:
    """Approve the run on the command line."""
    assert main(("approve", run_id, "--yes", "--by", "ann", "--store", url)) == 0


def test_a_run_goes_on_in_its_worker_whichever_way_its_question_is_answered(
    fleet: Fleet, url: str, worker: subprocess.Popen[bytes]
) -> None:
    anyio.run(asked, fleet, "command", "page", "webhook")
    by_command(url, "command")
    by_page(fleet, "page")
    by_webhook(fleet, "webhook")

    async def results() -> list[Any]:
        try:
            return [
                await fleet.result(run_id, timeout_s=WAIT_S)
                for run_id in ("command", "page", "webhook")
            ]
        finally:
            await fleet.close()

    assert anyio.run(results) == [
        f"{run_id} is paid by {worker.pid}" for run_id in ("command", "page", "webhook")
    ]
