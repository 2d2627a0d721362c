"""A durable store around a synchronous driver: one thread writes, in group commits, and one reads."""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, Protocol

from triage._options import check_count, check_number
from triage.errors import DeadLetter, RunBusy, RunOver, StaleWriter, StoreError, UnknownRun
from triage.events import Event

from ._lane import Lane, Outcome, Stop, Waiter, waiter, wake_all
from ._owners import Owned, check_lease, check_prune, checked, claimed, released, renewed
from ._rows import Append, Group, as_column, fresh, from_column, rounds
from .base import Claim, RunInfo

QUEUE = 10_000
"""Submitted appends that may wait; who submits more waits for room."""
BATCH = 1_000
BATCH_BYTES = 4 * 2**20
"""What one commit takes at most: appends, and characters of them."""
AT_EXIT = 30.0
"""Seconds that what was submitted has to become durable when the interpreter ends."""

Change = Callable[[Owned | None, float], Owned]
"""From a run's row, None for an unknown run, and the store's time to its new row."""


class Driver(Protocol):
    """A connection to where runs are kept. Texts are columns, as `as_column` makes them."""

    close_at_fork: ClassVar[bool]

    def commit(self, batch: list[Group]) -> list[BaseException | None]:
        """Write groups of different runs in one commit: for each, why it was refused."""
        ...

    def own(self, batch: list[tuple[str, Change]]) -> list[Owned | StoreError]:
        """Change the rows of runs, in one commit: for each, its row now, or what `change` raised."""
        ...

    def read(self, run_id: str, after: int) -> list[Event]:
        """As in `Store`."""
        ...

    def runs(self, where: dict[str, str], limit: int | None) -> list[RunInfo]:
        """The runs whose columns have these values, newest first."""
        ...

    def find(self, token: str) -> str | None:
        """The run that waits with this token."""
        ...

    def prune(self, older_than: float | None, keep: int | None) -> int:
        """As in `Store`; one of the two is given."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class _Own:
    """A job that changes a run's row."""

    __slots__ = ("change", "run_id", "waiter")

    def __init__(self, run_id: str, change: Change, waiter: Waiter) -> None:
        self.run_id = as_column(run_id)
        self.change = change
        self.waiter = waiter


class _Call:
    """Any other job."""

    __slots__ = ("waiter", "work")

    def __init__(self, work: Callable[[Driver], Any], waiter: Waiter) -> None:
        self.work = work
        self.waiter = waiter


