"""How an attempt is interrupted: a flag, then the scope or the task it runs in; unsafe calls end first."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ._journal import record_of
from ._tool import calling
from .errors import AttemptInterrupted, AttemptOver
from .events import WatchNoticed
from .observers import logger
from .state import is_call, is_reused

if TYPE_CHECKING:
    import asyncio

    import anyio

    from ._session import Session
    from .diagnosis import Diagnosis
    from .limits import Limits
    from .steps import Step

GRACE = 5.0
"""Seconds an interrupted attempt has to stop before it is reported as one that goes on, and told again."""


class Interruptible:
    """One attempt as it can be stopped. Safe to use from tasks and threads of the attempt."""

    session: Session
    number: int
    # alert: set as soon as a recording may have to be refused, so that one look suffices on the way in.
    # calls_open: unsafe calls now running.
    alert: bool
    interrupt: Diagnosis | None
    calls_open: int
    # Most attempts never set these: as class attributes they cost an attempt nothing.
    over = False
    scope: anyio.CancelScope | None = None
    # Under asyncio: the task the attempt runs in, and how many cancellations others had asked of it
    # before. owner: that task where there is no scope; cancelled: how often it was cancelled from here.
    owner: asyncio.Task[Any] | None = None
    cancelled = 0
    _task: asyncio.Task[Any] | None = None
    _asked = 0
    # Who waits for the last unsafe call.
    _settled: threading.Event | None = None
    _held_deadline = 0.0
    _thread = 0
    _in_loop: Callable[[Callable[[], object]], None]
    # The limits that a recording is held against; calls that run and are not counted yet, by tool.
    _watch: Limits | None = None
    _running: dict[str, int] | None = None
    # The attempts of runs inside this one.
    _inside: WeakSet[Interruptible] | None = None
    # Reports an attempt that does not stop.
    _unstopped: threading.Timer | None = None
    _reported = False

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
            self.stop(out_of_time(self.session))
        elif self.owner is not None and not self.calls_open:
            self._cancel()  # what was raised before did not end it
        self.refuse()

    def refuse(self) -> None:
        """Raise `AttemptInterrupted` after an interrupt.

        Not within a call while one with an effect runs, as that one is finished first.
        """
        if self.interrupt is not None and (not self.calls_open or calling.get() is None):
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
        with self.session.lock:
            if self.interrupt is not None or self.over:
                return
            self.interrupt = diagnosis
            self.alert = True
            reminder = self._reminder()
        reminder.start()
        if not self.calls_open:
            self._cancel()

    def enter_task(self, task: asyncio.Task[Any] | None) -> None:
        """Tell the attempt in which task of asyncio it runs, None for trio."""
        self._task = task
        if task is not None:
            self._asked = task.cancelling()

    def enter_scope(self, scope: anyio.CancelScope) -> None:
        """Tell the attempt which scope an interrupt cancels; called in the event loop's thread."""
        self.scope = scope
        self.alert = True
        self._thread = threading.get_ident()
        from ._worker import scheduler

        self._in_loop = scheduler()
        self.enter_task(current_task())
        if self.interrupt is not None and not self.calls_open:
            scope.cancel()  # it came between two steps of a stream

    def _cancel(self) -> None:
        """Cancel the attempt where it waits, unless it is over, or in an unsafe call, by then."""
        if self.scope is not None:
            # A scope may only be touched in its own thread.
            if threading.get_ident() == self._thread:
                self.scope.cancel()
            else:
                self._in_loop(self._cancel_scope)
        elif self.owner is not None:
            # Not at once: mostly what is raised here ends it, and then nothing is left to cancel.
            with suppress(RuntimeError):  # its loop has ended
                self.owner.get_loop().call_soon_threadsafe(self._cancel_owner)

    def _cancel_scope(self) -> None:
        if self.scope is not None and not (self.over or self.calls_open):
            self.scope.cancel()

    def _cancel_owner(self) -> None:
        if self.owner is not None and not (self.over or self.calls_open):
            self.cancelled += 1
            self.owner.cancel()

    def check_call(self, tool: str) -> None:
        """Before a call runs: raise `AttemptInterrupted` where it would go over a limit.

        Those that run at the same time count. No call begins within one after an interrupt.
        """
        if self.interrupt is not None:
            raise AttemptInterrupted(self.interrupt)
        if self._watch is None:
            return
        session = self.session
        state = session.state
        with session.lock:
            running = {} if self._running is None else self._running
            breach = self._watch.before_call(
                tool,
                state.tool_calls + sum(running.values()),
                state.calls_per_tool.get(tool, 0) + running.get(tool, 0),
            )
            if breach is None:
                running[tool] = running.get(tool, 0) + 1
                self._running = running
        if breach is not None:
            self.stop(breach)
            raise AttemptInterrupted(breach)

    def has_inside(self, inner: Interruptible) -> None:
        """An attempt of a run inside this one begins."""
        with self.session.lock:
            if self._inside is None:
                self._inside = WeakSet()
            self._inside.add(inner)

    @property
    def recorded(self) -> int:
        """How much was recorded, by the runs inside this one too: another number after each recording."""
        with self.session.lock:
            inner = () if self._inside is None else tuple(self._inside)
        return self.session.position + sum(one.recorded for one in inner)

    def count_off(self, step: Step) -> None:
        """A call that `check_call` has let run is recorded."""
        began = is_call(step) and not is_reused(step.metadata)
        if began and self._running is not None and step.tool_called is not None:
            self._running[step.tool_called] -= 1

    def unsafe_begun(self) -> None:
        """An unsafe call begins: the attempt's deadline waits until it has ended."""
        session = self.session
        session.lock.acquire()  # not `with`, which takes twice as long
        try:
            self.calls_open += 1
            first = self.calls_open == 1
        finally:
            session.lock.release()
        if first and self.scope is not None:
            self._hold_deadline(self.scope)
        if session.parent is not None:
            session.parent.unsafe_begun()

    def _hold_deadline(self, scope: anyio.CancelScope) -> None:
        if not self._held_deadline and threading.get_ident() == self._thread:
            self._held_deadline, scope.deadline = scope.deadline, math.inf

    def unsafe_ended(self) -> None:
        """An unsafe call has ended and is recorded: what waited for it goes on."""
        session = self.session
        if session.parent is not None:
            session.parent.unsafe_ended()
        session.lock.acquire()  # as above
        try:
            self.calls_open -= 1
            last = not self.calls_open
        finally:
            session.lock.release()
        if not last:
            return
        if self._held_deadline:
            # A scope may only be touched in its own thread.
            if threading.get_ident() == self._thread:
                self._release_deadline()
            else:
                self._in_loop(self._release_deadline)
        if self.interrupt is not None:
            self._cancel()
        if self._settled is not None:
            self._settled.set()

    def _release_deadline(self) -> None:
        if self.scope is None or self.calls_open:
            return
        self.scope.deadline, self._held_deadline = self._held_deadline, 0.0
        # Asked for, because trio looks at a deadline that has passed only when it is asked.
        if self.scope.cancel_called:
            self.stop(out_of_time(self.session))

    def close(self) -> None:
        """The attempt is over: nothing is recorded from now on."""
        with self.session.lock:
            self.over = self.alert = True
            if self._unstopped is not None:
                self._unstopped.cancel()

    def leave(self) -> None:
        """The function has ended: its task is not cancelled any more, and what was asked of it is taken
        back.
        """
        owner, self.owner = self.owner, None
        if owner is not None:
            for _ in range(self.cancelled):
                owner.uncancel()

    async def give_way(self) -> None:
        """Raise the cancellation from outside that came together with an interrupt.

        The agent or the event loop may have taken it for ours, and it has the last word.
        """
        import anyio.lowlevel

        await anyio.lowlevel.checkpoint_if_cancelled()
        if self._task is not None and await self.cancelled_outside():
            raise anyio.get_cancelled_exc_class()

    async def cancelled_outside(self) -> bool:
        """Whether somebody else has cancelled what the attempt runs in, and still means it."""
        task = self._task
        if task is not None:
            return task.cancelling() > self._asked
        import anyio.lowlevel

        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except anyio.get_cancelled_exc_class():
            return True  # trio raises it again wherever the task waits next
        return False

    async def settle(self, grace: float) -> None:
        """Wait, at most `grace` seconds, until no unsafe call is running that the agent left behind."""
        if not self.calls_open:
            return
        import anyio

        self._settled = threading.Event()
        if self.calls_open:
            await anyio.to_thread.run_sync(self._settled.wait, grace, abandon_on_cancel=True)

    def _reminder(self) -> threading.Timer:
        # A thread's, as the event loop may be what the agent holds up.
        reminder = self._unstopped = threading.Timer(GRACE, self._remind)
        reminder.daemon = True
        return reminder

    def _remind(self) -> None:
        """It goes on although interrupted: say so once, and cancel it again; it is never abandoned."""
        session = self.session
        seq, text = None, ""
        with session.lock:
            if self.over:
                return
            reminder = self._reminder()
            if not self._reported:
                self._reported = True
                seq = session.position
                text = f"not stopped {GRACE:g} seconds after its interrupt"
                if self.calls_open:
                    text += ": a call with an effect is finished first"
                fields = (self.number, "unstopped", "watch.interrupt", text)
                session.records += record_of(WatchNoticed, session.time(), fields)
        reminder.start()
        if not self.calls_open:
            self._cancel()
        if seq is not None:
            logger.warning(
                "run %s: attempt %d has %s; it is waited for", session.run_id, self.number, text
            )
            session.tell(seq)


def current_task() -> asyncio.Task[Any] | None:
    """The task of asyncio that runs now; None under trio, and in a thread of its own."""
    try:
        return _of_asyncio()()
    except RuntimeError:
        return None


@cache
def _of_asyncio() -> Callable[[], asyncio.Task[Any] | None]:
    from asyncio import current_task

    return current_task


def out_of_time(session: Session) -> Diagnosis:
    """Why an attempt whose scope ran out of time has failed."""
    left = session.seconds_left()
    over = left is not None and left <= 0
    return session.limits.time_is_up("seconds" if over else "attempt_seconds")
