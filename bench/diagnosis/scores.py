"""What answers are worth: hits, precision, false alarms, beside what a constant answer gets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from .records import Record

UNKNOWN = "unknown"


class Answer(NamedTuple):
    """kind: a failure type; `timeout` where that is the cause of an external fault. step: critical.
    confidence: how sure the answer is, None if that was not told.
    """

    kind: str
    step: int | None
    confidence: float | None = None


Pair = tuple[Record, Answer]


def right(record: Record, kind: str) -> bool:
    """Whether an answer is one of a record's labels. A timeout is an external fault as well."""
    return kind in record.labels or (kind == "timeout" and "external_fault" in record.labels)


def ratio(part: float, whole: float) -> float | None:
    """Their quotient, None where there is nothing to divide by."""
    return part / whole if whole else None


class Line(NamedTuple):
    """The figures of so many records; None where there is nothing to measure.

    answered: share of answers that are not UNKNOWN, of all. hits: of the labelled ones. precision:
    of the answers to labelled or healthy ones. macro_f1: over the types that are labels, each alike.
    exact: of the records whose decisive step is known, None if no answer names one.
    """

    title: str
    records: int
    labelled: int
    answered: float | None
    hits: float | None
    precision: float | None
    macro_f1: float | None
    exact: float | None


def line(title: str, pairs: Sequence[Pair]) -> Line:
    """The figures of these records and answers."""
    labelled = [pair for pair in pairs if pair[0].labels]
    judged = [pair for pair in pairs if pair[0].labels or pair[0].healthy]
    told = [pair for pair in judged if pair[1].kind != UNKNOWN]
    hits = sum(right(record, answer.kind) for record, answer in labelled)
    placed = [pair for pair in pairs if pair[0].where is not None and not pair[0].healthy]
    return Line(
        title,
        len(pairs),
        len(labelled),
        ratio(sum(answer.kind != UNKNOWN for _, answer in pairs), len(pairs)),
        ratio(hits, len(labelled)),
        ratio(hits, len(told)),
        macro_f1(labelled),
        ratio(sum(answer.step == record.where for record, answer in placed), len(placed))
        if any(answer.step is not None for _, answer in placed)
        else None,
    )


def macro_f1(pairs: Sequence[Pair]) -> float | None:
    """The mean F1 over the types that are labels here; UNKNOWN is no type."""
    kinds = sorted({kind for record, _ in pairs for kind in record.labels} - {UNKNOWN})
    return fmean(f1(pairs, kind) for kind in kinds) if kinds else None


def f1(pairs: Sequence[Pair], kind: str) -> float:
    """The harmonic mean of precision and recall for one type."""
    counts: Counter[tuple[bool, bool]] = Counter()
    for record, answer in pairs:
        meant = kind in record.labels
        said = answer.kind == kind or (meant and right(record, answer.kind) and _same(kind, answer))
        counts[meant, said] += 1
    hit, missed, wrong = counts[True, True], counts[True, False], counts[False, True]
    return 2 * hit / (2 * hit + missed + wrong) if hit else 0.0


def _same(kind: str, answer: Answer) -> bool:
    return {kind, answer.kind} == {"external_fault", "timeout"}


def constants(
    pairs: Sequence[Pair], score: Callable[[Sequence[Pair]], float | None]
) -> tuple[str, float]:
    """The best answer that never changes, and what it scores."""
    kinds = sorted({kind for record, _ in pairs for kind in record.labels}) or [UNKNOWN]
    scored = [(score([(r, Answer(k, None)) for r, _ in pairs]) or 0.0, k) for k in kinds]
    best, kind = max(scored)
    return kind, best


class Tenth(NamedTuple):
    """The answers of one tenth of confidence. at: 0 to 9. mean: their confidence. right: their share."""

    at: int
    answers: int
    mean: float
    right: float


def tenths(pairs: Sequence[Pair]) -> list[Tenth]:
    """The answers to labelled or healthy records that are not UNKNOWN, by tenths of confidence."""
    found: defaultdict[int, list[tuple[float, bool]]] = defaultdict(list)
    for record, answer in pairs:
        judged = record.labels or record.healthy
        if judged and answer.kind != UNKNOWN and answer.confidence is not None:
            tenth = min(9, int(answer.confidence * 10))
            found[tenth].append((answer.confidence, right(record, answer.kind)))
    return [
        Tenth(at, len(told), fmean(sure for sure, _ in told), fmean(hit for _, hit in told))
        for at, told in sorted(found.items())
    ]


def calibration_error(pairs: Sequence[Pair]) -> float | None:
    """How far confidence and the share of right answers are apart (ECE); None where none tells one."""
    told = tenths(pairs)
    apart = sum(tenth.answers * abs(tenth.mean - tenth.right) for tenth in told)
    return ratio(apart, sum(tenth.answers for tenth in told))


def best_position(pairs: Sequence[Pair]) -> tuple[int, float] | None:
    """The position that is decisive most often, and how often; None where none is known."""
    known = [record.where for record, _ in pairs if record.where is not None]
    if not known:
        return None
    position, count = Counter(known).most_common(1)[0]
    return position, count / len(known)
