"""A collector that takes OTLP over HTTP, in JSON and protobuf, and keeps what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from google.protobuf import json_format  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_KINDS: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
}


class Receiver:
    """url: where it listens. requests: path and body of each, as JSON. headers: of each.

    answer: status and body of the answers.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: tuple[int, bytes] = (200, b"{}")
        self.url = ""

    def names(self) -> list[str]:
        """The names of all spans."""
        return [span["name"] for span in self.spans()]

    def spans(self) -> list[dict[str, Any]]:
        return [
            span
            for _, request in self.requests
            for resource in request.get("resourceSpans", [])
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


def read(path: str, kind: str, body: bytes) -> dict[str, Any]:
    """A request as JSON."""
    if kind.startswith("application/json"):
        found: dict[str, Any] = json.loads(body)
        return found
    message = _KINDS[path]()
    message.ParseFromString(body)
    told: dict[str, Any] = json_format.MessageToDict(message)
    return told


@contextmanager
def receiving() -> Generator[Receiver]:
    """A receiver on a free port of this machine."""
    receiver = Receiver()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.headers.append(dict(self.headers.items()))
            kind = self.headers.get("Content-Type", "")
            receiver.requests.append((self.path, read(self.path, kind, body)))
            code, text = receiver.answer
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
