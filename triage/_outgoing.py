"""What a living run has recorded, on its way to a store: without secrets, and as lines if wanted.

The lines of many runs are made together: to look through a text costs less where it is one of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, overload

from ._cut import HEAVY, weight_of_step
from ._journal import STEP, WIDTH, event_at
from ._parts import ITEM, SLICE, weight
from ._redact_events import looked_at, redacted
from ._wire import dumps, step_line
from .events import Event

if TYPE_CHECKING:
    from ._redactor import Redactor


class Outgoing(Sequence[Event]):
    """The events of a run from one position to another: a window on a list that only grows.

    Whoever reads one gets it without its secrets. size: how many characters they hold, nearly; where it is
    above `HEAVY` they may hold more. redactor: finds the secrets; None finds none.
    """

    __slots__ = ("_clean", "_records", "redactor", "run_id", "size", "start", "stop")

    def __init__(
        self, run_id: str, records: list[Any], start: int, stop: int, redactor: Redactor | None
    ) -> None:
        self.run_id = run_id
        self.start = start
        self.stop = stop
        self.redactor = redactor
        self._records = records
        self._clean = redactor is None
        size = 0
        for at in range(start * WIDTH, stop * WIDTH, WIDTH):
            if records[at] == STEP:
                size += weight_of_step(records[at + 4], HEAVY)
            else:
                size += ITEM + weight(records[at + 2], HEAVY)
            if size > HEAVY:
                break
        self.size = size

    @property
    def ends(self) -> float:
        """The time of the last one."""
        time: float = self._records[(self.stop - 1) * WIDTH + 1]
        return time

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        positions = range(self.start, self.stop)[index]
        if isinstance(positions, int):
            return self._at(positions)
        return [self._at(seq) for seq in positions]

    def _at(self, seq: int) -> Event:
        event = event_at(self.run_id, self._records, seq)
        return event if self.redactor is None else redacted(event, self.redactor)

    def whole(self) -> list[Event]:
        """The events as they were recorded, secrets and all."""
        return [event_at(self.run_id, self._records, seq) for seq in range(self.start, self.stop)]

    def lines(self) -> Iterator[tuple[str, Event | None]]:
        """The line of each, and the event itself where it is not a step."""
        records = self._records
        for seq in range(self.start, self.stop):
            at = seq * WIDTH
            if self._clean and records[at] == STEP:
                yield step_line(self.run_id, seq, *records[at + 1 : at + WIDTH]), None
            else:
                event = self._at(seq)
                yield dumps(event), event

    def gather(self, values: list[Any]) -> None:
        """Add what its steps hold that may be a secret."""
        records = self._records
        for at in range(self.start * WIDTH, self.stop * WIDTH, WIDTH):
            if records[at] == STEP:
                values += looked_at(records[at + 4])

    def cleared(self) -> None:
        """Its steps have been looked through: they hold no secret."""
        self._clean = True


def look_through(batch: Iterable[Outgoing]) -> None:
    """Look through the steps of many runs at once; what is not found clean is looked at by itself later."""
    for redactor, some in groupby(batch, key=lambda each: each.redactor):
        if redactor is None:
            continue
        for group in _groups(some):
            values: list[Any] = []
            for each in group:
                each.gather(values)
            with suppress(Exception):  # it comes again where each is looked at by itself
                if redactor.clears(values):
                    for each in group:
                        each.cleared()


def _groups(batch: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """Those that hold no more than one call of C may take, together."""
    group: list[Outgoing] = []
    size = 0
    for each in batch:
        if group and size + each.size > SLICE:
            yield group
            group, size = [], 0
        group.append(each)
        size += each.size
    if group:
        yield group
