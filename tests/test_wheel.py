"""The wheel: complete without its source, with its types, its prices and its entry points."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = """
import asyncio, triage
from triage.strategies import Prices
from triage.core import Usage

async def greet(task):
    return f"hello, {task}"

print(triage.__file__)
print(asyncio.run(triage.Agent(greet).run("Ann")))
print(Prices().cost(Usage(model="gpt-4o-mini", input_tokens=1000, output_tokens=10)) > 0)
"""

KINDS = (".py", ".toml", ".typed", ".html", ".css", ".mjs", ".svg")

pytestmark = pytest.mark.timeout(180)


def run(*command: str, folder: Path, **environment: str) -> str:
    """What a program prints. PYTHONPATH is the only way to the package: the source is not in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**kept, "PYTHONUTF8": "1", **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel in it, as pip installs it, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = ("-m", "pip", "--disable-pip-version-check")
    run(
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        ".",
        str(ROOT),
        folder=folder,
    )
    (wheel,) = folder.glob("*.whl")
    run(*pip, "install", "--no-deps", "--target", "site", str(wheel), folder=folder)
    return folder


def test_the_wheel_works_where_its_source_is_not(installed: Path) -> None:
    site = installed / "site"
    lines = run("-c", PROGRAM, folder=installed, PYTHONPATH=str(site)).splitlines()
    assert lines == [str(site / "triage" / "__init__.py"), "hello, Ann", "True"]
    assert "--version" in run("-m", "triage.cli", "--help", folder=installed, PYTHONPATH=str(site))


def test_the_wheel_holds_the_package_and_nothing_else(installed: Path) -> None:
    (wheel,) = installed.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entries,) = (name for name in names if name.endswith("entry_points.txt"))
        assert b"triage = triage.cli:main" in archive.read(entries)
        assert b"[pytest11]\ntriage = triage.pytest_plugin" in archive.read(entries)
    packaged = {name for name in names if ".dist-info/" not in name}
    files = {path for path in (ROOT / "triage").rglob("*") if path.suffix in KINDS}
    assert packaged == {
        path.relative_to(ROOT).as_posix() for path in files | {ROOT / "triage/py.typed"}
    }
