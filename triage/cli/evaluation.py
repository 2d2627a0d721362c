"""`triage eval` and `triage corrections`: how good a classifier is, and what was corrected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from triage.adapters.recordings.reading import stream
from triage.adapters.recordings.trajectories import Problem, Trace
from triage.classifiers.corrections import Correction, read_corrections
from triage.core.errors import UsageError
from triage.core.quoting import one_line
from triage.core.taxonomy import FailureType
from triage.testing.evaluation import Evaluation, evaluate, labelled

from .diagnose import CODES, classifier_of, complain, name_of, source_of
from .options import AsJson, Classifier, Files, Format, JsonLines, epilogue
from .output import json_line, note, paged, print_lines, print_text, table, write

DONE, MALFORMED = 0, 1
_MOST_BASELINES = 3

app = App(
    name="eval",
    help_epilogue=epilogue(
        CODES, "eval labelled.jsonl", "eval labelled.jsonl --map timeout=external_fault --json"
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
        with paged() as out:
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


# Corrections --------------------------------------------------------------------------------------

_CORRECTIONS_CODES = """\
exit codes:
  0    they are shown
  1    there are none in the file
  2    the file cannot be read
"""

corrections_app = App(
    name="corrections",
    help_epilogue=epilogue(
        _CORRECTIONS_CODES, "corrections", "corrections triage-corrections.jsonl --json"
    ),
)


@corrections_app.default
def show(
    file: Annotated[
        str, Parameter(help="Where they are kept (triage-corrections.jsonl).")
    ] = "triage-corrections.jsonl",
    /,
    *,
    json: JsonLines = False,
) -> int:
    """Show the corrections of a file, and for each a rule to begin with."""
    corrections = read_corrections(file)
    if not corrections:
        note(f"{file}: there are no corrections in it")
        return MALFORMED
    if json:
        for correction in corrections:
            write(json_line(_correction_as_json(correction)))
        return DONE
    with paged() as out:
        for correction in corrections:
            for line in _correction_lines(correction):
                print_text(out, line)
    return DONE


def _correction_as_json(correction: Correction) -> dict[str, object]:
    rule, error = correction.rule(), correction.trajectory.error
    return {
        "line": correction.line,
        "said": correction.said,
        "correct": correction.correct,
        "cause": correction.cause,
        "note": correction.note,
        "error": None if error is None else f"{error.type_name}: {error.message}",
        "rule": None if rule is None else {"looks_at": rule.looks_at, "keys": rule.keys},
    }


def _correction_lines(correction: Correction) -> list[str]:
    remark = f": {correction.note}" if correction.note else ""
    cause = f" ({correction.cause})" if correction.cause else ""
    said = f"{correction.said}, right is {correction.correct}{cause}"
    lines = [f"line {correction.line}: said {one_line(said + remark)}"]
    error, rule = correction.trajectory.error, correction.rule()
    if error is not None:
        lines.append(f"    {one_line(str(error))}")
    if rule is not None:  # as it would be written
        kind = f"FailureType.{rule.failure_type.name}"
        because = None if rule.cause is None else one_line(str(rule.cause))
        keys = tuple(one_line(key) for key in rule.keys)
        lines.append(f"    Rule({rule.name!r}, {kind}, {because!r}, {rule.looks_at!r}, {keys!r})")
    return lines
