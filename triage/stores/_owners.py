"""Who may write into a run: what taking over, renewing and giving back make of its row."""

from __future__ import annotations

from typing import NamedTuple

from triage._options import check_count, check_number
from triage.errors import DeadLetter, RunBusy, RunOver, StaleWriter, UnknownRun

from .base import MAX_CLAIMS, Claim

OPEN = ("running", "suspended", "dead_letter")
"""Every other status is the end of a run."""


class Owned(NamedTuple):
    """What decides about ownership.

    events: the journal's length. claimant: names the call that took it over last, so that one whose
    reply was lost is known when it comes again.
    """

    status: str
    events: int
    epoch: int
    claims: int
    lease_until: float | None
    claimant: str = ""

    def claim(self) -> Claim:
        """As the one who has just taken it over sees it."""
        return Claim(self.epoch, self.events, self.claims)


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
    """The row once the run has been taken over, or put aside as a dead letter: see `checked`."""
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
            raise dead_letter(run_id)
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


def dead_letter(run_id: str) -> DeadLetter:
    """What who asks for a dead letter is told."""
    return DeadLetter(
        f"run {run_id} was taken over {MAX_CLAIMS} times and came to no end; find out why, then "
        "take it over all the same: recover(run_id, force=True)"
    )


def checked(run_id: str, row: Owned) -> Claim:
    """The claim of a row from `claimed`, once it is durable. Raises DeadLetter for one put aside."""
    if row.status == "dead_letter":
        raise dead_letter(run_id)
    return row.claim()


def renewed(run_id: str, row: Owned | None, epoch: int, now: float, lease_s: float) -> Owned:
    """The row with a lease from now; as it is for a run that has none any more."""
    row = _own(run_id, row, epoch)
    if row.status != "running" and row.lease_until is None:
        return row
    return row._replace(lease_until=now + lease_s)


def released(run_id: str, row: Owned | None, epoch: int) -> Owned:
    """The row without a lease, and without the claim, which did not kill its owner."""
    row = _own(run_id, row, epoch)
    if row.lease_until is None:
        return row
    return row._replace(claims=max(0, row.claims - 1), lease_until=None)


def _own(run_id: str, row: Owned | None, epoch: int) -> Owned:
    if row is None:
        raise UnknownRun(f"the store knows no run {run_id}")
    if row.epoch != epoch:
        raise StaleWriter(f"run {run_id} belongs to epoch {row.epoch} now, not to {epoch}")
    return row


def stale(run_id: str, at: int, epoch: int, row: Owned | None) -> StaleWriter:
    """Why an append at this position of this epoch is refused."""
    found = (0, 0) if row is None else (row.events, row.epoch)
    return StaleWriter(
        f"run {run_id}: position {at} of epoch {epoch} is stale, the journal has "
        f"{found[0]} events of epoch {found[1]}"
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
