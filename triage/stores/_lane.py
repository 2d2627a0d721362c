"""One thread with one connection of a synchronous driver, and the jobs that wait for it.

Whatever event loop or thread a job comes from, it is the same here. Who awaits jobs is woken once for all
that were done together: waking a loop is a system call that gives the interpreter away.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from triage.errors import StoreError, StoreUnavailable

D = TypeVar("D", bound="Driver")


class Driver(Protocol):
    """A connection. close_at_fork: it must be closed before its process is forked."""

    close_at_fork: ClassVar[bool]

    def close(self) -> None:
        """Let go of it."""
        ...


class Lost(Exception):
    """The connection failed so that to connect and try again may help. Carries what to raise if not."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error


class InTrio:
    """Who awaits a job under trio: what an asyncio Future is there."""

    __slots__ = ("error", "loop", "result", "task")

    def __init__(self) -> None:
        import trio

        self.loop = trio.lowlevel.current_trio_token()
        self.task: Any = trio.lowlevel.current_task()
        self.result: Any = None
        self.error: BaseException | None = None

    def get_loop(self) -> Any:
        """What all that wait in one loop share."""
        return self.loop

    def __await__(self) -> Generator[Any, Any, Any]:
        import trio

        def abort(_raise_cancel: Any) -> Any:
            self.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        yield from trio.lowlevel.wait_task_rescheduled(abort).__await__()  # noqa: ASYNC105 - it is
        if self.error is not None:
            raise self.error
        return self.result

    def wake(self) -> None:
        """Go on, in trio's thread."""
        import trio

        if self.task is not None:
            trio.lowlevel.reschedule(self.task)


class InThread(threading.Event):
    """Who waits for a job in a thread that may block."""

    def get_loop(self) -> InThread:
        """Each is woken by itself."""
        return self


Waiter: TypeAlias = "asyncio.Future[Any] | InTrio"
"""Who awaits a job in an event loop. Cancelled while it waits, the job is done all the same."""
Outcome = tuple[Any, BaseException | None]
"""What a job gave, or what it raised."""
DONE: Outcome = (None, None)


def waiter() -> Waiter:
    """Something to await for the task that runs now, under asyncio or trio."""
    try:
        return asyncio.get_running_loop().create_future()
    except RuntimeError:
        return InTrio()


class _Held(threading.local):
    """Who is to be woken when `together` ends in this thread; None outside of one."""

    waiters: list[tuple[Waiter | InThread, Outcome]] | None = None


_held = _Held()


@contextmanager
def together() -> Generator[None]:
    """Whoever is woken inside, in this thread, is so at its end: each event loop once."""
    told: list[tuple[Waiter | InThread, Outcome]] = []
    _held.waiters = told
    try:
        yield
    finally:
        _held.waiters = None
        _wake(told)


def wake(waiting: Waiter | InThread, outcome: Outcome = DONE) -> None:
    """Tell who waits how it ended."""
    held = _held.waiters
    if held is None:
        _wake([(waiting, outcome)])
    else:
        held.append((waiting, outcome))


def _wake(waiters: Iterable[tuple[Waiter | InThread, Outcome]]) -> None:
    by_loop: dict[Any, list[tuple[Any, Outcome]]] = {}
    for waiting in waiters:
        by_loop.setdefault(waiting[0].get_loop(), []).append(waiting)
    for loop, those in by_loop.items():
        try:
            first = those[0][0]
            if isinstance(first, InThread):
                first.set()
            elif isinstance(first, InTrio):
                loop.run_sync_soon(_wake_in_trio, those)
            else:
                loop.call_soon_threadsafe(_wake_in_asyncio, those)
        except RuntimeError:
            continue  # the loop has ended while the job ran: nobody waits


