"""Fold a run's journal for its page: its attempts, their usage, and its timeline."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from triage.core.diagnosis import Diagnosis
from triage.core.events import (
    ActionChosen,
    AttemptFailed,
    AttemptStarted,
    Event,
    PlanMade,
    StepRecorded,
)
from triage.core.json_values import canonical
from triage.core.quoting import action_text, one_line
from triage.core.state import RunState, active_seconds, is_reused
from triage.core.steps import Usage
from triage.core.wire import to_json
from triage.engine.outside import WAITING

from .timeline import Entry, Moment, Moments, entries_of

_MOST_SAMPLES = 160


class Proof(NamedTuple):
    """A piece of evidence for a diagnosis.

    step: number of the step it is about. seq: position of that step's event. None if there is none.
    """

    rule: str
    text: str
    step: int | None
    seq: int | None


class AttemptStory:
    """One attempt, updated event by event.

    seq: position of its start. hint: as the model received it. returns_to: position before which it
    reuses recorded calls. steps, reused, failed: counts of all steps, of reused ones and of those with an
    error. paid: how many model calls it made itself. seqs: positions of its steps. diagnosis, error,
    action: how it failed and what was done about it; None or empty until then. waits: whether it ended
    with a question, which is no failure.
    """

    def __init__(self, event: AttemptStarted, usage: Usage) -> None:
        self.number = event.attempt
        self.seq = event.seq
        self.hint = event.hint
        self.subgoal = event.subgoal
        self.returns_to = event.returns_to
        self.started = self.ended = event.time
        self.steps = self.reused = self.failed = self.paid = 0
        self.seqs: list[int] = []
        self.diagnosis: Diagnosis | None = None
        self.error = ""
        self.failed_at: int | None = None
        self.critical: int | None = None
        self.proofs: tuple[Proof, ...] = ()
        self.action = ""
        self.by = ""
        self.waits = False
        self.tokens = 0
        self.cost: float | None = None
        self._before = usage

    def step(self, event: StepRecorded) -> None:
        self.steps += 1
        self.seqs.append(event.seq)
        self.failed += event.step.error is not None
        if is_reused(event.step.metadata):
            self.reused += 1
        elif event.step.usage is not None:
            self.paid += event.step.usage.calls

    def used(self, usage: Usage) -> None:
        """Update the attempt's usage from the run's total so far."""
        self.tokens = usage.total_tokens - self._before.total_tokens
        if usage.cost_usd is not None:
            self.cost = usage.cost_usd - (self._before.cost_usd or 0.0)

    def fail(self, event: AttemptFailed, positions: Sequence[int]) -> None:
        """Record how the attempt failed. positions: of the steps, by their number in the diagnosis."""
        found = event.diagnosis

        def seq_of(step: int | None) -> int | None:
            return None if step is None or not 0 <= step < len(positions) else positions[step]

        self.diagnosis = found
        self.waits = found.cause in WAITING
        self.failed_at = event.seq
        self.error = "" if event.error is None else one_line(str(event.error), 1_000)
        self.critical = seq_of(found.critical_step)
        self.proofs = tuple(
            Proof(one_line(one.rule, 80), one_line(one.text, 400), one.step, seq_of(one.step))
            for one in found.evidence
        )


class Sample(NamedTuple):
    """The total usage of a run at one time. time: in seconds since the epoch. cost: in US dollars."""

    time: float
    tokens: int
    cost: float


class Story:
    """A run as its page shows it.

    state: folded from all events. moments: the timeline; see `Moments`. attempts: oldest first. has_plan:
    whether the run made a plan. samples: usage over time, thinned out. busy: seconds of work, without
    waits. started, ended: times of the first and last event, in seconds since the epoch.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self.state = RunState()
        self.moments: list[Moment] = []
        self.attempts: list[AttemptStory] = []
        self.has_plan = False
        samples: list[Sample] = []
        together = Moments()
        used: Usage | None = None
        for event in events:
            self.state.apply(event)
            moment = together.apply(event)
            if moment.first is event:
                self.moments.append(moment)
            self._take(event)
            if self.state.usage is not used:
                used = self.state.usage
                samples.append(Sample(event.time, used.total_tokens, used.cost_usd or 0.0))
                if self.attempts:
                    self.attempts[-1].used(used)
        every = len(samples) // _MOST_SAMPLES + 1
        self.samples = samples[::every] + ([samples[-1]] if samples and every > 1 else [])
        self.busy = active_seconds(events)
        self.started = events[0].time if events else 0.0
        self.ended = events[-1].time if events else 0.0

    def _take(self, event: Event) -> None:
        if isinstance(event, AttemptStarted):
            if not self.attempts or self.attempts[-1].number != event.attempt:
                self.attempts.append(AttemptStory(event, self.state.usage))
            return
        self.has_plan = self.has_plan or isinstance(event, PlanMade)
        attempt = self.attempts[-1] if self.attempts else None
        if attempt is None:
            return
        attempt.ended = event.time
        match event:
            case StepRecorded():
                attempt.step(event)
            case AttemptFailed():
                attempt.fail(event, self.state.ledger.positions)
            case ActionChosen(action=action, by=by):
                attempt.action, attempt.by = action_text(action), by
            case _:
                pass

    @property
    def failure(self) -> AttemptStory | None:
        """The latest attempt that failed; None if none did."""
        failed = (
            one for one in reversed(self.attempts) if one.diagnosis is not None and not one.waits
        )
        return next(failed, None)

    @property
    def task(self) -> object:
        """The task as JSON data."""
        return to_json(self.state.task)

    @property
    def reused(self) -> int:
        """How many steps were reused."""
        return sum(one.reused for one in self.attempts)

    def page_of(self, seq: int, per_page: int) -> int:
        """Return the page of the timeline, counted from 1, that shows an event."""
        place = bisect_right(self.moments, seq, key=lambda moment: moment.first.seq)
        return max(0, place - 1) // per_page + 1

    def page(self, number: int, per_page: int) -> tuple[Sequence[Moment], float | None]:
        """Return the moments of a page and the time of the event before them; None on the first page."""
        start = (number - 1) * per_page
        before = self.moments[start - 1].last.time if start else None
        return self.moments[start : start + per_page], before


# Two attempts side by side ------------------------------------------------------------------------


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
