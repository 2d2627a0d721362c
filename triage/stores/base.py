"""What a store is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from triage.events import Event


class RunInfo(NamedTuple):
    """A run as a listing shows it.

    status: `running`, `suspended`, `dead_letter` or as in `RunFinished`. started, updated: seconds since
    the epoch, those of its first and its last event. events: how many the journal has. epoch: 0 for the
    first owner, one more for each that took the run over. claims: how many took it over since it was
    last suspended, less those that gave it back. lease_until: seconds since the epoch on the store's
    clock until nobody else may take it over, None without a lease. parent: the run it was started in.
    """

    run_id: str
    agent: str
    status: str
    started: float
    updated: float
    events: int
    epoch: int = 0
    claims: int = 0
    lease_until: float | None = None
    parent: str | None = None


class Claim(NamedTuple):
    """A run that was taken over.

    epoch: to write with. events: the journal's length. claims: how many, with this one.
    """

    epoch: int
    events: int
    claims: int


MAX_CLAIMS = 3
"""So many owners a run may lose before it is put aside as a dead letter."""


@runtime_checkable
class Store(Protocol):
    """Where journals are kept. Every method may be called from any thread, under asyncio and trio.

    A run is created by its first append, at position 0 with epoch 0. Its status follows from its
    events: `RunStarted` and `RunResumed` say `running`, `RunSuspended` says `suspended` and sets the
    token the run is found by, `RunFinished` says its own; the last two end the lease. Times of leases
    and of `prune` are those of the store's clock, never the caller's.

    Besides what is said below, every method raises `StoreError` when the store cannot do it: one of
    `StoreFull`, `StoreReadOnly`, `StoreCorrupt`, `StoreTooNew`, `StoreUnavailable`.
    """

    async def append(
        self,
        run_id: str,
        events: Sequence[Event],
        *,
        at: int,
        epoch: int,
        lease_s: float | None = None,
    ) -> None:
        """Add events to a run's journal at position `at`, with the run's status, in one commit.

        All or nothing. lease_s: seconds from now that the lease lasts, extended in the same commit;
        None leaves it. Raises StaleWriter when the journal's length is not `at` or `epoch` is not the
        run's newest. To repeat an append whose reply was lost is no error: events that stand there
        already, written with the same epoch, are taken as written. Events are encoded before the
        first await. Cancelled while it waits, the append still happens.
        """
        ...

    def submit(
        self,
        run_id: str,
        events: Sequence[Event],
        *,
        at: int,
        epoch: int,
        lease_s: float | None,
        done: Callable[[BaseException | None], None],
    ) -> None:
        """As `append`, without waiting for it.

        `done` is called once, in the store's thread or before this returns, when the commit is durable
        (None) or has failed (the error). Appends of one run keep their order; when one fails, those
        behind it fail with the same error. Blocks only while the store's queue is full.
        """
        ...

    async def read(self, run_id: str, after: int = -1) -> list[Event]:
        """The events behind position `after`, in order; empty for an unknown run."""
        ...

    async def runs(
        self,
        status: str | None = None,
        *,
        agent: str | None = None,
        parent: str | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        """The runs the store knows, newest first: of a status, an agent, a parent, where given."""
        ...

    async def info(self, run_id: str) -> RunInfo | None:
        """One run as `runs` shows it, None for an unknown one."""
        ...

    async def claim(
        self, run_id: str, *, lease_s: float, force: bool = False, revive: bool = False
    ) -> Claim:
        """Take a run over: a new epoch, one claim more and a lease, in one commit.

        From then on the owner before gets StaleWriter. Raises RunBusy while the lease of another
        lives, UnknownRun, RunOver for a finished run, and DeadLetter for a run that three claims have
        not brought to an end or a suspension: its status is `dead_letter` from then on. force: take
        it over in spite of a lease. revive: take it over as a dead letter, and count its claims anew.
        """
        ...

    async def renew(self, run_id: str, *, epoch: int, lease_s: float) -> None:
        """Let the lease last `lease_s` seconds from now. Raises StaleWriter for an owner before.

        Does nothing to a run that is suspended or finished, which has no lease.
        """
        ...

    async def release(self, run_id: str, *, epoch: int) -> None:
        """End the lease now, and take back the claim: this owner stopped cleanly.

        Raises StaleWriter for an owner before.
        """
        ...

    async def find(self, token_digest: str) -> str | None:
        """The run that waits for the answer with this token, None when none does (any more)."""
        ...

    async def now(self) -> float:
        """Seconds since the epoch on the store's clock, by which leases end and questions expire."""
        ...

    async def prune(self, *, older_than: float | None = None, keep: int | None = None) -> int:
        """Remove finished runs and what only they used; how many were removed.

        older_than: those that finished more than so many seconds ago. keep: all but the newest so
        many. Both: those that neither keeps. Neither: nothing. Runs that are suspended, running or
        dead letters stay.
        """
        ...

    async def close(self) -> None:
        """Wait for what was submitted, then let go of connections and threads.

        A store that is used again opens again.
        """
        ...
