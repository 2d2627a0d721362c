"""Runs whose processes are killed: one that gets on is healthy, one that does not is put aside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
from dead_letters import CALLS, SHAPES
from store_kinds import DURABLE, Opened, opening

PROGRAM = Path(__file__).parents[1] / "dead_letters.py"

opened = opening(*DURABLE)


def test_only_a_run_that_stands_still_becomes_a_dead_letter(opened: Opened) -> None:
    # How deep the run is inside others is no matter of its store.
    shapes = SHAPES if opened.kind == "sqlite" else ("inside",)
    store = opened.new()
    anyio.run(store.open)
    anyio.run(store.close)
    command = [sys.executable, str(PROGRAM), opened.kind, opened.name, *shapes]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    ended = dict(line.split(" | ", 1) for line in said.splitlines())
    expected: dict[str, str] = {}
    for shape in shapes:
        name = shape.replace(" ", "-")
        expected[f"{name}-gets-on"] = " | ".join(map(str, CALLS))
        expected[f"{name}-stands-still"] = "dead letter"
    assert ended == expected
