"""Classifiers made of others: asked one after another, or a costly one only where rules do not know."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from triage.core import (
    Diagnosis,
    Evidence,
    FailureType,
    Severity,
    Trajectory,
    Usage,
    UsageError,
    check_count,
    logger,
    misuse,
)

from .base import Classifier, check_classifier, consult, deadline_of
from .rules import RulesClassifier

SPARE_SECONDS = 1.0
"""What asking itself may take, beside the deadlines of those that are asked."""
DISPUTED = 0.8
"""The rules disagree where they considered another type and are less sure than this."""
MAX_RUNS = 4_096
"""Runs whose calls are counted; a new one beyond drops the one not counted for longest."""
_BELIEVED = 0.95
_FINAL = frozenset({Severity.CRITICAL, Severity.FATAL})


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
        _check_confidence("ChainClassifier.confidence", confidence)
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


def _check_confidence(field: str, value: object) -> None:
    """Raise UsageError unless `value` is a number from 0 to 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise misuse(field, value, "a number from 0 to 1")


def _total_usage(answers: list[Diagnosis]) -> Usage | None:
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
        usage=_total_usage(answers),
    )


def _with_notes(chosen: Diagnosis, answers: list[Diagnosis]) -> Diagnosis:
    """The chosen answer, with why others gave none, and with the usage of all."""
    notes = tuple(
        found
        for answer in answers
        if answer.failure_type is FailureType.UNKNOWN and answer.confidence == 0
        for found in answer.evidence
    )
    usage = _total_usage(answers)
    if not notes and usage == chosen.usage:
        return chosen
    return replace(chosen, evidence=(*chosen.evidence, *notes), usage=usage)


class HybridClassifier:
    """Asks the rules first, and `llm` only where they abstain or disagree.

    They abstain where they say UNKNOWN or have less than `confidence`; they disagree where another
    type was considered as well and they have less than 0.8. Of the two answers the surer is taken,
    with the evidence of both; agreement makes surer. Where the rules call the failure CRITICAL or
    FATAL it is not asked: a model does not talk a stop away. What neither knows, or the model only
    guesses (less than `confidence`), stays UNKNOWN.

    llm: any classifier, such as `LLMClassifier`; rules: any, None: `RulesClassifier()`. when: decides
    on the rules' diagnosis whether to ask, in place of the words above. max_calls_per_run: how many
    diagnoses of one run `llm` is asked for, from 0; counts of the last 4,096 runs are kept, and
    outside of a run nothing is counted. confidence: from 0 to 1.

    Raises UsageError for a value that cannot be used. `classify` raises nothing but a cancellation.
    """

    name = "hybrid"

    def __init__(
        self,
        llm: Classifier,
        rules: Classifier | None = None,
        *,
        when: Callable[[Diagnosis], bool] | None = None,
        max_calls_per_run: int = 3,
        confidence: float = 0.5,
    ) -> None:
        check_classifier("HybridClassifier.llm", llm)
        if rules is not None:
            check_classifier("HybridClassifier.rules", rules)
        if when is not None and not callable(when):
            raise misuse(
                "HybridClassifier.when", when, "a function of the rules' diagnosis or None"
            )
        check_count("HybridClassifier.max_calls_per_run", max_calls_per_run, 0)
        _check_confidence("HybridClassifier.confidence", confidence)
        self._llm = llm
        self._rules: Classifier = RulesClassifier() if rules is None else rules
        self._when = when
        self._cap = max_calls_per_run
        self._confidence = confidence
        self._lock = threading.Lock()
        self._calls: OrderedDict[str, int] = OrderedDict()

    @property
    def deadline(self) -> float:
        """Seconds that both together may take."""
        return SPARE_SECONDS + deadline_of(self._rules) + deadline_of(self._llm)

    def __getattr__(self, name: str) -> Any:
        # A running attempt is watched by the rules: no model is asked about each step.
        if name in ("watch", "explain"):
            return getattr(self._rules, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    async def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:
        """The rules' diagnosis, the model's, or what both make together."""
        ruled = await consult(self._rules, trajectory, task)
        if not self._doubtful(ruled):
            return ruled
        if not self._may_ask(trajectory.run_id):
            note = Evidence("hybrid:cap", f"asked {self._cap} times in this run, which is the cap")
            return replace(ruled, evidence=(*ruled.evidence, note))
        return self._merged(ruled, await consult(self._llm, trajectory, task))

    def _doubtful(self, ruled: Diagnosis) -> bool:
        if self._when is not None:
            try:
                return bool(self._when(ruled))
            except Exception:  # any function may fail in any way; it is logged
                logger.exception("HybridClassifier.when failed; the model is not asked")
                return False
        if ruled.severity in _FINAL:
            return False
        if ruled.failure_type is FailureType.UNKNOWN or ruled.confidence < self._confidence:
            return True
        return bool(ruled.candidates) and ruled.confidence < DISPUTED

    def _may_ask(self, run_id: str | None) -> bool:
        if self._cap == 0:
            return False
        if run_id is None:
            return True
        with self._lock:
            calls = self._calls.pop(run_id, 0)
            self._calls[run_id] = min(calls + 1, self._cap)
            if len(self._calls) > MAX_RUNS:
                self._calls.popitem(last=False)
            return calls < self._cap

    def _merged(self, ruled: Diagnosis, said: Diagnosis) -> Diagnosis:
        kept = _noting(ruled, said)
        abstains = said.failure_type is FailureType.UNKNOWN or said.confidence < self._confidence
        if not abstains and ruled.severity not in _FINAL:
            if said.failure_type is ruled.failure_type:
                surer = min(_BELIEVED, 1 - (1 - ruled.confidence) * (1 - said.confidence))
                kept = replace(kept, confidence=max(ruled.confidence, round(surer, 4)))
            elif _outweighs(said, ruled):
                kept = _noting(said, ruled)
        return replace(kept, usage=_total_usage([ruled, said]))


def _outweighs(said: Diagnosis, ruled: Diagnosis) -> bool:
    return ruled.failure_type is FailureType.UNKNOWN or said.confidence > ruled.confidence


def _noting(chosen: Diagnosis, other: Diagnosis) -> Diagnosis:
    """One of two answers, with the evidence of both and the other's type as a candidate."""
    kinds = (other.failure_type, *chosen.candidates, *other.candidates)
    return replace(
        chosen,
        evidence=tuple(dict.fromkeys((*chosen.evidence, *other.evidence))),
        candidates=tuple(
            dict.fromkeys(
                kind for kind in kinds if kind not in (chosen.failure_type, FailureType.UNKNOWN)
            )
        ),
    )
