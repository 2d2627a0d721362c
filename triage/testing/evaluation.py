"""Evaluation of classifiers: `evaluate` asks one about labelled records and counts.

    from triage.testing import evaluate, labelled
    from triage.adapters.recordings import stream

    print(evaluate(RulesClassifier(), labelled(stream("labelled.jsonl"))).macro_f1)

All figures come from pairs of the right label and the answer. A record with several labels counts under
the label that was answered, or under its first if none was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from triage.adapters.recordings.trajectories import Problem, Trace
from triage.classifiers.base import Classifier, classifier_name
from triage.classifiers.blocking import Asker
from triage.core.diagnosis import Diagnosis
from triage.core.errors import UsageError
from triage.core.steps import Trajectory
from triage.core.taxonomy import FailureType

LABEL_FIELDS = ("mapped_labels", "labels", "label", "failure_type")
"""Fields searched for a record's labels, in this order."""
HEALTHY_OUTCOMES = frozenset({"success", "ok", "done"})
"""Outcomes that mark a record without a label as healthy."""
BINS = 10
"""Number of equal ranges of confidence."""


class Record(NamedTuple):
    """A trajectory with its labels.

    labels: the failure types, any of which is right; empty without labels. foreign: labels that are not
    failure types. healthy: nothing was wrong, so any answer but UNKNOWN is a false alarm. where: index
    of the decisive step, None if not labelled.
    """

    trajectory: Trajectory
    labels: tuple[FailureType, ...] = ()
    foreign: tuple[str, ...] = ()
    healthy: bool = False
    where: int | None = None


class TypeScore(NamedTuple):
    """The score of one failure type. support: records with this label. answered: times it was answered.

    hits: times that answer was right. precision, recall, f1: from 0 to 1; 0 if never answered or absent.
    """

    support: int
    answered: int
    hits: int
    precision: float
    recall: float
    f1: float


class Bin(NamedTuple):
    """Answers with confidence from `low` to `high`: their number, mean confidence and precision."""

    low: float
    high: float
    answers: int
    confidence: float
    precision: float


class Baseline(NamedTuple):
    """The score of always giving the same answer."""

    answer: FailureType
    accuracy: float
    macro_f1: float


@dataclass(frozen=True)
class Evaluation:
    """The outcome of `evaluate`. Shares are from 0 to 1, and None if there was nothing to count.

    records: all records. scored: those with a label, which accuracy, unknown_rate, mean_confidence,
    confusion and types count. accuracy: share answered with one of the labels. macro_f1: mean F1 of the
    types that occur as labels. unknown_rate: share answered UNKNOWN. selective_precision: share of right
    answers among all others. confusion: right label, answer, and how often. bins: precision by confidence,
    without answers of UNKNOWN. healthy, false_alarms: records with nothing wrong, and those answered with
    a failure type. placed, placed_exactly: records with a labelled decisive step, and those where it was
    named. foreign: labels that are not failure types, with their number of records. baselines: constant
    answers, best macro-F1 first. failed: times the classifier raised or answered junk, which counts as
    UNKNOWN; error: the first of these.
    """

    classifier: str
    records: int
    scored: int
    accuracy: float | None
    macro_f1: float | None
    unknown_rate: float | None
    selective_precision: float | None
    mean_confidence: float | None
    types: Mapping[FailureType, TypeScore]
    confusion: Mapping[FailureType, Mapping[FailureType, int]]
    bins: tuple[Bin, ...]
    healthy: int
    false_alarms: int
    placed: int
    placed_exactly: int
    foreign: Mapping[str, int]
    baselines: tuple[Baseline, ...]
    majority: Baseline | None
    failed: int
    error: str | None

    @property
    def calibration_error(self) -> float | None:
        """Return the expected calibration error: the mean gap of confidence and precision over the bins."""
        apart = sum(one.answers * abs(one.confidence - one.precision) for one in self.bins)
        return _share(apart, sum(one.answers for one in self.bins))


_KINDS = frozenset(kind.value for kind in FailureType)


