"""The sessions of aiohttp, through whose `_request` each of their requests leaves."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from http.client import responses
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy

from triage.engine.drivers import immediate

from .bodies import Kept, body_of, content_type, is_stream, kept
from .guarding import Guarded, Passage
from .requests import ModelRequest, RefusedRequest, model_request, note_unread, passed, untouched

__all__ = ["recording"]

_LIMIT = 2**16
"""Bytes that a reader holds where the session does not say; a line may have twice as many."""


def recording(_library: Any, _name: str, original: Any, *, hint: bool = True) -> Any:
    """The `_request` that records, in place of a session's own.

    hint: False leaves hints to the agent's own code.
    """

    async def request(self: Any, method: str, str_or_url: Any, **options: Any) -> Any:
        way = Passage(original)
        try:
            return await _request(way, self, method, str_or_url, dict(options), hint=hint)
        except Exception as error:
            way.forgive(error)
        response = way.answer
        if response is None:
            return await original(self, method, str_or_url, **options)
        if response._body is not None:  # it was read by us
            response.content = aiohttp.StreamReader(
                _NO_PROTOCOL, _LIMIT, loop=asyncio.get_running_loop()
            )
            response.content.feed_data(response._body)
            response.content.feed_eof()
        checked = options.get("raise_for_status")
        checked = self.raise_for_status if checked is None else checked
        if callable(checked):
            await cast("Any", checked)(response)
        elif checked:
            response.raise_for_status()
        return response

    return request


async def _request(
    way: Passage, session: Any, method: str, str_or_url: Any, options: dict[str, Any], *, hint: bool
) -> Any:
    asked = _asked(session, method, str_or_url, options, hint=hint)
    if asked is None:
        return await way.send(session, method, str_or_url, **options)
    # Checked here: an exception of the original one would hide the body of the answer.
    checked = options.pop("raise_for_status", None)
    call = asked.begin()
    if call.known is not None:
        response = await _given(session, method, str_or_url, options, call.known)
    else:
        options["raise_for_status"] = False
        with call.passing():
            response = await _live(way, session, method, str_or_url, options, asked, call)
    checked = session.raise_for_status if checked is None else checked
    await _check(way, response, checked=checked)
    return response


async def _live(
    way: Passage,
    session: Any,
    method: str,
    str_or_url: Any,
    options: dict[str, Any],
    asked: ModelRequest,
    call: Any,
) -> Any:
    """Ask until there is an answer to give on; a stream has only begun then."""
    limit = _limit(session, options)
    while True:
        try:
            with passed():
                sent = _sent(asked, options)
                url = _addressed(asked, session, str_or_url)
                response = await way.send(session, method, url, **sent)
            headers = response.headers
            if response.status < 400 and is_stream(content_type(headers)):
                tee = asked.tee(call, response.status, headers.items())
                response.content = _Teed(response.content, Guarded(tee), limit)
                return response
            body = await way.read(response.read)
        except Exception as error:
            if await call.mended(error):
                continue
            raise
        if response.status < 400:
            call.done(kept(response.status, headers.items(), body))
        else:
            failed = RefusedRequest(response, response.status, body)
            if await call.mended(failed):
                continue
            call.failed(failed)
        await call.durable()
        response.content = _reader(limit)
        _fill(response.content, body)
        return response


async def _check(
    way: Passage, response: Any, *, checked: bool | Callable[[Any], Awaitable[None]]
) -> None:
    """Refuse a status as the session would have."""
    try:
        if callable(checked):
            await way.read(checked, response)
        elif checked:
            await way.read(immediate(response.raise_for_status))
    except BaseException:
        response.close()
        raise


def _asked(
    session: Any, method: str, str_or_url: Any, options: dict[str, Any], *, hint: bool
) -> ModelRequest | None:
    if method.upper() != "POST":
        return None
    try:
        path = session._build_url(str_or_url).path
    except (TypeError, ValueError):  # the session says so itself
        return None
    if untouched(method, path):
        return None
    content = _content(session, options)
    decoded = options.get("auto_decompress")
    if content is None:
        note_unread("aiohttp", "its body is no text, or comes in pieces")
        return None
    if not (session.auto_decompress if decoded is None else decoded):
        note_unread("aiohttp", "its answer is not decompressed")
        return None
    headers = [*session.headers.items(), *CIMultiDict(options.get("headers") or ()).items()]
    return model_request(method, path, headers, content, hint=hint)


def _content(session: Any, options: dict[str, Any]) -> bytes | str | None:
    """The body as it is sent; None for one that is no text, or that comes in pieces."""
    data, value = options.get("data"), options.get("json")
    if value is not None:
        dumps = getattr(session, "_json_serialize_bytes", None) or session.json_serialize
        try:
            data = None if data is not None else dumps(value)
        except Exception:  # the session says so itself
            return None
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    return data if isinstance(data, (bytes, str)) else None


def _addressed(asked: ModelRequest, session: Any, str_or_url: Any) -> Any:
    """The address that is asked; the caller's own where nothing changes."""
    url = session._build_url(str_or_url)
    path = asked.addressed(url.raw_path)
    return (
        str_or_url if path == url.raw_path else url.with_path(path, encoded=True, keep_query=True)
    )


