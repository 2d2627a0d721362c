"""The soak and the storm of the benchmark, at a fraction of their size: nothing lost, little wasted."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from bench import soak
from bench.storm import CALLS, POLICIES, Outcome, simulate
from triage.core import events
from triage.stores import MemoryStore

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


# The storm ----------------------------------------------------------------------------------------
AGENTS = 200


@cache
def outcome(policy: str) -> Outcome:
    return simulate(policy, AGENTS)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_storm_is_the_same_for_the_same_seed(policy: str) -> None:
    assert simulate(policy, 50, seed=7) == simulate(policy, 50, seed=7)


def test_the_gates_finish_every_agent_and_waste_next_to_nothing() -> None:
    ours = outcome("triage: gate and breaker")
    assert ours.finished == AGENTS
    assert ours.wasted == ours.sent - CALLS * AGENTS <= 40
    assert ours.seconds < 120


@pytest.mark.parametrize("policy", ["blind exponential retry", "SDK retries in blind ones"])
def test_who_retries_blindly_sends_many_times_what_is_refused(policy: str) -> None:
    theirs, ours = outcome(policy), outcome("triage: gate and breaker")
    assert theirs.finished == AGENTS
    assert theirs.wasted > 10 * ours.wasted
    assert theirs.seconds >= ours.seconds


def test_a_budget_bounds_what_is_wasted_where_others_fail_too() -> None:
    alone, theirs = outcome("triage: retry budget alone"), outcome("SDK retries")
    assert alone.finished >= theirs.finished
    assert alone.wasted < theirs.wasted
