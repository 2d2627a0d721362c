"""`make web`, as somebody runs it: a store is filled, a run is at work, and the page shows both."""

from __future__ import annotations

import signal
import subprocess
import sys
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(180)
def test_the_example_shows_runs_of_every_kind_and_ends_when_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "examples.page", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = next(line.strip() for line in process.stdout if line.startswith("http"))
        client = build_opener(HTTPCookieProcessor(CookieJar()))
        text = client.open(link, timeout=30).read().decode()
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    for run in ("watching", "order-1001", "order-1006", "order-1007"):
        assert f'data-run="{run}"' in text
    assert "analyst" in text
    assert code == 0
