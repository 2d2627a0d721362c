"""The page of promises: every row is whole, and every test it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "promises.md"
SPEC = ROOT.parent / "shared" / "SPEC.md"


class Row(NamedTuple):
    """One promise, with the tests that show it."""

    id: str
    promise: str
    nodes: list[str]


def rows() -> list[Row]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ") and not line.startswith("| id |")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    return [Row(one, promise, re.findall(r"`([^`]+)`", shown)) for one, promise, shown in cells]


@cache
def collected(file: str) -> frozenset[str]:
    """The tests of a file as pytest names them, without parameters."""
    path = ROOT / file
    if not re.fullmatch(r"tests/(\w+/)?test_\w+\.py", file) or not path.is_file():
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name, body=body) if name.startswith("Test"):
                methods = (ast.FunctionDef, ast.AsyncFunctionDef)
                found |= {f"{name}::{one.name}" for one in body if isinstance(one, methods)}
            case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("Test"):
                found.add(f"{name}::runTest")  # a state machine of hypothesis
            case _:
                pass
    return frozenset(name for name in found if name.startswith(("test_", "Test")))


def missing(node: str) -> bool:
    file, _, name = node.partition("::")
    return name not in collected(file)


def test_every_promise_is_shown_by_tests_that_exist() -> None:
    wrong: list[str] = []
    for row in rows():
        assert re.fullmatch(r"[SAF]\d?-\d+|P\d", row.id), row.id
        assert row.promise
        if not row.nodes:
            wrong.append(f"{row.id} is shown by nothing")
        wrong += [f"{row.id}: there is no {node}" for node in row.nodes if missing(node)]
    assert wrong == []


def test_every_promise_has_one_row() -> None:
    ids = [row.id for row in rows()]
    assert len(ids) == len(set(ids)) > 0


def test_every_item_of_the_specification_has_its_row() -> None:
    if not SPEC.is_file():
        pytest.skip(f"the specification is not at hand: {SPEC} is missing")
    text = SPEC.read_text(encoding="utf-8")
    items = re.findall(r"^(?:\| |- )([SAF]\d?-\d+)(?= \||[ :])", text, re.MULTILINE)
    assert len(items) > 250
    assert sorted(set(items) - {row.id for row in rows()}) == []


def test_a_test_that_is_not_there_is_noticed() -> None:
    here = "tests/test_promises.py::test_a_test_that_is_not_there_is_noticed"
    assert not missing(here)
    assert missing(f"{here}_at_all")
    assert missing("tests/test_nowhere.py::test_x")
    assert missing("docs/promises.md::test_x")
    assert missing("tests/test_promises.py::rows")
    assert missing("tests/test_promises.py")
