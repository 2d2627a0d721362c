"""The interface of stores, and the rules of ownership of runs."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from triage.core.errors import (
    DeadLetter,
    RunBusy,
    RunOver,
    StaleWriter,
    UnknownRun,
    check_count,
    check_number,
)
from triage.core.events import (
    AttemptFailed,
    CallFinished,
    CompensatorRan,
    Event,
    Noted,
    RunFinished,
    RunResumed,
    RunStarted,
    RunSuspended,
)


class RunInfo(NamedTuple):
    """A run in a listing.

    status: `running`, `suspended`, `dead_letter` or as in `RunFinished`. started, updated: times of the
    first and last event, in seconds since the epoch. events: number in the journal. epoch: 0 for the
    first owner, one more for each takeover. claims: number of takeovers since the run last made progress
    (`is_progress`) or was suspended, less the released ones. lease_until: end of the owner's exclusive
    lease, in seconds since the epoch on the store's clock; None without a lease. parent: the enclosing
    run. kind: `run`, or that of another journal; subject, due: as in its last `Noted`.
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
    kind: str = "run"
    subject: str | None = None
    due: float | None = None


Order = Literal["updated", "finished", "idle", "due"]
"""Times of a journal: of its last event; of its end; of the end of its lease, or of its last event without
one; at which it needs attention, for a journal without a living owner."""


class Claim(NamedTuple):
    """A takeover of a run.

    epoch: for writing. events: the journal's length. claims: their number, with this one.
    """

    epoch: int
    events: int
    claims: int


MAX_CLAIMS = 3
"""Maximum claims of a run without progress; then it becomes a dead letter."""


@runtime_checkable
class Store(Protocol):
    """A place for journals. Methods may be called from any thread, under asyncio and trio.

    The first append creates a run, at position 0 with epoch 0. Its events set its status: `RunStarted` and
    `RunResumed` to `running`, `RunSuspended` to `suspended` with the token that finds the run,
    `RunFinished` to its own; the last two end the lease and reset the claims to 0. An event that
    `is_progress` resets the claims, too; after a takeover also those of the enclosing runs, which make no
    progress meanwhile. Times of leases and of `prune` are by the store's clock, never the caller's.

    `Noted` opens and continues journals of other kinds, under the same rules; `journals`, `info` and `prune`
    reach them by their kind.

    Besides the errors named below, every method raises `StoreError` when the store fails: one of
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

        lease_s: the same commit extends the lease to this many seconds from now; None leaves the lease
        unchanged. Raises StaleWriter when the journal's length is not `at` or `epoch` is not the run's
        newest. An append may be repeated after a lost reply: events already written there by the same
        epoch count as written. Events are encoded before the first await. An append that is cancelled
        while it waits still happens.
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
        """Append without waiting.

        Calls `done` once, in the store's thread or before returning: with None when the commit is
        durable, with the error when it failed. Appends of one run keep their order; when one fails, later
        ones fail with the same error. Blocks only while the store's queue is full.
        """
        ...

    async def read(self, run_id: str, after: int = -1) -> list[Event]:
        """Return the events after position `after`, in order; none for an unknown run."""
        ...

    async def runs(
        self,
        status: str | None = None,
        *,
        agent: str | None = None,
        parent: str | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        """Return the runs, newest first, of a status, an agent or a parent if given."""
        ...

    async def journals(
        self,
        kind: str,
        *,
        status: str | None = None,
        subject: str | None = None,
        by: Order = "updated",
        since: float | None = None,
        until: float | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        """Return the journals of a kind, by one of their times: `updated` the newest first, else the oldest.

        status: only of this status. subject: only those whose subject begins so. since, until: only those
        whose time is at least `since`, and before `until`, in seconds since the epoch.
        """
        ...

    async def info(self, run_id: str, *, kind: str = "run") -> RunInfo | None:
        """Return one run, or journal of another kind; None for an unknown one."""
        ...

    async def claim(
        self, run_id: str, *, lease_s: float, force: bool = False, revive: bool = False
    ) -> Claim:
        """Take over a run: start an epoch, count a claim and take a lease, in one commit.

        From then on the previous owner gets StaleWriter. Raises RunBusy while another owner's lease
        lives, UnknownRun, RunOver for a finished run, and DeadLetter for a run without progress under
        three claims, whose status then becomes `dead_letter`. force: ignore a lease. revive: take over a
        dead letter, and count its claims from 1 again.
        """
        ...

    async def renew(self, run_id: str, *, epoch: int, lease_s: float) -> None:
        """Extend the lease to `lease_s` seconds from now. Raises StaleWriter for a previous owner.

        Does nothing to a suspended or finished run, which has no lease.
        """
        ...

    async def release(self, run_id: str, *, epoch: int) -> None:
        """End the lease and undo the claim of an owner that stopped cleanly.

        Raises StaleWriter for a previous owner.
        """
        ...

    async def find(self, token_digest: str) -> str | None:
        """Return the run that waits for the answer with this token, None without one."""
        ...

    async def now(self) -> float:
        """Return seconds since the epoch on the store's clock, by which leases and questions expire."""
        ...

    async def prune(
        self, *, older_than: float | None = None, keep: int | None = None, kind: str = "run"
    ) -> int:
        """Remove finished runs and the values that only they used; return the number of runs.

        older_than: minimum seconds since a removed run finished. keep: number of newest finished runs that
        stay. With both, a removed run meets both conditions; with neither, nothing is removed. Running and
        suspended runs and dead letters stay. kind: of the journals that are removed.
        """
        ...

    async def close(self) -> None:
        """Wait for submitted appends, then close connections and end threads.

        A store that is used afterwards opens again.
        """
        ...