# Records ------------------------------------------------------------------------------------------


def labelled(
    found: Iterable[Trace | Problem],
    *,
    field: str | None = None,
    aliases: Mapping[str, FailureType | str] | None = None,
    healthy_sources: Iterable[str] | None = None,
) -> Iterator[Record]:
    """Return the records of a recording, skipping problems.

    field: the field with a record's label, a word or a list of words; None takes the first of
    `LABEL_FIELDS` that holds any. aliases: other words for failure types. healthy_sources: values of
    `source` that mark records without a label as healthy; None goes by a successful `outcome` instead.
    Raises UsageError for an alias of something that is not a failure type.
    """
    names = {word.lower(): _failure_type(kind) for word, kind in (aliases or {}).items()}
    sources = None if healthy_sources is None else frozenset(healthy_sources)
    for entry in found:
        if isinstance(entry, Trace):
            yield _record(entry, field, names, sources)


def _failure_type(word: str) -> FailureType:
    try:
        return FailureType(word.lower())
    except ValueError:
        known = ", ".join(FailureType)
        raise UsageError(f"{word!r} is no failure type; they are {known}") from None


def _record(
    trace: Trace,
    field: str | None,
    aliases: Mapping[str, FailureType],
    sources: frozenset[str] | None,
) -> Record:
    labels: list[FailureType] = []
    foreign: list[str] = []
    for word in _words(trace.fields, field):
        name = "_".join(word.replace("-", " ").lower().split())
        if word.lower() in aliases:
            labels.append(aliases[word.lower()])
        elif name in _KINDS:
            labels.append(FailureType(name))
        else:
            foreign.append(word)
    source = trace.fields.get("source")
    well = (
        trace.outcome in HEALTHY_OUTCOMES
        if sources is None
        else isinstance(source, str) and source in sources
    )
    where = trace.fields.get("where_label")
    return Record(
        trace.trajectory,
        tuple(dict.fromkeys(labels)),
        tuple(dict.fromkeys(foreign)),
        well and not labels and not foreign,
        where if type(where) is int and where >= 0 else None,
    )


def _words(fields: Mapping[str, Any], field: str | None) -> list[str]:
    for name in LABEL_FIELDS if field is None else (field,):
        value = fields.get(name)
        if isinstance(value, str) and value:
            return [value]
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return value
    return []


# Counting -----------------------------------------------------------------------------------------

Pairs: TypeAlias = Counter[tuple[tuple[FailureType, ...], FailureType]]
"""How often records with these labels got this answer."""


def evaluate(classifier: Classifier, records: Iterable[Record]) -> Evaluation:
    """Ask a classifier about each record in turn, and count.

    An async classifier runs in an event loop of its own. An exception of the classifier counts as UNKNOWN
    and in `failed`. Raises UsageError for something that is not a classifier.
    """
    if not callable(getattr(classifier, "classify", None)):
        raise UsageError(
            f"evaluate() needs a classifier, not {type(classifier).__name__}; give an object with "
            "classify(trajectory, task)"
        )
    count = _Count(classifier)
    with Asker() as asker:
        for record in records:
            try:
                diagnosis = asker.ask(classifier, record.trajectory)
            except Exception as error:
                diagnosis = count.failed(error)
            count.answered(record, diagnosis)
    return count.evaluation()


