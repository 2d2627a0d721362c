"""What a store is, and who may write into a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from triage.core import (
    AttemptFailed,
    CallFinished,
    CompensatorRan,
    DeadLetter,
    Event,
    RunBusy,
    RunFinished,
    RunOver,
    RunResumed,
    RunStarted,
    RunSuspended,
    StaleWriter,
    UnknownRun,
    check_count,
    check_number,
)


class RunInfo(NamedTuple):
    """A run as a listing shows it.

    status: `running`, `suspended`, `dead_letter` or as in `RunFinished`. started, updated: seconds since
    the epoch, those of its first and its last event. events: how many the journal has. epoch: 0 for the
    first owner, one more for each that took the run over. claims: how many took it over since it last
    got on (`is_progress`) or was suspended, less those that gave it back. lease_until: seconds since the
    epoch on the store's clock until nobody else may take it over, None without a lease. parent: the run
    it was started in.
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
"""So many owners a run may lose while it stands still; then it is put aside as a dead letter."""


@runtime_checkable
class Store(Protocol):
    """Where journals are kept. Every method may be called from any thread, under asyncio and trio.

    A run is created by its first append, at position 0 with epoch 0. Its status follows from its
    events: `RunStarted` and `RunResumed` say `running`, `RunSuspended` says `suspended` and sets the
    token the run is found by, `RunFinished` says its own; the last two end the lease and set the claims
    to 0. So does an event that `is_progress`; in a run that was taken over it does so for the runs around
    it too, which stand still meanwhile. Times of leases
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
        not got on: its status is `dead_letter` from then on. force: take
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


def ticks() -> float:
    """Seconds of a counter of this machine that goes on while it sleeps, and never jumps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


# Who may write into a run -------------------------------------------------------------------------

OPEN = ("running", "suspended", "dead_letter")
"""Every other status is the end of a run."""


class Owned(NamedTuple):
    """What decides about ownership.

    events: the journal's length. claimant: names the call that took the run over last, so that a claim
    repeated after its reply was lost is recognised.
    """

    status: str
    events: int
    epoch: int
    claims: int
    lease_until: float | None
    claimant: str = ""


def told_by(event: Event) -> tuple[str, str | None] | None:
    """The status an event gives its run, with the digest of the token it waits with; None for no change."""
    if isinstance(event, RunStarted | RunResumed):
        return "running", None
    if isinstance(event, RunSuspended):
        return "suspended", event.token_digest
    return (event.status, None) if isinstance(event, RunFinished) else None


def is_progress(event: Event) -> bool:
    """Whether an event is the end of work that no later owner does again.

    A call that failed, or whose result JSON does not hold, is made again; one that was reused was not
    made. How often an attempt can fail is limited.
    """
    match event:
        case CallFinished(outcome="done", replayed=False):
            return event.exact or event.typed
        case CompensatorRan(begins=False, error=None) | AttemptFailed():
            return True
        case _:
            return False


def claimed(
    run_id: str,
    row: Owned | None,
    now: float,
    lease_s: float,
    *,
    force: bool,
    revive: bool,
    claimant: str = "",
) -> Owned:
    """The row once the run has been taken over, or put aside as a dead letter: see `claim_of`."""
    if row is None:
        raise UnknownRun(f"the store knows no run {run_id}")
    if claimant and row.claimant == claimant:
        return row
    if row.status not in OPEN:
        raise RunOver(f"run {run_id} has ended as {row.status}: read its journal")
    if row.lease_until is not None and row.lease_until > now and not force:
        left = row.lease_until - now
        raise RunBusy(f"run {run_id} has an owner whose lease lasts {left:.1f} s more", wait_s=left)
    spent = row.status == "dead_letter" or (row.status == "running" and row.claims >= MAX_CLAIMS)
    if spent and not revive:
        if row.status == "dead_letter":
            raise _dead_letter(run_id)
        return row._replace(
            status="dead_letter", epoch=row.epoch + 1, lease_until=None, claimant=claimant
        )
    return Owned(
        status="running" if spent else row.status,
        events=row.events,
        epoch=row.epoch + 1,
        claims=1 if spent else row.claims + 1,
        lease_until=now + lease_s,
        claimant=claimant,
    )


def _dead_letter(run_id: str) -> DeadLetter:
    return DeadLetter(
        f"run {run_id} was taken over {MAX_CLAIMS} times and did not get on; find out why, then "
        "take it over all the same: recover(run_id, force=True)"
    )


def claim_of(run_id: str, row: Owned) -> Claim:
    """The claim of a row from `claimed`, once it is durable. Raises DeadLetter for one put aside."""
    if row.status == "dead_letter":
        raise _dead_letter(run_id)
    return Claim(epoch=row.epoch, events=row.events, claims=row.claims)


def renewed(run_id: str, row: Owned | None, epoch: int, now: float, lease_s: float) -> Owned:
    """The row with a lease from now; unchanged for a run that is suspended or finished."""
    row = _of_epoch(run_id, row, epoch)
    if row.status != "running" and row.lease_until is None:
        return row
    return row._replace(lease_until=now + lease_s)


def released(run_id: str, row: Owned | None, epoch: int) -> Owned:
    """The row without a lease, and without the claim, which did not kill its owner."""
    row = _of_epoch(run_id, row, epoch)
    if row.lease_until is None:
        return row
    return row._replace(claims=max(0, row.claims - 1), lease_until=None)


def _of_epoch(run_id: str, row: Owned | None, epoch: int) -> Owned:
    if row is None:
        raise UnknownRun(f"the store knows no run {run_id}")
    if row.epoch != epoch:
        raise StaleWriter(f"run {run_id} belongs to epoch {row.epoch} now, not to {epoch}")
    return row


def stale(run_id: str, at: int, epoch: int, row: Owned | None) -> StaleWriter:
    """Why an append at this position of this epoch is refused."""
    events, newest = (0, 0) if row is None else (row.events, row.epoch)
    return StaleWriter(
        f"run {run_id}: position {at} of epoch {epoch} is stale, the journal has "
        f"{events} events of epoch {newest}"
    )


def check_lease(method: str, lease_s: object) -> None:
    """Raise UsageError for what is no length of a lease."""
    check_number(f"{method}.lease_s", lease_s, "seconds", above=True)


def check_prune(older_than: object, keep: object) -> None:
    """Raise UsageError for arguments that `prune` cannot use."""
    if older_than is not None:
        check_number("prune.older_than", older_than, "seconds")
    if keep is not None:
        check_count("prune.keep", keep, 0)
