"""Journals of triage itself: events, one a line, of one run or of many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from triage._wire import load
from triage.errors import StoreError
from triage.events import AttemptStarted
from triage.state import RunState
from triage.steps import Trajectory

from ._nouns import Problem, Trace

FORMAT = "journal"
_DONE = "done"


class JournalReader:
    """Folds the events of each run, and gives the attempts when all events are there."""

    def __init__(self) -> None:
        self._runs: dict[str, RunState] = {}
        self._lines: dict[tuple[str, int], int] = {}

    def feed(self, line: int, value: Any) -> Iterator[Trace | Problem]:
        """Take an event in."""
        try:
            event = load(value)
        except StoreError as error:
            yield Problem(line, str(error)[:500], "the other events are read")
            return
        state = self._runs.setdefault(event.run_id, RunState())
        if event.seq != state.last_seq + 1:
            told = f"event {event.seq} comes after event {state.last_seq} of its run"
            yield Problem(line, told, "what is missing between them is not known")
        if isinstance(event, AttemptStarted):
            self._lines[event.run_id, event.attempt] = line
        self._lines.setdefault((event.run_id, 0), line)
        try:
            state.apply(event)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            told = f"{type(event).__name__} does not fit the events before it"
            yield Problem(line, f"{told} ({type(error).__name__})", "it is left out")

    def close(self) -> Iterator[Trace | Problem]:
        """The attempts of all runs, in order; the last one also where nothing says how it ended."""
        for run_id, state in self._runs.items():
            for at, attempt in enumerate(state.history):
                yield Trace(
                    attempt.trajectory,
                    FORMAT,
                    self._line(run_id, attempt.number),
                    f"{run_id}, attempt {attempt.number}",
                    "failure",
                    attempt=attempt,
                    earlier=tuple(state.history[:at]),
                )
            ended = {attempt.number for attempt in state.history}
            if state.attempt and state.attempt not in ended:
                yield Trace(
                    Trajectory(state.steps, attempt=state.attempt, task=state.task),
                    FORMAT,
                    self._line(run_id, state.attempt),
                    f"{run_id}, attempt {state.attempt}",
                    "success" if state.status == _DONE else None,
                    earlier=tuple(state.history),
                )

    def _line(self, run_id: str, attempt: int) -> int:
        return self._lines.get((run_id, attempt), self._lines[run_id, 0])
