"""Keep a living run in a durable store: write its events in the background, and renew its lease.

One batch of a run is written at a time. Events recorded meanwhile go with the next, so a burst of steps is
one commit. Secrets are removed and events encoded in the store's thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import anyio

from triage.core.diagnosis import Diagnosis
from triage.core.errors import StaleWriter, StoreUnavailable
from triage.core.events import (
    CallFinished,
    CallStarted,
    Event,
    RunFinished,
    RunSuspended,
    StateUpdated,
)
from triage.core.large_values import fitting
from triage.core.observers import logger
from triage.core.redaction import Redactor
from triage.core.taxonomy import FailureType
from triage.core.waiting import Waits
from triage.core.wire import redacted
from triage.stores.base import Store
from triage.stores.clock import ticks
from triage.stores.rows import Outgoing
from triage.stores.writer import ThreadWaiter, Waiter, slow_store

from .config import outlives, patience_of, silent, soon
from .options import Durability

if TYPE_CHECKING:
    from .run import Recorder


W = TypeVar("W", Waiter, ThreadWaiter)


BEATS = 3
"""Renewals per length of a lease."""


TRIES = 6
"""A renewal is given up after one such part of the lease."""


PAUSES = 30
"""A failed renewal is repeated after one such part of the lease."""


class Keeper:
    """Hands one run's events to its store and renews its lease, from any thread and event loop.

    flushed: number of events in the store. error: the store's failure; nothing is written after it.
    detached: the run continues without the store, as no other process has taken it over. secret_ok: keys of
    the state whose secrets are not logged.

    since: start of the lease. held_until: the lease certainly lasts until then. due: time of the next
    renewal. All three are on the clock `ticks`.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        events: list[Event],
        durability: Durability,
        *,
        epoch: int,
        flushed: int,
        since: float,
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.epoch = epoch
        self.flushed = flushed
        self.lease_s = durability.lease_s
        self.secret_ok: set[str] = set()
        self._warned = False
        self._slow = slow_store(f"run {run_id[:8]}", Waits())
        self.error: BaseException | None = None
        self.detached = False
        self.over = False
        self.held_until = since + self.lease_s
        self.due = since + self.lease_s / BEATS
        self._troubled = False
        self._events = events
        self._durability = durability
        self._lock = threading.Lock()
        self._writing = False
        self._wanted = 0
        self._waiting: list[tuple[int, Waiter | ThreadWaiter]] = []
        self._attempt: weakref.ref[Recorder] | None = None
        _heart.add(self)

    def attend(self, attempt: Recorder) -> None:
        """Stop this attempt once the run is lost. Raises StaleWriter if it is lost already."""
        self._attempt = weakref.ref(attempt)
        if self.lost:
            self.check()

    def _stop(self) -> None:
        attempt = None if self._attempt is None else self._attempt()
        if attempt is not None:
            attempt.stop(_LOST)

    # --- handing over ---

    def pump(self) -> None:
        """Hand new events to the store; while a batch is being written, `_batch_ended` sends the next."""
        with self._lock:
            start, stop = self.flushed, len(self._events)
            self._wanted = stop
            if self._writing or start >= stop:
                return
            works = self._writing = self.error is None
        # A suspended or finished run has no lease to renew.
        self.over = isinstance(self._events[stop - 1], RunFinished | RunSuspended)
        if not works:
            return
        events = Outgoing(self._events[start:stop], self._storable)
        done = partial(self._batch_ended, stop, ticks())
        try:
            self.store.submit(
                self.run_id, events, at=start, epoch=self.epoch, lease_s=self.lease_s, done=done
            )
        except Exception as error:
            done(error)

    def _storable(self, event: Event) -> Event:
        """Return an event without secrets and large values; called in the store's thread."""
        if not outlives(self.store):
            return event
        redactor = self._durability.redactor
        event = fitting(event, self._durability.max_value, redactor, self._effect_of)
        if redactor is None:
            return event
        shown = redacted(event, redactor, self._durability.keys)
        if shown is not event and isinstance(event, StateUpdated):
            self._warn_of_secrets(redactor, event.values)
        return shown

    def _effect_of(self, finished: CallFinished) -> str:
        """Return the effect of an ended call."""
        begun = (event for event in reversed(self._events) if isinstance(event, CallStarted))
        return finished.effect or next(
            (event.effect for event in begun if event.key == finished.key), ""
        )

    def _batch_ended(self, stop: int, sent: float, error: BaseException | None) -> None:
        """Note that a batch was stored or has failed; called in the store's thread."""
        with self._lock:
            self._writing = False
            if error is None:
                self.flushed = stop
                self._extended(sent)
            else:
                self._fail(error)
            waiting = self._waiting
            if waiting:
                self._waiting = []
                for entry in waiting:
                    if error is None and entry[0] > stop:
                        self._waiting.append(entry)
                    else:
                        entry[1].wake()
            more = self._wanted > stop
        if self.lost:
            self._stop()
        if error is not None and self.detached:
            logger.error("run %s goes on without its store", self.run_id, exc_info=error)
        if more:
            self.pump()

    def _fail(self, error: BaseException) -> None:
        # In this order, as a thread that sees the error reads `detached` next.
        self.detached = self._durability.on_store_error == "continue" and not isinstance(
            error, StaleWriter
        )
        self.error = error

    def _awaited(self, new: Callable[[], W]) -> W | None:
        """Return a waiter for the store to have all events so far; None if it has them already."""
        target = len(self._events)
        if self._wanted < target:
            self.pump()
        with self._lock:
            if self.flushed >= target or self.error is not None:
                return None
            waiting = new()
            self._waiting.append((target, waiting))
            return waiting

    async def barrier(self) -> None:
        """Wait until all events so far are durable and the lease certainly lasts. Raises the store's error.

        A store that does not answer within the length of a lease is StoreUnavailable. The events are stored
        even if the wait is cancelled.
        """
        waiting = self._awaited(partial(Waiter, self._slow))
        if waiting is not None:
            patience = patience_of(self.lease_s)
            with anyio.move_on_after(patience) as limit:
                await waiting
            if limit.cancelled_caught:
                self._fail(silent(patience))
        await self.hold()

    def barrier_sync(self) -> None:
        """Do as `barrier`, in a thread that may block; the store has its own threads."""
        waiting = self._awaited(partial(ThreadWaiter, self._slow))
        patience = patience_of(self.lease_s)
        if waiting is not None and not waiting.wait(patience):
            self._fail(silent(patience))
        self.hold_sync()

    def check(self) -> None:
        """Raise the store's error, unless the run continues without the store."""
        if self.error is not None and not self.detached:
            raise self.error

    async def confirm(self) -> None:
        """Renew the lease. Raises StaleWriter, and stops writing, if another process owns the run now."""
        self.check()
        # A run without stored events, or without its store, has no owner.
        if self.flushed == 0 or self.error is not None:
            return
        sent = ticks()
        try:
            renewing = self.store.renew(self.run_id, epoch=self.epoch, lease_s=self.lease_s)
            await soon(renewing, self.lease_s)
        except StaleWriter as error:
            self._fail(error)
            raise
        self._extended(sent)

    @property
    def lost(self) -> bool:
        """Whether another process is known to have taken over the run."""
        return isinstance(self.error, StaleWriter)

    def _warn_of_secrets(self, redactor: Redactor, values: Mapping[str, Any]) -> None:
        """Log once per run that its state holds a secret, which will not survive this process."""
        if self._durability.keys is not None or self._warned:
            return
        looked_at = {key: value for key, value in values.items() if key not in self.secret_ok}
        places = redactor.fields_of(looked_at, "state")
        if places:
            self._warned = True
            logger.warning(
                "run %s: %s holds what looks like a secret, which no store keeps; give it again with "
                "recover(run_id, state={…}), or have it kept encrypted by Durability(key=…)",
                self.run_id,
                places[0],
            )

    # --- the lease ---

    def _extended(self, since: float) -> None:
        """Note that a request sent at `since` has extended the lease."""
        self.held_until = max(self.held_until, since + self.lease_s)
        self.due = max(self.due, since + self.lease_s / BEATS)

    @property
    def _is_held(self) -> bool:
        """Whether no other process can own the run now; also True without a working store."""
        return self.flushed == 0 or self.error is not None or ticks() < self.held_until

    async def hold(self) -> None:
        """Renew a lease that may have ended, within the length of a lease. Raises the store's error."""
        if not self._is_held:
            try:
                with anyio.fail_after(self.lease_s):
                    await self.confirm()
            except TimeoutError:
                self._fail(
                    StoreUnavailable(
                        f"run {self.run_id}: its lease may have ended, and the store has not renewed it "
                        f"in {self.lease_s:g} s"
                    )
                )
            except Exception as error:
                self._fail(error)
        self.check()

    def hold_sync(self) -> None:
        """Do as `hold`, in a thread that may block."""
        if not self._is_held:
            thread = threading.Thread(target=self._hold_in_a_thread, name="triage-hold")
            thread.start()
            thread.join()
        self.check()

    def _hold_in_a_thread(self) -> None:
        with suppress(Exception):  # `hold_sync` raises it by `check`
            asyncio.run(self.hold())

    async def renew(self, patience: float) -> None:
        """Renew the lease; stop the attempt if the run was taken over.

        patience: seconds after which this try is given up.
        """
        sent = ticks()
        try:
            # A run without stored events has no lease.
            if self.flushed:
                renewing = self.store.renew(self.run_id, epoch=self.epoch, lease_s=self.lease_s)
                await asyncio.wait_for(renewing, patience)
        except StaleWriter as error:
            self._fail(error)
            self._stop()
        except Exception as error:
            if not self._troubled:
                logger.warning("run %s: its lease was not renewed: %r", self.run_id, error)
            self._troubled = True
            self.due = ticks() + self.lease_s / PAUSES
        else:
            self._troubled = False
            self._extended(sent)


