"""The default store: journals in this process, gone with it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from triage.errors import StaleWriter
from triage.events import Event, RunFinished, RunResumed, RunStarted, RunSuspended

from .base import RunInfo


class _Journal:
    __slots__ = ("epoch", "events", "status")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.epoch = 0
        self.status = "running"


class MemoryStore:
    """Keeps running and suspended runs, and the last `keep` finished ones (1,000 by default).

    Safe to share between event loops and threads.
    """

    def __init__(self, keep: int = 1000) -> None:
        if type(keep) is not int or keep < 0:
            raise ValueError(f"MemoryStore.keep must be a whole number from 0, not {keep!r}")
        self._keep = keep
        self._open: dict[str, _Journal] = {}
        self._finished: OrderedDict[str, _Journal] = OrderedDict()
        self._lock = threading.Lock()

    async def append(self, run_id: str, events: Sequence[Event], *, at: int, epoch: int) -> None:
        """As in `Store`."""
        with self._lock:
            journal = self._open.get(run_id) or self._finished.get(run_id) or _Journal()
            if at != len(journal.events) or epoch < journal.epoch:
                raise StaleWriter(
                    f"run {run_id}: position {at} of epoch {epoch} is stale, the journal has "
                    f"{len(journal.events)} events of epoch {journal.epoch}"
                )
            journal.epoch = epoch
            journal.events.extend(events)
            for event in events:
                if isinstance(event, RunFinished):
                    journal.status = event.status
                elif isinstance(event, RunSuspended):
                    journal.status = "suspended"
                elif isinstance(event, RunResumed):
                    journal.status = "running"
            self._file(run_id, journal)

    def _file(self, run_id: str, journal: _Journal) -> None:
        if journal.status in ("running", "suspended"):
            self._open[run_id] = journal
            return
        self._open.pop(run_id, None)
        self._finished[run_id] = journal
        while len(self._finished) > self._keep:
            self._finished.popitem(last=False)

    async def read(self, run_id: str, after: int = -1) -> list[Event]:
        """As in `Store`."""
        with self._lock:
            journal = self._open.get(run_id) or self._finished.get(run_id)
            return [] if journal is None else journal.events[after + 1 :]

    async def runs(self, status: str | None = None) -> list[RunInfo]:
        """As in `Store`."""
        with self._lock:
            journals = {**self._finished, **self._open}
            found = [_info(run_id, journal) for run_id, journal in journals.items()]
        found.sort(key=lambda info: info.started, reverse=True)
        return [info for info in found if status is None or info.status == status]


def _info(run_id: str, journal: _Journal) -> RunInfo:
    first = journal.events[0]
    return RunInfo(
        run_id=run_id,
        agent=first.agent if isinstance(first, RunStarted) else "",
        status=journal.status,
        started=first.time,
        updated=journal.events[-1].time,
        events=len(journal.events),
    )
