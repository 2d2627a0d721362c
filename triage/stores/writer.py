"""A durable store around a synchronous driver: one thread writes, in group commits, another one reads."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import anyio

from triage.core.errors import StaleWriter, StoreError, check_count, check_number
from triage.core.events import Event
from triage.core.observers import logger
from triage.core.quoting import quote
from triage.core.waiting import LONG_WAIT_S, Waits

from .base import Change, Order, Owned, OwnedStore, RunInfo, check_prune
from .rows import Append, as_column, fresh, from_column
from .sql import Driver, Query

QUEUE = 10_000
"""Maximum number of jobs in a queue; `submit` blocks while it is full."""
BATCH = 1_000
BATCH_BYTES = 4 * 2**20
"""Maximum number of appends in a commit, and of their characters."""
AT_EXIT = 30.0
"""Seconds for submitted appends to become durable when the interpreter ends."""


class Lost(Exception):
    """The connection failed, and connecting again may help. error: raised if it does not."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error


class Connection(Protocol):
    """A thread's connection. close_at_fork: whether it must be closed before the process forks."""

    close_at_fork: ClassVar[bool]

    def close(self) -> None:
        """Close it."""
        ...


# Waiting ------------------------------------------------------------------------------------------


class Waiter:
    """Waits for a job in an event loop of asyncio or trio. Cancelling the wait does not cancel the job.

    slow: called once the wait has lasted 2 s.
    """

    def __init__(self, slow: Callable[[], None] | None = None) -> None:
        self._slow = slow or _say_slow
        self._result: Any = None
        self._error: BaseException | None = None
        try:
            self.loop: Any = asyncio.get_running_loop()
        except RuntimeError:
            import trio

            self.loop = trio.lowlevel.current_trio_token()
            self.call_soon: Callable[..., object] = self.loop.run_sync_soon
            self._woken: Any = trio.Event()
        else:
            self.call_soon = self.loop.call_soon_threadsafe
            self._woken = self.loop.create_future()

    def wake(self, result: Any = None, error: BaseException | None = None) -> None:
        """Pass on the outcome of the job, from any thread."""
        self._result, self._error = result, error
        if _held.waiters is None:
            _wake([self])
        else:
            _held.waiters.append(self)

    def tell(self) -> None:
        """Wake the task that awaits this, in the thread of the event loop."""
        if not isinstance(self._woken, asyncio.Future):
            self._woken.set()
        elif not self._woken.done():  # else it was cancelled
            self._woken.set_result(None)

    def __await__(self) -> Generator[Any, Any, Any]:
        """Return the job's result, or raise its error."""
        if isinstance(self._woken, asyncio.Future):
            timer = self.loop.call_later(LONG_WAIT_S, self._slow)
            try:
                yield from self._woken
            finally:
                timer.cancel()
        else:
            yield from self._woken_in_trio().__await__()
        if self._error is not None:
            raise self._error
        return self._result

    async def _woken_in_trio(self) -> None:
        with anyio.move_on_after(LONG_WAIT_S) as scope:
            await self._woken.wait()
        if scope.cancelled_caught:
            self._slow()
            await self._woken.wait()


class _Held(threading.local):
    """The waiters to wake when `together` ends in this thread; None outside of `together`."""

    waiters: list[Waiter] | None = None


_held = _Held()


@contextmanager
def together() -> Generator[None]:
    """Wake the waiters of the jobs inside together, each event loop once.

    A woken loop gets the interpreter, so this thread would wait for it once per waiter.
    """
    waiters: list[Waiter] = []
    _held.waiters = waiters
    try:
        yield
    finally:
        _held.waiters = None
        _wake(waiters)


def _wake(waiters: list[Waiter]) -> None:
    by_loop: dict[Any, list[Waiter]] = {}
    for waiter in waiters:
        by_loop.setdefault(waiter.loop, []).append(waiter)
    for some in by_loop.values():
        with suppress(RuntimeError):  # the loop has ended
            some[0].call_soon(_tell, some)


