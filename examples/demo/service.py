"""A loopback service that behaves like a model provider and like three tools over HTTP.

`POST /v1/chat/completions` speaks the chat-completions protocol, streaming and not, with usage,
error bodies and headers as the real one sends them. `GET /tools/fares`, `POST /tools/orders` and
`POST /tools/charge` read a CSV file, query SQLite and take money. A request says in `X-Demo-Task`
which task it belongs to; the service counts the requests of each task and misbehaves as planned.
The service may count; the model it serves may not: that is a function of the messages alone.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import parse_qsl, urlsplit

from . import wire
from .faults import Fault, FaultPlan, Kind
from .model import complete
from .shop import Shop

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class Service:
    """The service, listening on 127.0.0.1 while the `with` block runs.

    directory: an existing directory for the copy of the database. shop: the world behind the tools.
    faults: what goes wrong, per task; empty at first.
    """

    def __init__(self, directory: Path) -> None:
        self.shop = Shop(directory)
        self.faults = FaultPlan()
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.service = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="demo-service", daemon=True
        )

    @property
    def url(self) -> str:
        """`http://127.0.0.1:port`, the port chosen by the system."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    service: Service

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is part of the demonstration: no traceback."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer("GET", {})

    def do_POST(self) -> None:
        """Answer a POST whose body is a JSON object."""
        length = int(self.headers.get("Content-Length") or 0)
        try:
            body = json.loads(self.rfile.read(length))
        except ValueError:
            self._send(wire.error(400, "We could not parse the JSON body of your request."))
            return
        self._answer("POST", body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal for the demonstration."""

    @property
    def _service(self) -> Service:
        return cast("_Server", self.server).service

    def _answer(self, method: str, body: Any) -> None:
        url = urlsplit(self.path)
        task = self.headers.get("X-Demo-Task", "")
        match method, url.path:
            case "POST", "/v1/chat/completions":
                self._chat(task, body)
            case "GET", "/tools/fares":
                self._tool(task, "fares", dict(parse_qsl(url.query)))
            case "POST", "/tools/orders":
                self._tool(task, "orders", body)
            case "POST", "/tools/charge":
                self._tool(task, "charge", body)
            case _:
                self._send(wire.error(404, f"Invalid URL ({method} {url.path})"))

    def _chat(self, task: str, body: Any) -> None:
        if not self.headers.get("Authorization", "").startswith("Bearer "):
            self._send(wire.error(401, "You didn't provide an API key."))
            return
        problem = wire.chat_problem(body)
        if problem is not None:
            self._send(problem)
            return
        fault = self._service.faults.meet(task, "chat")
        if self._refused(fault):
            return
        reply = complete(body["messages"])
        completion = wire.completion(body["model"], body["messages"], reply)
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            self._stream(wire.stream(completion, include_usage=usage), fault)
        else:
            self._send(wire.Answer(200, completion), fault)

    def _tool(self, task: str, name: str, body: Any) -> None:
        fault = self._service.faults.meet(task, name)
        if self._refused(fault):
            return
        key = self.headers.get("Idempotency-Key", "")
        answer = wire.tool(self._service.shop, name, body, key)
        if fault is not None and fault.kind is Kind.HANG:
            self._service.closing.wait(fault.seconds)  # the work is done, its answer is late
        self._send(answer, fault)

    def _refused(self, fault: Fault | None) -> bool:
        """Answer a fault that keeps the request from being worked on."""
        if fault is None:
            return False
        refusal = wire.refusal(fault)
        if refusal is not None:
            self._send(refusal)
        elif fault.kind is Kind.HANG and fault.where == "chat":
            self._service.closing.wait(fault.seconds)
            self.close_connection = True
        else:
            return False
        return True

    def _send(self, answer: wire.Answer, fault: Fault | None = None) -> None:
        data = json.dumps(answer.body).encode()
        if fault is not None and fault.kind is Kind.MALFORMED:
            data = data[: len(data) * 2 // 3]
        cut = fault is not None and fault.kind is Kind.CUT
        headers = {"Content-Length": len(data), **(answer.headers or {})}
        self._head(answer.status, "application/json", headers)
        self._write(data[: len(data) // 2] if cut else data)
        self.close_connection = self.close_connection or cut

    def _stream(self, events: list[str], fault: Fault | None) -> None:
        kind = None if fault is None else fault.kind
        self._head(200, "text/event-stream; charset=utf-8", {"Transfer-Encoding": "chunked"})
        if kind is Kind.CUT:
            events = events[: len(events) // 2]
        elif kind is Kind.MALFORMED:
            events = [*events[:1], events[1][: len(events[1]) // 2]]
        for event in events:
            data = f"data: {event}\n\n".encode()
            self._write(b"%x\r\n%s\r\n" % (len(data), data))
        if kind is Kind.CUT:
            self.close_connection = True  # no last chunk: the peer sees an incomplete body
        else:
            self._write(b"0\r\n\r\n")

    def _head(self, status: int, content_type: str, headers: dict[str, Any]) -> None:
        self.send_response(status, HTTPStatus(status).phrase)
        self.send_header("Content-Type", content_type)
        self.send_header("X-Request-Id", wire.new_id("req"))
        for name, value in headers.items():
            self.send_header(name, str(value))
        with suppress(OSError):
            self.end_headers()

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # the client gave up
            self.wfile.write(data)
