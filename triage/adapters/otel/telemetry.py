"""`Telemetry`: an observer that traces runs while they execute."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from triage.adapters.conversations import adapter_of
from triage.core.errors import UsageError, check_count
from triage.core.events import (
    AttemptStarted,
    CallFinished,
    CallStarted,
    Event,
    RunFinished,
    RunRecovered,
    RunStarted,
    RunSuspended,
    is_milestone,
)
from triage.core.observers import child_logger
from triage.engine.run import current

from . import names
from .export import place_in
from .names import ATTEMPT, names_of
from .spans import LogData, Measure, SpanData, caller_of, span_of, trace_of
from .tree import RunTrace, operation_of_call

if TYPE_CHECKING:
    from .emitting import OpenSpan

_log = child_logger("otel")
_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_EVERY_S = 0.1
"""How long the worker waits, in seconds, to collect events before it processes them."""
_CALL_BACK = ("langchain", "langgraph")
"""Adapters to frameworks that tell instrumentation of their model calls by callbacks."""
_MOST_WAITING = 100
_MOST_RUNS = 10_000
"""How many runs are traced at the same time; beyond that, the oldest is forgotten."""


def _is_called_back() -> bool:
    """Whether the current attempt runs under an adapter to such a framework."""
    run = current.get()
    return run is not None and adapter_of(run) in _CALL_BACK


def wants_content(content: bool | None) -> bool:  # noqa: FBT001 - an option that is handed on
    """Return whether to include content: `content` if it is not None, else the environment variable.

    Raises UsageError if `content` is not True, False or None.
    """
    if content is not None:
        if not isinstance(content, bool):
            raise UsageError(f"content must be True, False or None, not {type(content).__name__}")
        return content
    said = os.environ.get(_VARIABLE, "").strip().lower()
    return said in ("true", "1", "span_only", "span_and_event")


class _Item(NamedTuple):
    """An event on its way to the worker.

    context: the context of the code that recorded it. flags: the trace flags of the run's spans. opened:
    the span of the attempt or call that begins, else None. theirs: whether another library has a span for
    the call.
    """

    event: Event
    context: Context
    flags: int
    opened: OpenSpan | None = None
    theirs: bool = False


class _History(NamedTuple):
    """The events that a run recorded before this process continued it."""

    events: tuple[Event, ...]
    context: Context


class _Living:
    """A run in the recording thread.

    calls: open calls by key. spans: our spans for them. theirs: other libraries' spans for them. waiting:
    other libraries' spans that may turn out to be for a call that has not begun.
    """

    __slots__ = ("calls", "flags", "spans", "theirs", "trace", "trace_id", "waiting")

    def __init__(self, trace: str, flags: int) -> None:
        self.trace = trace
        self.trace_id = int(trace, 16)
        self.flags = flags
        self.calls: dict[str, CallStarted] = {}
        self.spans: dict[str, OpenSpan] = {}
        self.theirs: dict[str, Any] = {}
        self.waiting: list[Any] = []


class Telemetry:
    """Traces runs through OpenTelemetry: `Agent(book, observers=[Telemetry()])`.

    The attempt's span is current in the agent's function, and a call's in its body, so spans recorded there
    are inside it. A thread emits everything from a bounded queue. Events that do not fit are dropped,
    counted in `dropped` and logged once. An error in telemetry never disturbs a run.

    content: whether to include prompts, outputs, arguments and results, redacted; None (default) follows
    OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT, and without that variable includes none. version: of
    the GenAI conventions, one of `VERSIONS`; None (default) for the newest. tracer_provider,
    meter_provider, logger_provider: OpenTelemetry's providers; None (default) for the global ones. limit:
    how many events the queue holds, 20,000 by default; beginnings and ends may use as much again.

    Raises UsageError for an invalid option, or if opentelemetry-api is not installed.
    """

    def __init__(
        self,
        *,
        content: bool | None = None,
        version: str | None = None,
        tracer_provider: Any = None,
        meter_provider: Any = None,
        logger_provider: Any = None,
        limit: int = 20_000,
    ) -> None:
        try:
            from . import emitting
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("opentelemetry"):
                raise
            raise UsageError(
                "Telemetry needs opentelemetry-api: pip install 'triage-recovery[otel]'"
            ) from None
        check_count("Telemetry.limit", limit, 1)
        self._content = wants_content(content)
        self._names = names_of(version)
        self._limit = limit
        self._emitting = emitting
        self._emitter = emitting.Emitter(
            self._names, tracer_provider, meter_provider, logger_provider
        )
        self.dropped = 0
        """How many events were dropped because the queue was full."""
        self._closed = False
        self._is_watching = False
        self._living: dict[str, _Living] = {}
        self._start_anew()
        _all.add(self)

    def _start_anew(self) -> None:
        """Reset the queue and the thread, which after a fork belong to the parent process."""
        self._queue: deque[_Item | _History] = deque()
        self._wake: SimpleQueue[threading.Event | None] = SimpleQueue()
        self._awake = False
        self._worker: threading.Thread | None = None
        self._traces: dict[str, RunTrace] = {}
        self._opened: dict[str, OpenSpan] = {}
        self._callers: dict[str, Any] = {}
        self._has_failed = False

    # In the thread that records ----------------------------------------------------------------

    def __call__(self, event: Event) -> AbstractContextManager[Any] | None:
        """Queue an event; return a context manager that makes the span of an attempt or call current."""
        if self._closed:
            return None
        living = self._living.get(event.run_id)
        if living is None:
            living = self._begin(event)
        opened, is_theirs = None, False
        match event:
            case AttemptStarted():
                opened = self._open(living, event, ATTEMPT)
                living.calls.clear()
                living.spans.clear()
            case CallStarted():
                opened = self._call_started(living, event)
            case CallFinished():
                is_theirs = self._call_finished(living, event)
            case RunFinished() | RunSuspended():
                self._living.pop(event.run_id, None)
            case _:
                pass
        self._put(_Item(event, copy_context(), living.flags, opened, is_theirs))
        return None if opened is None else self._emitting.Around(opened)

    def _open(self, living: _Living, event: Event, name: str) -> OpenSpan:
        span_id = int(span_of(event.run_id, event.seq, name), 16)
        return self._emitter.open_span(living.trace_id, span_id, living.flags)

    def traceparent(self) -> str:
        """Return the current span as a W3C `traceparent`, or an empty text if there is none."""
        return self._emitter.traceparent()

    def take_in(self, events: Sequence[Event]) -> None:
        """Take the events that a run recorded before this process continued it."""
        if not self._closed:
            if events[0].run_id not in self._living:
                self._begin(events[0])
            self._put(_History(tuple(events), copy_context()))

    def _begin(self, event: Event) -> _Living:
        """Trace a run from this event on, normally its start."""
        if not self._is_watching:
            self._is_watching = self._emitter.watch(self._span_began)
        caller = caller_of(event)
        if caller is None:
            trace = trace_of(event.run_id)
            flags = self._emitter.flags(
                int(trace, 16), event.agent if isinstance(event, RunStarted) else ""
            )
        else:
            assert isinstance(event, RunStarted)
            trace, flags = caller.trace, int(event.trace[-2:], 16)
        while len(self._living) >= _MOST_RUNS:
            self._living.pop(next(iter(self._living)), None)
        living = self._living[event.run_id] = _Living(trace, flags)
        return living

    def _call_started(self, living: _Living, event: CallStarted) -> OpenSpan | None:
        """Open the span of a call; None if another library has one, or it has begun already."""
        if event.key in living.calls:
            return None
        living.calls[event.key] = event
        span = self._emitter.current()
        if type(span) is not self._emitting.OpenSpan and self._is_theirs(span, event):
            self._annotate(living, span, event)
            return None
        opened = self._open(living, event, operation_of_call(event))
        living.spans[event.key] = opened
        for span in living.waiting:
            # A framework's callback begins its span before its model or tool, and not as the current one.
            asked = span is living.waiting[-1] and _is_called_back()
            if self._is_theirs(span, event, inside=asked):
                living.waiting.remove(span)
                self._annotate(living, span, event)
                break
        return opened

    def _call_finished(self, living: _Living, event: CallFinished) -> bool:
        """Annotate the span that another library records for this call; return whether there is one."""
        living.calls.pop(event.key, None)
        living.spans.pop(event.key, None)
        span = living.theirs.pop(event.key, None)
        if span is None and event.replayed:
            around = self._emitter.current()
            if (
                type(around) is not self._emitting.OpenSpan
                and around.is_recording()
                and self._emitting.operation_of(around)
            ):
                around.set_attributes(
                    {names.RUN_ID: event.run_id, names.CALL_KEY: event.key, names.CALL_REUSED: True}
                )
                return True
        if span is not None and span.is_recording():
            span.set_attribute(names.CALL_OUTCOME, event.outcome)
        return span is not None

    def _is_theirs(self, span: Any, call: CallStarted, *, inside: bool = False) -> bool:
        """Return whether a span is another library's for a call. inside: it begins inside the call."""
        if not span.is_recording():
            return False
        operation = self._emitting.operation_of(span)
        asks = operation_of_call(call) == names.CHAT
        if operation is None:
            return span.name == call.tool or (inside and asks)
        if asks:
            return operation == names.CHAT
        tool = (getattr(span, "attributes", None) or {}).get(names.TOOL_NAME, call.tool)
        return operation == names.EXECUTE_TOOL and tool == call.tool

    def _annotate(self, living: _Living, span: Any, call: CallStarted) -> None:
        living.theirs[call.key] = span
        opened = living.spans.get(call.key)
        if opened is not None:
            self._emitting.stand_in(span, opened)
        span.set_attributes(
            {
                names.RUN_ID: call.run_id,
                names.SEQ: call.seq,
                names.CALL_KEY: call.key,
                names.CALL_KIND: call.kind,
                names.CALL_EFFECT: call.effect,
                names.ATTEMPT_NUMBER: call.attempt,
            }
        )

    def _span_began(self, span: Any) -> None:
        """Annotate a new span of another library if an open call is its, else keep it for the next call."""
        run = current.get()
        living = None if run is None else self._living.get(run.run_id)
        if living is None:
            return
        for key, call in reversed(list(living.calls.items())):
            opened = living.spans.get(key)
            if key in living.theirs or (opened is not None and opened.has_inside):
                continue
            if self._is_theirs(span, call, inside=True):
                self._annotate(living, span, call)
                return
            if opened is not None:
                opened.has_inside = self._emitting.is_inside(span, opened)
        if self._emitting.operation_of(span) != "":
            waiting = [one for one in living.waiting if one.is_recording()]
            living.waiting = [*waiting[-_MOST_WAITING:], span]

    def _put(self, item: _Item | _History) -> None:
        queue = self._queue
        if len(queue) >= self._limit and not self._has_room(item):
            self._drop()
            return
        queue.append(item)
        if not self._awake:
            self._awake = True
            if self._worker is None:
                self._start_worker()
            self._wake.put(None)

    def _has_room(self, item: _Item | _History) -> bool:
        """Return whether a full queue still takes an item: beginnings and ends have extra room."""
        wanted = (
            isinstance(item, _History)
            or is_milestone(item.event)
            or isinstance(item.event, RunStarted | RunRecovered)
        )
        return wanted and len(self._queue) < 2 * self._limit

    def _drop(self) -> None:
        self.dropped += 1
        if self.dropped == 1:
            _log.warning(
                "telemetry: the queue of %d events is full; events are dropped, and counted in "
                "Telemetry.dropped",
                self._limit,
            )

    # The worker --------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        self._worker = threading.Thread(target=self._work, name="triage-telemetry", daemon=True)
        self._worker.start()
        # The SDK also closes its providers at exit. This is registered later, so it runs before.
        atexit.register(self.close)

    def _work(self) -> None:
        wake = self._wake
        while not self._closed:
            asked = [wake.get()]
            if asked[0] is None:
                with suppress(Empty):
                    asked.append(wake.get(timeout=_EVERY_S))
            self._awake = False
            self._drain()
            while not wake.empty():
                asked.append(wake.get())
            self._drain()
            for done in asked:
                if done is not None:
                    done.set()

    def _drain(self) -> None:
        queue = self._queue
        while queue:
            item = queue.popleft()
            try:
                if isinstance(item, _History):
                    self._take_history(item)
                else:
                    self._take(item)
            except Exception:
                if not self._has_failed:
                    self._has_failed = True
                    _log.exception("telemetry failed; further failures of it are not logged")

    def _trace_of(self, started: Event, context: Context) -> RunTrace:
        """Make and remember the tree of the run that an event begins."""
        run_id = started.run_id
        parent = started.parent if isinstance(started, RunStarted) else None
        outer = None if parent is None else self._traces.get(parent)
        trace = RunTrace(content=self._content, names=self._names, within=place_in(outer, started))
        while len(self._traces) >= _MOST_RUNS:
            self._forget(next(iter(self._traces)))
        self._traces[run_id] = trace
        self._callers[run_id] = context.run(self._emitting.caller)
        return trace

    def _forget(self, run_id: str) -> None:
        self._traces.pop(run_id, None)
        self._callers.pop(run_id, None)

    def _take_history(self, item: _History) -> None:
        started = item.events[0]
        trace = self._traces.get(started.run_id)
        if trace is None:
            trace = self._trace_of(started, item.context)
        for event in item.events[trace.next_seq :]:
            item.context.run(trace.feed, event)

    def _take(self, item: _Item) -> None:
        event = item.event
        trace = self._traces.get(event.run_id)
        if trace is None:
            trace = self._trace_of(event, item.context)
        if item.opened is not None:
            name = operation_of_call(event) if isinstance(event, CallStarted) else ATTEMPT
            self._opened[span_of(event.run_id, event.seq, name)] = item.opened
        for told in item.context.run(trace.feed, event):
            self._emit(told, item)
        if isinstance(event, RunFinished | RunSuspended):
            self._forget(event.run_id)

    def _emit(self, told: SpanData | LogData | Measure, item: _Item) -> None:
        match told:
            case SpanData():
                opened = self._opened.pop(told.span, None)
                if not item.theirs:
                    caller = self._callers[told.run_id]
                    self._emitter.span(told, item.flags, caller, opened)
            case LogData():
                self._emitter.log(told, item.flags)
            case _:
                if not (item.theirs and told.call):
                    self._emitter.measure(told)

    # Ending ------------------------------------------------------------------------------------

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything recorded so far is emitted and sent; return False on a timeout.

        timeout_s: seconds to wait. Blocks, so call it in a thread from async code.
        """
        if self._worker is None:
            return True
        until = time.monotonic() + timeout_s
        done = threading.Event()
        self._wake.put(done)
        if not done.wait(timeout_s):
            return False
        self._emitter.flush(max(0.0, until - time.monotonic()))
        return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Flush, and take no more events. Called automatically at exit.

        timeout_s: seconds to wait for the flush.
        """
        if self._closed:
            return
        self.flush(timeout_s)
        self._closed = True
        self._wake.put(None)
        atexit.unregister(self.close)
        if self.dropped:
            _log.warning("telemetry: %d events were dropped in all", self.dropped)


_all: WeakSet[Telemetry] = WeakSet()


def _after_fork() -> None:
    for telemetry in _all:
        telemetry._start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
