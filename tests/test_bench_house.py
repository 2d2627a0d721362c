"""The figures of a small package, counted by hand."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bench.house import House, circles_and_chain, files_of_the_trip

FILES = {
    "__init__.py": '__all__ = ["go", "stop"]\n\nfrom .road import go\n',
    "_old.py": "import os  # noqa: F401\n",
    "road/__init__.py": "from triage import _old\nfrom .car import drive as go\n",
    "road/car.py": (
        "from typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n    from .. import _old\n\n\n"
        "def drive():\n    from . import wheel\n    return wheel\n"
    ),
    "core/errors.py": "from triage.road import car, go\n\n\ndef errors(car):\n    car = go(car)\n",
    "road/wheel.py": "from . import car\n\nx = tuple.__new__(int, ())  # costs less\n",
}


def test_the_figures_of_a_small_package(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / "triage" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    contract = '[[tool.importlinter.contracts]]\nlayers = ["a", "b"]\n'
    (tmp_path / "pyproject.toml").write_text(contract, encoding="utf-8")
    figures = {one.name: one.value for one in House(tmp_path / "triage").bounds}
    rooms = {name: figures.pop(name) for name in list(figures) if name.startswith("lines of ")}
    assert figures == {
        "lines": 23,
        "files": 6,
        "per mille of the lines that are imports": 391,
        "names taken from the door of a room": 1,
        "local names that shadow an imported module": 2,
        "entries at the top": 4,
        "private files at the top": 1,
        "layers of the longest contract": 2,
        "files of the longest chain of imports": 3,
        "files in circles of imports": 2,
        "imports in functions": 1,
        "TYPE_CHECKING blocks": 1,
        "public names": 2,
        "values made by position": 1,
        "comments on what a line costs": 1,
        "noqa": 1,
    }
    assert rooms["lines of the largest file"] == 9
    assert rooms["lines of core"] == 5
    assert rooms["lines of engine"] == 0


@given(st.integers(1, 20))
def test_a_row_of_files_is_a_chain_and_a_ring_of_them_is_one_circle(size: int) -> None:
    row = {str(at): [str(at + 1)] if at + 1 < size else [] for at in range(size)}
    assert circles_and_chain(row) == (0, size)
    ring = {**row, str(size - 1): ["0"]}
    assert circles_and_chain(ring) == (size if size > 1 else 0, 1)


def test_the_trip_from_an_exception_to_the_next_attempt_is_measured() -> None:
    assert 5 < files_of_the_trip() < 60
