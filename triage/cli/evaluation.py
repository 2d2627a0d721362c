"""`triage eval`: how good a classifier is on labelled records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from triage.adapters.recordings.reading import stream
from triage.adapters.recordings.trajectories import Problem, Trace
from triage.core import FailureType, UsageError, one_line
from triage.testing.evaluation import Evaluation, evaluate, labelled

from .diagnose import CODES, classifier_of, complain, name_of, source_of
from .options import AsJson, Classifier, Files, Format, NoPager, epilogue
from .output import note, paged, print_lines, print_text, table, write
from .text import json_line

DONE, MALFORMED = 0, 1
_MOST_BASELINES = 3

app = App(
    name="eval",
    help_epilogue=epilogue(
        CODES,
        "eval labelled.jsonl",
        "eval labelled.jsonl --map timeout=external_fault --json",
    ),
)


@app.default
def score(
    first: Annotated[Files, Parameter(name="FILE")],
    /,
    *files: Files,
    format: Format = None,
    classifier: Classifier = "rules",
    label_field: Annotated[
        str | None,
        Parameter(
            metavar="NAME",
            help="Where a record has its label (mapped_labels, labels, label or failure_type).",
        ),
    ] = None,
    map_: Annotated[
        tuple[str, ...],
        Parameter(
            name="--map",
            metavar="WORD=TYPE",
            help="Another word for a failure type; may be repeated.",
        ),
    ] = (),
    healthy_source: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="NAME",
            help="A `source` whose records without a label went well (all whose outcome says so).",
        ),
    ] = (),
    json: AsJson = False,
    no_pager: NoPager = False,
) -> int:
    """Score a classifier on labelled records, beside constant answers."""
    traces = _Traces((first, *files), format)
    records = labelled(
        traces, field=label_field, aliases=_aliases(map_), healthy_sources=healthy_source or None
    )
    result = evaluate(classifier_of(classifier), records)
    if json:
        write(json_line(result.as_dict()))
    else:
        with paged(pager=not no_pager) as out:
            _print(out, result)
    if not result.scored and not result.healthy:
        note(
            "no record has a label that is a failure type; name the field with --label-field, or other "
            "words with --map"
        )
        return MALFORMED
    return MALFORMED if traces.problems or result.failed else DONE


class _Traces(Iterable[Trace]):
    """The traces of the files; complains of what cannot be read."""

    def __init__(self, files: Iterable[str], form: str | None) -> None:
        self._files, self._form = files, form
        self.problems = 0

    def __iter__(self) -> Iterator[Trace]:
        for file in self._files:
            for found in stream(source_of(file), self._form):
                if isinstance(found, Problem):
                    self.problems += 1
                    complain(name_of(file), found, as_json=False)
                else:
                    yield found


def _aliases(pairs: Iterable[str]) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for pair in pairs:
        word, equals, kind = pair.rpartition("=")
        if not equals or not word:
            raise UsageError(
                f"--map {pair!r} must be word=type, as in --map timeout=external_fault"
            )
        aliases[word] = kind
    return aliases


# Tables -------------------------------------------------------------------------------------------


def _print(out: Console, result: Evaluation) -> None:
    tables = [(["", result.classifier], _summary(result))]
    if result.types:
        head = ["type", "records", "answered", "hits", "precision", "recall", "F1"]
        tables += [(head, _by_type(result)), _confusion(result)]
    if result.bins:
        tables.append((["confidence", "answers", "mean", "right"], _bins(result)))
    if result.baselines:
        tables.append((["always", "accuracy", "macro-F1"], _baselines(result)))
    for number, (head, rows) in enumerate(tables):
        if number:
            print_text(out, "")
        cells = [[one_line(cell, 60) for cell in row] for row in rows]
        titles = [one_line(title, 60) for title in head]
        print_lines(out, table(titles, cells, cut=titles[:1], right=True))
    if result.error is not None:
        failed = f"failed {result.failed} times, first with {one_line(result.error)}"
        print_text(out, f"\nthe classifier {failed}")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _summary(result: Evaluation) -> list[list[str]]:
    alarms = result.false_alarms / result.healthy if result.healthy else None
    exact = result.placed_exactly / result.placed if result.placed else None
    rows = [
        ["records", str(result.records)],
        ["with a label", str(result.scored)],
        ["accuracy", _share(result.accuracy)],
        ["macro-F1", _share(result.macro_f1)],
        ["answered unknown", _share(result.unknown_rate)],
        ["selective precision", _share(result.selective_precision)],
        ["mean confidence", _share(result.mean_confidence)],
        ["calibration error (ECE)", _share(result.calibration_error)],
        [f"false alarms (of {result.healthy} healthy)", _share(alarms)],
        [f"critical step exact (of {result.placed})", _share(exact)],
    ]
    rows += [
        [f"not scored: {word}, no failure type", str(count)]
        for word, count in list(result.foreign.items())[:10]
    ]
    return rows


def _by_type(result: Evaluation) -> list[list[str]]:
    return [
        [
            str(kind),
            str(score.support),
            str(score.answered),
            str(score.hits),
            _share(score.precision),
            _share(score.recall),
            _share(score.f1),
        ]
        for kind, score in result.types.items()
    ]


def _confusion(result: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Rows: what was right. Columns: what was answered, by the number of its row where it has one."""
    kinds = [kind for kind in FailureType if kind in result.types]
    head = ["right \\ answered", *(str(at) for at, _ in enumerate(kinds, 1))]
    rows = [
        [
            f"{at} {kind}",
            *(str(result.confusion.get(kind, {}).get(other) or ".") for other in kinds),
        ]
        for at, kind in enumerate(kinds, 1)
    ]
    return head, rows


def _bins(result: Evaluation) -> list[list[str]]:
    return [
        [
            f"{entry.low:.1f} to {entry.high:.1f}",
            str(entry.answers),
            _share(entry.confidence),
            _share(entry.precision),
        ]
        for entry in result.bins
    ]


def _baselines(result: Evaluation) -> list[list[str]]:
    shown = list(result.baselines[:_MOST_BASELINES])
    if result.majority is not None and result.majority not in shown:
        shown.append(result.majority)
    return [
        [
            str(one.answer) + (" (majority)" if one == result.majority else ""),
            _share(one.accuracy),
            _share(one.macro_f1),
        ]
        for one in shown
    ]
