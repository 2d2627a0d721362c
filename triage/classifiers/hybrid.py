"""`HybridClassifier`: rules first, and a costlier classifier only where they do not know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from triage._options import check_count, misuse
from triage.diagnosis import Diagnosis, Evidence
from triage.observers import logger
from triage.steps import Trajectory
from triage.taxonomy import FailureType, Severity

from ._consult import check_classifier, consult, deadline_of
from ._llm_budget import ByRun
from .base import Classifier
from .chain import SPARE_SECONDS, check_confidence, total_usage
from .rules import RulesClassifier

DISPUTED = 0.8
"""The rules disagree where they considered another type and are less sure than this."""
_BELIEVED = 0.95
_FINAL = frozenset({Severity.CRITICAL, Severity.FATAL})


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
        check_confidence("HybridClassifier.confidence", confidence)
        self._llm = llm
        self._rules: Classifier = RulesClassifier() if rules is None else rules
        self._when = when
        self._cap = max_calls_per_run
        self._confidence = confidence
        self._lock = threading.Lock()
        self._calls = ByRun(0)

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
            except Exception:  # noqa: BLE001 - any function may fail in any way; it is logged
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
            calls = self._calls.get(run_id)
            if calls >= self._cap:
                return False
            self._calls.put(run_id, calls + 1)
            return True

    def _merged(self, ruled: Diagnosis, said: Diagnosis) -> Diagnosis:
        kept = _noting(ruled, said)
        abstains = said.failure_type is FailureType.UNKNOWN or said.confidence < self._confidence
        if not abstains and ruled.severity not in _FINAL:
            if said.failure_type is ruled.failure_type:
                surer = min(_BELIEVED, 1 - (1 - ruled.confidence) * (1 - said.confidence))
                kept = replace(kept, confidence=max(ruled.confidence, round(surer, 4)))
            elif _outweighs(said, ruled):
                kept = _noting(said, ruled)
        return replace(kept, usage=total_usage([ruled, said]))


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
