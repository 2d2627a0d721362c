"""Observers of events, and the one that logs them on the logger `triage`."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from textwrap import indent
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from .environment import being_cancelled
from .escaping import escaped
from .events import (
    ActionChosen,
    AttemptFailed,
    AttemptStarted,
    CallFinished,
    Event,
    RunFinished,
    RunStarted,
    RunSuspended,
    StepRecorded,
)
from .redaction import redact

Observer: TypeAlias = Callable[[Any], AbstractContextManager[Any] | None]
"""Called with each event as it is recorded, in the thread that records it; it must be quick.

For an `AttemptStarted` it may return a context manager, which is entered before the attempt and exited
after it, with the exception that ended it; for a `CallStarted`, one around the body of the call. Errors of
an observer or its context manager are logged and change nothing, and the context manager cannot suppress
an exception. KeyboardInterrupt, SystemExit and the like are raised again once the run has recorded the
event; so is the event loop's cancellation if the task is being cancelled.

An observer may have two more methods. `traceparent()` returns the tracing span of the calling code, as a
W3C `traceparent`, or an empty text; `RunStarted.trace` records it. `take_in(events)` gets the journal of a
run that this process resumes, before the run's first event here.
"""

logger = logging.getLogger("triage")
_plain = logging.Formatter()


def _make_safe(record: logging.LogRecord) -> bool:
    """Redact and escape a record: its message on one line, and the traceback that formatters print.

    The traceback is indented, so that no line of an error's message looks like another record.
    """
    with suppress(Exception):  # the handler reports a message that cannot be formatted
        text = record.getMessage()
        clean = escaped(redact(text))
        if clean != text:
            # The handler formats the record again, unless it has no arguments.
            record.msg, record.args = clean, ()
        if record.exc_info and not record.exc_text:
            trace = escaped(redact(_plain.formatException(record.exc_info)), lines=True)
            record.exc_text = indent(trace, "  ")
    return True


logger.addFilter(_make_safe)


def child_logger(name: str) -> logging.Logger:
    """Return the logger `triage.{name}`, whose records are redacted and escaped as for `triage`."""
    child = logger.getChild(name)
    child.addFilter(_make_safe)  # a logger's filters do not see the records of its children
    return child


def notify(
    observers: tuple[Observer, ...], event: Event, held: list[BaseException]
) -> list[AbstractContextManager[Any]]:
    """Call every observer; return their context managers, in order.

    held: collects the exceptions to raise again, also those of the context managers later.
    """
    given: list[AbstractContextManager[Any]] = []
    for observer in observers:
        try:
            answer = observer(event)
        except BaseException as error:
            if not _holds(held, error):
                _log_failure(observer, type(event).__name__, error)
            continue
        if answer is not None and hasattr(answer, "__enter__"):
            given.append(_HarmlessManager(answer, held))
    return given


def traceparent_of(observers: tuple[Observer, ...], held: list[BaseException]) -> str:
    """Return the tracing span of the calling code from the first observer that has one, else "".

    held: as for `notify`.
    """
    for observer in observers:
        ask = getattr(observer, "traceparent", None)
        if ask is None:
            continue
        try:
            traceparent = ask()
        except BaseException as error:
            if not _holds(held, error):
                _log_failure(observer, "traceparent()", error)
            continue
        if traceparent and isinstance(traceparent, str):
            return traceparent
    return ""


def catch_up(
    observers: tuple[Observer, ...], events: Sequence[Event], held: list[BaseException]
) -> None:
    """Pass a run's journal to the observers with `take_in`, before this process resumes the run.

    held: as for `notify`.
    """
    for observer in observers:
        take_in = getattr(observer, "take_in", None)
        if take_in is None:
            continue
        try:
            take_in(events)
        except BaseException as error:
            if not _holds(held, error):
                _log_failure(observer, "take_in()", error)


def _holds(held: list[BaseException], error: BaseException) -> bool:
    """Keep an exception that must be raised again; return False for an observer's own error."""
    if isinstance(error, Exception | GeneratorExit):
        return False
    # An observer awaits nothing, so a cancellation counts only if the task is being cancelled.
    cancels = isinstance(error, CancelledError) or type(error).__name__ == "Cancelled"
    if cancels and not being_cancelled(error):
        return False
    held.append(error)
    return True


_failed: WeakKeyDictionary[Any, set[tuple[type, int]]] = WeakKeyDictionary()
"""The logged errors of each observer, by class and line."""


def _log_failure(observer: Observer, asked: str, error: BaseException) -> None:
    """Log an observer's error once, since an observer may fail on every event."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = (type(error), 0 if trace is None else trace.tb_lineno)
    with suppress(TypeError):  # an observer without hash or weak references is logged each time
        logged = _failed.setdefault(getattr(observer, "__self__", observer), set())
        if place in logged:
            return
        logged.add(place)
    logger.error(
        "observer %r failed on %s; the same error of it is not logged again",
        observer,
        asked,
        exc_info=error,
    )


class _HarmlessManager(AbstractContextManager[None]):
    """Wraps an observer's context manager: logs its errors, and never suppresses one of the run."""

    def __init__(self, manager: AbstractContextManager[Any], held: list[BaseException]) -> None:
        self._manager = manager
        self._held = held
        self._entered = False

    def __enter__(self) -> None:
        try:
            self._manager.__enter__()
        except BaseException as error:
            if not _holds(self._held, error):
                logger.exception(
                    "%r of an observer failed before an attempt or call", self._manager
                )
        else:
            self._entered = True

    def __exit__(self, *ended: Any) -> None:  # noqa: PYI036 - handed on as they are
        if not self._entered:
            return
        try:
            self._manager.__exit__(*ended)
        except BaseException as error:
            # A manager may re-raise the run's error.
            if error is not ended[1] and not _holds(self._held, error):
                logger.exception("%r of an observer failed after an attempt or call", self._manager)


class LoggingObserver:
    """Logs events on the logger `triage`, one line each.

    Failures and stops are warnings, other events have `level` (DEBUG by default). Each record carries
    the run's id as `run_id`. Texts are redacted and cut at `limit` characters.
    """

    def __init__(self, level: int = logging.DEBUG, limit: int = 300) -> None:
        self.level = level
        self.limit = limit

    def __call__(self, event: Event) -> None:
        """Log one event."""
        level, text = self._line(event)
        if text and logger.isEnabledFor(level):
            text = redact(text)[: self.limit]
            logger.log(level, "%s %s", event.run_id[:8], text, extra={"run_id": event.run_id})

    def _line(self, event: Event) -> tuple[int, str]:  # noqa: PLR0911 - one return an event type
        match event:
            case RunStarted():
                return self.level, f"run of {event.agent} started"
            case AttemptStarted():
                told = f", told: {event.hint}" if event.hint else ""
                return self.level, f"attempt {event.attempt} started{told}"
            case StepRecorded(step=step):
                return self.level, f"step {event.index}: {step.action} {step.tool_called or ''}"
            case CallFinished():
                return self.level, f"call {event.key} {event.outcome}"
            case AttemptFailed(diagnosis=diagnosis, error=error):
                because = f" from {error}" if error is not None else ""
                return logging.WARNING, f"attempt {event.attempt} failed: {diagnosis}{because}"
            case ActionChosen(action=action):
                return self.level, f"attempt {event.attempt}: {action} by {event.by or 'policy'}"
            case RunSuspended(question=question):
                return logging.WARNING, f"run suspended: {question}"
            case RunFinished(status=status):
                level = self.level if status == "done" else logging.WARNING
                return level, f"run finished: {status}"
            case _:
                return self.level, ""
