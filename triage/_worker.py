"""A function in a worker thread of our own, under a deadline, at half the cost of a general thread pool.

Classifiers run here: in threads that neither the user's tools nor their agents can occupy. A function
that does not come back is left to its thread, and another thread takes that one's place.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from math import inf
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

THREADS = 8
"""How many functions may run at once; more wait their turn, which is no part of their deadline."""
SHORTLY = 1e-4
"""Seconds for which an event loop itself waits for a function, and then for as long for no other.

Most are done by then, and the way back through the loop would take as long as they do. Nothing is held
up by it: a function of Python's keeps the interpreter to itself while it runs.
"""


class _Job:
    """notify: called in the thread when the function has ended. ended: a lock that is then released."""

    __slots__ = (
        "abandoned", "args", "ended", "error", "finished", "function", "future", "notify", "result",
        "seconds", "started",
    )  # fmt: skip

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> None:
        self.function = copy_context().run
        self.args = (function, *args)
        self.seconds = seconds
        self.notify: Callable[[_Job], None] = _nobody
        self.future: asyncio.Future[None]
        self.started: float | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.abandoned = False
        self.finished = False
        self.ended = threading.Lock()
        self.ended.acquire()

    def run(self) -> None:
        try:
            self.result = self.function(*self.args)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits, whatever it is
            self.error = error

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result

    def left(self) -> float:
        """Seconds of its deadline that are left; all of them while it waits its turn."""
        if self.started is None:
            return self.seconds
        return self.seconds - (time.monotonic() - self.started)


def _nobody(job: _Job) -> None:
    """Nobody is told."""


class _Pool:
    """Threads that are made when there is work for them and kept for the next."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As new: a forked child has none of its parent's threads."""
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._free = 0  # threads that wait for a job, less the jobs that wait for a thread
        self._threads = 0

    def put(self, job: _Job) -> None:
        """Have a thread run this job, as soon as one is free."""
        self._lock.acquire()  # not `with`, here and below: that takes three times as long
        try:
            self._free -= 1
            more = self._free < 0 and self._threads < THREADS
        finally:
            self._lock.release()
        self._jobs.put(job)
        if more:
            self._start()

    def tell(self, job: _Job, notify: Callable[[_Job], None]) -> bool:
        """Have somebody told when a job ends; False if it has ended already."""
        with self._lock:
            job.notify = notify
            return not job.finished

    def abandon(self, job: _Job) -> None:
        """Nobody waits for this job any more; if it runs, another thread takes its thread's place."""
        with self._lock:
            if job.abandoned or job.finished:
                return
            job.abandoned = True
            if job.started is None:
                return  # whoever takes it up sees that it is abandoned
            self._threads -= 1
            more = self._free < 0
        if more:
            self._start()

    def _start(self) -> None:
        with self._lock:
            self._threads += 1
            self._free += 1
        threading.Thread(target=self._work, name="triage-worker", daemon=True).start()

    def _work(self) -> None:
        lock = self._lock
        while True:
            job = self._jobs.get()
            lock.acquire()
            wanted = not job.abandoned
            job.started = time.monotonic()
            lock.release()
            if wanted:
                job.run()
            lock.acquire()
            if wanted and job.abandoned:
                lock.release()
                return  # another thread has taken this one's place
            job.finished = True
            self._free += 1
            notify = job.notify
            lock.release()
            job.ended.release()
            if wanted:
                notify(job)


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.reset)


async def in_worker(function: Callable[..., Any], *args: Any, seconds: float) -> Any:
    """Call a sync function in a worker thread: its result, or what it raised.

    Raises TimeoutError when it runs for more than `seconds`. The calling task's context is copied.
    Works under asyncio and trio.
    """
    import asyncio

    job = _Job(function, args, seconds)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    _pool.put(job)
    try:
        # While the thread wakes up the loop's other tasks have their turn.
        await (_turn_of_trio() if loop is None else asyncio.sleep(0))
        ended = job.finished or _ends_shortly(job)
    except BaseException:
        _pool.abandon(job)
        raise
    if ended:
        return job.outcome()
    return await (_in_trio(job) if loop is None else _in_asyncio(job, loop))