class _Heart:
    """Renews the leases of this process' runs, in one thread that lives while any run does."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all runs, as a forked child owns none of its parent's."""
        self._keepers: WeakSet[Keeper] = WeakSet()
        self._lock = threading.Lock()
        self._new = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, keeper: Keeper) -> None:
        """Renew this run's lease until the run is over."""
        with self._lock:
            self._keepers.add(keeper)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="triage-heart", daemon=True)
                self._thread.start()
        self._new.set()

    def hurry(self, run_id: str) -> None:
        """Renew the lease of a run at once, as this process may have lost the run."""
        with self._lock:
            for keeper in self._keepers:
                if keeper.run_id == run_id:
                    keeper.due = 0.0
        self._new.set()

    def _beat(self) -> None:
        while True:
            with self._lock:
                living = [
                    keeper
                    for keeper in self._keepers
                    if not keeper.over and (keeper.error is None or keeper.detached)
                ]
                self._keepers = WeakSet(living)
                if not living:
                    self._thread = None
                    return
            now = ticks()
            due = [keeper for keeper in living if keeper.due <= now]
            if due:
                # A store that hangs must not delay the renewal of other leases.
                patience = min(keeper.lease_s for keeper in living) / TRIES
                asyncio.run(_renew(due, patience))
            pause = max(0.0, min(keeper.due for keeper in living) - ticks())
            del living, due
            self._new.wait(pause)
            self._new.clear()


async def _renew(keepers: list[Keeper], patience: float) -> None:
    await asyncio.gather(*(keeper.renew(patience) for keeper in keepers))


_LOST = Diagnosis(
    FailureType.UNKNOWN,
    technical_details="the run was cancelled, or taken over by another process",
    user_message="The work was ended or goes on elsewhere.",
    classifier="lease",
)
"""Diagnosis of an attempt whose run this process has lost."""


_heart = _Heart()


def hurry(run_id: str) -> None:
    """Make this process notice at once that it has lost a run."""
    _heart.hurry(run_id)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_heart.reset)


async def release(store: Store, run_id: str, epoch: int, lease_s: float = 0.0) -> None:
    """Release a run's lease. Errors are only logged, as the lease expires anyway."""
    try:
        await soon(store.release(run_id, epoch=epoch), lease_s)
    except Exception as error:
        logger.warning("run %s: not released: %s", run_id, error)
