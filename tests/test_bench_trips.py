"""The figures of `python -m bench.trips` are of trips that were really made."""

from __future__ import annotations

from bench.trips import Trip, trips


def test_each_trip_enters_the_files_that_it_must_pass() -> None:
    to_function, to_hint, to_store = (set(trip.files) for trip in trips())

    assert {"engine/agents.py", "engine/loop.py"} <= to_function
    assert {"engine/loop.py", "engine/recovery.py", "strategies/policy.py"} <= to_hint
    assert {"engine/run.py", "engine/journal.py", "stores/sqlite.py"} <= to_store


def test_no_trip_enters_more_files_of_the_engine_than_the_whole_may_have() -> None:
    for trip in trips():
        assert sum(file.startswith("engine/") for file in trip.files) <= trip.most


def test_a_trip_is_over_its_bound_when_it_enters_more_files() -> None:
    assert Trip("short", ("a.py", "b.py"), 1).over
    assert not Trip("short", ("a.py",), 1).over
