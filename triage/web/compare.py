"""Compare two attempts of a run step by step."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from triage.core import StepRecorded, canonical

from .story import AttemptStory, Story
from .timeline import Entry, Moment, entries_of

MOST_STEPS = 400
"""The most steps of an attempt that are compared: its newest."""


class Pair(NamedTuple):
    """A row of the comparison.

    how: `same`, `differs` (same call, different outcome), `left` or `right` (in that attempt only).
    """

    how: str
    left: Entry | None
    right: Entry | None


class Sides(NamedTuple):
    """The comparison of two attempts. left_out: how many earlier steps of both were not compared."""

    left: AttemptStory
    right: AttemptStory
    pairs: Sequence[Pair]
    left_out: int


def compared(story: Story, left: int, right: int) -> Sides:
    """Compare the attempts with these numbers."""
    one, two = (next(a for a in story.attempts if a.number == number) for number in (left, right))
    ours, theirs = _steps(story, one), _steps(story, two)
    left_out = max(0, len(ours) - MOST_STEPS) + max(0, len(theirs) - MOST_STEPS)
    ours, theirs = ours[-MOST_STEPS:], theirs[-MOST_STEPS:]
    said = [list(entries_of(moments, story.started, None)) for moments in (ours, theirs)]
    matcher = SequenceMatcher(None, [*map(_call, ours)], [*map(_call, theirs)], autojunk=False)
    pairs: list[Pair] = []
    for tag, start, end, other, other_end in matcher.get_opcodes():
        if tag == "equal":
            for a, b in zip(range(start, end), range(other, other_end), strict=True):
                same = _outcome(ours[a]) == _outcome(theirs[b])
                pairs.append(Pair("same" if same else "differs", said[0][a], said[1][b]))
        else:
            pairs += [Pair("left", said[0][at], None) for at in range(start, end)]
            pairs += [Pair("right", None, said[1][at]) for at in range(other, other_end)]
    return Sides(one, two, pairs, left_out)


def _steps(story: Story, attempt: AttemptStory) -> list[Moment]:
    return [
        moment
        for moment in story.moments
        if any(
            isinstance(event, StepRecorded) and event.attempt == attempt.number
            for event in moment.events
        )
    ]


def _recorded(moment: Moment) -> StepRecorded:
    return next(event for event in moment.events if isinstance(event, StepRecorded))


def _call(moment: Moment) -> str:
    step = _recorded(moment).step
    return canonical([step.action, step.tool_called, step.tool_input], "step")


def _outcome(moment: Moment) -> str:
    step = _recorded(moment).step
    return canonical([step.tool_output, step.llm_output, step.error], "step")
