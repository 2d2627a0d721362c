"""How an attempt is interrupted: a flag, then the scope or the task it runs in; unsafe calls end first."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .errors import AttemptInterrupted, AttemptOver
from .events import WatchNoticed
from .observers import logger

if TYPE_CHECKING:
    import asyncio

    import anyio

    from ._session import Session
    from .diagnosis import Diagnosis

GRACE = 5.0
"""Seconds an interrupted attempt has to stop before it is reported as one that goes on."""


class Interruptible:
    """One attempt as it can be stopped. Safe to use from tasks and threads of the attempt."""

    session: Session
    number: int
    # Most attempts never set these: as class attributes they cost an attempt nothing.
    # alert: set as soon as a recording may have to be refused, so that one look suffices on the way in.
    alert = False
    over = False
    interrupt: Diagnosis | None = None
    scope: anyio.CancelScope | None = None
    # Without a scope under asyncio: the task the attempt runs in, and whether it was cancelled from here.
    owner: asyncio.Task[Any] | None = None
    cancelled = False
    # Unsafe calls now running, and who waits for the last of them.
    calls_open = 0
    _settled: threading.Event | None = None
    _held_deadline = 0.0
    _thread = 0
    _in_loop: Callable[[Callable[[], object]], None]
    # Reports an attempt that does not stop.
    _unstopped: threading.Timer | None = None

    def check_open(self) -> None:
        """Raise `AttemptOver` or `AttemptInterrupted` when nothing may be recorded any more."""
        if not self.alert:
            return
        if self.over:
            raise AttemptOver(
                f"attempt {self.number} of run {self.session.run_id} is over: a task or thread it left "
                "behind tried to record; await it before the agent function returns"
            )
        if self.interrupt is None:
            if not self._expired():
                return
            self.interrupt = out_of_time(self.session)
        if self.owner is not None and not self.calls_open:
            self._cancel_owner(self.owner)  # what was raised before did not end it
        raise AttemptInterrupted(self.interrupt)

    def _expired(self) -> bool:
        """Whether the attempt's time is over, asked from any thread."""
        if self.scope is None:
            return False
        if threading.get_ident() == self._thread:
            return self.scope.cancel_called
        left = self.session.attempt_seconds_left()
        return left is not None and left <= 0 and not self.calls_open

    def stop(self, diagnosis: Diagnosis) -> None:
        """Interrupt the attempt: it has failed, whatever it does from now on.

        Unsafe calls that are running are waited for before anything is cancelled. An attempt that goes
        on all the same is reported after `GRACE` seconds, and waited for.
        """
        if self.interrupt is not None or self.over:
            return
        self.interrupt = diagnosis
        self.alert = True
        self._unstopped = threading.Timer(GRACE, self._report_unstopped)
        self._unstopped.daemon = True
        self._unstopped.start()
        if not self.calls_open:
            self._cancel()

    def enter_scope(self, scope: anyio.CancelScope) -> None:
        """Tell the attempt which scope an interrupt cancels; called in the event loop's thread."""
        self.scope = scope
        self.alert = True
        self._thread = threading.get_ident()
        from ._worker import scheduler

        self._in_loop = scheduler()

    def _cancel(self) -> None:
        if self.scope is None:
            if self.owner is not None and not _runs_in(self.owner):
                self._cancel_owner(self.owner)
            return
        # A scope may only be touched in its own thread.
        if threading.get_ident() == self._thread:
            self.scope.cancel()
        else:
            self._in_loop(self.scope.cancel)

    def _cancel_owner(self, owner: asyncio.Task[Any]) -> None:
        """Cancel the attempt's task where it waits, unless the attempt is over by then."""

        def cancel() -> None:
            if not (self.over or self.cancelled):
                self.cancelled = True
                owner.cancel()

        with suppress(RuntimeError):  # its loop has ended
            owner.get_loop().call_soon_threadsafe(cancel)

    def unsafe_begun(self) -> None:
        """An unsafe call begins: the attempt's deadline waits until it has ended."""
        with self.session.lock:
            self.calls_open += 1
            first = self.calls_open == 1
        if first and self.scope is not None and threading.get_ident() == self._thread:
            self._held_deadline, self.scope.deadline = self.scope.deadline, math.inf
        if self.session.parent is not None:
            self.session.parent.unsafe_begun()

    def unsafe_ended(self) -> None:
        """An unsafe call has ended and is recorded: what waited for it goes on."""
        if self.session.parent is not None:
            self.session.parent.unsafe_ended()
        with self.session.lock:
            self.calls_open -= 1
            last = not self.calls_open
        if not last:
            return
        if self._held_deadline and self.scope is not None:
            self.scope.deadline, self._held_deadline = self._held_deadline, 0.0
            # Asked for, because trio looks at a deadline that has passed only when it is asked.
            if self.interrupt is None and self.scope.cancel_called:
                self.interrupt = out_of_time(self.session)
        if self.interrupt is not None:
            self._cancel()
        if self._settled is not None:
            self._settled.set()

    def close(self) -> None:
        """The attempt is over: nothing is recorded from now on."""
        self.over = self.alert = True
        if self._unstopped is not None:
            self._unstopped.cancel()

    async def settle(self, grace: float) -> None:
        """Wait, at most `grace` seconds, until no unsafe call is running that the agent left behind."""
        if not self.calls_open:
            return
        import anyio

        self._settled = threading.Event()
        if self.calls_open:
            await anyio.to_thread.run_sync(self._settled.wait, grace, abandon_on_cancel=True)

    def _report_unstopped(self) -> None:
        """Say that the interrupted attempt goes on all the same; it is awaited, never abandoned."""
        if self.over:
            return
        logger.warning(
            "run %s: attempt %d was interrupted %g seconds ago and has not stopped; it is waited for",
            self.session.run_id, self.number, GRACE,
        )  # fmt: skip
        text = f"not stopped {GRACE:g} seconds after its interrupt"
        self.session.add(WatchNoticed, self.number, "unstopped", "watch.interrupt", text)


def _runs_in(task: asyncio.Task[Any]) -> bool:
    """Whether this code runs in that task, so that raising ends it."""
    import asyncio

    try:
        return asyncio.current_task() is task
    except RuntimeError:  # a thread of its own
        return False


def out_of_time(session: Session) -> Diagnosis:
    """Why an attempt whose scope ran out of time has failed."""
    left = session.seconds_left()
    over = left is not None and left <= 0
    return session.limits.time_is_up("seconds" if over else "attempt_seconds")
