"""Call a user's function within a deadline, in a thread if it is sync."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import RunVar

T = TypeVar("T")

# Threads of our own, since those of `anyio.to_thread` would keep the interpreter from ending while a
# function hangs, and the user's tools and agents could occupy them. Idle threads are reused, because the
# event loop blocks while a thread starts.

THREADS = 8
"""Maximum functions at work for one event loop; more of them wait, outside of their deadline."""
LONG_THREADS = 40
"""A separate maximum for functions that may take minutes, such as checks."""
_limiters: RunVar[anyio.CapacityLimiter] = RunVar("triage_worker_limiter")
_long_limiters: RunVar[anyio.CapacityLimiter] = RunVar("triage_long_worker_limiter")
at_work: set[object] = set()
"""One entry for each function that a caller waits for."""


class TooSlow(TimeoutError):
    """A function took longer than its deadline; a class apart from the function's own TimeoutErrors."""


class _Job:
    """One call of a function. started: monotonic seconds."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.started = time.monotonic()
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = anyio.Event()
        self._in_loop = scheduler()

    def work(self) -> None:
        """Call the function, in a thread."""
        try:
            self._result = self._function()
        except BaseException as error:  # raised again in `outcome`
            self._error = error

    def tell(self) -> None:
        """Wake the caller, from the thread."""
        self._in_loop(self._done.set)

    async def outcome(self, seconds: float) -> Any:
        """Return the result or raise the error of the call. Raises TooSlow after `seconds`."""
        # Loop until real time has passed, since the clock of the event loop may be virtual.
        while (left := self.started + seconds - time.monotonic()) > 0:
            with anyio.move_on_after(left):
                await self._done.wait()
                break
        if not self._done.is_set():
            raise TooSlow
        if self._error is not None:
            raise self._error
        return self._result


class _Worker(threading.Thread):
    """A thread that does one job after another."""

    def __init__(self) -> None:
        super().__init__(name="triage-worker", daemon=True)
        self.jobs: SimpleQueue[_Job] = SimpleQueue()

    def run(self) -> None:
        """Work until the interpreter ends."""
        while True:
            job = self.jobs.get()
            job.work()
            _free.append(self)  # before `tell`, so that the caller's next job finds this thread
            job.tell()
            del job


_free: deque[_Worker] = deque()
"""Idle threads."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free.clear)  # a child has none of its parent's threads


def _start(job: _Job) -> None:
    try:
        worker = _free.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
    worker.jobs.put(job)


async def in_worker(
    function: Callable[..., Any], *args: Any, seconds: float, long: bool = False
) -> Any:
    """Call a sync function in a thread, with a copy of the calling task's context.

    Raises TooSlow after `seconds`. After that, or when the caller is cancelled, the function is left to
    its thread. long: the function may take minutes.
    """
    context = copy_context()
    limiters = _long_limiters if long else _limiters
    limiter = limiters.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(LONG_THREADS if long else THREADS)
        limiters.set(limiter)
    async with limiter:
        job = _Job(lambda: context.run(function, *args))
        at_work.add(job)
        _start(job)
        try:
            return await job.outcome(seconds)
        finally:
            at_work.discard(job)


ANSWER_SECONDS = 30.0
"""Deadline, from its start, of a function without an attribute `deadline`."""
LEAST_SECONDS = 0.1
"""Deadline of a function that a run calls when its own deadline has passed."""


def deadline_of(function: object, default: float = ANSWER_SECONDS) -> float:
    """Return the `deadline` in seconds of a function, or of the object of a method; else the default."""
    owner = getattr(function, "__self__", None)
    seconds: float = getattr(function, "deadline", getattr(owner, "deadline", default))
    return seconds


async def ask(
    function: Callable[..., Any],
    *args: Any,
    seconds: float,
    seconds_left: float | None = None,
    long: bool = False,
) -> Any:
    """Call a user's function, sync or async.

    Raises TooSlow with the reason after `seconds`, or after `seconds_left`, the time to the run's
    deadline (None without one). An async function is awaited here, and cancelled then; a sync one runs in
    a thread, and is left to it. long: as for `in_worker`.
    """
    too_slow = f"took longer than {seconds:g} s"
    if seconds_left is not None and seconds_left < seconds:
        seconds = max(seconds_left, LEAST_SECONDS)
        too_slow = "did not answer before the run's deadline"
    # An async callable that does not look like one returns its awaitable from a thread, which is harmless.
    try:
        if inspect.iscoroutinefunction(function):
            answer = function(*args)
        else:
            answer = await in_worker(function, *args, seconds=seconds, long=long)
        if inspect.isawaitable(answer):
            with anyio.move_on_after(seconds) as limit:
                answer = await answer
            if limit.cancelled_caught:
                raise TooSlow
    except TooSlow:
        raise TooSlow(too_slow) from None
    return answer


def ask_here(function: Callable[..., T], *args: Any, seconds: float) -> T:
    """Call a sync function from a caller that blocks.

    Raises TooSlow after `seconds`; the function is then left to its thread.
    """
    done: Future[T] = Future()

    def call() -> None:
        try:
            done.set_result(function(*args))
        except BaseException as error:
            done.set_exception(error)

    # A dedicated thread: a function that hangs cannot be stopped, and must not occupy a pool.
    threading.Thread(target=copy_context().run, args=(call,), daemon=True).start()
    try:
        return done.result(seconds)
    except TimeoutError:
        if done.done():
            raise  # the function's own
        raise TooSlow(f"took longer than {seconds:g} s") from None


def scheduler() -> Callable[[Callable[[], object]], None]:
    """Return a function by which any thread can schedule a call in the current event loop."""
    schedule: Callable[[Callable[[], object]], object]
    try:
        schedule = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        import trio

        schedule = trio.lowlevel.current_trio_token().run_sync_soon

    def call(function: Callable[[], object]) -> None:
        # RuntimeError: the loop has ended, and nothing waits in it.
        with suppress(RuntimeError):
            schedule(function)

    return call
