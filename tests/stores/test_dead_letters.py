"""Runs whose processes are killed: one that gets on is healthy, one that does not is put aside."""

from __future__ import annotations

import subprocess

import anyio
from store_kinds import DURABLE, Opened, opening
from support import ENVIRONMENT, program

from stores.dead_letters import CALLS, SHAPES

opened = opening(*DURABLE)


def test_only_a_run_that_stands_still_becomes_a_dead_letter(opened: Opened) -> None:
    # How deep the run is inside others is no matter of its store.
    shapes = SHAPES if opened.kind == "sqlite" else ("inside",)
    store = opened.new()
    anyio.run(store.open)
    anyio.run(store.close)
    command = program("stores.dead_letters", opened.kind, opened.name, *shapes)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, env=ENVIRONMENT
    )
    ended = dict(line.split(" | ", 1) for line in done.stdout.splitlines())
    expected: dict[str, str] = {}
    for shape in shapes:
        name = shape.replace(" ", "-")
        expected[f"{name}-gets-on"] = " | ".join(map(str, CALLS))
        expected[f"{name}-stands-still"] = "dead letter"
    assert ended == expected
