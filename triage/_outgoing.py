"""What a living run has recorded, on its way to a store: without secrets, and as lines if wanted.

The lines of many runs are made together: to look through a text costs less where it is one of many.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ._cut import HEAVY, weight_of_step
from ._journal import STEP, WIDTH, Window
from ._parts import ITEM, SLICE, groups, weight
from ._redact_events import looked_at, redacted
from ._wire import dumps, step_line
from .events import Event

if TYPE_CHECKING:
    from ._redactor import Redactor
    from .steps import Row


class Outgoing(Window):
    """Events on their way to a store: whoever reads one gets it without its secrets.

    size: how many characters they hold, nearly; where it is above `HEAVY` they may hold more. ends: the
    time of the last one. redactor: finds the secrets; None finds none. clean: its steps hold no secret.
    """

    __slots__ = ("clean", "ends", "redactor", "size")

    def __init__(
        self, run_id: str, records: list[Any], start: int, stop: int, redactor: Redactor | None
    ) -> None:
        # A window's own, set here: with each turn one is made, and the call is felt.
        self._run_id, self._records = run_id, records
        self._start, self._stop = start, stop
        self.ends: float = records[(stop - 1) * WIDTH + 1]
        self.redactor = redactor
        self.clean = redactor is None
        size = 0
        for at in range(start * WIDTH, stop * WIDTH, WIDTH):
            if records[at] == STEP:
                size += weight_of_step(records[at + 4], HEAVY)
            else:
                size += ITEM + weight(records[at + 2], HEAVY)
            if size > HEAVY:
                break
        self.size = size

    def _at(self, seq: int) -> Event:
        event = super()._at(seq)
        return event if self.redactor is None else redacted(event, self.redactor)

    def whole(self) -> list[Event]:
        """The events as they were recorded, secrets and all."""
        return [super(Outgoing, self)._at(seq) for seq in range(self._start, self._stop)]

    def lines(self) -> list[tuple[str, Event | None]]:
        """The line of each, and the event itself where it is not a step."""
        records = self._records
        lines: list[tuple[str, Event | None]] = []
        for seq in range(self._start, self._stop):
            at = seq * WIDTH
            if self.clean and records[at] == STEP:
                line = step_line(self._run_id, seq, *records[at + 1 : at + WIDTH])
                lines.append((line, None))
            else:
                event = self._at(seq)
                lines.append((dumps(event), event))
        return lines

    def gather(self, rows: list[Row]) -> None:
        """Add its steps."""
        records = self._records
        places = range(self._start * WIDTH, self._stop * WIDTH, WIDTH)
        rows += [records[at + 4] for at in places if records[at] == STEP]


_redactor_of = attrgetter("redactor")


def look_through(batch: Iterable[Outgoing]) -> None:
    """Look through the steps of many runs at once; what is not found clean is looked at by itself later."""
    for redactor, some in groupby(batch, key=_redactor_of):
        if redactor is None:
            continue
        for group in groups(some, SLICE):
            rows: list[Row] = []
            for each in group:
                each.gather(rows)
            with suppress(Exception):  # it comes again where each is looked at by itself
                if redactor.clears(looked_at(rows)):
                    for each in group:
                        each.clean = True
