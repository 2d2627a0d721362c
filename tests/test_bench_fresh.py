"""The fresh trajectories: how many, how varied, the same each time, and how confidence is judged."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bench.diagnosis import fresh, fresh_second, ours, records, scores

SETS = pytest.mark.parametrize("made", [fresh, fresh_second], ids=["first", "second"])


@SETS
def test_there_are_enough_of_each_fault_wording_and_healthy_kind(made: Any) -> None:
    found = made.records()
    kinds = Counter(fresh.fault(record) for record in found if not record.healthy)
    assert len(kinds) == len(made.FAULTS) * made.WORDINGS
    assert set(kinds.values()) == {made.PER_WORDING}
    assert sum(record.healthy for record in found) == len(made.ENDINGS) * made.PER_ENDING >= 120


@SETS
def test_ids_differ_and_the_same_records_come_again(made: Any) -> None:
    found = made.records()
    assert len({record.id for record in found}) == len(found)
    assert made.records() == found


@SETS
def test_each_record_is_a_trajectory_and_the_wrong_step_is_in_it(made: Any) -> None:
    for record in made.records():
        steps = ours.trajectory(record).steps
        assert (record.where is None) == record.healthy
        assert record.where is None or record.where < len(steps)


def test_the_wordings_of_a_fault_differ() -> None:
    for one in fresh.FAULTS:
        told = set()
        for wording in range(fresh.WORDINGS):
            run = fresh.Run(fresh.TRADES[0], 7)
            told.add(repr((fresh.task(run, one, wording), one.make(run, wording))))
        assert len(told) == fresh.WORDINGS, one.name
    for other in fresh_second.FAULTS:
        ways = [fresh_second.Run(fresh_second.TRADES[0], 7) for _ in range(fresh_second.WORDINGS)]
        assert len({repr(other.make(run, way)) for way, run in enumerate(ways)}) == len(ways), (
            other.name
        )


def record(*labels: str, source: str = fresh.FAULTY) -> records.Record:
    return records.Record("one", source, "", (), frozenset(labels), frozenset(), None, 0)


LOOP = "loop_detected"


@pytest.mark.parametrize(
    ("pairs", "error"),
    [
        ([], None),
        ([(record(LOOP), scores.Answer("unknown", None, 0.9))], None),
        ([(record(LOOP), scores.Answer(LOOP, None))], None),
        ([(record(), scores.Answer(LOOP, None, 0.9))], None),
        ([(record(LOOP), scores.Answer(LOOP, None, 1.0))], 0),
        ([(record(LOOP), scores.Answer(LOOP, None, 0.75))], 0.25),
        ([(record(source=records.FRESH_HEALTHY), scores.Answer(LOOP, None, 0.75))], 0.75),
        ([(record(LOOP), scores.Answer(kind, None, 0.5)) for kind in (LOOP, "goal_drift")], 0),
    ],
)
def test_confidence_is_held_against_the_share_of_right_answers(
    pairs: list[scores.Pair], error: float | None
) -> None:
    assert scores.calibration_error(pairs) == error
