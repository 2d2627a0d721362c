"""`ChainClassifier`: one classifier after another, until one is sure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from triage._options import misuse
from triage.diagnosis import Diagnosis
from triage.errors import UsageError
from triage.steps import Trajectory, Usage
from triage.taxonomy import FailureType

from ._consult import check_classifier, consult, deadline_of
from .base import Classifier

SPARE_SECONDS = 1.0
"""What asking itself may take, beside the deadlines of those that are asked."""


class ChainClassifier:
    """Asks its classifiers in turn; the first confident answer is the answer.

    Each may be sync (it runs in a worker thread) or async and has its own deadline. One that raises,
    takes too long or answers junk is logged and passed over, and the reason stands in the evidence.
    Confident is what is not UNKNOWN and has at least `confidence`. Where no answer is, the one with
    the highest confidence that is not UNKNOWN is taken, the earlier of two equals; where there is none
    the diagnosis is UNKNOWN, with the evidence of all.

    classifiers: at least one. confidence: from 0 to 1. Raises UsageError for anything else.
    """

    name = "chain"

    def __init__(self, *classifiers: Classifier, confidence: float = 0.5) -> None:
        if not classifiers:
            raise UsageError("ChainClassifier() needs at least one classifier")
        for at, classifier in enumerate(classifiers):
            check_classifier(f"ChainClassifier classifier {at + 1}", classifier)
        check_confidence("ChainClassifier.confidence", confidence)
        self._classifiers = classifiers
        self._confidence = confidence

    @property
    def deadline(self) -> float:
        """Seconds that all of them together may take."""
        return SPARE_SECONDS + sum(deadline_of(classifier) for classifier in self._classifiers)

    async def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:
        """The first confident answer. Raises nothing but a cancellation."""
        answers: list[Diagnosis] = []
        for classifier in self._classifiers:
            answer = await consult(classifier, trajectory, task)
            answers.append(answer)
            if answer.failure_type is not FailureType.UNKNOWN and (
                answer.confidence >= self._confidence
            ):
                return _with_notes(answer, answers)
        known = [answer for answer in answers if answer.failure_type is not FailureType.UNKNOWN]
        if known:
            return _with_notes(max(known, key=lambda answer: answer.confidence), answers)
        return _unknown(answers)


def check_confidence(field: str, value: object) -> None:
    """Raise UsageError unless `value` is a number from 0 to 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise misuse(field, value, "a number from 0 to 1")


def total_usage(answers: list[Diagnosis]) -> Usage | None:
    """What several answers consumed together; None where none consumed anything."""
    total: Usage | None = None
    for answer in answers:
        if answer.usage is not None:
            total = answer.usage if total is None else total.plus(answer.usage)
    return total


def _unknown(answers: list[Diagnosis]) -> Diagnosis:
    """Answers that all say UNKNOWN as one: the surest of them, with the evidence and usage of all."""
    surest = sorted(answers, key=lambda answer: -answer.confidence)
    evidence = (found for answer in surest for found in answer.evidence)
    kinds = (kind for answer in surest for kind in answer.candidates)
    return replace(
        surest[0],
        evidence=tuple(dict.fromkeys(evidence)),
        candidates=tuple(dict.fromkeys(kinds)),
        usage=total_usage(answers),
    )


def _with_notes(chosen: Diagnosis, answers: list[Diagnosis]) -> Diagnosis:
    """The chosen answer, with why others gave none, and with the usage of all."""
    notes = tuple(
        found
        for answer in answers
        if answer.failure_type is FailureType.UNKNOWN and answer.confidence == 0
        for found in answer.evidence
    )
    usage = total_usage(answers)
    if not notes and usage == chosen.usage:
        return chosen
    return replace(chosen, evidence=(*chosen.evidence, *notes), usage=usage)
