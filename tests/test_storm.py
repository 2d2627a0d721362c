"""What the simulation of the benchmark says, at a fifth of its size."""

from __future__ import annotations

from functools import cache

import pytest

from bench.storm import CALLS, POLICIES, Outcome, simulate, table

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


def test_the_table_has_a_line_for_each_policy() -> None:
    lines = table({policy: outcome(policy) for policy in POLICIES}, AGENTS).splitlines()
    assert len(lines) == len(POLICIES) + 2
    assert lines[2].startswith("| no policy | ")
