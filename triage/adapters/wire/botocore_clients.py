"""The endpoints of botocore, through which the requests of boto3's clients leave.

A model call is recorded around `make_request`: its body is changed before it is signed, and the client's
own retries are tries of the one call. `_send` is the wire.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from io import BytesIO
from typing import Any

from triage.adapters.calls import Stream
from triage.engine.drivers import SYNC, immediate, step

from . import requests
from .bodies import Kept, body_of, content_type, is_stream
from .guarding import Guarded, Passage, passing

__all__ = ["recording"]


def recording(_library: Any, name: str, original: Any) -> Any:
    """The method that records, in place of one of `Endpoint`."""
    BotoCoreError = import_module("botocore.exceptions").BotoCoreError  # noqa: N806 - a class

    def make_request(self: Any, operation_model: Any, request_dict: Any) -> Any:
        way = Passage(immediate(original))
        try:
            return _make_request(way, self, operation_model, request_dict)
        except Exception as error:
            way.forgive(error)
        if way.answer is None:
            return original(self, operation_model, request_dict)
        return way.answer

    def needs_retry(self: Any, *args: Any, **options: Any) -> Any:
        # Behind a wait of ours the client starts anew: its retries would multiply with ours.
        logical = _logical.get()
        return False if logical is not None and logical.again else original(self, *args, **options)

    def send(self: Any, request: Any) -> Any:
        logical = _logical.get()
        if logical is None:
            return original(self, request)
        way = Passage(immediate(original), BotoCoreError)
        try:
            return logical.send(way, self, request)
        except Exception as error:
            way.forgive(error)
        return original(self, request) if way.answer is None else way.answer

    return {"make_request": make_request, "_needs_retry": needs_retry, "_send": send}[name]


def _make_request(way: Passage, endpoint: Any, operation: Any, request: dict[str, Any]) -> Any:
    asked = None if _is_async(endpoint) else _asked(request)
    if asked is None:
        return step(way.send(endpoint, operation, request))
    call = asked.begin()
    logical = _LogicalCall(asked, call, is_read=not operation.has_event_stream_output)
    with call.passing():
        while True:
            try:
                with logical.entered():
                    sent = _sent(asked, request)
                    response, parsed = step(way.send(endpoint, operation, sent))
            except Exception as error:
                if step(call.mended(error, SYNC)):
                    logical.again, logical.failed = True, None
                    continue
                raise
            if not logical.is_kept:
                failed = requests.refused(response)
                if failed is not None and step(call.mended(failed, SYNC)):
                    logical.again, logical.failed = True, None
                    continue
                requests.record(call, response, failed)
                step(call.durable(SYNC))
            return response, parsed


def _is_async(endpoint: Any) -> bool:
    """Whether an endpoint is aiobotocore's, whose requests leave through another library."""
    return inspect.iscoroutinefunction(type(endpoint)._send_request)


def _asked(request: dict[str, Any]) -> requests.ModelRequest | None:
    method, path, body = (request.get(name, "") for name in ("method", "url_path", "body"))
    if requests.untouched(method, path):
        return None
    if not isinstance(body, bytes | str):
        requests.note_unread("botocore", "its body is no text")
        return None
    return requests.model_request(method, path, (), body)  # signed later


def _sent(asked: requests.ModelRequest, request: dict[str, Any]) -> dict[str, Any]:
    """The request as it is to be sent; the client's own where nothing changes."""
    body = asked.changed()
    made: dict[str, Any] = {name: asked.addressed(request[name]) for name in ("url", "url_path")}
    if body is not None:
        made["body"] = body
    changed = {name: value for name, value in made.items() if value != request[name]}
    return {**request, **changed} if changed else request


class _LogicalCall:
    """A call with its requests. is_read: its answer is read as a whole. again: it is made again by us.

    failed: what its last request failed with. is_kept: its answer is kept already, or as it passes.
    """

    def __init__(self, asked: requests.ModelRequest, call: Stream, *, is_read: bool) -> None:
        self.again = False
        self.failed: Exception | None = None
        self.is_kept = False
        self._asked = asked
        self._call = call
        self._is_read = is_read

    @contextmanager
    def entered(self) -> Generator[None]:
        """Around the request: `_send` finds the call that it is part of."""
        token = _logical.set(self)
        try:
            with requests.passed():
                yield
        finally:
            _logical.reset(token)

    def send(self, way: Passage, endpoint: Any, request: Any) -> Any:
        """Send one request, or give the recorded answer."""
        if self._call.known is not None:
            self.is_kept = True
            return _given(request, self._call.known)
        if self.failed is not None:
            self._call.tried(self.failed)
        if self._is_read:
            request.stream_output = False  # read inside, where its errors become the client's own
        try:
            response = step(way.send(endpoint, request))
            if requests.is_streamed(response):
                self.is_kept = True
                headers = response.headers.items()
                tee = self._asked.tee(self._call, response.status_code, headers)
                response.raw = _Teed(response.raw, Guarded(tee))
            else:
                body = step(way.read(immediate(partial(getattr, response, "content"))))
                response.raw = _raw(_whole(request, response, body))
                self.failed = requests.refused(response)
        except Exception as error:
            self.failed = error
            raise
        return response


_logical: ContextVar[_LogicalCall | None] = ContextVar("triage_botocore", default=None)


def _given(request: Any, known: Kept) -> Any:
    """A recorded answer as the client's own response."""
    body = body_of(known)
    headers = dict(known["headers"])
    if not is_stream(content_type(headers)):
        headers["content-length"] = str(len(body))
    made = import_module("botocore.awsrequest").AWSResponse
    return made(request.url, known["status"], headers, _raw(body))


def _whole(request: Any, response: Any, body: bytes) -> bytes:
    """The body of a response. Raises the client's own error for one that ends early, which passes there."""
    length = response.headers.get("content-length", "")
    if length.isdigit() and len(body) < int(length):
        raise import_module("botocore.exceptions").ConnectionClosedError(endpoint_url=request.url)
    return body


def _raw(body: bytes) -> Any:
    """Bytes as the client reads those of a connection."""
    made = import_module("urllib3.response").HTTPResponse
    return made(BytesIO(body), preload_content=False)


class _Teed:
    """The bytes of a stream, shown to a tee before they are given on."""

    def __init__(self, raw: Any, tee: Guarded) -> None:
        self._raw, self._tee = raw, tee

    def stream(self, *args: Any, **options: Any) -> Iterator[bytes]:
        return passing(self._tee, self._raw.stream(*args, **options))

    def close(self) -> None:
        self._tee.left()
        self._raw.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)
