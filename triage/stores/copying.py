"""Copy runs from one store to another: whole journals, with status, claims and lease."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from triage.core.errors import DeadLetter, UnknownRun, UsageError
from triage.core.events import Event, RunRecovered

from .base import MAX_CLAIMS, RunInfo, Store

__all__ = ["copy_run"]

_TOGETHER = 500
"""Maximum events in one append."""
_MOMENT = 0.001
"""Seconds of the lease of a claim that is only made to be counted."""


class Readable(Protocol):
    """The methods read from a source."""

    async def info(self, run_id: str) -> RunInfo | None:
        """As of `Store`."""
        ...

    async def read(self, run_id: str) -> list[Event]:
        """As of `Store`."""
        ...

    async def now(self) -> float:
        """As of `Store`."""
        ...


async def copy_run(source: Readable, target: Store, run_id: str) -> int:
    """Copy a run; return how many events were new to the target.

    A repeated copy continues an interrupted one. Events are copied as stored, so redacted and sealed values
    stay so. The rest of a living owner's lease holds for the copy, too. Stop the workers first, since an
    owner's later events are not copied.

    Raises UnknownRun, and UsageError if the target has another run of this id, or one with more events.
    """
    info = await source.info(run_id)
    if info is None:
        raise UnknownRun(f"the store knows no run {run_id}")
    events = await source.read(run_id)
    known = await target.read(run_id)
    if known != events[: len(known)]:
        raise UsageError(
            f"the target has another run {run_id}, or one that has gone on there: remove it, or copy the "
            "other way"
        )
    left = 0.0
    if info.lease_until is not None:
        left = max(0.0, info.lease_until - await source.now())
    epoch = _epoch(known)
    for at, part in _parts(events, len(known)):
        if isinstance(part[0], RunRecovered):
            while epoch < part[0].epoch:
                epoch = (await target.claim(run_id, lease_s=_MOMENT, force=True, revive=True)).epoch
        await target.append(run_id, part, at=at, epoch=epoch, lease_s=left or None)
    await _claims(target, info, left)
    return len(events) - len(known)


def _epoch(events: list[Event]) -> int:
    taken = [event.epoch for event in events if isinstance(event, RunRecovered)]
    return taken[-1] if taken else 0


def _parts(events: list[Event], start: int) -> list[tuple[int, list[Event]]]:
    """Split the events into parts of one owner each, with their positions."""
    parts: list[tuple[int, list[Event]]] = []
    for at in range(start, len(events)):
        begins = isinstance(events[at], RunRecovered)
        if not parts or begins or len(parts[-1][1]) == _TOGETHER:
            parts.append((at, []))
        parts[-1][1].append(events[at])
    return parts


async def _claims(target: Store, info: RunInfo, left: float) -> None:
    """Claim the copy as often as the run since its last progress, and make it a dead letter if that is."""
    run_id, is_aside = info.run_id, info.status == "dead_letter"
    made = await target.info(run_id)
    if made is None or made.status != "running" or info.status not in ("running", "dead_letter"):
        return
    epoch, claims, wanted = made.epoch, made.claims, MAX_CLAIMS if is_aside else info.claims
    while claims != wanted:
        taken = await target.claim(run_id, lease_s=_MOMENT, force=True, revive=True)
        epoch, claims = taken.epoch, taken.claims
        if claims > wanted:
            await target.release(run_id, epoch=epoch)
            claims -= 1
    if is_aside:
        with suppress(DeadLetter):
            await target.claim(run_id, lease_s=_MOMENT, force=True)
    elif left:
        await target.renew(run_id, epoch=epoch, lease_s=left)
