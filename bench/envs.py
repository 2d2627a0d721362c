"""A virtual environment for each package, since two of them share the import name `triage`.

They are made under `.venv-bench` when they are missing and used again after that. This checkout is
installed again whenever its files have changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv-bench"
PACKAGES = {
    "ours": ("anyio", "jsonschema", "msgspec", "pydantic", "openai"),
    "triage-agent": ("triage-agent==1.0.1", "aiosqlite", "openai"),
    "recovery-peer": ("triage-agent==1.0.1", "openai", "httpx", "pydantic"),
    "retry": ("tenacity", "stamina", "anyio", "openai"),
    "sdk-tests": (
        "anyio", "jsonschema", "msgspec", "pydantic", "openai-agents", "pytest", "pytest-asyncio",
        "pytest-mock", "pytest-timeout", "pytest-xdist", "inline-snapshot", "graphviz", "websockets",
        "fakeredis", "aiosqlite", "cryptography", "sqlalchemy[asyncio]",
    ),
}  # fmt: skip
"""Environment by name, and what it holds."""
_WITH_CHECKOUT = ("ours", "sdk-tests")
"""Those that hold this checkout as well."""
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "triage")


def ready(name: str) -> Path:
    """The interpreter of an environment, made first if it is missing.

    Raises subprocess.CalledProcessError when something cannot be installed.
    """
    home = HOME / name
    python = _python(home)
    packages = (*_constraints(), *PACKAGES[name])
    _once(home, "packages", _wanted(name), lambda: _make(home, python, packages))
    if name in _WITH_CHECKOUT:
        _once(home, "checkout", _checkout(), lambda: _install_checkout(python))
    return python


def _python(home: Path) -> Path:
    return home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _once(home: Path, topic: str, wanted: str, make: object) -> None:
    """Call `make` unless what it made last is what is wanted now."""
    note = home / f".{topic}"
    if note.exists() and note.read_text(encoding="utf-8") == wanted:
        return
    assert callable(make)
    make()
    note.write_text(wanted, encoding="utf-8")


def _wanted(name: str) -> str:
    return " ".join((*PACKAGES[name], *_constraints(), sys.version))


def _constraints() -> tuple[str, ...]:
    """The versions the tests run with hold for what the packages have in common."""
    pins = ROOT / "constraints.txt"
    return ("--constraint", str(pins)) if pins.exists() else ()


def pinned(package: str) -> str:
    """The version of a package that the tests run with. Raises ValueError where none is pinned."""
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        if name.strip() == package:
            return version.strip()
    raise ValueError(f"constraints.txt pins no {package}")


def _make(home: Path, python: Path, packages: tuple[str, ...]) -> None:
    print(f"making {home.relative_to(ROOT)}", file=sys.stderr)
    venv.create(home, clear=True, with_pip=True)
    _pip(python, *packages)


def _checkout() -> str:
    digest = hashlib.sha256()
    for path in sorted((ROOT / "triage").rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(path.read_bytes())
    digest.update((ROOT / "pyproject.toml").read_bytes())
    return digest.hexdigest()


def _install_checkout(python: Path) -> None:
    """Installed from a copy, so that building leaves nothing in the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        for name in _SOURCES:
            source, copy = ROOT / name, Path(folder) / name
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, copy)
        _pip(python, "--no-deps", "--force-reinstall", folder)


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run(
        (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments),
        check=True,
    )
