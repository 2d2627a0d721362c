"""The default store, whose journals end with the process."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec import Struct

from triage.core.errors import check_count
from triage.core.events import Event

from .base import (
    Change,
    Opening,
    Order,
    Owned,
    OwnedStore,
    RunInfo,
    Told,
    check_prune,
    is_progress,
    opening,
    stale,
    told_by,
)

_START = time.time() - time.monotonic()


def _now() -> float:
    """Return seconds since the epoch on a clock that never jumps."""
    return _START + time.monotonic()


class _Run(Struct):
    """One journal, with the columns of its row."""

    events: list[Event]
    opened: Opening = Opening("run", "", None, 0.0)
    told: Told = Told("running")
    subject: str | None = None
    status: str = "running"
    finished: float | None = None
    epoch: int = 0
    claims: int = 0
    lease_until: float | None = None
    claimant: str = ""

    def row(self) -> Owned:
        return Owned(
            status=self.status,
            events=len(self.events),
            epoch=self.epoch,
            claims=self.claims,
            lease_until=self.lease_until,
            claimant=self.claimant,
            ended=self.finished is not None,
        )

    def own(self, row: Owned) -> None:
        self.status, self.epoch = row.status, row.epoch
        self.claims, self.lease_until, self.claimant = row.claims, row.lease_until, row.claimant

    def time(self, order: Order) -> float | None:
        """Return a time of the journal, None without one."""
        match order:
            case "updated":
                return self.events[-1].time
            case "finished":
                return self.finished
            case "idle":
                return self.events[-1].time if self.lease_until is None else self.lease_until
            case "due":
                return None if (self.lease_until or 0.0) > _now() else self.told.due

    def info(self, run_id: str) -> RunInfo:
        return RunInfo(
            run_id=run_id,
            agent=self.opened.agent,
            status=self.status,
            started=self.events[0].time,
            updated=self.events[-1].time,
            events=len(self.events),
            epoch=self.epoch,
            claims=self.claims,
            lease_until=self.lease_until,
            parent=self.opened.parent,
            kind=self.opened.kind,
            subject=self.subject,
            due=self.told.due,
        )


class MemoryStore(OwnedStore):
    """Keeps running and suspended runs, and the last `keep` finished ones (1,000 by default).

    Journals of other kinds are kept likewise, each kind by itself. Safe to share between event loops and threads.
    """

    durable = False
    """Its runs end with the process."""

    def __init__(self, keep: int = 1000) -> None:
        check_count("MemoryStore.keep", keep, 0)
        self._keep = keep
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        # The ids of the finished journals of each kind, oldest first.
        self._finished: defaultdict[str, dict[str, None]] = defaultdict(dict)
        # The suspended runs, by the digest of their token.
        self._waiting: dict[str, str] = {}

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
        self._append(run_id, list(events), at, epoch, lease_s)

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
        """As in `Store`; calls `done` before returning."""
        error: BaseException | None = None
        try:
            self._append(run_id, list(events), at, epoch, lease_s)
        except Exception as failure:
            error = failure
        done(error)

    def _append(
        self, run_id: str, events: list[Event], at: int, epoch: int, lease_s: float | None
    ) -> None:
        with self._lock:
            run = self._runs.get(run_id) or _Run([])
            if at != len(run.events) or epoch != run.epoch:
                if epoch == run.epoch and events and run.events[at : at + len(events)] == events:
                    return  # a repeated append whose reply was lost
                raise stale(run_id, at, epoch, run.row() if run.events else None)
            opened = opening(events[0])
            if not run.events and opened is not None:
                run.opened = opened
            self._runs[run_id] = run
            run.events += events
            if lease_s is not None and run.status == "running":
                run.lease_until = _now() + lease_s
            told = next(filter(None, map(told_by, reversed(events))), None)
            if told is not None:
                self._tell(run_id, run, told, lease_s)
            if any(map(is_progress, events)):
                self._forgive(run)

    def _forgive(self, run: _Run) -> None:
        """Reset the claims of a run that made progress; after a takeover, of the enclosing runs, too."""
        run.claims = 0
        while run.epoch and run.opened.parent in self._runs:
            run = self._runs[run.opened.parent]
            if run.status == "running":
                run.claims = 0

    def _tell(self, run_id: str, run: _Run, told: Told, lease_s: float | None) -> None:
        """Set the columns of the row from an event."""
        if run.told.token is not None:
            self._waiting.pop(run.told.token, None)
        run.told, run.status = told, told.status
        run.subject = run.subject if told.subject is None else told.subject
        if told.token is not None:
            self._waiting[told.token] = run_id
        finished = self._finished[run.opened.kind]
        finished.pop(run_id, None)
        run.finished = _now() if told.ended else None
        if told.leased:
            run.lease_until = run.lease_until if lease_s is None else _now() + lease_s
            return
        run.claims, run.lease_until = 0, None
        if told.ended:
            finished[run_id] = None
            if len(finished) > self._keep:
                self._forget(next(iter(finished)))

    def _forget(self, run_id: str) -> None:
        run = self._runs.pop(run_id)
        del self._finished[run.opened.kind][run_id]

    async def read(self, run_id: str, after: int = -1) -> list[Event]:
        """As in `Store`."""
        with self._lock:
            run = self._runs.get(run_id)
            return [] if run is None else run.events[after + 1 :]

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
            found = [
                run.info(run_id) for run_id, run in self._runs.items() if run.opened.kind == "run"
            ]
        found.sort(key=lambda info: info.started, reverse=True)
        return [
            info
            for info in found
            if (status is None or info.status == status)
            and (agent is None or info.agent == agent)
            and (parent is None or info.parent == parent)
        ][:limit]

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
        """As in `Store`."""
        found: list[tuple[float, RunInfo]] = []
        with self._lock:
            for run_id, run in self._runs.items():
                time = run.time(by)
                if (
                    time is not None
                    and run.opened.kind == kind
                    and status in (None, run.status)
                    and (subject is None or (run.subject or "").startswith(subject))
                    and (since is None or time >= since)
                    and (until is None or time < until)
                ):
                    found.append((time, run.info(run_id)))
        found.sort(key=lambda one: one[0], reverse=by == "updated")
        return [info for _, info in found[:limit]]

    async def info(self, run_id: str, *, kind: str = "run") -> RunInfo | None:
        """As in `Store`."""
        with self._lock:
            run = self._runs.get(run_id)
            return None if run is None or run.opened.kind != kind else run.info(run_id)

    async def _own(self, run_id: str, change: Change) -> Owned:
        with self._lock:
            run = self._runs.get(run_id)
            row = change(None if run is None else run.row(), _now())
            if run is not None:
                run.own(row)
            return row

    async def find(self, token_digest: str) -> str | None:
        """As in `Store`."""
        with self._lock:
            return self._waiting.get(token_digest)

    async def now(self) -> float:
        """As in `Store`."""
        return _now()

    async def prune(
        self, *, older_than: float | None = None, keep: int | None = None, kind: str = "run"
    ) -> int:
        """As in `Store`."""
        check_prune(older_than, keep)
        if older_than is None and keep is None:
            return 0
        with self._lock:
            gone = list(self._finished[kind])
            if keep is not None:
                gone = gone[: max(0, len(gone) - keep)]
            if older_than is not None:
                border = _now() - older_than
                gone = [one for one in gone if (self._runs[one].finished or 0.0) < border]
            for run_id in gone:
                self._forget(run_id)
            return len(gone)

    async def close(self) -> None:
        """As in `Store`; has nothing to close."""
