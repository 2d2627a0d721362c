"""Classifiers that combine others: in sequence, or a model only where the rules are unsure."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from triage.core.asking import deadline_of
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.errors import UsageError, check_count, misuse
from triage.core.observers import logger
from triage.core.steps import Trajectory, Usage
from triage.core.taxonomy import Cause, FailureType, Severity

from .base import Classifier, check_classifier, consult
from .rules import RulesClassifier

SPARE_SECONDS = 1.0
"""Seconds for the overhead of asking, on top of the deadlines of the classifiers asked."""
SURE = 0.8
"""The confidence from which the rules' diagnosis stands without a model's."""
MAX_RUNS = 4_096
"""Runs whose calls are counted; beyond it, the least recently counted run is forgotten."""
_BELIEVED = 0.95
_FINAL = frozenset({Severity.CRITICAL, Severity.FATAL})


class ChainClassifier:
    """Asks its classifiers in turn and takes the first confident answer.

    An answer is confident if it is not UNKNOWN and has at least `confidence`. Without one, the answer
    with the highest confidence that is not UNKNOWN is taken, the earlier of two equals; if all are
    UNKNOWN, so is the diagnosis, with the evidence of all. Each classifier may be sync (it runs in a
    worker thread) or async, and has its own deadline. One that raises, takes too long or returns junk
    is logged and skipped, and the evidence says why.

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
        """Seconds that all classifiers together may take."""
        return SPARE_SECONDS + sum(deadline_of(classifier) for classifier in self._classifiers)

    async def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:
        """Return the first confident answer. Raises nothing but a cancellation."""
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
    """The total usage of these answers; None if none has any."""
    total: Usage | None = None
    for answer in answers:
        if answer.usage is not None:
            total = answer.usage if total is None else total.plus(answer.usage)
    return total


def _unknown(answers: list[Diagnosis]) -> Diagnosis:
    """The surest of answers that all say UNKNOWN, with the evidence and usage of all."""
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
    """The chosen answer with the usage of all, and the reasons why others failed as evidence."""
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
    """Asks the rules first, and `llm` only where they are unsure.

    The rules are unsure where they say UNKNOWN or have a confidence below 0.8, or below `confidence` if
    that is more. In a run, `llm` is also asked whenever a check refused the result: the check knows that
    it is wrong, not why. A check that knows why keeps its type. Of two answers the surer is taken, with
    the evidence of both; agreement raises the confidence. An answer of `llm` with less than `confidence`
    is a guess and does not replace the rules' diagnosis. A failure that the rules call CRITICAL or FATAL
    is not asked about, and no model makes it less severe.

    llm: any classifier, such as `LLMClassifier`. rules: any; None: `RulesClassifier()`. when: decides
    from the rules' or the check's diagnosis whether to ask, in place of the conditions above.
    max_calls_per_run: how often `llm` is asked in one run, from 0; counted for the last 4,096 runs, and
    not outside of runs. confidence: from 0 to 1.

    Raises UsageError for an invalid argument. `classify` raises nothing but a cancellation.
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
        """Seconds that rules and model together may take."""
        return SPARE_SECONDS + deadline_of(self._rules) + deadline_of(self._llm)

    def __getattr__(self, name: str) -> Any:
        # The rules watch a running attempt: a model is not asked about each step.
        if name in ("watch", "explain"):
            return getattr(self._rules, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    async def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:
        """Return the rules' diagnosis, merged with the model's where that was asked for."""
        ruled = await consult(self._rules, trajectory, task)
        least = max(SURE, self._confidence)
        unsure = ruled.failure_type is FailureType.UNKNOWN or ruled.confidence < least
        return await self._completed(ruled, trajectory, task, unsure=unsure)

    def after_check(self, refused: Diagnosis) -> Classifier:
        """Return the classifier of an attempt whose result a check refused.

        refused: the check's diagnosis, which takes the place of the rules'.
        """
        return _AfterCheck(self, refused)

    async def _completed(
        self,
        ruled: Diagnosis,
        trajectory: Trajectory,
        task: Any,
        *,
        unsure: bool = True,
        checked: bool = False,
    ) -> Diagnosis:
        """Merge the model's diagnosis with the rules', or a check's, if it is to be asked."""
        if not self._asks(ruled, unsure=unsure):
            return ruled
        if not self._may_ask(trajectory.run_id):
            note = Evidence("hybrid:cap", f"asked {self._cap} times in this run, which is the cap")
            return replace(ruled, evidence=(*ruled.evidence, note))
        return self._merged(ruled, await consult(self._llm, trajectory, task), checked=checked)

    def _asks(self, ruled: Diagnosis, *, unsure: bool) -> bool:
        if self._when is not None:
            try:
                return bool(self._when(ruled))
            except Exception:  # any function may fail in any way; it is logged
                logger.exception("HybridClassifier.when failed; the model is not asked")
                return False
        return unsure and ruled.severity not in _FINAL

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

    def _merged(self, ruled: Diagnosis, said: Diagnosis, *, checked: bool) -> Diagnosis:
        kept = _noting(ruled, said)
        guessed = said.failure_type is FailureType.UNKNOWN or said.confidence < self._confidence
        if not guessed and ruled.severity not in _FINAL:
            if said.failure_type is ruled.failure_type:
                surer = min(_BELIEVED, 1 - (1 - ruled.confidence) * (1 - said.confidence))
                kept = replace(
                    kept,
                    confidence=max(ruled.confidence, round(surer, 4)),
                    critical_step=said.critical_step
                    if ruled.critical_step is None
                    else ruled.critical_step,
                )
            elif ruled.cause == Cause.CHECK_FAILED:
                # A check of the user's says that the result is wrong; its type is a default.
                hints = [one.hint for one in (ruled, said) if one.hint]
                kept = replace(_noting(said, ruled), hint=" ".join(hints) or None)
            elif ruled.failure_type is FailureType.UNKNOWN or (
                said.confidence > ruled.confidence and not checked
            ):
                kept = _noting(said, ruled)
        return replace(kept, usage=_total_usage([ruled, said]))


class _AfterCheck:
    """Asks the model of a `HybridClassifier` about an attempt whose result a check refused."""

    def __init__(self, hybrid: HybridClassifier, refused: Diagnosis) -> None:
        self._hybrid = hybrid
        self._refused = refused
        self.deadline = hybrid.deadline

    async def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:
        """Return the check's diagnosis, merged with the model's."""
        return await self._hybrid._completed(self._refused, trajectory, task, checked=True)


def _noting(chosen: Diagnosis, other: Diagnosis) -> Diagnosis:
    """The chosen answer, with the evidence of both and the other's type as a candidate."""
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
