"""Build the tree of a run from a store, whether or not the run was traced, and export it as OTLP JSON."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio.to_thread

from triage.core.errors import TriageError, UnknownRun, UsageError
from triage.core.events import Event
from triage.core.quoting import one_line
from triage.stores.base import Store

from .names import NEWEST, SCOPE, Names
from .spans import LogData, SpanData
from .tree import tree_of

_KINDS = {"internal": 1, "client": 3}
_STATUS = {"unset": 0, "ok": 1, "error": 2}
_SEVERITIES = {"INFO": 9, "WARN": 13, "ERROR": 17}
_BATCH = 512
_TIMEOUT_S = 10.0


class NotExported(TriageError):
    """A collector or a file did not accept a trace."""


def trace_request(spans: Iterable[SpanData], names: Names = NEWEST) -> dict[str, Any]:
    scope = {**_scope(names), "spans": [_span(span) for span in spans]}
    return {"resourceSpans": [{"resource": _resource(), "scopeSpans": [scope]}]}


def logs_request(logs: Iterable[LogData], names: Names = NEWEST) -> dict[str, Any]:
    scope = {**_scope(names), "logRecords": [_log(log) for log in logs]}
    return {"resourceLogs": [{"resource": _resource(), "scopeLogs": [scope]}]}


def _scope(names: Names) -> dict[str, Any]:
    from triage import __version__

    return {"scope": {"name": SCOPE, "version": __version__}, "schemaUrl": names.schema}


def _resource() -> dict[str, Any]:
    """Return the resource, with `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` applied."""
    given = {"service.name": "triage"} | _pairs("OTEL_RESOURCE_ATTRIBUTES")
    given["service.name"] = os.environ.get("OTEL_SERVICE_NAME") or given["service.name"]
    return {"attributes": _attributes(given)}


def _pairs(variable: str) -> dict[str, str]:
    """Read `name=value,…` with percent-encoded values, the form of OpenTelemetry's variables."""
    pairs = (entry.partition("=") for entry in os.environ.get(variable, "").split(","))
    return {name.strip(): unquote(value.strip()) for name, equals, value in pairs if equals}


def _span(span: SpanData) -> dict[str, Any]:
    told: dict[str, Any] = {
        "traceId": span.trace,
        "spanId": span.span,
        "name": span.name,
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes(span.attributes),
        "flags": 1,
    }
    if span.parent:
        told["parentSpanId"] = span.parent
    if span.links:
        told["links"] = [
            {
                "traceId": link.trace,
                "spanId": link.span,
                "attributes": _attributes({"triage.link": link.kind}),
            }
            for link in span.links
        ]
    if span.status != "unset":
        told["status"] = {"code": _STATUS[span.status], "message": span.message}
    return told


def _log(log: LogData) -> dict[str, Any]:
    told = {
        "timeUnixNano": str(log.time),
        "observedTimeUnixNano": str(log.time),
        "severityNumber": _SEVERITIES[log.severity],
        "severityText": log.severity,
        "eventName": log.name,
        "attributes": _attributes(log.attributes),
    }
    place = {"traceId": log.trace, "spanId": log.span, "flags": 1}
    return {**told, **place} if log.span else told


def _attributes(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in given.items()]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int() if abs(value) < 2**63:
            return {"intValue": str(value)}
        case int() | float():
            return {"doubleValue": float(value)}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
        case _:
            return {"stringValue": str(value)}


# Targets ------------------------------------------------------------------------------------------


def is_url(target: str) -> bool:
    """Return whether a target is the URL of a collector rather than a file."""
    return target.lower().startswith(("http://", "https://"))


def check_target(target: str) -> None:
    """Raise UsageError if a target is neither the URL of a collector nor a file in an existing folder."""
    if not is_url(target):
        if "://" in target:
            raise UsageError(
                f"target {target!r}: name a file, or a collector by http:// or https://"
            )
        if not Path(target).absolute().parent.is_dir():
            raise UsageError(
                f"target {target!r}: there is no folder {Path(target).absolute().parent}"
            )
        return
    try:
        named = urlsplit(target)
        host, _ = named.hostname, named.port
    except ValueError as error:
        raise UsageError(f"target {target!r}: {error}") from None
    if not host:
        raise UsageError(f"target {target!r}: the URL names no host, as in http://127.0.0.1:4318")


