"""Figures of a classifier, against a straightforward computation of the same."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_kinds import EXAMPLES
from support import Says
from tables import table

from triage import Diagnosis, FailureType, RulesClassifier, Step, Trajectory, UsageError
from triage.adapters.recordings import read, stream
from triage.testing.evaluation import Evaluation, Record, evaluate, labelled

RECORDS = Path(__file__).parents[3] / "shared" / "trajectories" / "dev.jsonl.gz"
LOOP, FAULT, UNKNOWN = FailureType.LOOP_DETECTED, FailureType.EXTERNAL_FAULT, FailureType.UNKNOWN


class Reads:
    """Answers what the task of the record says."""

    name = "reads"

    def classify(self, trajectory: Trajectory, task: Any) -> Diagnosis:
        assert isinstance(task, Diagnosis)
        return task


class ReadsLater(Reads):
    """The same, but must be waited for."""

    async def classify(self, trajectory: Trajectory, task: Any) -> Diagnosis:  # type: ignore[override]
        await anyio.lowlevel.checkpoint()
        return super().classify(trajectory, task)


kinds = st.sampled_from([LOOP, FAULT, FailureType.GOAL_DRIFT, UNKNOWN])
diagnoses = st.builds(
    Diagnosis, kinds, confidence=st.floats(0, 1), critical_step=st.none() | st.integers(0, 2)
)
records = st.builds(
    lambda said, labels, where, healthy: Record(
        Trajectory(task=said), tuple(labels), where=where, healthy=healthy and not labels
    ),
    diagnoses,
    st.lists(kinds, max_size=2, unique=True),
    st.none() | st.integers(0, 2),
    st.booleans(),
)


def counted(result: Evaluation) -> dict[str, Any]:
    """What must be equal, whoever computes it."""
    return {
        name: getattr(result, name)
        for name in ("records", "scored", "accuracy", "macro_f1", "unknown_rate", "selective_precision",
                     "healthy", "false_alarms", "placed", "placed_exactly")
    }  # fmt: skip


def straightforward(given: list[Record]) -> dict[str, Any]:
    """The same figures, by lists and loops, from their definitions."""
    scored = [record for record in given if record.labels]
    said = [record.trajectory.task.failure_type for record in scored]
    right = [
        answer if answer in record.labels else record.labels[0]
        for record, answer in zip(scored, said, strict=True)
    ]
    f1s = []
    for kind in sorted(set(right)):
        both = [pair for pair in zip(right, said, strict=True) if pair == (kind, kind)]
        precision = len(both) / said.count(kind) if kind in said else 0
        recall = len(both) / right.count(kind)
        f1s.append(2 * precision * recall / (precision + recall) if both else 0)
    sure = [(one, other) for one, other in zip(right, said, strict=True) if other is not UNKNOWN]
    healthy = [record for record in given if record.healthy]
    placed = [record for record in given if record.where is not None]

    def share(part: list[Any], whole: list[Any]) -> Any:
        return pytest.approx(len(part) / len(whole)) if whole else None

    return {
        "records": len(given),
        "scored": len(scored),
        "accuracy": share(
            [1 for one, other in zip(right, said, strict=True) if one is other], scored
        ),
        "macro_f1": pytest.approx(sum(f1s) / len(f1s)) if f1s else None,
        "unknown_rate": share([answer for answer in said if answer is UNKNOWN], said),
        "selective_precision": share([1 for one, other in sure if one is other], sure),
        "healthy": len(healthy),
        "false_alarms": sum(r.trajectory.task.failure_type is not UNKNOWN for r in healthy),
        "placed": len(placed),
        "placed_exactly": sum(r.trajectory.task.critical_step == r.where for r in placed),
    }


@given(st.lists(records, max_size=12))
def test_every_figure_is_what_its_definition_gives(given: list[Record]) -> None:
    result = evaluate(Reads(), given)
    assert counted(result) == straightforward(given)
    assert sum(sum(row.values()) for row in result.confusion.values()) == result.scored
    assert sum(entry.answers for entry in result.bins) == sum(
        score.answered for kind, score in result.types.items() if kind is not UNKNOWN
    )
    assert 0 <= (result.calibration_error or 0) <= 1
    for kind, score in result.types.items():
        assert score.support == sum(result.confusion.get(kind, {}).values())
        assert score.hits == result.confusion.get(kind, {}).get(kind, 0)


@given(st.lists(records, max_size=12))
def test_a_baseline_is_what_a_classifier_with_one_answer_gets(given: list[Record]) -> None:
    result = evaluate(Reads(), given)
    for baseline in result.baselines:
        constant = evaluate(Says(baseline.answer), given)
        assert constant.accuracy == pytest.approx(baseline.accuracy)
        assert constant.macro_f1 == pytest.approx(baseline.macro_f1)
    labels = {label for record in given for label in record.labels}
    assert {baseline.answer for baseline in result.baselines} == labels
    if labels:
        assert result.majority is not None
        assert result.majority.accuracy == max(one.accuracy for one in result.baselines)


@given(st.lists(records, max_size=5))
def test_a_classifier_that_must_be_waited_for_gets_the_same_figures(given: list[Record]) -> None:
    assert counted(evaluate(ReadsLater(), given)) == counted(evaluate(Reads(), given))


def test_a_classifier_that_fails_counts_as_unknown_and_is_told() -> None:
    class Broken:
        def classify(self, trajectory: Trajectory, task: Any) -> Any:
            if trajectory.task == "junk":
                return "loop_detected, I think"
            raise RuntimeError("no model")

    given = [Record(Trajectory(task=task), (LOOP,)) for task in ("a", "junk")]
    result = evaluate(Broken(), given)
    assert (result.failed, result.unknown_rate, result.error) == (2, 1.0, "RuntimeError: no model")
    with pytest.raises(UsageError, match="needs a classifier, not str"):
        evaluate("rules", given)  # type: ignore[arg-type]


def test_one_label_of_several_is_enough() -> None:
    given = [Record(Trajectory(), (FAULT, LOOP))]
    result = evaluate(Says(LOOP), given)
    assert (result.accuracy, result.macro_f1, list(result.confusion)) == (1.0, 1.0, [LOOP])


@table(
    ("fields", "labels", "foreign"),
    [
        ({"label": "loop_detected"}, (LOOP,), ()),
        ({"label": "LOOP-Detected"}, (LOOP,), ()),
        ({"failure_type": "external fault"}, (FAULT,), ()),
        ({"mapped_labels": ["loop_detected", "loop_detected"], "label": "unknown"}, (LOOP,), ()),
        ({"labels": [{"scheme": "x"}], "label": "unknown"}, (UNKNOWN,), ()),
        ({"labels": ["timeout", "slow", "loop_detected"]}, (FAULT, LOOP), ("slow",)),
        ({"mapped_labels": []}, (), ()),
        ({"mapped_labels": [], "labels": "loop_detected"}, (LOOP,), ()),
        ({"label": 7}, (), ()),
    ],
)
def test_labels_are_found_where_they_are(
    fields: dict[str, Any], labels: tuple[FailureType, ...], foreign: tuple[str, ...]
) -> None:
    source = json.dumps({"steps": [], **fields})
    (record,) = labelled(read(source).traces, aliases={"Timeout": "external_fault"})
    assert (record.labels, record.foreign) == (labels, foreign)


def test_records_that_went_well_are_known_by_their_outcome_or_their_source() -> None:
    lines = [
        {"steps": [], "outcome": "success", "source": "a"},
        {"steps": [], "outcome": "success", "source": "a", "label": "unknown"},
        {"steps": [], "outcome": "failure", "source": "b"},
    ]
    traces = read("\n".join(map(json.dumps, lines))).traces
    assert [record.healthy for record in labelled(traces)] == [True, False, False]
    assert [record.healthy for record in labelled(traces, healthy_sources=["b"])] == [
        False,
        False,
        True,
    ]
    assert [record.labels for record in labelled(traces, field="outcome")] == [(), (), ()]
    with pytest.raises(UsageError, match="'slow' is no failure type"):
        list(labelled(traces, aliases={"timeout": "slow"}))


def test_any_labelled_form_is_scored_without_reading_it_whole() -> None:
    call = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
    }
    line = json.dumps({"messages": [call] * 3, "label": "loop_detected", "where_label": 0})
    result = evaluate(RulesClassifier(), labelled(stream(f"{line}\nnonsense\n{line}")))
    assert (result.scored, result.accuracy, result.placed_exactly) == (2, 1.0, 2)


def test_the_shared_records_are_scored_whole() -> None:
    if not RECORDS.exists():
        pytest.skip(f"{RECORDS.name} is not there")
    found = labelled(stream(RECORDS), healthy_sources=["sentinel_healthy", "tau2_ok"])
    every = 1 if EXAMPLES > 1 else 4
    result = evaluate(RulesClassifier(), islice(found, 0, None, every))
    counts = (result.records, result.scored, result.healthy, result.placed, result.foreign)
    assert (
        counts
        == {
            1: (1029, 345, 325, 523, {"timeout": 20}),
            4: (258, 85, 81, 132, {"timeout": 7}),
        }[every]
    )
    assert result.failed == 0
    assert result.baselines[0].answer is LOOP


def test_a_trajectory_of_steps_is_enough_for_a_record() -> None:
    same = [Step(tool_called="f", tool_input={}, tool_output="x")] * 3
    assert evaluate(RulesClassifier(), [Record(Trajectory(same), (LOOP,))]).accuracy == 1.0
