"""A short form of the soak: many runs of every kind at once, and nothing lost or left behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench import soak
from triage import MemoryStore, events

pytestmark = pytest.mark.anyio


async def test_a_crowd_of_failing_looping_hanging_and_cancelled_runs_ends_well() -> None:
    lines: list[str] = []
    problems = await soak.soak(200, 2, 7, lines.append)
    assert problems == []
    told = [json.loads(line) for line in lines]
    assert [one["tasks_left"] for one in told] == [0, 0]
    assert all(len(one["kinds"]) >= 14 for one in told)


async def test_a_run_that_was_lost_is_seen() -> None:
    store = MemoryStore()
    kinds = {"soak-1-0": "fine", "soak-1-1": "hangs"}
    (first, second) = await soak.wrong(kinds, store)
    assert "fine soak-1-0: has no journal" in first
    assert "hangs soak-1-1: has no journal" in second


@pytest.mark.parametrize(
    ("journal", "problem"),
    [
        ([events.RunStarted("r", 1, 0.0, "a")], "its positions have gaps"),
        ([events.RunStarted("r", 0, 0.0, "a")], "ended as RunStarted, not as done"),
        (
            [events.RunStarted("r", 0, 0.0, "a"), events.RunFinished("r", 1, 0.0, "aborted")],
            "ended as aborted, not as done",
        ),
        (
            [
                events.CallFinished("r", 0, 0.0, 1, "charge:1:0", "done"),
                events.CallFinished("r", 1, 0.0, 2, "charge:1:0", "done"),
                events.RunFinished("r", 2, 0.0, "done"),
            ],
            "a call was made twice",
        ),
    ],
)
def test_a_journal_that_is_wrong_is_seen(journal: list[Any], problem: str) -> None:
    assert problem in soak._problems(journal, ("done",))