def _ends_shortly(job: _Job) -> bool:
    """Wait in this thread for a moment, unless it has waited a moment ago: whether the job has ended."""
    if time.monotonic() < _here.waits_from:
        return False
    try:
        return job.ended.acquire(timeout=SHORTLY)
    finally:
        _here.waits_from = time.monotonic() + SHORTLY


async def _turn_of_trio() -> None:
    import trio

    await trio.lowlevel.checkpoint()


class _Waiting:
    """Who waits for jobs in one event loop: a burst of finished jobs wakes it once, one timer serves all.

    Waking a loop is a system call that gives the interpreter away, and a timer a job would be a heap's
    work: with a thousand failures at once both would be felt. So the timer is left alone when a job is
    done in time, as nearly all are: it finds nobody who waits, and is set anew with the next job.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._jobs: set[_Job] = set()
        self._done: deque[_Job] = deque()
        self._rung = False
        self._timer: asyncio.TimerHandle | None = None
        self._span = inf  # seconds from when the timer was set to when it is due

    def add(self, job: _Job) -> asyncio.Future[None]:
        """Wait for a job: the future is done when it has finished or its time is over."""
        future = job.future = self.loop.create_future()
        self._jobs.add(job)
        # A timer that was set for no more seconds, earlier, is due before this job.
        if job.seconds < self._span:
            self._set(job.seconds)
        return future

    def remove(self, job: _Job) -> None:
        """Nobody waits for it any more."""
        self._jobs.remove(job)

    def ring(self, job: _Job) -> None:
        """A job has finished; called in its thread."""
        self._done.append(job)
        if self._rung:
            return
        self._rung = True
        try:
            self.loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            return  # the loop was closed while the function ran: nobody waits

    def _answer(self) -> None:
        self._rung = False
        while self._done:
            _wake(self._done.popleft())

    def _set(self, span: float) -> None:
        due = self.loop.time() + span
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer, self._span = self.loop.call_at(due, self._look), span

    def _look(self) -> None:
        """Wake those whose time is over, and look again when the next one's may be."""
        self._timer, self._span = None, inf
        lefts = [(job, job.left()) for job in self._jobs]
        for job, left in lefts:
            if left <= 0:
                _wake(job)
        following = min((left for _, left in lefts if left > 0), default=None)
        if following is not None:
            self._set(following)


def _wake(job: _Job) -> None:
    # Done already is the future of a task that was cancelled, or of a job whose time was over.
    if not job.future.done():
        job.future.set_result(None)


class _Here(threading.local):
    """Of the event loop that runs in this thread. waits_from: when it may wait for a function again."""

    waiting: _Waiting | None = None
    waits_from = 0.0


_here = _Here()


async def _in_asyncio(job: _Job, loop: asyncio.AbstractEventLoop) -> Any:
    waiting = _here.waiting
    if waiting is None or waiting.loop is not loop:
        waiting = _here.waiting = _Waiting(loop)
    future = waiting.add(job)
    try:
        if _pool.tell(job, waiting.ring):
            await future
    except BaseException:
        _pool.abandon(job)
        raise
    finally:
        waiting.remove(job)
    if job.finished:
        return job.outcome()
    _pool.abandon(job)
    raise TimeoutError


async def _in_trio(job: _Job) -> Any:
    import trio

    token = trio.lowlevel.current_trio_token()
    done = trio.Event()

    def notify(_job: _Job) -> None:
        try:
            token.run_sync_soon(done.set)
        except trio.RunFinishedError:
            return  # the loop has ended while the function ran: nobody waits

    if not _pool.tell(job, notify):
        return job.outcome()
    try:
        while (left := job.left()) > 0:
            with trio.move_on_after(left):
                await done.wait()
                return job.outcome()
    except BaseException:
        if job.error is None:
            _pool.abandon(job)
        raise
    _pool.abandon(job)
    raise TimeoutError


def scheduler() -> Callable[[Callable[[], object]], None]:
    """What any thread calls to have a function called in the event loop that runs here."""
    import asyncio

    schedule: Callable[[Callable[[], object]], object]
    try:
        schedule = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        import trio

        schedule = trio.lowlevel.current_trio_token().run_sync_soon

    def call(function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop has ended: there is nothing left to be done in it
            schedule(function)

    return call
