"""A wrong diagnosis is written down whole, without secrets, and can be learnt from."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from cli.cli_agents import KEY
from event_values import diagnoses, errors, json_values, steps, texts
from hypothesis import given
from hypothesis import strategies as st
from support import always

from triage import (
    Abort,
    Agent,
    Diagnosis,
    Escalate,
    FailureContext,
    FailureType,
    RulesClassifier,
    Step,
    Trajectory,
    TriageAbortError,
    TriageEscalationError,
    UsageError,
    diagnose,
)
from triage.adapters.recordings import error_of, read
from triage.classifiers import RULES, read_corrections, report_misclassification
from triage.classifiers.corrections import MAX_RECORD, CorrectedClassifier, fingerprint
from triage.core import StoreError

DRIFT = FailureType.GOAL_DRIFT
LOOP = FailureType.LOOP_DETECTED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "corrections.jsonl"


def failed(error: str, **step: Any) -> FailureContext:
    """What a run that failed with this error would say."""
    info = error_of(error)
    trajectory = Trajectory([Step(tool_called="pay", **step)], error=info, task="Buy")
    return FailureContext("run", "Buy", 1, diagnose(info), info, trajectory=trajectory)


@pytest.mark.anyio
async def test_the_context_of_an_error_is_all_a_report_needs(path: Path) -> None:
    async def agent(task: str, *, record_step: Any) -> None:
        record_step(Step(tool_called="pay", tool_input={"cents": 5}, tool_output="sold out"))
        raise RuntimeError("Flight 12 is sold out")

    with pytest.raises(TriageAbortError) as caught:
        await Agent(agent, always(Abort())).run("Buy")
    assert caught.value.context is not None
    context = caught.value.context

    def written() -> None:
        report_misclassification(
            context, correct="goal_drift", cause="sold_out", note="N", path=path
        )
        report_misclassification(context.diagnosis, correct=DRIFT, path=path)

    await triage_thread(written)
    first, second = await anyio.to_thread.run_sync(read_corrections, path)
    assert (first.said, first.correct, first.cause, first.note) == (
        FailureType.UNKNOWN, DRIFT, "sold_out", "N",
    )  # fmt: skip
    assert first.trajectory.task == "Buy"
    assert first.trajectory.error is not None
    assert first.trajectory.error.message == "Flight 12 is sold out"
    assert first.trajectory[0].tool_input == {"cents": 5}
    assert (len(second.trajectory), second.fingerprint, second.rule()) == (0, "", None)


async def triage_thread(function: Any) -> None:
    """Files are written outside of the event loop."""
    await anyio.to_thread.run_sync(function)


@given(diagnosis=diagnoses, error=st.none() | errors, made=st.lists(steps, max_size=3), task=json_values,
       note=texts, cause=st.none() | texts)  # fmt: skip
def test_any_failure_makes_one_line_that_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    diagnosis: Diagnosis, error: Any, made: list[Step], task: Any, note: str, cause: str | None,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("any") / "c.jsonl"
    trajectory = Trajectory(made, error=error, task=task)
    for _ in range(2):
        report_misclassification(
            diagnosis, correct=DRIFT, cause=cause, note=note, path=path, trajectory=trajectory
        )
    assert path.read_bytes().count(b"\n") == 2
    _, found = read_corrections(path)
    assert (found.said, found.correct) == (diagnosis.failure_type, DRIFT)
    assert len(found.trajectory) == len(made)
    records = read(path)
    assert (len(records.traces), records.problems) == (2, [])


def test_no_credential_is_written(path: Path) -> None:
    context = failed(
        f"ValueError: {KEY} is no key",
        tool_input={"password": "hunter2!", "deep": [{"api_key": "q1w2e3", "note": f"use {KEY}"}]},
        llm_output=f"I use {KEY}",
        metadata={"authorization": "Bearer abcdefghij"},
    )
    report_misclassification(context, correct=DRIFT, note=f"key {KEY}", path=path)
    text = path.read_text(encoding="utf-8")
    for secret in (KEY, KEY[:14], "hunter2!", "q1w2e3", "abcdefghij"):
        assert secret not in text
    assert "is no key" in text


@pytest.mark.parametrize(("count", "size"), [(1, 10), (1, 10**6), (300, 10), (300, 10**4)])
def test_a_record_is_of_bounded_size(path: Path, count: int, size: int) -> None:
    wide = {str(at): ["x" * (size // 100)] * 3 for at in range(100)}
    made = [Step(tool_called="f", tool_input=wide if count == 1 else None, tool_output="y" * size)]
    trajectory = Trajectory(made * count, task="z" * size)
    report_misclassification(Diagnosis(LOOP), correct=DRIFT, path=path, trajectory=trajectory)
    assert path.stat().st_size <= MAX_RECORD
    (found,) = read_corrections(path)
    left_out = json.loads(path.read_text(encoding="utf-8")).get("steps_left_out", 0)
    assert len(found.trajectory) + left_out == count


def test_the_file_is_its_owners_alone(path: Path) -> None:
    if os.name != "posix":
        pytest.skip("files have no such mode here")
    report_misclassification(Diagnosis(LOOP), correct=DRIFT, path=path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lines_of_many_writers_do_not_mix_and_a_torn_line_takes_no_other_with_it(
    path: Path,
) -> None:
    path.write_bytes(b'{"steps": [')
    context = failed("ValueError: x", tool_output="y" * 3000)

    def write() -> None:
        for _ in range(20):
            report_misclassification(context, correct=DRIFT, path=path)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_corrections(path)) == 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"correct": "goal drift"}, "correct must be one of wrong_tool_called"),
        ({"wrong": "x"}, "wrong must be a FailureContext, an Attempt or a Diagnosis, not str"),
        ({"note": 7}, "note must be text, not int"),
        ({"cause": 7}, "cause must be text, not int"),
        ({"trajectory": []}, "trajectory must be a Trajectory or None, not list"),
        ({"path": 1.5}, "path must be the path of a file, not float"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(
    path: Path, arguments: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"wrong": Diagnosis(LOOP), "correct": DRIFT, "path": path, **arguments}
    with pytest.raises(UsageError, match=message):
        report_misclassification(given.pop("wrong"), **given)
    assert not path.exists()


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "c.jsonl"):
        with pytest.raises(StoreError, match="cannot be written"):
            report_misclassification(Diagnosis(LOOP), correct=DRIFT, path=path)


class SeatGoneError(Exception):
    """An application's own."""


