"""`triage eval`: how good a classifier is on labelled records."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from triage import UsageError
from triage.evaluation import Evaluation, evaluate, labelled
from triage.taxonomy import FailureType
from triage.traces import Problem, Trace, stream

from ._diagnose import classifier_of, complain, name_of, source_of
from ._run import _console, _write
from ._show import clean

if TYPE_CHECKING:
    from rich.console import Console

DONE, MALFORMED = 0, 1
_MOST_BASELINES = 3


def run(options: argparse.Namespace) -> int:
    """Carry out the command; its exit code. Raises UsageError for what cannot be begun."""
    classifier = classifier_of(options.classifier)
    watched = _Watched(options.files, options.format)
    records = labelled(
        watched,
        field=options.label_field,
        aliases=_aliases(options.map),
        healthy_sources=options.healthy_source or None,
    )
    result = evaluate(classifier, records)
    if options.json:
        _write(json.dumps(result.as_dict(), allow_nan=False))
    else:
        Sheet(_console(error=False)).show(result)
    if not result.scored and not result.healthy:
        print(  # noqa: T201 - a command line
            "triage: no record has a label that is a failure type; name the field with --label-field, "
            "or other words with --map",
            file=sys.stderr,
        )
        return MALFORMED
    return MALFORMED if watched.problems or result.failed else DONE


class _Watched(Iterable[Trace]):
    """The traces of the files; complains of what cannot be read."""

    def __init__(self, files: list[str], name: str | None) -> None:
        self._files, self._name = files, name
        self.problems = 0

    def __iter__(self) -> Iterator[Trace]:
        for file in self._files:
            for found in stream(source_of(file), self._name):
                if isinstance(found, Problem):
                    self.problems += 1
                    complain(name_of(file), found, as_json=False)
                else:
                    yield found


def _aliases(pairs: list[str]) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for pair in pairs:
        word, equals, kind = pair.rpartition("=")
        if not equals or not word:
            raise UsageError(
                f"--map {pair!r} must be word=type, as in --map timeout=external_fault"
            )
        aliases[word] = kind
    return aliases


class Sheet:
    """Figures for a reader: tables in colour with rich on a terminal, else plain columns."""

    def __init__(self, console: Console | None) -> None:
        self._console = console if console is not None and console.is_terminal else None
        self._first = True

    def show(self, result: Evaluation) -> None:
        """Print all of an evaluation."""
        self._table(["", result.classifier], _summary(result))
        if result.types:
            head = ["type", "records", "answered", "hits", "precision", "recall", "F1"]
            self._table(head, _by_type(result))
            self._table(*_confusion(result))
        if result.bins:
            self._table(["confidence", "answers", "mean", "right"], _bins(result))
        if result.baselines:
            self._table(["always", "accuracy", "macro-F1"], _baselines(result))
        if result.error is not None:
            _write(
                f"\nthe classifier failed {result.failed} times, first with {clean(result.error)}"
            )

    def _table(self, head: list[str], rows: list[list[str]]) -> None:
        if not self._first:
            _write("")
        self._first = False
        rows = [[clean(cell, 60) for cell in row] for row in rows]
        if self._console is not None:
            from rich.table import Table
            from rich.text import Text

            table = Table(box=None, pad_edge=False, header_style="bold")
            for at, name in enumerate(head):
                table.add_column(Text(clean(name, 60)), justify="right" if at else "left")
            for row in rows:
                table.add_row(*map(Text, row))
            self._console.print(table)
            return
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        for row in [head, *rows]:
            first, *rest = (
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            _write("  ".join([first, *rest]).rstrip())


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