class ThreadedStore:
    """What the durable stores share.

    writer, reader: open a connection, or raise StoreError or `Lost`. timeout: seconds until a store that
    does not answer is given up. One object serves any number of event loops and threads; a forked
    child opens its own connections. What was submitted is written before the interpreter ends.
    """

    def __init__(
        self, writer: Callable[[], Driver], reader: Callable[[], Driver], *, timeout: float
    ) -> None:
        name = type(self).__name__
        check_number(f"{name}.timeout", timeout, "seconds", above=True)
        # The threads know their lanes only, so that a store nobody holds any more can go.
        self._writer = Lane(f"{name}-writer", writer, Worker(), timeout=timeout, limit=QUEUE)
        self._reader = Lane(f"{name}-reader", reader, Worker(), timeout=timeout, limit=QUEUE)
        _lanes.update((self._writer, self._reader))
        weakref.finalize(self, _let_go, self._writer, self._reader).atexit = False

    async def open(self) -> None:
        """Connect now, and raise what the first use would raise: StoreError."""
        await self._written(_nothing)

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
        done = waiter()
        self._writer.put(Append(run_id, events, at, epoch, lease_s, done))
        await done

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
        """As in `Store`."""
        self._writer.put(Append(run_id, events, at, epoch, lease_s, done), wait=True)

    async def read(self, run_id: str, after: int = -1) -> list[Event]:
        """As in `Store`."""
        found: list[Event] = await self._read(lambda driver: driver.read(as_column(run_id), after))
        return found

    async def runs(
        self,
        status: str | None = None,
        *,
        agent: str | None = None,
        parent: str | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        """As in `Store`."""
        if limit is not None:
            check_count("runs.limit", limit, 0)
        given = {"status": status, "agent": agent, "parent": parent}
        where = {name: as_column(value) for name, value in given.items() if value is not None}
        found: list[RunInfo] = await self._read(lambda driver: driver.runs(where, limit))
        return found

    async def info(self, run_id: str) -> RunInfo | None:
        """As in `Store`."""
        where = {"run_id": as_column(run_id)}
        found: list[RunInfo] = await self._read(lambda driver: driver.runs(where, 1))
        return found[0] if found else None

    async def claim(self, run_id: str, *, lease_s: float, force: bool = False) -> Claim:
        """As in `Store`."""
        check_lease("claim", lease_s)
        claimant = os.urandom(8).hex()

        def change(row: Owned | None, now: float) -> Owned:
            return claimed(run_id, row, now, lease_s, force=force, claimant=claimant)

        return checked(run_id, await self._own(run_id, change))

    async def renew(self, run_id: str, *, epoch: int, lease_s: float) -> None:
        """As in `Store`."""
        check_lease("renew", lease_s)

        def change(row: Owned | None, now: float) -> Owned:
            return renewed(run_id, row, epoch, now, lease_s)

        await self._own(run_id, change)

    async def release(self, run_id: str, *, epoch: int) -> None:
        """As in `Store`."""

        def change(row: Owned | None, _now: float) -> Owned:
            return released(run_id, row, epoch)

        await self._own(run_id, change)

    async def find(self, token_digest: str) -> str | None:
        """As in `Store`."""
        found = await self._read(lambda driver: driver.find(as_column(token_digest)))
        return None if found is None else from_column(found)

    async def prune(self, *, older_than: float | None = None, keep: int | None = None) -> int:
        """As in `Store`."""
        check_prune(older_than, keep)
        if older_than is None and keep is None:
            return 0
        count: int = await self._written(lambda driver: driver.prune(older_than, keep))
        return count

    async def close(self) -> None:
        """As in `Store`."""
        for lane in (self._writer, self._reader):
            if lane.idle:
                continue
            done = waiter()
            lane.put(Stop(partial(wake_all, [(done, (None, None))])))
            await done

    async def _own(self, run_id: str, change: Change) -> Owned:
        done = waiter()
        self._writer.put(_Own(run_id, change, done))
        row: Owned = await done
        return row

    async def _written(self, work: Callable[[Driver], Any]) -> Any:
        done = waiter()
        self._writer.put(_Call(work, done))
        return await done

    async def _read(self, work: Callable[[Driver], Any]) -> Any:
        done = waiter()
        self._reader.put(_Call(work, done))
        return await done


def _nothing(_driver: Driver) -> None:
    """Connecting is all that is wanted."""


# In the store's threads ---------------------------------------------------------------------------


class Worker:
    """Works the jobs of a lane off: appends that stand together in one commit, all else one by one."""

    def __init__(self) -> None:
        # Runs of which an append failed: what was submitted behind it fails in the same way.
        self._failed: dict[str, tuple[int, BaseException]] = {}

    def __call__(self, lane: Lane[Driver], jobs: list[Any]) -> None:
        """Do them all and tell who waits."""
        for kind, some in groupby(jobs, key=type):
            if kind is Append:
                for batch in _batches(some):
                    self._commit(lane, batch)
            elif kind is _Own:
                _own(lane, list(some))
            else:
                for job in some:
                    wake_all([(job.waiter, _outcome(lane, job.work))])

    def _commit(self, lane: Lane[Driver], batch: list[Append]) -> None:
        waiters: list[tuple[Waiter, Outcome]] = []
        for groups in rounds(batch):
            outcomes = self._outcomes(lane, groups)
            for group, error in zip(groups, outcomes, strict=True):
                for item in group.items:
                    own = None if error is None else fresh(error)
                    if callable(item.done):
                        _tell(item.done, own)
                    else:
                        waiters.append((item.done, (None, own)))
        wake_all(waiters)

    def _outcomes(self, lane: Lane[Driver], groups: list[Group]) -> list[BaseException | None]:
        """How each group ended."""
        if self._failed:
            doomed = {group.run_id: self._behind(group) for group in groups}
            tried = [group for group in groups if doomed[group.run_id] is None]
        else:
            doomed, tried = {}, groups
        errors: list[BaseException | None]
        try:
            errors = lane.use(lambda driver: driver.commit(tried)) if tried else []
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            errors = [error] * len(tried)
        for group, outcome in zip(tried, errors, strict=True):
            # What stands behind a stale append is stale itself.
            if outcome is not None and not isinstance(outcome, StaleWriter):
                if len(self._failed) >= QUEUE:
                    self._failed.clear()
                self._failed[group.run_id] = (group.at, outcome)
        if not doomed:
            return errors
        left = iter(errors)
        return [doomed[group.run_id] or next(left) for group in groups]

    def _behind(self, group: Group) -> BaseException | None:
        """What a group must fail with because one before it did; one that starts anew need not."""
        at, error = self._failed.get(group.run_id, (group.at, None))
        if error is not None and group.at <= at:
            del self._failed[group.run_id]
            return None
        return error


def _batches(items: Iterable[Append]) -> Iterator[list[Append]]:
    """Appends in commits that are not too large."""
    batch: list[Append] = []
    size = 0
    for item in items:
        batch.append(item)
        size += item.size
        if len(batch) >= BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _outcome(lane: Lane[Driver], work: Callable[[Driver], Any]) -> Outcome:
    try:
        return lane.use(work), None
    except Exception as error:  # noqa: BLE001 - handed to whoever waits
        return None, error


def _own(lane: Lane[Driver], jobs: list[_Own]) -> None:
    """Change the rows of runs, in one commit."""
    rows, failed = _outcome(lane, lambda d: d.own([(job.run_id, job.change) for job in jobs]))
    told: list[tuple[Waiter, Outcome]] = []
    for at, job in enumerate(jobs):
        found = fresh(failed) if failed is not None else rows[at]
        outcome = (None, found) if isinstance(found, BaseException) else (found, None)
        told.append((job.waiter, outcome))
    wake_all(told)


def own_each(
    batch: list[tuple[str, Change]], own: Callable[[str, Change], Owned]
) -> list[Owned | StoreError]:
    """Change one row after the other; what `change` raised stands for a row that was not changed."""
    rows: list[Owned | StoreError] = []
    for run_id, change in batch:
        try:
            rows.append(own(run_id, change))
        except (RunBusy, RunOver, DeadLetter, UnknownRun, StaleWriter) as refusal:
            rows.append(refusal)
    return rows


def _tell(done: Callable[[BaseException | None], None], error: BaseException | None) -> None:
    try:
        done(error)
    except Exception:
        logging.getLogger("triage").exception("what waited for an append failed itself")


# The process --------------------------------------------------------------------------------------

_lanes: weakref.WeakSet[Lane[Driver]] = weakref.WeakSet()
_forking: list[Lane[Driver]] = []


def _let_go(*lanes: Lane[Driver]) -> None:
    for lane in lanes:
        lane.stop()


def _before_fork() -> None:
    for lane in list(_lanes):
        lane.before_fork()
        _forking.append(lane)


def _after_fork_in_parent() -> None:
    for lane in _forking:
        lane.busy.release()
    _forking.clear()


def _after_fork_in_child() -> None:
    for lane in _forking:
        lane.after_fork()
    _forking.clear()


@atexit.register
def _at_exit() -> None:
    """Let the threads finish what was submitted, while they may still run."""
    deadline = time.monotonic() + AT_EXIT
    for ended in [lane.stop() for lane in list(_lanes)]:
        ended.wait(max(0.0, deadline - time.monotonic()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
