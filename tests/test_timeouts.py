"""Every test ends: these settings are what stops one that would wait for ever."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MARKED = re.compile(r"pytest\.mark\.timeout\((\d+)\)")


def test_this_suite_has_a_default_timeout_and_ends_a_process_that_outlives_it(
    pytestconfig: pytest.Config,
) -> None:
    default = float(pytestconfig.getini("timeout"))
    last = float(pytestconfig.getini("faulthandler_timeout"))
    assert 0 < default < last
    assert pytestconfig.getini("faulthandler_exit_on_timeout") is True


def test_no_test_asks_for_more_time_than_a_process_gets(pytestconfig: pytest.Config) -> None:
    last = float(pytestconfig.getini("faulthandler_timeout"))
    asked = {
        file.name: int(seconds)
        for file in Path(__file__).parent.glob("test_*.py")
        for seconds in MARKED.findall(file.read_text(encoding="utf-8"))
    }
    assert asked
    assert {name: seconds for name, seconds in asked.items() if seconds >= last} == {}


WAITING = """
import asyncio, contextlib, threading, time, trio

def test_asyncio():
    asyncio.run(asyncio.Event().wait())

def test_trio():
    trio.run(trio.sleep_forever)

def test_a_thread():
    threading.Event().wait()

def test_that_catches_everything():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(9)

def test_next():
    pass
"""


def test_tests_that_wait_for_ever_fail_and_the_next_one_runs(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    file = tmp_path / "test_waiting.py"
    file.write_text(WAITING, encoding="ascii")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "xdist.plugin",
        "-p",
        "pytest_timeout",
        "-n",
        "1",
    ]
    command += [
        "-p",
        "no:cacheprovider",
        "-c",
        str(pytestconfig.inipath),
        "--rootdir",
        str(tmp_path),
        str(file),
    ]
    command += ["-o", "timeout=0.5", "-o", "faulthandler_timeout=2"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert "4 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Timeout (>0.5s)" in done.stdout
    assert "crashed while running 'test_waiting.py::test_that_catches_everything'" in done.stdout
    assert "in test_that_catches_everything" in done.stderr
