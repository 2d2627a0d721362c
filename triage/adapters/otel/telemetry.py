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
from typing import Any, NamedTuple
from weakref import WeakSet

from triage.adapters.extras import missing

try:
    from . import emitting
except ImportError as error:
    raise missing("otel", error) from error

from triage.adapters.conversations import adapter_of
from triage.core.constructors import check_constructor
from triage.core.errors import check_count
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
from .content import wants_content
from .spans import LogData, Measure, SpanData, caller_of, span_of, trace_of
from .tree import Trees, operation_of_call

_log = child_logger("otel")
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


class _Call:
    """An open call. opened: our span for it, if it has one. theirs: another library's, if it has one."""

    __slots__ = ("opened", "started", "theirs")

    def __init__(self, started: CallStarted) -> None:
        self.started = started
        self.opened: emitting.OpenSpan | None = None
        self.theirs: Any = None


class _Living:
    """A run in the recording thread.

    caller: the context in which it was started or continued. calls: open calls by key. waiting: other
    libraries' spans that may turn out to be for a call that has not begun.
    """

    __slots__ = ("caller", "calls", "flags", "trace_id", "waiting")

    def __init__(self, trace: str, flags: int) -> None:
        self.trace_id = int(trace, 16)
        self.flags = flags
        self.caller = emitting.caller()
        self.calls: dict[str, _Call] = {}
        self.waiting: list[Any] = []


