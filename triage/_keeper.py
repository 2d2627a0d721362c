"""Keeping a living run in a durable store: what is recorded goes there by itself, and its lease is renewed.

One batch of a run is on its way at a time; what is recorded meanwhile goes with the next. It is looked
through for secrets and encoded on the store's side. So a step costs the one that records it next to
nothing, and a burst of steps one commit.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from ._cut import HEAVY, fitting
from ._journal import CODES, WIDTH
from ._outgoing import Outgoing
from ._redact_events import redacted
from .errors import StaleWriter, UsageError
from .events import Event, RunFinished, RunSuspended
from .observers import logger
from .stores._lane import InThread, Waiter, waiter, wake

if TYPE_CHECKING:
    from ._redactor import Redactor
    from .stores.base import Store

W = TypeVar("W", bound="Waiter | InThread")
_LAST = frozenset({CODES[RunFinished], CODES[RunSuspended]})
BEATS = 3
"""A lease is renewed so often before it would end."""


class Keeper:
    """The way of one run's events to its store, from whatever thread or event loop they come.

    flushed: how many events the store has. error: what the store failed with; from then on nothing is
    handed over. required: the run must end then; else it is `detached` and goes on without the store,
    unless another process has taken it over. redactor: hides what no store keeps; None hides nothing.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        records: list[Any],
        *,
        epoch: int,
        flushed: int,
        lease_s: float,
        required: bool,
        redactor: Redactor | None = None,
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.epoch = epoch
        self.flushed = flushed
        self.lease_s = lease_s
        self.required = required
        self.redactor = redactor
        self.error: BaseException | None = None
        self.detached = False
        self.over = False
        self.renewed = time.monotonic()
        self._records = records
        self._lock = threading.Lock()
        self._on_its_way = False
        self._wanted = 0
        self._waiting: list[tuple[int, Waiter | InThread]] = []
        _heart.add(self)

    # --- handing over ---

    def pump(self) -> None:
        """Hand what is new to the store, unless a batch is on its way; that one's end does it then."""
        with self._lock:
            start, stop = self.flushed, len(self._records) // WIDTH
            self._wanted = stop
            if self._on_its_way or start >= stop:
                return
            going = self._on_its_way = self.error is None
        # A run that waits or has ended has no lease to be renewed.
        self.over = self._records[(stop - 1) * WIDTH] in _LAST
        if not going:
            return
        new = Outgoing(self.run_id, self._records, start, stop, self.redactor)
        if new.size <= HEAVY:
            self._hand_over(new, start, stop)
            return
        # Nobody should stand still meanwhile: neither an event loop nor the store's own thread.
        hand_over = partial(self._hand_over_heavy, new, start, stop)
        try:
            threading.Thread(target=hand_over, name="triage-heavy").start()
        except RuntimeError:  # the interpreter ends, or has no thread left
            hand_over()

    def _hand_over(self, events: Sequence[Event], start: int, stop: int) -> None:
        done = partial(self._done, stop)
        try:
            self.store.submit(
                self.run_id, events, at=start, epoch=self.epoch, lease_s=self.lease_s, done=done
            )
        except Exception as error:  # noqa: BLE001 - a store that refuses is one that fails
            done(error)

    def _hand_over_heavy(self, new: Outgoing, start: int, stop: int) -> None:
        redactor = self.redactor
        try:
            events = [fitting(event, redactor) for event in new.whole()]
            if redactor is not None:
                events = [redacted(event, redactor) for event in events]
        except Exception as error:  # noqa: BLE001 - as above
            self._done(stop, error)
            return
        self._hand_over(events, start, stop)

    def _done(self, stop: int, error: BaseException | None) -> None:
        """A batch has been stored, or has not; called in the store's thread."""
        with self._lock:
            self._on_its_way = False
            if error is None:
                self.flushed = stop
                self.renewed = time.monotonic()
            else:
                self._fail(error)
            waiting = self._waiting
            if waiting:
                self._waiting = []
                for entry in waiting:
                    if error is None and entry[0] > stop:
                        self._waiting.append(entry)
                    else:
                        wake(entry[1])
            more = self._wanted > stop
        if error is not None:
            self._tell(error)
        if more:
            self.pump()

    def _fail(self, error: BaseException) -> None:
        # In this order: another thread that sees the error has to know what it means.
        self.detached = not self.required and not isinstance(error, StaleWriter)
        self.error = error

    def _tell(self, error: BaseException) -> None:
        if self.detached:
            logger.error("run %s goes on without its store", self.run_id, exc_info=error)

    def _awaited(self, new: Callable[[], W]) -> W | None:
        """What is woken when the store has all that is recorded up to now; None when it has."""
        target = len(self._records) // WIDTH
        if self._wanted < target:
            self.pump()
        with self._lock:
            if self.flushed >= target or self.error is not None:
                return None
            waiting = new()
            self._waiting.append((target, waiting))
            return waiting

    async def barrier(self) -> None:
        """Wait until all that is recorded is durable. Raises what the store failed with.

        Cancelled while it waits, the events are stored all the same.
        """
        waiting = self._awaited(waiter)
        if waiting is not None:
            await waiting
        self.check()

    def barrier_sync(self) -> None:
        """`barrier` for a thread that may block. The store has threads of its own."""
        waiting = self._awaited(InThread)
        if waiting is not None:
            waiting.wait()
        self.check()

    def check(self) -> None:
        """Raise what the store failed with, where the run must not go on without it."""
        if self.error is not None and not self.detached:
            raise self.error

    def refuse_secrets(self, values: Mapping[str, Any], allowed: frozenset[str]) -> None:
        """Raise UsageError for state that holds a secret: the store would keep something else."""
        if self.redactor is None:
            return
        looked_at = {key: value for key, value in values.items() if key not in allowed}
        places = self.redactor.fields_of(looked_at, "state")
        if places:
            raise UsageError(
                f"{places[0]} holds what looks like a secret, which no store keeps; leave it out, or "
                "name its key in secret_ok=(…) to keep it in this process"
            )

    # --- the lease ---

    @property
    def due(self) -> float:
        """When the lease should be renewed, in monotonic seconds."""
        return self.renewed + self.lease_s / BEATS

    async def renew(self) -> None:
        """Renew the lease; a run that was taken over learns it here at the latest."""
        try:
            # A run that nothing is stored of yet has no lease.
            if self.flushed:
                renewing = self.store.renew(self.run_id, epoch=self.epoch, lease_s=self.lease_s)
                # A store that hangs must not keep the others' leases waiting.
                await asyncio.wait_for(renewing, self.lease_s / BEATS)
        except StaleWriter as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - the lease lasts for two more tries
            logger.warning("run %s: its lease was not renewed: %r", self.run_id, error)
        self.renewed = time.monotonic()


