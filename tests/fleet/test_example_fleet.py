"""The compose file of the fleet: its commands, with its environment, on the Postgres of the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from fleet.fleets import database

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "fleet"
SERVICES: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))[
    "services"
]
TOKEN = "a token of sixteen or more"


@contextmanager
def started(service: str, url: str, *more: str) -> Generator[subprocess.Popen[str]]:
    """Start a service's command with its environment, on this database; stop it at the end."""
    found = SERVICES[service]
    program, *words = found["command"]
    assert program == "triage"
    env = {**os.environ, "PYTHONPATH": str(ROOT), **found["environment"], "TRIAGE_STORE": url}
    if "TRIAGE_WEB_TOKEN" in env:
        env["TRIAGE_WEB_TOKEN"] = TOKEN
    command = [sys.executable, "-m", "triage.cli", *words, *more]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as process:
        yield process
        process.send_signal(signal.SIGTERM)


def line_with(text: str, process: subprocess.Popen[str]) -> str:
    """Return the first line of a program that has this text."""
    assert process.stdout is not None
    return next(line.strip() for line in process.stdout if text in line)


def page_of(place: str) -> str:
    """Log in to the page with the token; return it."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with browser.open(f"{place}/?token={TOKEN.replace(' ', '+')}", timeout=60) as response:
        return str(response.read().decode())


@pytest.mark.timeout(280)
def test_its_services_migrate_work_and_show_the_page() -> None:
    with database() as url, ExitStack() as stack:
        with started("migrate", url) as migrating:
            assert migrating.wait(120) == 0
        worker = stack.enter_context(started("worker", url))
        page = stack.enter_context(started("page", url, "--port", "0"))
        line_with("takes from desk", worker)
        orders = subprocess.run(
            [sys.executable, "-m", "examples.fleet.orders", "1"],
            cwd=ROOT, env={**os.environ, "TRIAGE_STORE": url}, capture_output=True, text=True,
            timeout=120, check=True,
        )  # fmt: skip
        assert orders.stdout == "['order 0 is charged', 'order 0 is shipped']\n"
        shown = page_of(line_with("http", page).replace("0.0.0.0", "127.0.0.1"))
        assert "desk, " in shown
        assert 'href="/fleet"' in shown


def test_its_services_are_what_the_page_says() -> None:
    assert set(SERVICES) == {"database", "migrate", "worker", "page"}
    assert SERVICES["worker"]["deploy"]["replicas"] == 3
    assert SERVICES["page"]["ports"] == ["127.0.0.1:8321:8321"]
    drain_s = 30  # of triage worker
    assert int(SERVICES["worker"]["stop_grace_period"].removesuffix("s")) > drain_s
    installed = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert "triage-recovery[cli,dbos,web]" in installed
