"""Lay out the charts of a run: attempts as lanes of calls, and usage over time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from triage.core.events import CallFinished, CallStarted, StepRecorded
from triage.core.quoting import span
from triage.core.state import is_reused

from .story import AttemptStory, Sample, Story
from .timeline import IDLE_S, Moment

WIDTH = 1_000
"""Horizontal units from the first event to the last; the SVG scales to the available width."""
_IDLE_WIDTH = 28
_MOST_LANES = 24
_MOST_BARS = 400
_NARROWEST = 2.0


class Scale:
    """Map times to horizontal positions. Every pause of at least `IDLE_S` gets the same short width.

    idle: the position and the length in words of each pause. narrow: the width of a pause.
    """

    def __init__(self, times: Iterable[float]) -> None:
        self._times = sorted(times) or [0.0]
        self.idle: list[tuple[float, str]] = []
        gaps = [(later - earlier) for earlier, later in pairwise(self._times)]
        busy = sum(gap for gap in gaps if gap < IDLE_S)
        idle = sum(gap >= IDLE_S for gap in gaps)
        room = max(WIDTH - idle * _IDLE_WIDTH, WIDTH / 2)
        narrow = (WIDTH - room) / idle if idle else 0.0
        if not busy:
            narrow, room = (WIDTH / idle if idle else 0.0), 0.0
        places = [0.0]
        for gap in gaps:
            if gap >= IDLE_S:
                self.idle.append((places[-1], span(gap)))
                places.append(places[-1] + narrow)
            else:
                places.append(places[-1] + (gap / busy * room if busy else 0.0))
        self._places = places
        self.narrow = narrow

    def at(self, time: float) -> float:
        """Return the position of a time, from 0 to `WIDTH`."""
        after = bisect_right(self._times, time)
        if after == 0:
            return 0.0
        if after == len(self._times):
            return round(self._places[-1], 1)
        start, end = self._times[after - 1], self._times[after]
        part = (time - start) / (end - start)
        left, right = self._places[after - 1], self._places[after]
        return round(left + part * (right - left), 1)


class Bar(NamedTuple):
    """A bar for a call or a step. tone: as in `Entry`, or `model`. seq: position of its first event."""

    x: float
    width: float
    tone: str
    seq: int


class Lane(NamedTuple):
    """An attempt and its bars. x, width: its extent. end: tone of its end: `bad`, `warn`, `ok`, `open`."""

    attempt: AttemptStory
    x: float
    width: float
    bars: Sequence[Bar]
    end: str


class Chart(NamedTuple):
    """Tokens and cost over time, as polyline points in a box of `WIDTH` by 100, and their maxima."""

    tokens: str
    cost: str
    most_tokens: int
    most_cost: float


class Picture(NamedTuple):
    """The charts of a run.

    idle: the position and the length in words of each pause; all are `idle_width` wide. chart: None if the
    run used no tokens and cost nothing.
    """

    lanes: Sequence[Lane]
    idle: Sequence[tuple[float, str]]
    idle_width: float
    chart: Chart | None


def picture_of(story: Story) -> Picture:
    """Lay out the charts of a run."""
    scale = Scale(event.time for moment in story.moments for event in moment.events)
    shown = story.attempts[-_MOST_LANES:]
    by_attempt: dict[int, list[Moment]] = {one.number: [] for one in shown}
    for moment in story.moments:
        if isinstance(moment.first, CallStarted | StepRecorded):
            by_attempt.get(moment.first.attempt, []).append(moment)
    lanes = [
        Lane(
            one,
            scale.at(one.started),
            round(max(_NARROWEST, scale.at(one.ended) - scale.at(one.started)), 1),
            _bars(by_attempt[one.number], scale, scale.at(one.started)),
            _end(story, one),
        )
        for one in shown
    ]
    return Picture(lanes, scale.idle, round(scale.narrow, 1), _chart(story.samples, scale))


def _end(story: Story, attempt: AttemptStory) -> str:
    if attempt.diagnosis is not None:
        return "warn" if attempt.waits else "bad"
    if attempt is not story.attempts[-1]:
        return "warn"
    return {"done": "ok", "running": "open", "suspended": "warn"}.get(story.state.status, "bad")


def _bars(moments: Sequence[Moment], scale: Scale, left: float) -> list[Bar]:
    """Make the bars of an attempt. If there are very many, keep only a sample of the successful ones."""
    every = len(moments) // _MOST_BARS + 1
    found: list[Bar] = []
    for number, moment in enumerate(moments):
        tone = _tone(moment)
        if number % every and tone in ("ok", "model", "reused"):
            continue
        first = moment.first
        start = first.time
        if isinstance(first, StepRecorded) and first.step.duration_s:
            start = first.time - first.step.duration_s
        x = max(scale.at(start), left)
        width = max(_NARROWEST, scale.at(moment.last.time) - x)
        found.append(Bar(x, round(width, 1), tone, first.seq))
    return found


def _tone(moment: Moment) -> str:
    first = moment.first
    if isinstance(first, StepRecorded):
        step = first.step
        if step.error is not None:
            return "bad"
        if is_reused(step.metadata):
            return "reused"
        return "model" if step.llm_output is not None else "ok"
    finished = next((one for one in moment.events if isinstance(one, CallFinished)), None)
    if finished is None:
        return "open"
    if finished.replayed:
        return "reused"
    if finished.outcome == "done":
        asked = isinstance(first, CallStarted) and first.kind in ("model", "judge")
        return "model" if asked else "ok"
    return "warn" if finished.outcome == "in_doubt" else "bad"


def _chart(samples: Sequence[Sample], scale: Scale) -> Chart | None:
    most_tokens = max((sample.tokens for sample in samples), default=0)
    most_cost = max((sample.cost for sample in samples), default=0.0)
    if not most_tokens and not most_cost:
        return None

    def points(values: Sequence[float], most: float) -> str:
        if not most:
            return ""
        found: list[str] = []
        y = 100.0
        for sample, value in zip(samples, values, strict=True):
            x = scale.at(sample.time)
            found.append(f"{x:g},{y:g}")
            y = round(100 - 96 * value / most, 1)
            found.append(f"{x:g},{y:g}")
        return " ".join([*found, f"{WIDTH},{y:g}"])

    return Chart(
        points([sample.tokens for sample in samples], most_tokens),
        points([sample.cost for sample in samples], most_cost),
        most_tokens,
        most_cost,
    )
