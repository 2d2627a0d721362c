"""What a store's threads do: appends that stand together in one commit, all else one by one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Protocol

from triage._parts import groups
from triage.errors import DeadLetter, RunBusy, RunOver, StaleWriter, StoreError, UnknownRun
from triage.events import Event

from ._lane import Lane, Outcome, Waiter, together, wake
from ._owners import Owned
from ._rows import Append, as_column, fresh, ready, rounds
from .base import RunInfo

QUEUE = 10_000
"""Submitted appends that may wait; who submits more waits for room."""
BATCH = 1_000
BATCH_BYTES = 4 * 2**20
"""What one commit takes at most: appends, and characters of them."""
PART = 40
QUICK = 0.002
"""Where a commit takes less seconds, more than twice `PART` appends are committed in parts of that size."""

Change = Callable[[Owned | None, float], Owned]
"""From a run's row, None for an unknown run, and the store's time to its new row."""


class Driver(Protocol):
    """A connection to where runs are kept. Texts are columns, as `as_column` makes them."""

    close_at_fork: ClassVar[bool]

    def commit(self, batch: list[Append]) -> list[BaseException | None]:
        """Write appends of different runs in one commit: for each, why it was refused."""
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

    def now(self) -> float:
        """As in `Store`."""
        ...

    def prune(self, older_than: float | None, keep: int | None) -> int:
        """As in `Store`; one of the two is given."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Own:
    """A job that changes a run's row."""

    __slots__ = ("change", "run_id", "waiter")

    def __init__(self, run_id: str, change: Change, waiter: Waiter) -> None:
        self.run_id = as_column(run_id)
        self.change = change
        self.waiter = waiter


class Call:
    """Any other job."""

    __slots__ = ("waiter", "work")

    def __init__(self, work: Callable[[Driver], Any], waiter: Waiter) -> None:
        self.work = work
        self.waiter = waiter


class Worker:
    """Works the jobs of a lane off: appends that stand together in one commit, all else one by one."""

    def __init__(self) -> None:
        # Runs of which an append failed: what was submitted behind it fails in the same way.
        self._failed: dict[str, tuple[int, BaseException]] = {}
        # How long a commit has taken of late, in seconds.
        self._usual = QUICK

    def __call__(self, lane: Lane[Driver], jobs: list[Any]) -> None:
        """Do them all and tell who waits."""
        for kind, some in groupby(jobs, key=type):
            if kind is Append:
                appends = list(some)
                # A very large one does not keep those before it waiting.
                for batch in groups(appends, BATCH_BYTES, self._most(len(appends))):
                    self._commit(lane, batch)
            elif kind is Own:
                _own(lane, list(some))
            else:
                for job in some:
                    wake(job.waiter, _outcome(lane, job.work))

    def _most(self, waiting: int) -> int:
        """How many appends go into one commit.

        Where commits are quick, those who wait are served in parts: the first go on in their event loop
        while the store writes what the others wait for. Where they are slow, as few commits as can be.
        """
        parts = waiting // PART
        return -(-waiting // parts) if parts > 1 and self._usual < QUICK else BATCH

    def _commit(self, lane: Lane[Driver], batch: list[Append]) -> None:
        ready(batch)
        for appends in rounds(batch):
            outcomes = self._outcomes(lane, appends)
            with together():
                for append, error in zip(appends, outcomes, strict=True):
                    for done in append.dones:
                        try:
                            done(None if error is None else fresh(error))
                        except Exception:
                            logging.getLogger("triage").exception(
                                "what waited for an append failed itself"
                            )

    def _outcomes(self, lane: Lane[Driver], appends: list[Append]) -> list[BaseException | None]:
        """How each append ended."""
        if self._failed or any(map(_error_of, appends)):
            doomed = {append.run_id: self._behind(append) for append in appends}
            tried = [append for append in appends if doomed[append.run_id] is None]
        else:
            doomed, tried = {}, appends
        errors: list[BaseException | None]
        try:
            errors = self._committed(lane, tried) if tried else []
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            errors = [error] * len(tried)
        for append, outcome in zip(tried, errors, strict=True):
            # What stands behind a stale append is stale itself.
            if outcome is not None and not isinstance(outcome, StaleWriter):
                self._remember(append, outcome)
        if not doomed:
            return errors
        left = iter(errors)
        return [doomed[append.run_id] or next(left) for append in appends]

    def _committed(self, lane: Lane[Driver], appends: list[Append]) -> list[BaseException | None]:
        began = time.monotonic()
        errors: list[BaseException | None] = lane.use(lambda driver: driver.commit(appends))
        self._usual += (time.monotonic() - began - self._usual) / 8
        return errors

    def _remember(self, append: Append, error: BaseException) -> None:
        if len(self._failed) >= QUEUE:
            self._failed.clear()
        self._failed[append.run_id] = (append.at, error)

    def _behind(self, append: Append) -> BaseException | None:
        """What an append must fail with: its own error, or because one before it did; one that starts anew
        need not.
        """
        if append.error is not None:
            self._remember(append, append.error)
            return append.error
        at, error = self._failed.get(append.run_id, (append.at, None))
        if error is not None and append.at <= at:
            del self._failed[append.run_id]
            return None
        return error


_error_of = attrgetter("error")


def _outcome(lane: Lane[Driver], work: Callable[[Driver], Any]) -> Outcome:
    try:
        return lane.use(work), None
    except Exception as error:  # noqa: BLE001 - handed to whoever waits
        return None, error


def _own(lane: Lane[Driver], jobs: list[Own]) -> None:
    """Change the rows of runs, in one commit."""
    rows, failed = _outcome(lane, lambda d: d.own([(job.run_id, job.change) for job in jobs]))
    with together():
        for at, job in enumerate(jobs):
            found = fresh(failed) if failed is not None else rows[at]
            wake(job.waiter, (None, found) if isinstance(found, BaseException) else (found, None))


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
