"""The pinned versions can be installed on every Python that the package allows, even its first release."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from store_kinds import missing

ROOT = Path(__file__).parents[1]
REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")
UNSOLVABLE = 1
VERSIONS = ("3.11.0", "3.12", "3.13")
ENVIRONMENT = dict(os.environ)
"""That of the caller, with its certificates: fixtures change it."""


def pins(text: str) -> dict[str, str]:
    """Versions by normalized name."""
    found = [match for line in text.splitlines() if (match := REQUIREMENT.match(line))]
    return {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in found}


def test_the_constraints_hold_and_name_every_package() -> None:
    with ThreadPoolExecutor() as pool:  # they wait for the index
        asked = {version: pool.submit(compiled, version) for version in VERSIONS}
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    for version, done in asked.items():
        chosen = pins(done.result())
        assert len(chosen) > 100, version
        assert {name: pinned.get(name) for name in chosen} == chosen, version


def compiled(version: str) -> str:
    """All packages that are installed on a version of Python."""
    command = [
        sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--quiet", "--no-header",
        "--all-extras", "--group", "dev", "--group", "demo",
        "--constraint", "constraints.txt", "--python-version", version,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, UNSOLVABLE):
        missing("a package index, or uv", OSError(done.stderr[-300:]))
    assert done.returncode == 0, done.stderr
    return done.stdout
