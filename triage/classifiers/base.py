"""What a classifier is, and how its answer is taken."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import anyio
from anyio.lowlevel import RunVar
from msgspec.structs import replace

from triage.core import Diagnosis, Evidence, FailureType, Trajectory, UsageError, logger, redact

Answer: TypeAlias = Diagnosis | FailureType


@runtime_checkable
class Classifier(Protocol):
    """Says why an attempt failed.

    `classify` is called in a worker thread with the attempt's trajectory (its `error` is what is
    known of the exception, None when there was none) and the task. It returns a `Diagnosis`, or a
    `FailureType` from which one is made; it may be async, and is then awaited in the event loop. One
    that raises, takes longer than its deadline or returns anything else makes the diagnosis UNKNOWN.

    A classifier may have an attribute `deadline`, in seconds; one that has none is given 30. What it
    consumed goes into `Diagnosis.usage`, and is counted with that of the run.

    It may also have a method `remembered(trajectory, task)`, which a run asks before `classify`, where
    it stands: in the event loop. It answers with the `Diagnosis` that `classify` would give, or with
    None, after which `classify` is asked. It must take microseconds: no I/O, no waiting, and none of
    the functions that a user handed in.
    """

    def classify(self, trajectory: Trajectory, task: Any) -> Answer | Awaitable[Answer]:
        """Why the attempt failed."""
        ...


# --- a sync function in a thread, under a deadline: for classifiers and judges ---------------

# The threads are daemons, so a function that hangs does not keep the interpreter from ending, which
# the threads of `anyio.to_thread` would. Neither the user's tools nor their agents can occupy them.
# A thread that is free takes the next function: to start one, the event loop would wait for it.

THREADS = 8
"""How many functions one event loop may have at work; more wait their turn, outside of their deadline."""
_limiters: RunVar[anyio.CapacityLimiter] = RunVar("triage_worker_limiter")
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


async def in_worker(function: Callable[..., Any], *args: Any, seconds: float) -> Any:
    """Call a sync function in a thread: its result, or what it raised.

    Raises TooSlow when it runs for more than `seconds`; one that does not come back, or whose caller is
    cancelled, is left to its thread. The calling task's context is copied.
    """
    context = copy_context()
    limiter = _limiters.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(THREADS)
        _limiters.set(limiter)
    async with limiter:
        job = _Job(lambda: context.run(function, *args))
        at_work.add(job)
        _start(job)
        try:
            return await job.outcome(seconds)
        finally:
            at_work.discard(job)


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


def classifier_name(classifier: object) -> str:
    """The classifier's `name` where it has one as text, else the name of its class."""
    name = getattr(classifier, "name", None)
    return name if isinstance(name, str) and name else type(classifier).__name__


def as_diagnosis(answer: object, classifier_name: str) -> Diagnosis:
    """A classifier's answer as a `Diagnosis`: one as it is, a `FailureType` (or its value) with
    defaults.

    `classifier_name` is put into `Diagnosis.classifier` where that is empty. Raises TypeError
    saying what was answered instead.
    """
    if isinstance(answer, Diagnosis):
        if answer.classifier or not classifier_name:
            return answer
        return replace(answer, classifier=classifier_name)
    if isinstance(answer, FailureType):
        return Diagnosis(answer, classifier=classifier_name)
    try:
        shown = repr(answer)[:80]
    except Exception:  # a broken __repr__ must not hide what was wrong
        shown = "no repr"
    raise TypeError(
        f"classifier {classifier_name or '?'} must answer with a Diagnosis or a FailureType, not "
        f"{type(answer).__name__} ({shown})"
    )


# Consulting a classifier: under its deadline, in a thread if it is sync, and always with an answer.


CLASSIFIER_SECONDS = 30.0
"""Deadline of a classifier that names none of its own as `deadline`; counted from when it starts."""
LEAST_SECONDS = 0.1
"""What a classifier is given by a run whose deadline has come."""


async def consult(
    classifier: Classifier, trajectory: Trajectory, task: Any, *, seconds_left: float | None = None
) -> Diagnosis:
    """What the classifier says; UNKNOWN, with the reason as evidence, where it fails to say anything.

    seconds_left: until the run's deadline, which cuts the classifier short; None without one. Raises
    nothing but a cancellation.
    """
    name = type(classifier).__name__
    seconds = deadline_of(classifier)
    too_slow = f"{name} took longer than {seconds} s"
    if seconds_left is not None and seconds_left < seconds:
        seconds = max(seconds_left, LEAST_SECONDS)
        too_slow = f"the run's deadline passed before {name} answered"
    try:
        answer: Any
        remembered = getattr(classifier, "remembered", None)
        if remembered is not None:
            answer = remembered(trajectory, task)
            if isinstance(answer, Diagnosis):
                return answer
        # What is async without its code saying so gives its awaitable in a thread: no harm is done.
        code = getattr(classifier.classify, "__code__", None)
        if code is not None and code.co_flags & inspect.CO_COROUTINE:
            answer = classifier.classify(trajectory, task)
        else:
            answer = await in_worker(classifier.classify, trajectory, task, seconds=seconds)
        if not isinstance(answer, Diagnosis) and inspect.isawaitable(answer):
            with anyio.move_on_after(seconds) as limit:
                answer = await answer
            if limit.cancelled_caught:
                raise TooSlow
        if isinstance(answer, Diagnosis):
            return answer
        return as_diagnosis(answer, name)
    except TooSlow:
        logger.warning("classifier %s: %s", name, too_slow)
        return _undiagnosed(name, too_slow)
    except Exception as error:  # any classifier may fail in any way; it is logged
        logger.exception("classifier %s failed", name)
        return _undiagnosed(name, f"{name} failed with {type(error).__name__}: {error}"[:300])


def deadline_of(classifier: object) -> float:
    """The seconds a classifier has: its own `deadline`, 30 where it has none."""
    seconds: float = getattr(classifier, "deadline", CLASSIFIER_SECONDS)
    return seconds


def check_classifier(field: str, classifier: object) -> None:
    """Raise UsageError for what has no method `classify`, and for a class in place of an object."""
    if isinstance(classifier, type):
        raise UsageError(
            f"{field} must be an object, not the class {classifier.__name__}; "
            f"write {classifier.__name__}()"
        )
    if not callable(getattr(classifier, "classify", None)):
        raise UsageError(
            f"{field} must have a method classify(trajectory, task), and "
            f"{type(classifier).__name__} has none"
        )
    try:
        accepted = inspect.signature(cast("Any", classifier).classify)
    except (TypeError, ValueError):  # one without a signature is believed
        return
    try:
        accepted.bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"{field} must have a method classify(trajectory, task), and that of "
            f"{type(classifier).__name__} takes {accepted}: {error}"
        ) from None


def _undiagnosed(name: str, why: str) -> Diagnosis:
    return Diagnosis(
        FailureType.UNKNOWN,
        confidence=0.0,
        evidence=(Evidence("classifier:failed", redact(why)),),
        technical_details=redact(why),
        classifier=name,
    )
