"""Killed at any point and recovered, a run loses nothing and pays once; `make crash` does more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from store_kinds import Opened

MATRIX = Path(__file__).with_name("crash_matrix.py")
FOUND = re.compile(r"(\d+) runs, (\d+) kills, (\d+) in doubt, (\d+) lost or done twice")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_whatever_kills_a_run_it_is_brought_to_its_end(kind: str, tmp_path: Path) -> None:
    with Opened(kind, tmp_path):  # skips, or fails, where it does not run
        pass
    command = [sys.executable, str(MATRIX), "--store", kind, "--runs", "50", "--seconds", "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = FOUND.search(done.stdout)
    assert found is not None, done.stdout
    runs, kills, _doubts, lost = map(int, found.groups())
    assert kills >= runs // 2 > 0
    assert lost == 0
