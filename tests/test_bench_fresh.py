"""The fresh trajectories: how many, how varied, the same each time, and how confidence is judged."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tables import table

from bench.diagnosis import (
    answers_third,
    cases,
    dealing,
    fresh,
    fresh_fifth,
    fresh_fourth,
    fresh_second,
    fresh_third,
    near_misses_fifth,
    near_misses_seventh,
    ours,
    records,
    scores,
    worlds_fifth,
    written,
)
from bench.diagnosis.clients import fifth, seventh, sixth
from triage import FailureType

LOOKS = (
    fresh.LOOK,
    fresh_second.LOOK,
    fresh_third.LOOK,
    fresh_fourth.LOOK,
    fresh_fifth.LOOK,
    answers_third.LOOK,
)
TYPES = {one.value for one in FailureType}
SETS = pytest.mark.parametrize("look", LOOKS, ids=[look.name for look in LOOKS])
WRITTEN = (written.SIXTH, written.SEVENTH, written.EIGHTH, written.NINTH)
DEALT: tuple[dealing.Dealt, ...] = (*LOOKS, *WRITTEN)
ALL = pytest.mark.parametrize("look", DEALT, ids=[look.name for look in DEALT])


@SETS
def test_there_are_enough_of_each_fault_wording_and_healthy_kind(look: dealing.Look[Any]) -> None:
    found = look.records()
    kinds = Counter(dealing.kind(record) for record in found if not record.healthy)
    assert len(kinds) == len(look.faults) * dealing.WORDINGS
    assert set(kinds.values()) == {look.per_wording}
    assert sum(record.healthy for record in found) == len(look.endings) * look.per_ending >= 40


@ALL
def test_ids_differ_and_the_same_records_come_again(look: dealing.Dealt) -> None:
    found = look.records()
    assert len({record.id for record in found}) == len(found)
    assert look.records() == found


@ALL
def test_each_record_is_a_trajectory_and_the_wrong_step_is_in_it(look: dealing.Dealt) -> None:
    for record in look.records():
        steps = ours.trajectory(record).steps
        assert (record.where is None) == record.healthy
        assert record.where is None or record.where < len(steps)


@SETS
def test_the_wordings_of_a_fault_differ(look: dealing.Look[Any]) -> None:
    for one in look.faults:
        told = {repr(one.make(look.run(7), wording)) for wording in range(dealing.WORDINGS)}
        assert len(told) == dealing.WORDINGS, one.name


def test_the_fifth_set_has_short_and_long_runs_of_every_world_and_shape() -> None:
    found = fresh_fifth.LOOK.records()
    lengths = [len(record.steps) for record in found]
    assert sum(length <= 12 for length in lengths) > 80 < sum(length >= 40 for length in lengths)
    assert max(lengths) <= 120
    jobs = [worlds_fifth.Job(seed) for seed in range(200)]
    assert {job.world for job in jobs} == set(worlds_fifth.WORLDS)
    assert {job.shape for job in jobs} == set(worlds_fifth.SHAPES)
    assert all(one.labels <= TYPES for one in found)


def test_the_sixth_set_has_five_wordings_of_each_fault_over_twelve_places() -> None:
    found = written.SIXTH.records()
    faulty = [one for one in found if not one.healthy]
    assert Counter(map(dealing.kind, faulty)) == {
        (name, at): 1 for name in written.KINDS for at in range(dealing.WORDINGS)
    }
    assert all(one.labels <= TYPES for one in faulty)
    assert sum(one.healthy for one in found) == len(faulty) == 120
    assert sum(6 <= len(one.steps) <= 60 for one in found) > 150


@pytest.mark.parametrize("look", WRITTEN, ids=[look.name for look in WRITTEN])
def test_a_written_set_has_ten_faulty_and_ten_healthy_runs_of_each_place(
    look: written.Look,
) -> None:
    assert len(look.places) == 12
    for place in look.places:
        assert sum(run.where is None for run in place.runs) * 2 == len(place.runs) == 20
    kinds = Counter(one.id.split("/")[1] for one in look.records() if not one.healthy)
    assert kinds.keys() == written.KINDS.keys()
    assert min(kinds.values()) >= 4
    runs = [run for place in look.places for run in place.runs]
    assert {run.form for run in runs} == {"steps", "lines", "openai", "anthropic"}


@table(("near", "many"), [(near_misses_fifth, 60), (near_misses_seventh, 40)])
def test_near_misses_are_raised_and_blame_nobody_else(near: Any, many: int) -> None:
    found = list(near.cases())
    assert len({case.id for case in found}) == len(found) == many
    for case in found:
        assert not isinstance(cases.raised(case), OSError), case.id
        assert not {"external_fault", "loop_detected", "wrong_tool_called"} & set(case.label.types)


@table(("clients", "least"), [(fifth, 80), (sixth, 290), (seventh, 330)])
def test_cases_of_clients_have_names_of_their_own_and_labels_that_exist(
    clients: Any, least: int
) -> None:
    found = list(clients.cases())
    assert len({case.id for case in found}) == len(found) >= least
    for case in found:
        assert case.label.types, case.id
        assert set(case.label.types) <= TYPES, case.id


def record(*labels: str, source: str = "fresh_fault") -> records.Record:
    return records.Record("one", source, "", (), frozenset(labels), frozenset(), None, 0)


LOOP = "loop_detected"


@table(
    ("pairs", "error"),
    [
        ([], None),
        ([(record(LOOP), scores.Answer("unknown", None, 0.9))], None),
        ([(record(LOOP), scores.Answer(LOOP, None))], None),
        ([(record(), scores.Answer(LOOP, None, 0.9))], None),
        ([(record(LOOP), scores.Answer(LOOP, None, 1.0))], 0),
        ([(record(LOOP), scores.Answer(LOOP, None, 0.75))], 0.25),
        ([(record(source="fresh_healthy"), scores.Answer(LOOP, None, 0.75))], 0.75),
        ([(record(LOOP), scores.Answer(kind, None, 0.5)) for kind in (LOOP, "goal_drift")], 0),
    ],
)
def test_confidence_is_held_against_the_share_of_right_answers(
    pairs: list[scores.Pair], error: float | None
) -> None:
    assert scores.calibration_error(pairs) == error
