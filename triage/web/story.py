"""What there is to see of one run: its attempts, what each took up and paid, and its moments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from triage.core import (
    ActionChosen,
    AttemptFailed,
    AttemptStarted,
    Diagnosis,
    Event,
    PlanMade,
    RunState,
    StepRecorded,
    Usage,
    action_text,
    active_seconds,
    is_reused,
    one_line,
    to_json,
)
from triage.engine import WAITING

from .timeline import Moment, Moments

_MOST_SAMPLES = 160


class Proof(NamedTuple):
    """A finding that supports a diagnosis. seq: the event of its step, None where it is about no step."""

    rule: str
    text: str
    step: int | None
    seq: int | None


class AttemptStory:
    """One attempt, filled in as its events come.

    seq: of its start. hint: as the model got it. returns_to: position before which it reuses recorded
    calls. steps, reused, failed: how many steps, those that were reused, those with an error. paid: model
    calls that were made. seqs: of its steps. diagnosis, error, action: how it failed and what was done;
    None and empty until then. waits: it ended with a question, which is no failure.
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
        """Count a step in."""
        self.steps += 1
        self.seqs.append(event.seq)
        self.failed += event.step.error is not None
        if is_reused(event.step.metadata):
            self.reused += 1
        elif event.step.usage is not None:
            self.paid += event.step.usage.calls

    def used(self, usage: Usage) -> None:
        """Take in what the run has consumed so far."""
        self.tokens = usage.total_tokens - self._before.total_tokens
        if usage.cost_usd is not None:
            self.cost = usage.cost_usd - (self._before.cost_usd or 0.0)

    def fail(self, event: AttemptFailed, positions: Sequence[int]) -> None:
        """Take in how it failed. positions: of the steps that the diagnosis numbers."""
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
    """What a run had consumed at some time."""

    time: float
    tokens: int
    cost: float


class Story:
    """A run as its journal tells it.

    state: folded from all events. moments: see `Moments`. attempts: oldest first. samples: what was
    consumed over time. busy: seconds at work. changed: whether its code changed while it ran.
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
        self.busy = active_seconds(events) if events else 0.0
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
        """The newest attempt that failed; None where none did."""
        failed = (
            one for one in reversed(self.attempts) if one.diagnosis is not None and not one.waits
        )
        return next(failed, None)

    @property
    def task(self) -> object:
        """The task, as JSON."""
        return to_json(self.state.task)

    @property
    def reused(self) -> int:
        """Steps whose results were reused."""
        return sum(one.reused for one in self.attempts)

    def page_of(self, seq: int, per_page: int) -> int:
        """The page of the timeline, from 1, on which an event is."""
        place = bisect_right(self.moments, seq, key=lambda moment: moment.first.seq)
        return max(0, place - 1) // per_page + 1

    def page(self, number: int, per_page: int) -> tuple[Sequence[Moment], float | None]:
        """The moments of a page, and when the event before them was."""
        start = (number - 1) * per_page
        before = self.moments[start - 1].last.time if start else None
        return self.moments[start : start + per_page], before
