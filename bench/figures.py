"""The figures: which measurements they compare, what is promised, and what the rounds said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

OURS = "ours"
PROMISED = "triage-agent"
"""The package the bounds are about; the others are shown beside it."""
PEERS = (PROMISED, "tenacity", "stamina")
_NOTHING = "–"  # noqa: RUF001 - a dash stands for no such thing


class Figure(NamedTuple):
    """One ratio. measurement, value: whose values are divided, ours by the other's.

    bound: the ratio to triage-agent that is promised, None where nothing is. at_least: the bound is
    the least the ratio must be, not the most.
    """

    title: str
    measurement: str
    value: str
    bound: float | None = None
    at_least: bool = False

    def met(self, ratio: float) -> bool:
        """True if this ratio keeps the promise."""
        if self.bound is None:
            return True
        return ratio >= self.bound if self.at_least else ratio <= self.bound


FIGURES = (
    Figure("clean run without steps, overhead over a bare await", "clean", "us", 0.6),
    Figure("run with 10 small steps, overhead over a bare await", "ten_steps", "us", 1.0),
    Figure("record_step, every step a checkpoint, 1 KB, 1,000 steps", "steps_1000", "us", 0.35),
    Figure("record_step, every step a checkpoint, 1 KB, 10,000 steps", "steps_10000", "us", 0.05),
    Figure("raise to re-entry, a new error, classified in a thread", "reentry_new", "us", 0.8),
    Figure("raise to re-entry, an error seen before", "reentry", "us", 0.8),
    Figure("the same after 5 steps", "reentry_steps", "us"),
    Figure(
        "10,000 runs at once, a fifth failing: throughput",
        "crowd",
        "per_second",
        2.0,
        at_least=True,
    ),
    Figure("10,000 runs at once, a fifth failing: memory a run", "crowd", "kb", 0.8),
    Figure("import Agent, FailurePolicy, Step and wrap a function", "creation", "ms", 1.0),
)

Round = Mapping[str, Mapping[str, float] | None]
"""The values of one measurement by package, all taken one after the other; None: no such thing."""


class Ratio(NamedTuple):
    """Ours to one other package's over the rounds: the middle one, the least and the most."""

    middle: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.least:.2f} to {self.most:.2f})"


class Line(NamedTuple):
    """A figure as measured. ratios: by the other package; None where it has no such thing."""

    figure: Figure
    ratios: Mapping[str, Ratio | None]

    @property
    def met(self) -> bool:
        """True if the middle ratio to triage-agent keeps the promise."""
        ratio = self.ratios[PROMISED]
        return ratio is None or self.figure.met(ratio.middle)


def compare(rounds: Mapping[str, Sequence[Round]]) -> list[Line]:
    """The lines of the figures whose measurements were taken. rounds: by measurement."""
    return [
        Line(figure, {peer: _ratio(figure, rounds[figure.measurement], peer) for peer in PEERS})
        for figure in FIGURES
        if figure.measurement in rounds
    ]


def _ratio(figure: Figure, rounds: Sequence[Round], peer: str) -> Ratio | None:
    ratios: list[float] = []
    for taken in rounds:
        ours, theirs = taken.get(OURS), taken.get(peer)
        if ours is not None and theirs is not None:
            ratios.append(ours[figure.value] / theirs[figure.value])
    return Ratio(median(ratios), min(ratios), max(ratios)) if ratios else None


def table(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table, a promise that is not kept marked `over`."""
    rows: list[tuple[str, ...]] = [
        ("ours to theirs: median (least to most)", "promised", "", *PEERS)
    ]
    for line in lines:
        figure = line.figure
        promise = verdict = ""
        if figure.bound is not None:
            promise = f"{'at least' if figure.at_least else 'at most'} {figure.bound:g}"
            verdict = "ok" if line.met else ("under" if figure.at_least else "over")
        shown = (_NOTHING if (ratio := line.ratios[peer]) is None else str(ratio) for peer in PEERS)
        rows.append((figure.title, promise, verdict, *shown))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )
