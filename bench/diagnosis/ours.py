"""What `RulesClassifier` says of the records, and how long a long trajectory takes it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from triage import RulesClassifier, Step, Trajectory
from triage.core import Diagnosis

from .records import Record
from .scores import Answer, Pair

LENGTH = 10_000
SAMPLES = 9


def answers(
    records: Iterable[Record], *, grounding: bool = False, failed: bool = False
) -> list[Pair]:
    """Each record with the answer to it. failed: as a post-mortem."""
    classifier = RulesClassifier(grounding=grounding, failed=failed)
    return [(record, answer(classifier.classify(trajectory(record)))) for record in records]


def trajectory(record: Record) -> Trajectory:
    """The steps of a record, with its task; the record has no exception."""
    return Trajectory([Step(**step) for step in record.steps], task=record.task)


def answer(found: Diagnosis) -> Answer:
    """A diagnosis as it is scored."""
    kind = found.failure_type.value
    if kind == "external_fault" and found.cause == "timeout":
        kind = "timeout"
    return Answer(kind, found.critical_step, found.confidence)


def seconds() -> float:
    """Processor time of one classification of 10,000 healthy steps, the least of some samples."""
    classifier = RulesClassifier()
    steps = [
        Step(
            action="search",
            tool_called="search",
            tool_input={"page": at},
            tool_output=f"result {at} " + "x" * 50,
        )
        for at in range(LENGTH)
    ]
    long = Trajectory(steps, task="find the page")
    return min(_timed(classifier, long) for _ in range(SAMPLES))


def _timed(classifier: RulesClassifier, long: Trajectory) -> float:
    begun = time.process_time()
    classifier.classify(long)
    return time.process_time() - begun
