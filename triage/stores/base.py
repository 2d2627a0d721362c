"""What a store is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from triage.events import Event


class RunInfo(NamedTuple):
    """A run as a listing shows it. status: `running`, `suspended` or as in `RunFinished`.

    started, updated: seconds since the epoch. events: how many the journal has.
    """

    run_id: str
    agent: str
    status: str
    started: float
    updated: float
    events: int


@runtime_checkable
class Store(Protocol):
    """Where journals are kept.

    `append` is all or nothing: the events of one run, the first of them at position `at`. It raises
    `StaleWriter` when the journal's length is not `at` or `epoch` is not the newest owner's, and
    `StoreError` when it cannot write.
    """

    async def append(self, run_id: str, events: Sequence[Event], *, at: int, epoch: int) -> None:
        """Add events to a run's journal, with the run's status, in one commit."""
        ...

    async def read(self, run_id: str, after: int = -1) -> list[Event]:
        """The events behind position `after`, in order; empty for an unknown run."""
        ...

    async def runs(self, status: str | None = None) -> list[RunInfo]:
        """The runs the store knows, newest first; only those of a status if one is given."""
        ...
