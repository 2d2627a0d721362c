"""A durable store around a synchronous driver: one thread writes, in group commits, and one reads."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from triage._options import check_count, check_number
from triage.events import Event

from ._commits import QUEUE, Call, Change, Driver, Own, Worker
from ._lane import Lane, Stop, Waiter, waiter, wake
from ._owners import Owned, check_lease, check_prune, checked, claimed, released, renewed
from ._rows import Append, as_column, from_column
from .base import Claim, RunInfo

AT_EXIT = 30.0
"""Seconds that what was submitted has to become durable when the interpreter ends."""


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
        self.timeout = timeout
        self._connects = {True: writer, False: reader}
        # The threads know their lanes only, so that a store nobody holds any more can go.
        self._writer = Lane(f"{name}-writer", writer, Worker(), timeout=timeout, limit=QUEUE)
        self._reader = Lane(f"{name}-reader", reader, Worker(), timeout=timeout, limit=QUEUE)
        _lanes.update((self._writer, self._reader))
        weakref.finalize(self, _let_go, self._writer, self._reader).atexit = False

    async def open(self) -> None:
        """Connect now, and raise what the first use would raise: StoreError."""
        await self._written(_nothing)

    def connect(self, *, writes: bool) -> Any:
        """One more connection, opened and checked as the store's own, for tables beside the runs.

        Blocks. Used by one thread at a time, and closed by who has asked for it; `raw` is the driver's
        own connection, `translated()` turns its errors into ours. Raises StoreError or `Lost`.
        """
        return self._connects[writes]()

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
        self._writer.put(Append(run_id, events, at, epoch, lease_s, partial(_ended, done)))
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

    async def claim(
        self, run_id: str, *, lease_s: float, force: bool = False, revive: bool = False
    ) -> Claim:
        """As in `Store`."""
        check_lease("claim", lease_s)
        claimant = os.urandom(8).hex()

        def change(row: Owned | None, now: float) -> Owned:
            return claimed(run_id, row, now, lease_s, force=force, revive=revive, claimant=claimant)

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

    async def now(self) -> float:
        """As in `Store`."""
        return float(await self._read(lambda driver: driver.now()))

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
            lane.put(Stop(partial(wake, done)))
            await done

    async def _own(self, run_id: str, change: Change) -> Owned:
        done = waiter()
        self._writer.put(Own(run_id, change, done))
        row: Owned = await done
        return row

    async def _written(self, work: Callable[[Driver], Any]) -> Any:
        done = waiter()
        self._writer.put(Call(work, done))
        return await done

    async def _read(self, work: Callable[[Driver], Any]) -> Any:
        done = waiter()
        self._reader.put(Call(work, done))
        return await done


def _nothing(_driver: Driver) -> None:
    """Connecting is all that is wanted."""


def _ended(waiting: Waiter, error: BaseException | None) -> None:
    """Tell who awaits an append how it ended."""
    wake(waiting, (None, error))


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
