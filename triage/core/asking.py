"""Ask a function of the user's: within a deadline, in a thread if it is sync."""

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
from typing import Any

import anyio
from anyio.lowlevel import RunVar

# The threads are daemons, so a function that hangs does not keep the interpreter from ending, which
# the threads of `anyio.to_thread` would. Neither the user's tools nor their agents can occupy them.
# A thread that is free takes the next function: to start one, the event loop would wait for it.

THREADS = 8
"""How many functions one event loop may have at work; more wait their turn, outside of their deadline."""
LONG_THREADS = 40
"""The same of functions that may take minutes, such as checks, so that they keep no others waiting."""
_limiters: RunVar[anyio.CapacityLimiter] = RunVar("triage_worker_limiter")
_long_limiters: RunVar[anyio.CapacityLimiter] = RunVar("triage_long_worker_limiter")
at_work: set[object] = set()
"""One entry for each function that somebody waits for."""


class TooSlow(TimeoutError):
    """What was called took longer than its deadline: none of its own TimeoutErrors."""


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
        except BaseException as error:  # handed to whoever waits, whatever it is
            self._error = error

    def tell(self) -> None:
        """Wake whoever waits for the outcome, from the thread."""
        self._in_loop(self._done.set)

    async def outcome(self, seconds: float) -> Any:
        """The result, or what was raised. Raises TooSlow where it takes longer."""
        # The clock of the event loop may be a virtual one, and then says nothing of a thread.
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
            _free.append(
                self
            )  # before anybody is told, so that the next job finds this thread free
            job.tell()
            del job


_free: deque[_Worker] = deque()
"""Threads that have nothing to do."""
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
    """Call a sync function in a thread: its result, or what it raised.

    Raises TooSlow when it runs for more than `seconds`; one that does not come back, or whose caller is
    cancelled, is left to its thread. The calling task's context is copied. long: it may take minutes.
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
"""Deadline of a function that names none of its own as `deadline`; counted from when it starts."""
LEAST_SECONDS = 0.1
"""Seconds that a function is given by a run whose deadline has come."""


def deadline_of(function: object, default: float = ANSWER_SECONDS) -> float:
    """The seconds that a function, or the object of a method, says as its `deadline`; else the default."""
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
    """Call a function of the user's: what it gives, or what it raises.

    Raises TooSlow, which says why, after `seconds`, or at the run's deadline: seconds_left until then,
    None without one. An async function is awaited here and cancelled then; any other runs in a thread,
    which is left behind. long: as for `in_worker`.
    """
    too_slow = f"took longer than {seconds:g} s"
    if seconds_left is not None and seconds_left < seconds:
        seconds = max(seconds_left, LEAST_SECONDS)
        too_slow = "did not answer before the run's deadline"
    # What is async without its code saying so gives its awaitable in a thread: no harm is done.
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


def ask_here(function: Callable[..., Any], *args: Any, seconds: float) -> Any:
    """Call a sync function for a caller that blocks: what it gives, or what it raises.

    Raises TooSlow after `seconds`; the function is then left to its thread.
    """
    done: Future[Any] = Future()

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
    """What any thread calls to have a function called in the event loop that runs here."""
    schedule: Callable[[Callable[[], object]], object]
    try:
        schedule = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        import trio

        schedule = trio.lowlevel.current_trio_token().run_sync_soon

    def call(function: Callable[[], object]) -> None:
        # RuntimeError: the loop has ended, and there is nothing left to be done in it.
        with suppress(RuntimeError):
            schedule(function)

    return call
