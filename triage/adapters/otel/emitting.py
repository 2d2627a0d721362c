"""Emit a run's tree through the OpenTelemetry API. Only this module imports it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import Token
from typing import Any, cast

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry._logs import LogRecord, SeverityNumber, get_logger_provider
from opentelemetry.context.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.util import types

from triage import __version__
from triage.core.observers import child_logger

from . import names
from .names import SCOPE, Names
from .spans import LogData, Measure, SpanData

_log = child_logger("otel")
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
_STATUS = {"ok": StatusCode.OK, "error": StatusCode.ERROR}
_SEVERITIES = {
    "INFO": SeverityNumber.INFO,
    "WARN": SeverityNumber.WARN,
    "ERROR": SeverityNumber.ERROR,
}
_MOST_NOTES = 1_000
_CHATS = ("chat", "text_completion", "generate_content")
_ENDS_CHAT = ".chat"
"""How OpenLLMetry names the spans of models: `ChatOpenAI.chat`, `openai.chat`."""
_OPENINFERENCE = "openinference.instrumentation."
_OPENINFERENCE_KIND = "openinference.span.kind"
_OPENINFERENCE_KINDS = {"LLM": names.CHAT, "TOOL": names.EXECUTE_TOOL}


class OpenSpan(Span):
    """The span of a running attempt or call. It keeps what code sets on it until the span is emitted.

    around: the context of the span in which it began. has_inside: other spans have begun inside. theirs:
    the span that another library records for the call, which stands in for this one; else None.
    """

    def __init__(self, span_id: str, trace_id: int, flags: int) -> None:
        self.id = span_id
        self._place = SpanContext(
            trace_id, int(span_id, 16), is_remote=False, trace_flags=TraceFlags(flags)
        )
        self.around = trace.get_current_span().get_span_context()
        self.has_inside = False
        self.theirs: Span | None = None
        self.notes: list[tuple[str, tuple[Any, ...]]] = []

    def _note(self, method: str, *args: Any) -> None:
        if self.theirs is not None:
            getattr(self.theirs, method)(*args)
        elif len(self.notes) < _MOST_NOTES:
            self.notes.append((method, args))

    def get_span_context(self) -> SpanContext:
        """Return the span's context, which is known before the span is emitted."""
        return self._place if self.theirs is None else self.theirs.get_span_context()

    def is_recording(self) -> bool:
        """Return whether the span will be emitted."""
        return self._place.trace_flags.sampled

    def end(self, end_time: int | None = None) -> None:
        """Do nothing: the span ends with the attempt or call."""

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        self._note("set_attributes", dict(attributes))

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        self._note("set_attribute", key, value)

    def add_event(
        self, name: str, attributes: types.Attributes = None, timestamp: int | None = None
    ) -> None:
        self._note("add_event", name, attributes, timestamp or time.time_ns())

    def add_link(self, context: SpanContext, attributes: types.Attributes = None) -> None:
        self._note("add_link", context, attributes)

    def update_name(self, name: str) -> None:
        self._note("update_name", name)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status, which a failure of the attempt or call overrides."""
        self._note("set_status", status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,  # noqa: FBT001, FBT002 - the signature is the API's
    ) -> None:
        self._note("record_exception", exception, attributes, timestamp or time.time_ns(), escaped)


class Around(AbstractContextManager[None]):
    """Makes a span current while the context is open."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Token[Context] | None = None

    def __enter__(self) -> None:
        self._token = contexts.attach(trace.set_span_in_context(self._span))

    def __exit__(self, *ended: object) -> None:
        if self._token is not None:
            contexts.detach(self._token)


