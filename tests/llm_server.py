"""A model's endpoint on this machine: real HTTP, every protocol, and whatever can go wrong.

Each request gets the next reply of the script; the last one is repeated.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeAlias

SECONDS = 10.0
"""How long the server waits for its client before it gives up."""


class Request(NamedTuple):
    """What a client sent. headers: names in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def protocol(self) -> str:
        """The provider that the path belongs to."""
        if self.path.endswith("/messages"):
            return "anthropic"
        return "openai-responses" if self.path.endswith("/responses") else "openai"

    @property
    def shown(self) -> str:
        """The message that holds the attempt."""
        if self.protocol == "openai-responses":
            return str(self.body["input"])
        return str(self.body["messages"][-1]["content"])

    @property
    def system(self) -> str:
        """The instructions."""
        if self.protocol == "anthropic":
            return "".join(block["text"] for block in self.body["system"])
        if self.protocol == "openai-responses":
            return str(self.body["instructions"])
        return str(self.body["messages"][0]["content"])

    @property
    def form(self) -> str:
        """How the answer is asked for."""
        if "response_format" in self.body or "text" in self.body:
            return "schema"
        return "tool" if "tools" in self.body else "text"

    @property
    def fields(self) -> list[str]:
        """The fields of the answer, in the order in which they are asked for."""
        found = self.body
        path = {
            "openai schema": ("response_format", "json_schema", "schema"),
            "openai tool": ("tools", 0, "function", "parameters"),
            "openai-responses schema": ("text", "format", "schema"),
            "openai-responses tool": ("tools", 0, "parameters"),
            "anthropic tool": ("tools", 0, "input_schema"),
        }
        for key in path[f"{self.protocol} {self.form}"]:
            found = found[key]  # type: ignore[index]
        return list(found["properties"])


Reply: TypeAlias = "Callable[[Handler, Request], None]"


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    server: Server

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, json.loads(self.rfile.read(size)))
        self.server.next_reply(request)(self, request)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a whole answer."""
        self.send_response(status)
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        for name, value in {**fields, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """The endpoint. requests: what was asked, in order."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, script: Sequence[Reply]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[Request] = []
        self.hung_up = threading.Event()
        self._script = list(script)
        self._changed = threading.Condition()
        self._open = 0

    @property
    def url(self) -> str:
        """Where it is, without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def base_url(self, provider: str) -> str:
        """As the provider's client wants it."""
        return self.url if provider == "anthropic" else f"{self.url}/v1"

    def next_reply(self, request: Request) -> Reply:
        """The reply that is due."""
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
            return self._script.pop(0) if len(self._script) > 1 else self._script[0]

    def was_asked(self, times: int = 1) -> bool:
        """Wait until so many requests have come; False if they do not."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.requests) >= times, SECONDS)

    def all_closed(self) -> bool:
        """Wait until no connection is open; False if one stays open."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, SECONDS)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._open += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests."""


@contextmanager
def serving(*script: Reply) -> Generator[Server]:
    """A server with this script, for as long as the block runs."""
    server = Server(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# Replies ------------------------------------------------------------------------------------------


def says(
    answer: dict[str, Any] | str, tokens: tuple[int, int] = (100, 20), *, cut: bool = False
) -> Reply:
    """The model answers: an object in the way it was asked for, a text as it is.

    cut: the answer ends at the limit of output tokens.
    """

    def reply(handler: Handler, request: Request) -> None:
        text = answer if isinstance(answer, str) else json.dumps(answer)
        asked = request.form == "tool" and not isinstance(answer, str)
        if request.protocol == "openai":
            call = {"id": "c", "type": "function", "function": {"name": "x", "arguments": text}}
            said: dict[str, Any] = {"tool_calls": [call]} if asked else {"content": text}
            message = {"role": "assistant", **said}
            send(handler, _completion(message, "length" if cut else "stop", tokens))
        elif request.protocol == "openai-responses":
            item: dict[str, Any] = {
                "type": "function_call",
                "call_id": "c",
                "name": "x",
                "arguments": text,
            }
            if not asked:
                item = _said({"type": "output_text", "text": text, "annotations": []})
            send(handler, _response([item], "max_output_tokens" if cut else None, tokens))
        else:
            block: dict[str, Any] = {"type": "text", "text": text}
            if asked:
                block = {"type": "tool_use", "id": "t", "name": "x", "input": answer}
            send(handler, _message([block], "max_tokens" if cut else "end_turn", tokens))

    return reply


def refuses(words: str) -> Reply:
    """The model refuses to answer."""

    def reply(handler: Handler, request: Request) -> None:
        if request.protocol == "openai":
            message = {"role": "assistant", "content": None, "refusal": words}
            send(handler, _completion(message, "stop", (50, 5)))
        elif request.protocol == "openai-responses":
            send(handler, _response([_said({"type": "refusal", "refusal": words})], None, (50, 5)))
        else:
            send(handler, _message([{"type": "text", "text": words}], "refusal", (50, 5)))

    return reply


def filtered(handler: Handler, request: Request) -> None:
    """OpenAI's content filter cuts the answer off."""
    if request.protocol == "openai-responses":
        send(handler, _response([], "content_filter", (50, 0)))
    else:
        send(handler, _completion({"role": "assistant", "content": ""}, "content_filter", (50, 0)))


def fails(
    status: int, message: str, code: str = "", headers: dict[str, str] | None = None
) -> Reply:
    """The endpoint answers with an error in its protocol's form."""

    def reply(handler: Handler, request: Request) -> None:
        error = {"message": message, "type": code or "api_error", "code": code or None}
        body = {"type": "error", "error": error}
        handler.answer(status, json.dumps(body).encode(), headers)

    return reply


def raw(status: int, body: bytes) -> Reply:
    """The endpoint answers with these bytes."""
    return lambda handler, _request: handler.answer(status, body)


def knows_only(form: str, then: Reply) -> Reply:
    """An endpoint that refuses every other way to ask for a structured answer."""
    refusal = fails(400, "Unrecognized request argument supplied", "invalid_request_error")

    def reply(handler: Handler, request: Request) -> None:
        (then if request.form == form else refusal)(handler, request)

    return reply


def silent(handler: Handler, request: Request) -> None:
    """Nothing is ever said; `hung_up` is set when the client has gone."""
    try:
        gone = handler.connection.recv(1) == b""
    except ConnectionResetError:
        gone = True
    if gone:
        handler.server.hung_up.set()
    handler.close_connection = True


def cut_off(handler: Handler, request: Request) -> None:
    """The connection ends in the middle of the answer."""
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def send(handler: Handler, body: dict[str, Any]) -> None:
    """A good answer."""
    handler.answer(200, json.dumps(body).encode())


def _completion(message: dict[str, Any], reason: str, tokens: tuple[int, int]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": tokens[0],
            "completion_tokens": tokens[1],
            "total_tokens": sum(tokens),
        },
    }


def _said(part: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]
    }  # fmt: skip


def _response(
    output: list[dict[str, Any]], stopped: str | None, tokens: tuple[int, int]
) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed" if stopped is None else "incomplete",
        "incomplete_details": None if stopped is None else {"reason": stopped},
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": tokens[0],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens[1],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(tokens),
        },
    }


def _message(content: list[dict[str, Any]], reason: str, tokens: tuple[int, int]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {
            "input_tokens": tokens[0] - 10,
            "cache_read_input_tokens": 10,
            "output_tokens": tokens[1],
        },
    }