class _Heart:
    """Renews the leases of this process' runs, in one thread for all, made with the first of them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As new: a forked child keeps none of its parent's runs."""
        self._keepers: WeakSet[Keeper] = WeakSet()
        self._lock = threading.Lock()
        self._new = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, keeper: Keeper) -> None:
        """From now on this run's lease is renewed, until it is over."""
        with self._lock:
            self._keepers.add(keeper)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="triage-heart", daemon=True)
                self._thread.start()
        self._new.set()

    def _beat(self) -> None:
        while True:
            with self._lock:
                living = [keeper for keeper in self._keepers if _lives(keeper)]
                self._keepers = WeakSet(living)
                if not living:
                    self._thread = None
                    return
            now = time.monotonic()
            due = [keeper for keeper in living if keeper.due <= now]
            if due:
                asyncio.run(self._renew(due))
            pause = max(0.0, min(keeper.due for keeper in living) - time.monotonic())
            del living, due
            self._new.wait(pause)
            self._new.clear()

    async def _renew(self, keepers: list[Keeper]) -> None:
        await asyncio.gather(*(keeper.renew() for keeper in keepers))


def _lives(keeper: Keeper) -> bool:
    return not keeper.over and (keeper.error is None or keeper.detached)


_heart = _Heart()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_heart.reset)