class _Ids:
    """Generates ids for a tracer: the requested ones, or else those of its own generator."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual
        self._wanted = threading.local()

    @contextmanager
    def giving(self, trace_id: int, span_id: int) -> Generator[None]:
        """Give these ids to the span that is started while the context is open."""
        self._wanted.ids = trace_id, span_id
        try:
            yield
        finally:
            self._wanted.ids = None

    def generate_trace_id(self) -> int:
        ids = getattr(self._wanted, "ids", None)
        return cast("int", self._usual.generate_trace_id() if ids is None else ids[0])

    def generate_span_id(self) -> int:
        ids = getattr(self._wanted, "ids", None)
        return cast("int", self._usual.generate_span_id() if ids is None else ids[1])

    def is_trace_id_random(self) -> bool:
        """Return True: our ids are digests, which are as evenly spread as random ones."""
        return True


class Watch:
    """A span processor that calls a function for each span that begins."""

    def __init__(self, began: Callable[[Any], None]) -> None:
        self._began = began

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        self._began(span)

    def _on_ending(self, span: Any) -> None:
        pass

    def on_end(self, span: Any) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def is_inside(span: Any, opened: OpenSpan) -> bool:
    """Return whether one of our spans is the parent of another library's."""
    parent = getattr(span, "parent", None)
    return parent is not None and parent.span_id == opened.get_span_context().span_id


def stand_in(theirs: Any, opened: OpenSpan) -> None:
    """Let another library's span for a call take the place of ours, which is current and not emitted."""
    if is_inside(theirs, opened):
        theirs._parent = opened.around  # the SDK has no public way to move a span
    opened.theirs = theirs


def operation_of(span: Any) -> str | None:
    """Return the GenAI operation of another library's span: `chat`, `execute_tool`, or "" for others.

    None: OpenInference began it, which may say what it is only when the span ends.
    """
    given = getattr(span, "attributes", None) or {}
    kind = given.get(_OPENINFERENCE_KIND)
    if kind is not None:
        return _OPENINFERENCE_KINDS.get(str(kind), "")
    operation = given.get(names.OPERATION)
    if operation is None:
        scope = getattr(getattr(span, "instrumentation_scope", None), "name", "")
        if scope.startswith(_OPENINFERENCE):
            return None
        name = str(getattr(span, "name", ""))
        operation = names.CHAT if name.endswith(_ENDS_CHAT) else name.partition(" ")[0]
    if operation in _CHATS:
        return names.CHAT
    return names.EXECUTE_TOOL if operation == names.EXECUTE_TOOL else ""


