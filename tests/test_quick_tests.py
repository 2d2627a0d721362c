"""`make quick` leaves out what takes long, by the list and by what was measured since."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import time, pytest

@pytest.mark.parametrize("number", range(3))
def test_quick(number):
    pass

@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
def test_both(anyio_backend):
    pass

def test_slow():
    began = time.process_time()
    while time.process_time() < began + 0.11:
        pass

def test_mended():
    pass
"""
LISTED = "tests/test_some.py::test_mended\ntests/test_some.py::test_of_another_file\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tests, of which one was slow when the list was written, and one has become slow since."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="ascii")
    (tmp_path / "tests" / "test_some.py").write_text(TESTS, encoding="ascii")
    (tmp_path / "tests" / "slow_tests.txt").write_text(LISTED, encoding="ascii")
    return tmp_path


def run(folder: Path, *options: str) -> str:
    """The last line that pytest prints."""
    plugins = ("-p", "xdist.plugin", "-p", "quick_tests")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(Path(__file__).parent),
            "PYTHONWARNINGS": "",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout.splitlines()[-1]


def test_what_is_listed_is_left_out_and_what_is_new_is_measured_once(folder: Path) -> None:
    assert "5 passed, 2 deselected" in run(folder, "--quick")
    assert "4 passed, 3 deselected" in run(folder, "--quick")
    assert "7 passed" in run(folder)
    assert "5 passed, 2 deselected" in run(folder, "--quick"), "the mended one is known again"


def test_the_list_is_written_anew_and_keeps_what_was_not_run(folder: Path) -> None:
    run(folder, "--list-slow-tests", "-n", "2")
    written = (folder / "tests" / "slow_tests.txt").read_text(encoding="ascii")
    assert written == "tests/test_some.py::test_of_another_file\ntests/test_some.py::test_slow\n"


SHARING = """
import time, pytest

@pytest.fixture(scope="module")
def built():
    began = time.process_time()
    while time.process_time() < began + 1.1:
        pass

def test_first(built):
    pass

def test_second(built):
    pass

def test_without():
    pass
"""


def test_a_slow_fixture_makes_each_test_slow_that_shares_it(folder: Path) -> None:
    (folder / "tests" / "test_sharing.py").write_text(SHARING, encoding="ascii")
    run(folder, "--list-slow-tests", "tests/test_sharing.py")
    written = (folder / "tests" / "slow_tests.txt").read_text(encoding="ascii")
    assert "tests/test_sharing.py::test_first\ntests/test_sharing.py::test_second\n" in written
    assert "test_without" not in written


def test_the_death_of_a_worker_is_reported_as_one(folder: Path) -> None:
    fatal = "import os\n\ndef test_fatal():\n    os._exit(3)\n"
    (folder / "tests" / "test_fatal.py").write_text(fatal, encoding="ascii")
    assert "1 failed, 7 passed" in run(folder, "-n", "1")
