"""The figures: what is measured, what is promised, and what the rounds said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

OURS = "ours"
PROMISED = "triage-agent"
"""The package that ratios are promised to; the others are shown beside it."""
PACKAGES = (OURS, PROMISED, "tenacity", "stamina")
_NOTHING = "–"  # noqa: RUF001 - a dash stands for no such thing


class Figure(NamedTuple):
    """One amount, and what is promised of it.

    measurement, value: where it is found. most: what ours may be, in the unit; None where the promise is
    a ratio. ratio: ours to triage-agent's, at most, or at least where more is better.
    """

    title: str
    measurement: str
    value: str
    unit: str
    most: float | None = None
    ratio: float | None = None
    more_is_better: bool = False

    @property
    def promise(self) -> str:
        """In words."""
        if self.most is not None:
            return f"at most {self.most:g} {self.unit}"
        return f"at {'least' if self.more_is_better else 'most'} {self.ratio:g} x {PROMISED}"

    def met(self, ours: float, theirs: float | None) -> bool:
        """Whether these amounts keep the promise. theirs: triage-agent's, None where it has none."""
        if self.most is not None:
            return ours <= self.most
        if self.ratio is None or theirs is None:
            return True
        return ours >= theirs * self.ratio if self.more_is_better else ours <= theirs * self.ratio


FIGURES = (
    Figure("a run around a function that does nothing", "clean", "us", "µs", most=100),
    Figure("a run with ten steps", "ten_steps", "us", "µs", most=200),
    Figure("a step, watched, at 10 steps", "steps_10", "us", "µs", most=15),
    Figure("a step, watched, at 10,000 steps", "steps_10000", "us", "µs", most=15),
    Figure("a failed attempt, from raise to re-entry", "reentry", "us", "µs", most=1_000),
    Figure(
        "10,000 runs at once, a fifth failing", "crowd", "per_second", "runs/s",
        ratio=1.0, more_is_better=True,
    ),
    Figure("memory of each of them", "crowd", "kb", "KB", ratio=1.1),
    Figure("10,000 steps classified", "classify", "ms", "ms", most=50),
    Figure("the import, after openai's", "import", "ms", "ms", most=60),
)  # fmt: skip

Round = Mapping[str, Mapping[str, float] | None]
"""The values of one measurement by package, all taken one after the other; None: no such thing."""


class Spread(NamedTuple):
    """An amount over the rounds: the middle one, the least and the most."""

    middle: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.middle:,.4g} ({self.least:,.4g} to {self.most:,.4g})"


class Line(NamedTuple):
    """A figure as measured. amounts: by package; None where it has no such thing."""

    figure: Figure
    amounts: Mapping[str, Spread | None]

    @property
    def met(self) -> bool:
        """Whether the middle amounts keep the promise."""
        ours, theirs = self.amounts[OURS], self.amounts[PROMISED]
        assert ours is not None
        return self.figure.met(ours.middle, None if theirs is None else theirs.middle)


def compare(rounds: Mapping[str, Sequence[Round]]) -> list[Line]:
    """The lines of the figures whose measurements were taken. rounds: by measurement."""
    return [
        Line(figure, {name: _spread(figure, rounds[figure.measurement], name) for name in PACKAGES})
        for figure in FIGURES
        if figure.measurement in rounds
    ]


def _spread(figure: Figure, rounds: Sequence[Round], package: str) -> Spread | None:
    amounts = [values[figure.value] for taken in rounds if (values := taken.get(package))]
    return Spread(median(amounts), min(amounts), max(amounts)) if amounts else None


def table(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table, a promise that is not kept marked `missed`."""
    rows: list[tuple[str, ...]] = [("median (least to most)", "", "promised", "", *PACKAGES)]
    for line in lines:
        figure = line.figure
        shown = (_NOTHING if (one := line.amounts[name]) is None else str(one) for name in PACKAGES)
        rows.append(
            (figure.title, figure.unit, figure.promise, "ok" if line.met else "missed", *shown)
        )
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with columns in line; the first row is its head."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in lines
    )
