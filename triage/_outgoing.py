"""What a living run has recorded, on its way to a store: without secrets, and as lines if wanted.

The lines of many runs are made together: to look through a text costs less where it is one of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ._cut import HEAVY, weight_of_step
from ._journal import STEP, WIDTH, Window
from ._parts import ITEM, SLICE, groups, weight
from ._redact_events import looked_at, redacted
from ._wire import dumps, step_line
from .events import Event

if TYPE_CHECKING:
    from ._redactor import Redactor


class Outgoing(Window):
    """Events on their way to a store: whoever reads one gets it without its secrets.

    size: how many characters they hold, nearly; where it is above `HEAVY` they may hold more. redactor:
    finds the secrets; None finds none.
    """

    __slots__ = ("_clean", "redactor", "size")

    def __init__(
        self, run_id: str, records: list[Any], start: int, stop: int, redactor: Redactor | None
    ) -> None:
        super().__init__(run_id, records, start, stop)
        self.redactor = redactor
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
        time: float = self._records[(self._stop - 1) * WIDTH + 1]
        return time

    def _at(self, seq: int) -> Event:
        event = super()._at(seq)
        return event if self.redactor is None else redacted(event, self.redactor)

    def whole(self) -> list[Event]:
        """The events as they were recorded, secrets and all."""
        return [super(Outgoing, self)._at(seq) for seq in range(self._start, self._stop)]

    def lines(self) -> Iterator[tuple[str, Event | None]]:
        """The line of each, and the event itself where it is not a step."""
        records = self._records
        for seq in range(self._start, self._stop):
            at = seq * WIDTH
            if self._clean and records[at] == STEP:
                yield step_line(self._run_id, seq, *records[at + 1 : at + WIDTH]), None
            else:
                event = self._at(seq)
                yield dumps(event), event

    def gather(self, values: list[Any]) -> None:
        """Add what its steps hold that may be a secret."""
        records = self._records
        for at in range(self._start * WIDTH, self._stop * WIDTH, WIDTH):
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
        for group in groups(some, SLICE):
            values: list[Any] = []
            for each in group:
                each.gather(values)
            with suppress(Exception):  # it comes again where each is looked at by itself
                if redactor.clears(values):
                    for each in group:
                        each.cleared()
