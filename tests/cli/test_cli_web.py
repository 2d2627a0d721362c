"""`triage web`: it lets in by its link, and says what to do where it cannot begin."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from tables import table

import triage
from triage.cli import main

TEXT = "sqlite:///runs.db"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRIAGE_STORE", raising=False)
    monkeypatch.delenv("TRIAGE_WEB_TOKEN", raising=False)
    (tmp_path / "runs.db").touch()


@contextmanager
def serving(*arguments: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """`triage web` in a process of its own, and the link that it has printed."""
    command = [
        sys.executable,
        "-m",
        "triage.cli",
        "web",
        "--store",
        TEXT,
        "--port",
        "0",
        *arguments,
    ]
    here = {**os.environ, "PYTHONPATH": str(Path(triage.__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=here) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"the page of {TEXT}, with the role ")
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()


def test_the_link_lets_one_browser_in_and_the_next_is_printed() -> None:
    with serving("--role", "view") as (process, link):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", link)
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with browser.open(link, timeout=30) as page:
            assert page.url == link.partition("?")[0]
            assert "No run yet" in page.read().decode()
        assert process.stdout is not None
        assert re.match(
            r"the next link: http://127\.0\.0\.1:\d+/\?token=", process.stdout.readline()
        )
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(link, timeout=30)


def test_a_second_server_on_a_port_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["web", "--store", TEXT, "--port", str(port)]) == 2
    told = capsys.readouterr().err
    assert f"port {port} of 127.0.0.1 is taken" in told
    assert "--port 0" in told


@table(
    ("arguments", "told"),
    [
        ((), "say where the runs are"),
        (("--store", "memory:"), "ends with its process"),
        (("--store", "sqlite:///no.db"), "there is no file"),
        (("--store", TEXT, "--host", "0.0.0.0"), "give --token and --trusted-host as well"),
        (
            ("--store", TEXT, "--host", "0.0.0.0", "--token", "x" * 20),
            "give --trusted-host as well",
        ),
        (("--store", TEXT, "--token", "short"), "at least 16 printable characters"),
        (("--store", TEXT, "--trusted-host", "a b"), "names such as ops.example.com"),
        (("--store", TEXT, "--port", "70000"), "from 0 to 65535"),
        (
            ("--store", TEXT, "--host", "256.1.1.1", "--token", "x" * 20, "--trusted-host", "a"),
            "--host 256",
        ),
        (("--store", TEXT, "--role", "root"), 'Invalid value "root"'),
    ],
)
def test_what_cannot_begin_is_said(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["web", *arguments]) == 2
    assert told in capsys.readouterr().err