# Who may write into a run -------------------------------------------------------------------------

OPEN = ("running", "suspended", "dead_letter")
"""The statuses of unfinished runs."""


class Owned(NamedTuple):
    """The columns of a run that decide who may write into it.

    events: the journal's length. claimant: identifies the last claim, so that a claim can be repeated
    after a lost reply. ended: nobody may claim it.
    """

    status: str
    events: int
    epoch: int
    claims: int
    lease_until: float | None
    claimant: str = ""
    ended: bool = False


Change = Callable[[Owned | None, float], Owned]
"""Makes the new row of a run from the old one, None for an unknown run, and the store's time."""


class Told(NamedTuple):
    """What an event changes in its journal's row.

    token: digest of the token that finds it. subject: None keeps it. leased: the lease goes on.
    """

    status: str
    token: str | None = None
    subject: str | None = None
    due: float | None = None
    leased: bool = False
    ended: bool = False


def told_by(event: Event) -> Told | None:
    """Return what an event changes in its journal's row; None for no change."""
    match event:
        case RunStarted() | RunResumed():
            return Told("running", leased=True)
        case RunSuspended():
            return Told("suspended", token=event.token_digest)
        case RunFinished():
            return Told(event.status, ended=True)
        case Noted():
            return Told(
                event.status,
                subject=event.subject,
                due=event.due,
                leased=event.leased,
                ended=event.ended,
            )
        case _:
            return None


class Opening(NamedTuple):
    """The columns of a row that never change, from the event that opens the journal."""

    kind: str
    agent: str
    parent: str | None
    started: float


def opening(event: Event) -> Opening | None:
    """Return the columns that an event begins a journal with; None if it cannot begin one."""
    if isinstance(event, RunStarted):
        return Opening("run", event.agent, event.parent, event.time)
    return Opening(event.kind, "", None, event.time) if isinstance(event, Noted) else None


def is_progress(event: Event) -> bool:
    """Whether an event ends work that no later owner repeats.

    A failed call and a call whose result has no JSON form are repeated; a reused call did no work. A
    failed attempt counts, since limits bound their number.
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
    claimant: str,
) -> Owned:
    """Return the row after a claim, or of a run that becomes a dead letter; see `claim_of`."""
    if row is None:
        raise UnknownRun(f"the store knows no run {run_id}")
    if row.claimant == claimant:
        return row
    if row.ended:
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
    """Return the claim in a durable row made by `claimed`. Raises DeadLetter for a dead letter."""
    if row.status == "dead_letter":
        raise _dead_letter(run_id)
    return Claim(epoch=row.epoch, events=row.events, claims=row.claims)


def renewed(run_id: str, row: Owned | None, epoch: int, now: float, lease_s: float) -> Owned:
    """Return the row with its lease extended, unchanged for a suspended or finished run."""
    row = _of_epoch(run_id, row, epoch)
    if row.status != "running" and row.lease_until is None:
        return row
    return row._replace(lease_until=now + lease_s)


def released(run_id: str, row: Owned | None, epoch: int) -> Owned:
    """Return the row without its lease and with one claim less, since its owner did not die."""
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
    """Return the error of an append that is refused at this position and epoch."""
    events, newest = (0, 0) if row is None else (row.events, row.epoch)
    return StaleWriter(
        f"run {run_id}: position {at} of epoch {epoch} is stale, the journal has "
        f"{events} events of epoch {newest}"
    )


class OwnedStore(ABC):
    """A store that changes the ownership of a run by a function of its row."""

    async def claim(
        self, run_id: str, *, lease_s: float, force: bool = False, revive: bool = False
    ) -> Claim:
        """As in `Store`."""
        check_lease("claim", lease_s)
        claimant = os.urandom(8).hex()

        def change(row: Owned | None, now: float) -> Owned:
            return claimed(run_id, row, now, lease_s, force=force, revive=revive, claimant=claimant)

        return claim_of(run_id, await self._own(run_id, change))

    async def renew(self, run_id: str, *, epoch: int, lease_s: float) -> None:
        """As in `Store`."""
        check_lease("renew", lease_s)
        await self._own(run_id, lambda row, now: renewed(run_id, row, epoch, now, lease_s))

    async def release(self, run_id: str, *, epoch: int) -> None:
        """As in `Store`."""
        await self._own(run_id, lambda row, _now: released(run_id, row, epoch))

    @abstractmethod
    async def _own(self, run_id: str, change: Change) -> Owned:
        """Change a run's row in one commit; return the new one. Raises what `change` raises."""


def check_lease(method: str, lease_s: object) -> None:
    """Raise UsageError for an invalid length of a lease in seconds."""
    check_number(f"{method}.lease_s", lease_s, "seconds", above=True)


def check_prune(older_than: object, keep: object) -> None:
    """Raise UsageError for arguments that `prune` cannot use."""
    if older_than is not None:
        check_number("prune.older_than", older_than, "seconds")
    if keep is not None:
        check_count("prune.keep", keep, 0)