def export(
    spans: Sequence[SpanData], logs: Sequence[LogData], target: str, names: Names = NEWEST
) -> None:
    """Write spans and log events to a file, one request per line, or send them to a collector.

    target: a path, or the URL of a collector such as `http://127.0.0.1:4318`, to which `/v1/traces` and
    `/v1/logs` are added. `OTEL_EXPORTER_OTLP_HEADERS` may give headers. Raises UsageError for any other
    target, and NotExported if the target does not accept the data.
    """
    check_target(target)
    if not is_url(target):
        lines = [trace_request(spans, names)] + ([logs_request(logs, names)] if logs else [])
        try:
            with Path(target).open("w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
        except OSError as error:
            raise NotExported(f"{target} cannot be written: {error}") from error
        return
    base = target.rstrip("/").removesuffix("/v1/traces")
    for part in _batches(spans):
        _post(f"{base}/v1/traces", trace_request(part, names))
    for events in _batches(logs):
        _post(f"{base}/v1/logs", logs_request(events, names))


def _batches(values: Sequence[Any]) -> Iterable[list[Any]]:
    rest = iter(values)
    while part := list(islice(rest, _BATCH)):
        yield part


def _post(url: str, request: Mapping[str, Any]) -> None:
    headers = {"Content-Type": "application/json"} | _pairs("OTEL_EXPORTER_OTLP_HEADERS")
    data = json.dumps(request, ensure_ascii=False).encode()
    asked = urllib.request.Request(url, data, headers, method="POST")  # noqa: S310 - http or https, checked
    try:
        with urllib.request.urlopen(asked, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as above
            told = answer.read(65_536)
    except urllib.error.HTTPError as error:
        said = one_line(error.read(2_000).decode("utf-8", "replace"), 300)
        raise NotExported(f"{one_line(url)} answered {error.code}: {said}") from error
    except (OSError, http.client.HTTPException) as error:
        raise NotExported(f"{one_line(url)} cannot be reached: {error}") from error
    refused = _refused(told)
    if refused:
        raise NotExported(f"{one_line(url)} took only a part: {refused}")


def _refused(answer: bytes) -> str:
    """Return what a collector says it rejected, or an empty text."""
    try:
        partial = json.loads(answer).get("partialSuccess") or {}
        rejected = int(partial.get("rejectedSpans") or partial.get("rejectedLogRecords") or 0)
        said = str(partial.get("errorMessage") or "")
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""
    return f"{rejected} rejected, {one_line(said)}" if rejected else ""


# Trees --------------------------------------------------------------------------------------------

_DEEPEST = 100
"""Maximum depth of runs inside runs."""


async def read_tree(
    store: Store, run_id: str, *, content: bool = False, names: Names = NEWEST
) -> tuple[list[SpanData], list[LogData]]:
    """Return the spans and log events of a run in a store and of the runs inside it.

    Raises UnknownRun if the store has no such run.
    """
    if await store.info(run_id) is None:
        raise UnknownRun(f"the store knows no run {run_id}")
    # The trace is the outermost run's, so the tree is built from there.
    top = run_id
    for _ in range(_DEEPEST):
        info = await store.info(top)
        if info is None or info.parent is None or await store.info(info.parent) is None:
            break
        top = info.parent
    journals: dict[str, list[Event]] = {}
    wanted: set[str] = set()
    waiting = [(top, top == run_id)]
    while waiting:
        one, is_wanted = waiting.pop()
        if one in journals:
            continue
        journals[one] = await store.read(one)
        if is_wanted:
            wanted.add(one)
        inner = await store.runs(parent=one)
        waiting += [(info.run_id, is_wanted or info.run_id == run_id) for info in inner]
    spans, logs = tree_of(list(journals.values()), content=content, spelled=names)
    return (
        [span for span in spans if span.run_id in wanted],
        [log for log in logs if log.run_id in wanted],
    )


async def export_run(
    store: Store, run_id: str, target: str, *, content: bool = False, names: Names = NEWEST
) -> tuple[int, int]:
    """Export a run of a store to a file or a collector; return the number of spans and of log events.

    target: as in `export`, which also says what is raised. Exporting again gives the same ids, which are
    those of live traces too.
    """
    spans, logs = await read_tree(store, run_id, content=content, names=names)
    await anyio.to_thread.run_sync(export, spans, logs, target, names)
    return len(spans), len(logs)