class CodedError(Exception):
    """Has a provider's word for it."""

    code = "seat_gone_already"


@pytest.mark.parametrize(
    "error",
    [SeatGoneError("x"), CodedError("y"), RuntimeError("Flight 12 is sold out, request 0ab1cd23")],
    ids=["class", "code", "words"],
)
def test_the_rule_of_a_correction_tells_the_failure_it_is_made_of(
    path: Path, error: Exception
) -> None:
    async def agent(task: str) -> None:
        raise error

    with pytest.raises(TriageEscalationError) as caught:
        anyio.run(Agent(agent, always(Escalate())).run, "Buy")
    wrong = caught.value.context
    assert wrong is not None
    assert wrong.failure_type is not DRIFT
    report_misclassification(wrong, correct=DRIFT, cause="gone", path=path)
    rule = read_corrections(path)[0].rule()
    assert rule is not None
    told = diagnose(error, classifier=RulesClassifier((rule, *RULES)))
    assert (told.failure_type, told.cause) == (DRIFT, "gone")


def test_an_error_that_says_too_little_makes_no_rule(path: Path) -> None:
    report_misclassification(failed("ValueError: 17"), correct=DRIFT, path=path)
    assert read_corrections(path)[0].rule() is None


class TestCorrectedClassifier:
    def test_the_same_failure_gets_the_corrected_answer_and_any_other_is_passed_on(
        self, path: Path
    ) -> None:
        wrong = failed("RuntimeError: request 17 was odd", tool_output="x")
        report_misclassification(wrong, correct=LOOP, path=path)
        report_misclassification(wrong, correct=DRIFT, cause="odd", path=path)
        classifier = CorrectedClassifier(path)
        again = failed("RuntimeError: request 99 was odd", tool_output="z").trajectory
        told = classifier.classify(again)
        assert (told.failure_type, told.cause, told.classifier) == (DRIFT, "odd", "corrected")
        other = failed("RuntimeError: request 99 was even").trajectory
        assert classifier.classify(other) == RulesClassifier().classify(other)
        assert classifier.classify(Trajectory()).failure_type is FailureType.UNKNOWN

    def test_without_a_file_it_is_the_other_classifier(self, path: Path) -> None:
        trajectory = failed("ConnectionError: down").trajectory
        assert CorrectedClassifier(path).classify(trajectory) == RulesClassifier().classify(
            trajectory
        )

    def test_steps_without_an_error_are_known_by_what_they_did(self) -> None:
        one = Trajectory([Step(tool_called="f", tool_input={"a": 1})])
        other = Trajectory([Step(tool_called="f", tool_input={"a": 2})])
        assert fingerprint(one) == fingerprint(Trajectory(one.steps))
        assert len({fingerprint(one), fingerprint(other), fingerprint(Trajectory())}) == 3