def _tell(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        waiter.tell()


class ThreadWaiter(threading.Event):
    """Waits for a job in a thread that may block. slow: as in `Waiter`."""

    def __init__(self, slow: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._slow = slow or _say_slow

    def wake(self) -> None:
        """Wake the thread when the job is done."""
        self.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job is done. timeout: seconds, None for no limit."""
        if timeout is None or timeout > LONG_WAIT_S:
            if super().wait(LONG_WAIT_S):
                return True
            self._slow()
            timeout = None if timeout is None else timeout - LONG_WAIT_S
        return super().wait(timeout)


def slow_store(who: str, waits: Waits) -> Callable[[], None]:
    """Make a function that logs a long wait for a store, once."""
    why = "its store has not answered, and another process may hold a lock"
    most, remedy = "at most the timeout of the store, 10 s by default", "timeout=… of the store"
    return partial(waits.say, "store", who, None, why, most, remedy)


def _say_slow() -> None:
    slow_store("a call of a store", Waits())()


# A thread and its connection ----------------------------------------------------------------------


C = TypeVar("C", bound=Connection)


class Call:
    """A job that uses the connection."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work = work
        self.waiter = Waiter()


class Stop:
    """A job that closes the connection, and ends the thread if no other job waits."""

    def __init__(self, stopped: Callable[[], object]) -> None:
        self.stopped = stopped


class Lane(Generic[C]):
    """A thread with a connection, both made for the first job, that does jobs in order.

    connect: opens a connection, or raises StoreError or `Lost`. work: does all waiting jobs, and raises
    nothing. timeout: seconds to wait for a connection that does not answer.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], C],
        work: Callable[[Lane[C], list[Any]], None],
        *,
        timeout: float,
    ) -> None:
        self._name = name
        self._connect = connect
        self._work = work
        self._timeout = timeout
        self._reset()
        _lanes.add(self)

    def _reset(self) -> None:
        """Begin without thread and connection, since a forked child has none of its parent's."""
        self._jobs: deque[Any] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._connection: C | None = None
        # Held while the connection is used, so that the process does not fork meanwhile.
        self._busy = threading.Lock()

    def put(self, job: Any, *, wait: bool = False) -> None:
        """Queue a job. wait: block while the queue is full."""
        with self._changed:
            if wait and threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: len(self._jobs) < QUEUE)
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._live, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    async def call(self, work: Callable[[C], Any]) -> Any:
        """Run `work` with the connection in the thread; return its result."""
        job = Call(work)
        self.put(job)
        return await job.waiter

    def _live(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs)
                jobs = list(self._jobs)
                self._jobs.clear()
                self._changed.notify_all()
            stopping = isinstance(jobs[-1], Stop)
            self._do(jobs)
            jobs.clear()  # frees results, which may be large, before the next job
            if stopping:
                with self._changed:
                    if not self._jobs:
                        self._thread = None
                        return

    def _do(self, jobs: list[Any]) -> None:
        for kind, group in groupby(jobs, key=type):
            if kind is not Stop:
                self._work(self, list(group))
                continue
            with self._busy:
                self._drop()
            for stop in group:
                stop.stopped()

    def use(self, work: Callable[[C], Any]) -> Any:
        """Run `work` with the connection; while the connection fails, connect again and repeat `work`.

        Raises StoreError, after the timeout at the latest.
        """
        deadline = time.monotonic() + self._timeout
        pause, waits = 0.02, Waits()
        while True:
            try:
                with self._busy:
                    return self._used(work)
            except Lost as lost:
                error = lost.error
                if time.monotonic() + pause > deadline:
                    raise error from lost.__cause__
            if time.monotonic() > deadline - self._timeout + LONG_WAIT_S:
                why = f"its connection is lost ({quote(str(error))}) and is opened again"
                most, remedy = f"at most {self._timeout:g} s", "timeout=… of the store"
                waits.say("lost", self._name, None, why, most, remedy)
            time.sleep(pause * (0.5 + os.urandom(1)[0] / 256))
            pause = min(pause * 2, 1.0)

    def _used(self, work: Callable[[C], Any]) -> Any:
        try:
            if self._connection is None:
                self._connection = self._connect()
            return work(self._connection)
        except StoreError:
            raise
        except Lost:
            self._drop()
            raise
        except Exception as error:
            self._drop()
            raise StoreError(f"{type(error).__name__}: {error}") from error

    def _drop(self) -> None:
        """Close the connection in any state."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # the connection is gone either way
                connection.close()

    async def close(self) -> None:
        """Wait for the jobs so far, then close the connection and end the thread."""
        if self._thread is not None:
            waiter = Waiter()
            self.put(Stop(waiter.wake))
            await waiter

    def stop(self) -> threading.Event:
        """End the thread after the jobs so far; return an event that is set when they are done."""
        ended = threading.Event()
        if self._thread is None:
            ended.set()
        else:
            self.put(Stop(ended.set))
        return ended

    def before_fork(self) -> None:
        """Wait until the connection is idle, and keep it idle."""
        self._busy.acquire()
        if self._connection is not None and self._connection.close_at_fork:
            self._drop()

    def after_fork_in_parent(self) -> None:
        """Allow the use of the connection again."""
        self._busy.release()

    def after_fork_in_child(self) -> None:
        """Keep the parent's connection from being used, closed or collected here."""
        if self._connection is not None:
            _of_the_parent.append(self._connection)
        self._reset()


_lanes: weakref.WeakSet[Lane[Any]] = weakref.WeakSet()
_forking: list[Lane[Any]] = []
_of_the_parent: list[Any] = []


def stop_with(owner: object, *lanes: Lane[Any]) -> None:
    """Stop these threads once their owner is garbage."""

    def stop() -> None:
        for lane in lanes:
            lane.stop()

    weakref.finalize(owner, stop).atexit = False


def _before_fork() -> None:
    for lane in list(_lanes):
        lane.before_fork()
        _forking.append(lane)


def _after_fork_in_parent() -> None:
    for lane in _forking:
        lane.after_fork_in_parent()
    _forking.clear()


def _after_fork_in_child() -> None:
    for lane in _forking:
        lane.after_fork_in_child()
    _forking.clear()


@atexit.register
def _at_exit() -> None:
    """Let the threads finish submitted appends while threads may still run."""
    deadline = time.monotonic() + AT_EXIT
    for ended in [lane.stop() for lane in list(_lanes)]:
        ended.wait(max(0.0, deadline - time.monotonic()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


# The jobs of a store's threads ------------------------------------------------------------------------


class Own(Call):
    """A job that changes a run's row."""

    def __init__(self, run_id: str, change: Change) -> None:
        self.run_id = as_column(run_id)
        self.change = change
        self.waiter = Waiter()


def _batches(appends: list[Append]) -> Iterator[list[Append]]:
    """Encode appends, and group them into commits, so that a very large one delays none before it."""
    batch: list[Append] = []
    held = 0
    for append in appends:
        append.encode()
        held += append.size
        if batch and (held > BATCH_BYTES or len(batch) >= BATCH):
            yield batch
            batch, held = [], append.size
        batch.append(append)
    if batch:
        yield batch


class _Worker:
    """Does the jobs of a store: one commit for appends that wait together, one for changes of rows."""

    def __init__(self) -> None:
        # Runs with a failed append, with its position; appends submitted after it fail, too.
        self._failed: dict[str, tuple[int, BaseException]] = {}

    def __call__(self, lane: Lane[Driver], jobs: list[Any]) -> None:
        kind = type(jobs[0])
        if kind is Append:
            for batch in _batches(jobs):
                self._commit(lane, batch)
        elif kind is Own:
            _own(lane, jobs)
        else:
            for job in jobs:
                do(lane, job)

    def _commit(self, lane: Lane[Driver], batch: list[Append]) -> None:
        tried = [append for append in batch if self._may_try(append)]
        if tried:
            try:
                lane.use(lambda driver: driver.commit(tried))
            except Exception as error:
                for append in tried:
                    append.error = error
        for append in tried:
            at, before = self._failed.get(append.run_id, (append.at, None))
            if at < append.at:
                append.error = before
            # An append after a stale one is stale itself.
            elif append.error is not None and not isinstance(append.error, StaleWriter):
                self._remember(append, append.error)
        with together():
            for append in batch:
                try:
                    append.done(None if append.error is None else fresh(append.error))
                except Exception:
                    logger.exception("what waited for an append failed itself")

    def _may_try(self, append: Append) -> bool:
        """Whether no earlier append has failed; one at or before the failed position clears the error."""
        at, error = self._failed.get(append.run_id, (append.at, None))
        if error is not None and append.at <= at:
            del self._failed[append.run_id]
        elif error is not None:
            append.error = error
            return False
        if append.error is not None:
            self._remember(append, append.error)
        return append.error is None

    def _remember(self, append: Append, error: BaseException) -> None:
        if len(self._failed) >= QUEUE:
            self._failed.clear()
        self._failed.setdefault(append.run_id, (append.at, error))


def do(lane: Lane[Any], job: Call) -> None:
    """Do one job, and wake its waiter."""
    try:
        result = lane.use(job.work)
    except Exception as error:
        job.waiter.wake(error=error)
    else:
        job.waiter.wake(result)


def _own(lane: Lane[Driver], jobs: list[Own]) -> None:
    """Change the rows of runs, in one commit."""
    try:
        rows = lane.use(lambda driver: driver.own([(job.run_id, job.change) for job in jobs]))
    except Exception as error:
        rows = [fresh(error) for _ in jobs]
    with together():
        for job, row in zip(jobs, rows, strict=True):
            if isinstance(row, BaseException):
                job.waiter.wake(error=row)
            else:
                job.waiter.wake(row)


class ThreadedStore(OwnedStore):
    """The part that the durable stores share.

    connect: opens a connection, or raises StoreError or `Lost`. timeout: seconds to wait for a store that
    does not answer. One object serves any number of event loops and threads; a forked child opens its own
    connections. Submitted appends are written before the interpreter ends.
    """

    def __init__(self, connect: Callable[..., Driver], *, timeout: float) -> None:
        name = type(self).__name__
        check_number(f"{name}.timeout", timeout, "seconds", above=True)
        self.timeout = timeout
        self._connect = connect
        writes, reads = partial(connect, writes=True), partial(connect, writes=False)
        # The threads refer to their lanes only, so that an unused store can be collected.
        self._writer = Lane(f"{name}-writer", writes, _Worker(), timeout=timeout)
        self._reader = Lane(f"{name}-reader", reads, _Worker(), timeout=timeout)
        stop_with(self, self._writer, self._reader)

    async def open(self) -> None:
        """Connect now. Raises the StoreError that the first use would raise."""
        await self._writer.call(lambda _driver: None)

    def connect(self, *, writes: bool) -> Driver:
        """Open one more connection, with the checks of the store's own, for tables beside the runs.

        Blocks. The caller uses the connection in one thread at a time, and closes it. Raises StoreError or
        `Lost`.
        """
        return self._connect(writes=writes)

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
        waiter = Waiter()
        done = partial(waiter.wake, None)
        self._writer.put(Append(run_id, events, at, epoch, lease_s, done))
        await waiter

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
        run_id = as_column(run_id)
        found: list[Event] = await self._reader.call(lambda driver: driver.read(run_id, after))
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
        where["kind"] = "run"
        found: list[RunInfo] = await self._reader.call(lambda driver: driver.runs(where, limit))
        return found

    async def journals(
        self,
        kind: str,
        *,
        status: str | None = None,
        subject: str | None = None,
        by: Order = "updated",
        since: float | None = None,
        until: float | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        """As in `Store`."""
        query = Query(
            kind=as_column(kind),
            status=None if status is None else as_column(status),
            subject=None if subject is None else as_column(subject),
            by=by,
            since=since,
            until=until,
            limit=limit,
        )
        found: list[RunInfo] = await self._reader.call(lambda driver: driver.journals(query))
        return found

    async def info(self, run_id: str, *, kind: str = "run") -> RunInfo | None:
        """As in `Store`."""
        where = {"run_id": as_column(run_id), "kind": as_column(kind)}
        found: list[RunInfo] = await self._reader.call(lambda driver: driver.runs(where, 1))
        return found[0] if found else None

    async def _own(self, run_id: str, change: Change) -> Owned:
        job = Own(run_id, change)
        self._writer.put(job)
        row: Owned = await job.waiter
        return row

    async def find(self, token_digest: str) -> str | None:
        """As in `Store`."""
        token = as_column(token_digest)
        found = await self._reader.call(lambda driver: driver.find(token))
        return None if found is None else from_column(found)

    async def now(self) -> float:
        """As in `Store`."""
        return float(await self._reader.call(lambda driver: driver.now()))

    async def prune(
        self, *, older_than: float | None = None, keep: int | None = None, kind: str = "run"
    ) -> int:
        """As in `Store`."""
        check_prune(older_than, keep)
        if older_than is None and keep is None:
            return 0
        column = as_column(kind)
        count: int = await self._writer.call(lambda driver: driver.prune(older_than, keep, column))
        return count

    async def close(self) -> None:
        """As in `Store`."""
        await self._writer.close()
        await self._reader.close()
