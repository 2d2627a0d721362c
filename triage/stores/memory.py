"""The default store: journals in this process, gone with it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from triage.errors import StaleWriter
from triage.events import Event, RunFinished, RunStarted, RunSuspended

from .base import RunInfo


class MemoryStore:
    """Keeps running and suspended runs, and the last `keep` finished ones (1,000 by default).

    Safe to share between event loops and threads.
    """

    def __init__(self, keep: int = 1000) -> None:
        if type(keep) is not int or keep < 0:
            raise ValueError(f"MemoryStore.keep must be a whole number from 0, not {keep!r}")
        self._keep = keep
        self._open: dict[str, list[Event]] = {}
        self._finished: OrderedDict[str, list[Event]] = OrderedDict()
        # Epochs above 0 only: most runs have one owner in their life.
        self._epochs: dict[str, int] = {}
        self._lock = threading.Lock()

    async def append(self, run_id: str, events: Sequence[Event], *, at: int, epoch: int) -> None:
        """As in `Store`."""
        with self._lock:
            journal = self._open.get(run_id) or self._finished.get(run_id) or []
            if at != len(journal) or (self._epochs and epoch < self._epochs.get(run_id, 0)):
                raise StaleWriter(
                    f"run {run_id}: position {at} of epoch {epoch} is stale, the journal has "
                    f"{len(journal)} events of epoch {self._epochs.get(run_id, 0)}"
                )
            if epoch:
                self._epochs[run_id] = epoch
            journal.extend(events)
            # What a run ends with is the last event of its batch.
            if isinstance(events[-1], RunFinished):
                self._open.pop(run_id, None)
                self._finished[run_id] = journal
                if len(self._finished) > self._keep:
                    oldest, _ = self._finished.popitem(last=False)
                    self._epochs.pop(oldest, None)
            else:
                self._open[run_id] = journal

    async def read(self, run_id: str, after: int = -1) -> list[Event]:
        """As in `Store`."""
        with self._lock:
            return (self._open.get(run_id) or self._finished.get(run_id) or [])[after + 1 :]

    async def runs(self, status: str | None = None) -> list[RunInfo]:
        """As in `Store`."""
        with self._lock:
            journals = {**self._finished, **self._open}
            found = [_info(run_id, journal) for run_id, journal in journals.items()]
        found.sort(key=lambda info: info.started, reverse=True)
        return [info for info in found if status is None or info.status == status]


def _info(run_id: str, journal: list[Event]) -> RunInfo:
    first, last = journal[0], journal[-1]
    status = "running"
    if isinstance(last, RunFinished):
        status = last.status
    elif isinstance(last, RunSuspended):
        status = "suspended"
    return RunInfo(
        run_id=run_id,
        agent=first.agent if isinstance(first, RunStarted) else "",
        status=status,
        started=first.time,
        updated=last.time,
        events=len(journal),
    )