class Emitter:
    """Emits the spans, log events and measurements of `RunTrace`, with their ids and times.

    tracer_provider, meter_provider, logger_provider: OpenTelemetry's providers, None for the global ones.
    """

    def __init__(
        self, conventions: Names, tracer_provider: Any, meter_provider: Any, logger_provider: Any
    ) -> None:
        self._conventions = conventions
        self._tracer_provider = tracer_provider
        self._logger_provider = logger_provider
        self._tracer: Any = None
        self._ids: _Ids | None = None
        self._is_told = False
        meters = meter_provider or metrics.get_meter_provider()
        meter = meters.get_meter(SCOPE, __version__, conventions.schema)
        self._instruments = {one.name: _instrument(meter, one) for one in names.INSTRUMENTS}

    def flags(self, trace_id: str, agent: str) -> int:
        """Ask the sampler whether to sample a run's trace, and return the flags for its spans."""
        sampler = getattr(self._found_tracer(), "sampler", None)
        if sampler is None:
            return TraceFlags.SAMPLED
        given = {names.OPERATION: names.INVOKE_AGENT, names.AGENT_NAME: agent}
        asked = sampler.should_sample(
            None, int(trace_id, 16), f"{names.INVOKE_AGENT} {agent}", SpanKind.INTERNAL, given, ()
        )
        return TraceFlags.SAMPLED if asked.decision.is_sampled() else TraceFlags.DEFAULT

    def watch(self, began: Callable[[Any], None]) -> bool:
        """Call `began` with each span that begins; return False if the provider does not support it."""
        add = getattr(self._provider(), "add_span_processor", None)
        if add is None:
            return False
        add(Watch(began))
        return True

    def _provider(self) -> Any:
        return self._tracer_provider or trace.get_tracer_provider()

    def _found_tracer(self) -> Any:
        """Return the SDK's tracer, after making its ids settable; None if no SDK is installed."""
        if self._tracer is None:
            found: Any = self._provider().get_tracer(SCOPE, __version__, self._conventions.schema)
            # The tracers of the API and of Logfire wrap that of the SDK.
            for _ in range(3):
                if hasattr(found, "id_generator"):
                    break
                found = getattr(found, "tracer", getattr(found, "_tracer", None))
            else:
                return None
            if not isinstance(found.id_generator, _Ids):
                found.id_generator = _Ids(found.id_generator)
            self._tracer, self._ids = found, found.id_generator
        return self._tracer

    def span(self, span: SpanData, flags: int, caller: Context, opened: OpenSpan | None) -> None:
        """Emit a span.

        flags: its trace flags. caller: the context in which the run was started. opened: holds what code
        set on the span while it was current; None for one that never was.
        """
        tracer = self._found_tracer()
        if tracer is None or self._ids is None:
            self._say_nothing_is_emitted()
            return
        around = Context()
        if span.parent:
            place = trace.get_current_span(caller).get_span_context()
            around = caller
            if f"{place.span_id:016x}" != span.parent:
                around = _inside(span.trace, span.parent, flags)
        with self._ids.giving(int(span.trace, 16), int(span.span, 16)):
            made = tracer.start_span(
                span.name,
                around,
                _KINDS[span.kind],
                span.attributes,
                [
                    Link(_place(link.trace, link.span, flags), {names.LINK: link.kind})
                    for link in span.links
                ],
                span.start,
            )
        for method, args in [] if opened is None else opened.notes:
            getattr(made, method)(*args)
        if span.status != "unset":
            made.set_status(
                Status(_STATUS[span.status], span.message if span.status == "error" else None)
            )
        made.end(span.end)

    def log(self, log: LogData, flags: int) -> None:
        provider = self._logger_provider or get_logger_provider()
        logger = provider.get_logger(SCOPE, __version__, self._conventions.schema)
        around = Context()
        if log.span:
            around = _inside(log.trace, log.span, flags)
        logger.emit(
            LogRecord(
                timestamp=log.time,
                observed_timestamp=log.time,
                context=around,
                severity_text=log.severity,
                severity_number=_SEVERITIES[log.severity],
                attributes=log.attributes,
                event_name=log.name,
            )
        )

    def measure(self, measure: Measure) -> None:
        self._instruments[measure.instrument.name](measure.value, measure.attributes)

    def flush(self, timeout_s: float) -> None:
        """Flush the providers that can be flushed, each within `timeout_s` seconds."""
        logs = self._logger_provider or get_logger_provider()
        for provider in (self._provider(), logs):
            force = getattr(provider, "force_flush", None)
            if force is not None:
                force(int(timeout_s * 1_000))

    def _say_nothing_is_emitted(self) -> None:
        if not self._is_told:
            self._is_told = True
            _log.warning(
                "no span is emitted, since the tracer provider %s is none of an OpenTelemetry SDK; install "
                "opentelemetry-sdk and set a TracerProvider, or use `triage export RUN --otlp …`",
                type(self._provider()).__name__,
            )


def _instrument(meter: Any, instrument: names.Instrument) -> Callable[[float, Any], None]:
    about = {"unit": instrument.unit, "description": instrument.help}
    record: Callable[[float, Any], None]
    match instrument.kind:
        case "counter":
            record = meter.create_counter(instrument.name, **about).add
        case "updown":
            record = meter.create_up_down_counter(instrument.name, **about).add
        case _:
            bounds = list(instrument.buckets)
            record = meter.create_histogram(
                instrument.name, **about, explicit_bucket_boundaries_advisory=bounds
            ).record
    return record


def _place(trace_id: str, span_id: str, flags: int) -> SpanContext:
    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(flags)
    )


def _inside(trace_id: str, span_id: str, flags: int) -> Context:
    place = _place(trace_id, span_id, flags)
    return trace.set_span_in_context(NonRecordingSpan(place), Context())


def current() -> Span:
    """Return the current span, which may be another library's."""
    return trace.get_current_span()


def traceparent() -> str:
    """Return the current span as a W3C `traceparent`, or an empty text if there is none."""
    place = trace.get_current_span().get_span_context()
    if not place.is_valid:
        return ""
    return f"00-{place.trace_id:032x}-{place.span_id:016x}-{place.trace_flags:02x}"


def caller() -> Context:
    """Return the OpenTelemetry context of the calling code."""
    return contexts.get_current()
