"""The default store: journals in this process, gone with it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import cast

from triage._journal import CODES, Journal
from triage.events import Event, RunFinished, RunResumed, RunStarted, RunSuspended

from ._owners import Owned, check_lease, check_prune, checked, claimed, released, renewed, stale
from .base import Claim, RunInfo

_FINISHED, _SUSPENDED, _RESUMED = CODES[RunFinished], CODES[RunSuspended], CODES[RunResumed]
_START = time.time() - time.monotonic()


def _now() -> float:
    """Seconds since the epoch on a clock that never jumps."""
    return _START + time.monotonic()


class MemoryStore:
    """Keeps running and suspended runs, and the last `keep` finished ones (1,000 by default).

    Safe to share between event loops and threads.
    """

    durable = False
    """What it keeps is gone with the process."""

    def __init__(self, keep: int = 1000) -> None:
        if type(keep) is not int or keep < 0:
            raise ValueError(f"MemoryStore.keep must be a whole number from 0, not {keep!r}")
        self._keep = keep
        self._runs: dict[str, Sequence[Event]] = {}
        # The ids of those that have ended, oldest first.
        self._finished: deque[str] = deque()
        # Only of runs that have a lease or were ever taken over: most have one owner in their life.
        self._owners: dict[str, Owned] = {}
        # The digest of the token a run waits with, by run and back.
        self._tokens: dict[str, str] = {}
        self._waiting: dict[str, str] = {}
        self._lock = threading.Lock()

    async def append(
        self,
        run_id: str,
        events: Sequence[Event],
        *,
        at: int,
        epoch: int,
        lease_s: float | None = None,
    ) -> None:
        """As in `Store`."""
        lock = self._lock
        lock.acquire()  # not `with`, which takes three times as long: every run ends here
        try:
            kept = self._runs.get(run_id, ())
            if at != len(kept) or (epoch != self._epoch(run_id) if self._owners else epoch != 0):
                if self._repeats(run_id, kept, events, at, epoch):
                    return
                raise stale(run_id, at, epoch, self._owned(run_id, kept))
            if isinstance(events, Journal):
                # A window on a list that only grows: nothing needs to be copied or made now.
                kept, last = events.from_start() if at else events, events.last_kind
            else:
                kept, last = (*kept, *events), type(events[-1])
            self._runs[run_id] = kept
            # What a run ends with is the last event of its batch.
            if last is not RunFinished:
                self._follow(run_id, events, kept, lease_s)
                return
            finished = self._finished
            finished.append(run_id)
            if self._waiting:
                self._forget_token(run_id)
            if self._owners:
                self._keep_owner(run_id, "finished", None)
            if len(finished) > self._keep:
                self._forget(finished.popleft())
        finally:
            lock.release()

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
        """As in `Store`; `done` is called before this returns."""
        error: BaseException | None = None
        try:
            # It has nothing to wait for, so one step brings it to its end.
            self.append(run_id, events, at=at, epoch=epoch, lease_s=lease_s).send(None)
        except StopIteration:
            pass
        except Exception as failure:  # noqa: BLE001 - handed to whoever submitted
            error = failure
        done(error)

    async def read(self, run_id: str, after: int = -1) -> list[Event]:
        """As in `Store`."""
        with self._lock:
            return list(self._kept(run_id)[after + 1 :])

    async def runs(
        self,
        status: str | None = None,
        *,
        agent: str | None = None,
        parent: str | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        """As in `Store`."""
        with self._lock:
            found = [self._info(run_id, kept) for run_id, kept in self._runs.items()]
        found.sort(key=lambda info: info.started, reverse=True)
        wanted = (
            info
            for info in found
            if (status is None or info.status == status)
            and (agent is None or info.agent == agent)
            and (parent is None or info.parent == parent)
        )
        return list(islice(wanted, limit))

    async def info(self, run_id: str) -> RunInfo | None:
        """As in `Store`."""
        with self._lock:
            kept = self._kept(run_id)
            return self._info(run_id, kept) if kept else None

    async def claim(
        self, run_id: str, *, lease_s: float, force: bool = False, revive: bool = False
    ) -> Claim:
        """As in `Store`."""
        check_lease("claim", lease_s)
        with self._lock:
            row = self._owned(run_id, self._kept(run_id))
            row = claimed(run_id, row, _now(), lease_s, force=force, revive=revive)
            self._owners[run_id] = row
        return checked(run_id, row)

    async def renew(self, run_id: str, *, epoch: int, lease_s: float) -> None:
        """As in `Store`."""
        check_lease("renew", lease_s)
        with self._lock:
            row = self._owned(run_id, self._kept(run_id))
            self._owners[run_id] = renewed(run_id, row, epoch, _now(), lease_s)

    async def release(self, run_id: str, *, epoch: int) -> None:
        """As in `Store`."""
        with self._lock:
            row = self._owned(run_id, self._kept(run_id))
            self._owners[run_id] = released(run_id, row, epoch)

    async def find(self, token_digest: str) -> str | None:
        """As in `Store`."""
        with self._lock:
            return self._tokens.get(token_digest)

    async def now(self) -> float:
        """As in `Store`."""
        return _now()

    async def prune(self, *, older_than: float | None = None, keep: int | None = None) -> int:
        """As in `Store`."""
        check_prune(older_than, keep)
        with self._lock:
            gone = list(self._finished) if keep is None else list(self._finished)[: -keep or None]
            if older_than is not None:
                border = time.time() - older_than
                gone = [run_id for run_id in gone if self._runs[run_id][-1].time < border]
            elif keep is None:
                return 0
            for run_id in gone:
                self._forget(run_id)
            self._finished = deque(run_id for run_id in self._finished if run_id in self._runs)
            return len(gone)

    async def close(self) -> None:
        """As in `Store`; there is nothing to let go of."""

    # What the lock protects -----------------------------------------------------------------------

    def _kept(self, run_id: str) -> Sequence[Event]:
        return self._runs.get(run_id, ())

    def _forget(self, run_id: str) -> None:
        """A run that has ended is kept no longer."""
        self._runs.pop(run_id, None)
        if self._owners:
            self._owners.pop(run_id, None)

    def _epoch(self, run_id: str) -> int:
        owner = self._owners.get(run_id)
        return 0 if owner is None else owner.epoch

    def _owned(self, run_id: str, kept: Sequence[Event]) -> Owned | None:
        if not kept:
            return None
        owner = self._owners.get(run_id)
        status = _status(kept)
        if owner is None:
            return Owned(status, len(kept), 0, 0, None)
        if owner.status == "dead_letter":
            status = owner.status
        return owner._replace(status=status, events=len(kept))

    def _repeats(
        self, run_id: str, kept: Sequence[Event], events: Sequence[Event], at: int, epoch: int
    ) -> bool:
        """Whether these events stand there already, written by this very owner."""
        if epoch != self._epoch(run_id) or not 0 <= at < at + len(events) <= len(kept):
            return False
        if isinstance(events, Journal):
            return events.continues(kept)
        return list(kept[at : at + len(events)]) == list(events)

    def _follow(
        self, run_id: str, events: Sequence[Event], kept: Sequence[Event], lease_s: float | None
    ) -> None:
        """Take in what a batch that does not end the run says of its status and its lease."""
        codes = events.codes if isinstance(events, Journal) else [CODES[type(e)] for e in events]
        status = ""
        if _SUSPENDED in codes or _RESUMED in codes:
            self._forget_token(run_id)
            status = _status(kept)
            if status == "suspended":
                digest = cast("RunSuspended", kept[_last(kept)]).token_digest
                self._tokens[digest], self._waiting[run_id] = run_id, digest
        if lease_s is not None or run_id in self._owners:
            self._keep_owner(run_id, status, lease_s)

    def _keep_owner(self, run_id: str, status: str, lease_s: float | None) -> None:
        row = self._owners.get(run_id) or Owned("running", 0, 0, 0, None)
        if status in {"suspended", "finished"}:
            row = row._replace(claims=0, lease_until=None)
        elif lease_s is not None and run_id not in self._waiting:
            row = row._replace(lease_until=_now() + lease_s)
        self._owners[run_id] = row

    def _forget_token(self, run_id: str) -> None:
        digest = self._waiting.pop(run_id, None)
        if digest is not None and self._tokens.get(digest) == run_id:
            del self._tokens[digest]

    def _info(self, run_id: str, kept: Sequence[Event]) -> RunInfo:
        first, last = kept[0], kept[-1]
        row = self._owned(run_id, kept)
        assert row is not None
        started = first if isinstance(first, RunStarted) else None
        return RunInfo(
            run_id=run_id,
            agent="" if started is None else started.agent,
            status=row.status,
            started=first.time,
            updated=last.time,
            events=len(kept),
            epoch=row.epoch,
            claims=row.claims,
            lease_until=row.lease_until,
            parent=None if started is None else started.parent,
        )


def _last(kept: Sequence[Event]) -> int:
    """The position of the last event that says a status, -1 for none but the start."""
    codes = kept.codes if isinstance(kept, Journal) else [CODES[type(event)] for event in kept]
    for at in range(len(codes) - 1, 0, -1):
        if codes[at] in (_FINISHED, _SUSPENDED, _RESUMED):
            return at
    return -1


def _status(kept: Sequence[Event]) -> str:
    at = _last(kept)
    event = kept[at] if at >= 0 else None
    if isinstance(event, RunFinished):
        return event.status
    return "suspended" if isinstance(event, RunSuspended) else "running"