def _wake_in_asyncio(those: list[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for future, (result, error) in those:
        if future.done():
            continue  # cancelled
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _wake_in_trio(those: list[tuple[InTrio, Outcome]]) -> None:
    for waiting, outcome in those:
        waiting.result, waiting.error = outcome
        waiting.wake()


Job = Any
"""What a lane's `work` takes: the lane does not look into it."""


class Lane(Generic[D]):
    """A thread that is started by the first job and works them off in order.

    work: given this lane and all jobs that wait, in order; raises nothing. connect: opens a connection.
    limit: how many jobs may wait before `put` blocks.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], D],
        work: Callable[[Lane[D], list[Job]], None],
        *,
        timeout: float,
        limit: int,
    ) -> None:
        self._name = name
        self._connect = connect
        self._work = work
        self._timeout = timeout
        self._limit = limit
        self.reset()

    def reset(self) -> None:
        """As new: a forked child has none of its parent's threads and connections."""
        self._jobs: deque[Job] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._rung = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._room = threading.Condition()
        self._blocked = 0
        self._driver: D | None = None
        # Held while a connection is used, so that no process is forked in the middle of it.
        self.busy = threading.Lock()

    def put(self, job: Job, *, wait: bool = False) -> None:
        """Have this job done. wait: not before there is room for it."""
        if wait and len(self._jobs) >= self._limit:
            self._wait_for_room()
        self._jobs.append(job)
        if not self._rung:
            self._rung = True
            self._bell.put(None)
        if self._thread is None:
            self._start()

    def _wait_for_room(self) -> None:
        if threading.current_thread() is self._thread:
            return  # a callback in the thread that makes the room
        with self._room:
            self._blocked += 1
            self._room.wait_for(lambda: len(self._jobs) < self._limit)
            self._blocked -= 1

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._live, name=self._name, daemon=True)
            self._thread = thread
            thread.start()

    def _live(self) -> None:
        while True:
            self._bell.get()
            self._rung = False
            jobs = self._drained()
            if not jobs:
                continue
            kinds = list(map(type, jobs))
            if Stop not in kinds:
                self._work(self, jobs)
                continue
            stop = kinds.index(Stop)
            if jobs[:stop]:
                self._work(self, jobs[:stop])
            self._jobs.extendleft(reversed(jobs[stop + 1 :]))
            with self.busy:
                self.drop()
            self._thread = None
            # Who put a job meanwhile has seen either no thread, and started one, or this one.
            if self._jobs:
                self._rung = True
                self._bell.put(None)
                self._start()
            jobs[stop].stopped()
            return

    def _drained(self) -> list[Job]:
        taken = [self._jobs.popleft() for _ in range(len(self._jobs))]
        if self._blocked:
            with self._room:
                self._room.notify_all()
        return taken

    def use(self, work: Callable[[D], Any]) -> Any:
        """Do something with the connection; connect again and repeat it while the connection fails.

        Raises StoreError, after the lane's timeout at the latest.
        """
        deadline = time.monotonic() + self._timeout
        pause = 0.02
        while True:
            try:
                with self.busy:
                    return self._used(work)
            except Lost as lost:
                if time.monotonic() + pause > deadline:
                    raise lost.error from lost.__cause__
            time.sleep(pause * (0.5 + os.urandom(1)[0] / 256))
            pause = min(pause * 2, 1.0)

    def _used(self, work: Callable[[D], Any]) -> Any:
        try:
            if self._driver is None:
                self._driver = self._connect()
            return work(self._driver)
        except StoreError:
            raise
        except Lost:
            self.drop()
            raise
        except Exception as error:
            self.drop()
            raise StoreError(f"{type(error).__name__}: {error}") from error

    def drop(self) -> None:
        """Let go of the connection, whatever state it is in."""
        driver, self._driver = self._driver, None
        if driver is not None:
            with suppress(Exception):  # it is gone either way
                driver.close()

    @property
    def idle(self) -> bool:
        """Whether it has neither a thread nor a job."""
        return self._thread is None and not self._jobs

    def stop(self) -> threading.Event:
        """Have the thread end once all jobs so far are done: set when it is there."""
        ended = threading.Event()
        if self.idle:
            ended.set()
        else:
            self.put(Stop(ended.set))
        return ended

    def before_fork(self) -> None:
        """Wait until the connection is not in use, and keep it so."""
        self.busy.acquire()
        if self._driver is not None and self._driver.close_at_fork:
            self.drop()

    def after_fork(self) -> None:
        """In a child: what is the parent's is neither used nor closed, nor collected."""
        if self._driver is not None:
            _of_the_parent.append(self._driver)
        self.reset()


_of_the_parent: list[Any] = []


class Stop:
    """The last job of a thread. stopped: called once its connection is closed."""

    def __init__(self, stopped: Callable[[], None]) -> None:
        self.stopped = stopped


def unavailable(what: str, error: BaseException) -> Lost:
    """A failure that connecting again may mend."""
    lost = Lost(StoreUnavailable(f"{what}: {error}"))
    lost.__cause__ = error
    return lost
