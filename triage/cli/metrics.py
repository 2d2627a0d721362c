"""The metrics of a store over HTTP, on this machine only, for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import anyio

from triage.adapters.otel import CONTENT_TYPE, StoreMetrics
from triage.core import UsageError, logger
from triage.stores import Store

_HOST = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")
_PORTS = 65_536
_PATIENCE_S = 5.0
_LOOKS_S = 0.1
"""Seconds between two looks whether to stop."""


@contextmanager
def served_metrics(store: Store, port: int) -> Generator[int]:
    """Serve `/metrics` on this port inside the block; 0 takes a free one. Gives the port.

    Raises UsageError where the port cannot be had.
    """
    metrics = StoreMetrics(store)

    class Answer(_Answer):
        pass

    Answer.metrics = metrics
    if not 0 <= port < _PORTS:
        raise UsageError(f"--metrics {port} is no port; give a number from 0 to {_PORTS - 1}")
    try:
        server = HTTPServer((_HOST, port), Answer)
    except OSError as error:
        raise UsageError(f"--metrics {port}: {error}; choose another port") from error
    # One request at a time: what two would read they would read twice.
    thread = threading.Thread(
        target=server.serve_forever, args=(_LOOKS_S,), name="triage-metrics", daemon=True
    )
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_PATIENCE_S)


class _Answer(BaseHTTPRequestHandler):
    """Answers one request."""

    metrics: ClassVar[StoreMetrics]
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        """Answer a scrape."""
        name = self.headers.get("Host", "").rpartition(":")[0]
        if name not in _NAMES:
            self._say(403, "this is served to this machine only\n")
        elif self.path.partition("?")[0] != "/metrics":
            self._say(404, "there is /metrics only\n")
        else:
            try:
                text = anyio.run(self.metrics.text)
            except Exception as error:
                logger.warning("the metrics cannot be read: %s", error)
                self._say(503, "the store cannot be read\n")
            else:
                self._say(200, text, CONTENT_TYPE)

    def _say(self, code: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape every few seconds is no news."""
