"""The events of a living run, kept in one flat list and made into events when somebody reads them.

Each event takes `WIDTH` places in the list: its code and its time, then, for a step, the attempt, the
index and the row of its fields, for any other event a tuple of its fields. The run's id and the
position are the journal's own. So an event costs the garbage collector next to nothing: ten thousand
runs at once would feel an object more for each of their steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args, overload

from .events import (
    AttemptStarted,
    Event,
    RunRecovered,
    RunStarted,
    RunSuspended,
    StepRecorded,
)
from .steps import step_of

if TYPE_CHECKING:
    from .state import RunState

KINDS: tuple[type[Event], ...] = get_args(Event)
CODES: dict[Any, int] = {kind: code for code, kind in enumerate(KINDS)}
STEP = CODES[StepRecorded]
STARTED = CODES[RunStarted]
ATTEMPT = CODES[AttemptStarted]

WIDTH = 5

# By code and by how many fields after `time` are given: the others, where nothing is said of them.
_RESTS: list[list[tuple[Any, ...]]] = [
    [
        tuple(kind._field_defaults.get(name) for name in kind._fields[3 + given :])
        for given in range(len(kind._fields) - 2)
    ]
    for kind in KINDS
]
_CLASSES: tuple[Any, ...] = KINDS
_new = tuple.__new__


def record_of(kind: Any, time: float, fields: tuple[Any, ...]) -> tuple[Any, ...]:
    """What any event but a step puts into the list. fields: those after `time`.

    What every run records is put there without this call.
    """
    return (CODES[kind], time, fields, None, None)


def record_from(event: Event) -> tuple[Any, ...]:
    """What an event that was read from a store puts into the list."""
    if isinstance(event, StepRecorded):
        return (STEP, event.time, event.attempt, event.index, event.step.row)
    return record_of(type(event), event.time, tuple(event)[3:])


def active_seconds(events: Sequence[Event]) -> float:
    """How long the run has been at work, in seconds: waiting for a person or for a process left out.

    By the times of the events, which a clock that was set may have spoilt: none counts as negative.
    """
    total, before = 0.0, events[0]
    for event in events:
        # An answer may say more than that the run goes on: what follows a question is a person's time.
        waited = isinstance(event, RunRecovered) or isinstance(before, RunSuspended)
        if not waited:
            total += max(0.0, event.time - before.time)
        before = event
    return total


class Window(Sequence[Event]):
    """The events of a run from one position to another: a window on a list that only grows."""

    __slots__ = ("_records", "_run_id", "_start", "_stop")

    def __init__(self, run_id: str, records: list[Any], start: int, stop: int) -> None:
        self._run_id = run_id
        self._records = records
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        positions = range(self._start, self._stop)[index]
        if isinstance(positions, int):
            return self._at(positions)
        return [self._at(seq) for seq in positions]

    def _at(self, seq: int) -> Event:
        return event_at(self._run_id, self._records, seq)


class Journal(Window):
    """The events of a run as they were recorded."""

    __slots__ = ()

    def from_start(self) -> Journal:
        """The same window with everything before it."""
        if not self._start:
            return self
        return Journal(self._run_id, self._records, 0, self._stop)

    @property
    def codes(self) -> list[int]:
        """The code of each event, in order, without making them."""
        codes: list[int] = self._records[self._start * WIDTH : self._stop * WIDTH : WIDTH]
        return codes

    def continues(self, other: Sequence[Event]) -> bool:
        """Whether both are windows on one list, so that what both show is the same."""
        return isinstance(other, Journal) and other._records is self._records  # noqa: SLF001 - its own

    @property
    def last_kind(self) -> type[Event]:
        """The type of the last event, without making it."""
        code: int = self._records[(self._stop - 1) * WIDTH]
        return KINDS[code]


def event_at(run_id: str, records: list[Any], seq: int) -> Event:
    """The event at a position."""
    at = seq * WIDTH
    code, time = records[at], records[at + 1]
    if code == STEP:
        attempt, index, row = records[at + 2 : at + WIDTH]
        return StepRecorded(run_id, seq, time, attempt, index, step_of(row))
    fields = records[at + 2]
    # What is made of a tuple costs a third of a call with the fields.
    rest = _RESTS[code][len(fields)]
    made: Event = _new(_CLASSES[code], (run_id, seq, time, *fields, *rest))
    return made


def advance(state: RunState, run_id: str, records: list[Any], start: int, stop: int) -> None:
    """Take the events from one position to another into the state of a run."""
    for seq in range(start, stop):
        at = seq * WIDTH
        if records[at] == STEP:
            state.take_step(seq, records[at + 1], records[at + 3], records[at + 4])
        else:
            state.apply(event_at(run_id, records, seq))