def _sent(asked: ModelRequest, options: dict[str, Any]) -> dict[str, Any]:
    """The options with the body that is to be sent; the caller's own where nothing changes."""
    body = asked.changed()
    if body is None:
        return options
    changed = dict(options)
    if changed.pop("json", None) is not None:
        changed["data"] = aiohttp.BytesPayload(body, content_type="application/json")
    else:
        changed["data"] = body.decode() if isinstance(changed["data"], str) else body
    if changed.get("headers"):
        changed["headers"] = headers = CIMultiDict(changed["headers"])
        headers.popall("content-length", None)
    return changed


async def _given(
    session: Any, method: str, str_or_url: Any, options: dict[str, Any], known: Kept
) -> Any:
    """A recorded answer as the session's own response."""
    kind: Any = getattr(session, "_response_class", aiohttp.ClientResponse)
    url, status = session._build_url(str_or_url), known["status"]
    headers = CIMultiDictProxy(CIMultiDict((name, value) for name, value in known["headers"]))
    arguments: dict[str, Any] = {
        "writer": None,
        "continue100": None,
        "timer": None,
        "request_info": aiohttp.RequestInfo(url, method.upper(), headers, url),
        "traces": [],
        "loop": asyncio.get_running_loop(),
        "session": session,
    }
    # From 3.14 on it asks for what wrote the request.
    if "stream_writer" in inspect.signature(aiohttp.ClientResponse.__init__).parameters:
        arguments["stream_writer"] = SimpleNamespace(output_size=0)
    response = kind(method.upper(), url, **arguments)
    content = _reader(_limit(session, options))
    message = SimpleNamespace(
        version=aiohttp.HttpVersion11,
        code=status,
        reason=responses.get(status, ""),
        headers=headers,
        raw_headers=tuple((name.encode(), value.encode()) for name, value in known["headers"]),
    )
    await response.start(_Offline((message, content)))
    _fill(content, body_of(known))
    return response


def _limit(session: Any, options: dict[str, Any]) -> int:
    given = options.get("read_bufsize")
    return int(getattr(session, "_read_bufsize", _LIMIT) if given is None else given)


def _reader(limit: int) -> aiohttp.StreamReader:
    return aiohttp.StreamReader(_NO_PROTOCOL, limit, loop=asyncio.get_running_loop())


def _fill(content: aiohttp.StreamReader, body: bytes) -> None:
    content.feed_data(body)
    content.feed_eof()


class _Offline:
    """Stands for connection and protocol where an answer is here already. message: what is read from it."""

    closed = True
    connected = True
    transport = None
    upgraded = False
    _reading_paused = False

    def __init__(self, message: tuple[Any, Any] | None = None) -> None:
        self._message = message

    @property
    def protocol(self) -> _Offline:
        return self

    async def read(self) -> tuple[Any, Any] | None:
        return self._message

    def pause_reading(self) -> None:
        """Nothing comes."""

    def resume_reading(self, **_options: Any) -> None:
        """Nothing comes."""

    def release(self) -> None:
        """There is nothing to give back."""

    def close(self) -> None:
        """There is nothing to close."""


_NO_PROTOCOL: Any = _Offline()


class _Teed(aiohttp.StreamReader):
    """A stream that shows each piece to a tee before it gives it on: it takes one when it has none left.

    One that was being waited for when its reader was cancelled is not lost: the reader may go on.
    """

    __slots__ = ("_inner", "_tee")

    def __init__(self, inner: aiohttp.StreamReader, tee: Guarded, limit: int) -> None:
        super().__init__(_NO_PROTOCOL, limit, loop=asyncio.get_running_loop())
        self._inner = inner
        self._tee = tee
        self.begin_http_chunk_receiving()

    async def _wait(self, func_name: str) -> None:
        tee = self._tee
        try:
            chunk, ends = await self._inner.readchunk()
            if chunk:
                tee.keep(chunk)
                self.feed_data(chunk)
            elif not ends:
                tee.end()
                self.feed_eof()
            if ends:
                self.end_http_chunk_receiving()
        except Exception as error:
            tee.failed(error)
            self.set_exception(error)
            raise
        await tee.durable()

    async def wait_eof(self) -> None:
        while not self.is_eof():
            await self._wait("wait_eof")

    def set_exception(self, exc: Any, *args: Any, **options: Any) -> None:
        """The response was closed, so that nobody reads on."""
        super().set_exception(exc, *args, **options)
        self._tee.left()
        if self._inner.exception() is None:
            self._inner.set_exception(exc, *args, **options)