class _Count:
    """Counts answers."""

    def __init__(self, classifier: object) -> None:
        self._name = classifier_name(classifier)
        self._pairs: Pairs = Counter()
        self._sure: list[tuple[float, bool]] = []
        self._confidence = 0.0
        self._foreign: Counter[str] = Counter()
        self._records = self._healthy = self._alarms = 0
        self._placed = self._exactly = self._failed = 0
        self._error: str | None = None

    def failed(self, error: Exception) -> Diagnosis:
        """Replaces the answer of a classifier that failed."""
        self._failed += 1
        if self._error is None:
            self._error = f"{type(error).__name__}: {error}"[:500]
        return Diagnosis(FailureType.UNKNOWN, confidence=0.0)

    def answered(self, record: Record, diagnosis: Diagnosis) -> None:
        kind = diagnosis.failure_type
        self._records += 1
        self._foreign.update(record.foreign)
        self._placed += record.where is not None
        self._exactly += record.where is not None and diagnosis.critical_step == record.where
        if record.healthy:
            self._healthy += 1
            self._alarms += kind is not FailureType.UNKNOWN
        if not record.labels:
            return
        self._pairs[record.labels, kind] += 1
        self._confidence += diagnosis.confidence
        if kind is not FailureType.UNKNOWN:
            self._sure.append((diagnosis.confidence, kind in record.labels))

    def evaluation(self) -> Evaluation:
        pairs = self._pairs
        scored = pairs.total()
        confusion = _confusion(pairs)
        types = _types(confusion)
        baselines = _baselines(pairs)
        hits = sum(score.hits for score in types.values())
        right = sum(hit for _, hit in self._sure)
        return Evaluation(
            classifier=self._name,
            records=self._records,
            scored=scored,
            accuracy=_share(hits, scored),
            macro_f1=_macro(types),
            unknown_rate=_share(scored - len(self._sure), scored),
            selective_precision=_share(right, len(self._sure)),
            mean_confidence=_share(self._confidence, scored),
            types=types,
            confusion=confusion,
            bins=_bins(self._sure),
            healthy=self._healthy,
            false_alarms=self._alarms,
            placed=self._placed,
            placed_exactly=self._exactly,
            foreign=dict(self._foreign.most_common()),
            baselines=baselines,
            majority=max(baselines, key=lambda one: one.accuracy, default=None),
            failed=self._failed,
            error=self._error,
        )


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _confusion(pairs: Pairs) -> dict[FailureType, dict[FailureType, int]]:
    counts: Counter[tuple[FailureType, FailureType]] = Counter()
    for (labels, answer), times in pairs.items():
        counts[answer if answer in labels else labels[0], answer] += times
    return {
        right: row
        for right in FailureType
        if (row := {kind: counts[right, kind] for kind in FailureType if counts[right, kind]})
    }


def _types(
    confusion: Mapping[FailureType, Mapping[FailureType, int]],
) -> dict[FailureType, TypeScore]:
    answered: Counter[FailureType] = Counter()
    for row in confusion.values():
        answered.update(row)
    scores: dict[FailureType, TypeScore] = {}
    for kind in FailureType:
        row = confusion.get(kind, {})
        support, hits = sum(row.values()), row.get(kind, 0)
        if support or answered[kind]:
            scores[kind] = TypeScore(
                support,
                answered[kind],
                hits,
                hits / answered[kind] if answered[kind] else 0.0,
                hits / support if support else 0.0,
                2 * hits / (support + answered[kind]),
            )
    return scores


def _macro(types: Mapping[FailureType, TypeScore]) -> float | None:
    scores = [score.f1 for score in types.values() if score.support]
    return _share(sum(scores), len(scores))


def _baselines(pairs: Pairs) -> tuple[Baseline, ...]:
    """Score each constant answer that is right at least once."""
    made: list[Baseline] = []
    for constant in FailureType:
        same: Pairs = Counter()
        for (labels, _), times in pairs.items():
            same[labels, constant] += times
        types = _types(_confusion(same))
        if constant in types and types[constant].hits:
            share = types[constant].hits / same.total()
            made.append(Baseline(constant, share, _macro(types) or 0.0))
    return tuple(sorted(made, key=lambda one: -one.macro_f1))


def _bins(sure: list[tuple[float, bool]]) -> tuple[Bin, ...]:
    held: dict[int, list[tuple[float, bool]]] = {}
    for confidence, hit in sure:
        held.setdefault(min(int(confidence * BINS), BINS - 1), []).append((confidence, hit))
    return tuple(
        Bin(
            at / BINS,
            (at + 1) / BINS,
            len(entries),
            sum(confidence for confidence, _ in entries) / len(entries),
            sum(hit for _, hit in entries) / len(entries),
        )
        for at, entries in sorted(held.items())
    )