class _Item(NamedTuple):
    """Events of a run on their way to the worker.

    context: that of the code that recorded them. opened: the span of the attempt or call that begins, else
    None. theirs: whether another library has a span for the call. is_history: whether the run recorded them
    before this process continued it.
    """

    events: Sequence[Event]
    living: _Living
    context: Context
    opened: emitting.OpenSpan | None = None
    theirs: bool = False
    is_history: bool = False


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

    Raises UsageError for an invalid option.
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
        check_count("Telemetry.limit", limit, 1)
        self._content = wants_content(content)
        self._names = names.names_of(version)
        self._limit = limit
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
        self._queue: deque[_Item] = deque()
        self._wake: SimpleQueue[threading.Event | None] = SimpleQueue()
        self._awake = False
        self._worker: threading.Thread | None = None
        self._trees = Trees(content=self._content, spelled=self._names, limit=_MOST_RUNS)
        self._opened: dict[str, emitting.OpenSpan] = {}
        self._has_failed = False

    # In the thread that records ----------------------------------------------------------------

    def __call__(self, event: Event) -> AbstractContextManager[Any] | None:
        """Queue an event; return a context manager that makes the span of an attempt or call current."""
        if self._closed:
            return None
        living = self._living.get(event.run_id) or self._begin(event)
        opened, is_theirs = None, False
        match event:
            case AttemptStarted():
                opened = self._open(living, event, names.ATTEMPT)
                living.calls.clear()
            case CallStarted():
                opened = self._call_started(living, event)
            case CallFinished():
                is_theirs = self._call_finished(living, event)
            case RunFinished() | RunSuspended():
                self._living.pop(event.run_id, None)
            case _:
                pass
        self._put(_Item((event,), living, copy_context(), opened, is_theirs))
        return None if opened is None else emitting.Around(opened)

    @staticmethod
    def _open(living: _Living, event: Event, name: str) -> emitting.OpenSpan:
        span_id = span_of(event.run_id, event.seq, name)
        return emitting.OpenSpan(span_id, living.trace_id, living.flags)

    def traceparent(self) -> str:
        """Return the current span as a W3C `traceparent`, or an empty text if there is none."""
        return emitting.traceparent()

    def take_in(self, events: Sequence[Event]) -> None:
        """Take the events that a run recorded before this process continued it."""
        if not self._closed:
            living = self._living.get(events[0].run_id) or self._begin(events[0])
            self._put(_Item(tuple(events), living, copy_context(), is_history=True))

    def _begin(self, event: Event) -> _Living:
        """Trace a run from this event on, normally its start."""
        if not self._is_watching:
            self._is_watching = self._emitter.watch(self._span_began)
        caller = caller_of(event)
        if caller is None:
            trace = trace_of(event.run_id)
            flags = self._emitter.flags(trace, event.agent if isinstance(event, RunStarted) else "")
        else:
            assert isinstance(event, RunStarted)
            trace, flags = caller.trace, int(event.trace[-2:], 16)
        while len(self._living) >= _MOST_RUNS:
            self._living.pop(next(iter(self._living)), None)
        living = self._living[event.run_id] = _Living(trace, flags)
        return living

    def _call_started(self, living: _Living, event: CallStarted) -> emitting.OpenSpan | None:
        """Open the span of a call; None if another library has one, or it has begun already."""
        if event.key in living.calls:
            return None
        call = living.calls[event.key] = _Call(event)
        span = emitting.current()
        if type(span) is not emitting.OpenSpan and _is_theirs(span, event):
            _annotate(call, span)
            return None
        call.opened = self._open(living, event, operation_of_call(event))
        for span in living.waiting:
            # A framework's callback begins its span before its model or tool, and not as the current one.
            asked = span is living.waiting[-1] and _is_called_back()
            if _is_theirs(span, event, inside=asked):
                living.waiting.remove(span)
                _annotate(call, span)
                break
        return call.opened

    @staticmethod
    def _call_finished(living: _Living, event: CallFinished) -> bool:
        """Annotate the span that another library records for this call; return whether there is one."""
        call = living.calls.pop(event.key, None)
        span = None if call is None else call.theirs
        if span is None and event.replayed:
            around = emitting.current()
            if (
                type(around) is not emitting.OpenSpan
                and around.is_recording()
                and emitting.operation_of(around)
            ):
                around.set_attributes(
                    {names.RUN_ID: event.run_id, names.CALL_KEY: event.key, names.CALL_REUSED: True}
                )
                return True
        if span is not None and span.is_recording():
            span.set_attribute(names.CALL_OUTCOME, event.outcome)
        return span is not None

    def _span_began(self, span: Any) -> None:
        """Annotate a new span of another library if an open call is its, else keep it for the next call."""
        run = current.get()
        living = None if run is None else self._living.get(run.run_id)
        if living is None:
            return
        for call in reversed(list(living.calls.values())):
            opened = call.opened
            if call.theirs is not None or (opened is not None and opened.has_inside):
                continue
            if _is_theirs(span, call.started, inside=True):
                _annotate(call, span)
                return
            if opened is not None:
                opened.has_inside = emitting.is_inside(span, opened)
        if emitting.operation_of(span) != "":
            waiting = [one for one in living.waiting if one.is_recording()]
            living.waiting = [*waiting[-_MOST_WAITING:], span]

    def _put(self, item: _Item) -> None:
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

    def _has_room(self, item: _Item) -> bool:
        """Return whether a full queue still takes an item: beginnings and ends have extra room."""
        event = item.events[-1]
        is_wanted = is_milestone(event) or isinstance(event, RunStarted | RunRecovered)
        return (is_wanted or item.is_history) and len(self._queue) < 2 * self._limit

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
                self._take(item)
            except Exception:
                if not self._has_failed:
                    self._has_failed = True
                    _log.exception("telemetry failed; further failures of it are not logged")

    def _take(self, item: _Item) -> None:
        if item.opened is not None:
            self._opened[item.opened.id] = item.opened
        for event in item.events:
            told = item.context.run(self._trees.feed, event)
            if not item.is_history:
                for one in told:
                    self._emit(one, item)
                if isinstance(event, RunFinished | RunSuspended):
                    self._trees.forget(event.run_id)

    def _emit(self, told: SpanData | LogData | Measure, item: _Item) -> None:
        match told:
            case SpanData():
                opened = self._opened.pop(told.span, None)
                if not item.theirs:
                    self._emitter.span(told, item.living.flags, item.living.caller, opened)
            case LogData():
                self._emitter.log(told, item.living.flags)
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


def _is_theirs(span: Any, call: CallStarted, *, inside: bool = False) -> bool:
    """Return whether a span is another library's for a call. inside: it begins inside the call."""
    if not span.is_recording():
        return False
    operation = emitting.operation_of(span)
    asks = operation_of_call(call) == names.CHAT
    if operation is None:
        return span.name == call.tool or (inside and asks)
    if asks:
        return operation == names.CHAT
    tool = (getattr(span, "attributes", None) or {}).get(names.TOOL_NAME, call.tool)
    return operation == names.EXECUTE_TOOL and tool == call.tool


def _annotate(call: _Call, span: Any) -> None:
    call.theirs, started = span, call.started
    if call.opened is not None:
        emitting.stand_in(span, call.opened)
    span.set_attributes(
        {
            names.RUN_ID: started.run_id,
            names.SEQ: started.seq,
            names.CALL_KEY: started.key,
            names.CALL_KIND: started.kind,
            names.CALL_EFFECT: started.effect,
            names.ATTEMPT_NUMBER: started.attempt,
        }
    )


check_constructor(Telemetry)
_all: WeakSet[Telemetry] = WeakSet()


def _after_fork() -> None:
    for telemetry in _all:
        telemetry._start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
