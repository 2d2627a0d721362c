"""The clients of httpx and httpx2, through whose `send` each of their requests leaves."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import cache
from typing import Any

from triage.adapters.calls import Stream
from triage.engine.drivers import ASYNC, SYNC, Driver, immediate, step

from . import requests
from .bodies import Kept, body_of
from .guarding import Guarded, Passage, passing

__all__ = ["recording"]


def recording(
    library: Any, _name: str, original: Any, *, hint: bool = True, explicit: bool = False
) -> Any:
    """The `send` that records, in place of a client's own.

    library: the module httpx or httpx2. hint: False leaves hints to the agent's own code. explicit: it is
    wanted for this one client, whatever else records or passes what the run asks models.
    """
    sends = _Sends(library, hint=hint, explicit=explicit)
    suspends = inspect.iscoroutinefunction(original)
    awaited = original if suspends else immediate(original)
    driver = ASYNC if suspends else SYNC

    async def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
        way = Passage(awaited)
        try:
            return await sends.send(driver, way, self, request, stream=stream, options=options)
        except Exception as error:
            way.forgive(error)
        if way.answer is None:
            return await awaited(self, request, stream=stream, **options)
        if not stream:
            await (way.answer.aread() if suspends else immediate(way.answer.read)())
        return way.answer

    def send_sync(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
        return step(send(self, request, stream=stream, **options))

    return send if suspends else send_sync


class _Sends:
    """What `send` does."""

    def __init__(self, library: Any, *, hint: bool, explicit: bool) -> None:
        self._explicit = explicit
        self._library = library
        self._hint = hint
        self._async_tee, self._tee, self._whole = _streams_of(library)

    async def send(
        self,
        driver: Driver,
        way: Passage,
        client: Any,
        request: Any,
        *,
        stream: bool,
        options: dict[str, Any],
    ) -> Any:
        asked = self._asked(request)
        if asked is None:
            return await way.send(client, request, stream=stream, **options)
        call = asked.begin()
        if call.known is not None:
            return self._given(client, request, call.known, stream=stream)
        with call.passing():
            while True:
                try:
                    with requests.passed():
                        sent = self._sent(asked, request)
                        response = await way.send(client, sent, stream=True, **options)
                    if requests.is_streamed(response):
                        break
                    await way.read(_reading(response, driver))
                except Exception as error:
                    if await call.mended(error, driver):
                        continue
                    raise
                failed = requests.refused(response)
                if failed is None or not await call.mended(failed, driver):
                    requests.record(call, response, failed)
                    await call.durable(driver)
                    return response
            tee = self._async_tee if driver.suspends else self._tee
            self._swap(tee, asked, call, response)
            if not stream:
                await way.read(_reading(response, driver))
            return response

    def _asked(self, request: Any) -> requests.ModelRequest | None:
        if requests.untouched(request.method, request.url.path, explicit=self._explicit):
            return None
        try:
            content = request.content
        except self._library.RequestNotRead:
            requests.note_unread(self._library.__name__, "its body comes in pieces")
            return None
        headers = request.headers.items()
        return requests.model_request(
            request.method, request.url.path, headers, content, hint=self._hint
        )

    def _sent(self, asked: requests.ModelRequest, request: Any) -> Any:
        """The request as it is to be sent; the client's own where nothing changes."""
        body = asked.changed()
        path = request.url.raw_path.decode("ascii")
        address = asked.addressed(path)
        if body is None and address == path:
            return request
        headers = [(k, v) for k, v in request.headers.raw if k.lower() != b"content-length"]
        return self._library.Request(
            request.method,
            request.url.copy_with(raw_path=address.encode("ascii")),
            headers=headers,
            content=request.content if body is None else body,
            extensions=request.extensions,
        )

    def _given(self, client: Any, request: Any, known: Kept, *, stream: bool) -> Any:
        """A recorded answer as the client's own response."""
        body = body_of(known)
        content = {"stream": self._whole(body)} if stream else {"content": body}
        response = self._library.Response(
            known["status"],
            headers=[tuple(pair) for pair in known["headers"]],
            request=request,
            extensions={"http_version": b"HTTP/1.1"},
            default_encoding=client._default_encoding,
            **content,
        )
        response.elapsed = timedelta(0)
        return response

    def _swap(self, kind: Any, asked: requests.ModelRequest, call: Stream, response: Any) -> None:
        """Have the bytes of a stream pass a tee, decoded beside the decoder that its reader uses."""
        tee = asked.tee(call, response.status_code, response.headers.items())
        if response.is_closed:  # it has been read, as those are that stand for a server's
            tee.feed(response.content)
            tee.end()
            return
        coded = {"content-encoding": response.headers.get("content-encoding", "")}
        decoder = self._library.Response(200, headers=coded)._get_content_decoder()
        response.stream = kind(response.stream, decoder, Guarded(tee))


def _reading(response: Any, driver: Driver) -> Any:
    """What reads the body of a response, to be awaited."""
    return response.aread if driver.suspends else immediate(response.read)


class _Teed:
    """A stream of bytes that shows them to a tee before it gives them on."""

    def __init__(self, stream: Any, decoder: Any, tee: Guarded) -> None:
        self._stream, self._decoder, self._tee = stream, decoder, tee

    def _decoded(self, chunk: bytes) -> bytes:
        made = self._decoder.decode(chunk)
        return made if isinstance(made, bytes) else b"".join(made)


class _AsyncTeed(_Teed):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        tee = self._tee
        try:
            async for chunk in self._stream:
                tee.keep(chunk, self._decoded)
                await tee.durable()
                yield chunk
        except BaseException as error:
            tee.failed(error)
            raise
        tee.end()

    async def aclose(self) -> None:
        self._tee.left()
        await self._stream.aclose()


class _SyncTeed(_Teed):
    def __iter__(self) -> Iterator[bytes]:
        return passing(self._tee, self._stream, self._decoded)

    def close(self) -> None:
        self._tee.left()
        self._stream.close()


class _Whole:
    """The bytes of a recorded answer as a stream."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        yield self._body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body


@cache
def _streams_of(library: Any) -> tuple[type, type, type]:
    """The streams as classes of the library's, which it asks for."""
    both = (library.AsyncByteStream, library.SyncByteStream)
    return (
        type("AsyncTeed", (_AsyncTeed, both[0]), {}),
        type("SyncTeed", (_SyncTeed, both[1]), {}),
        type("Whole", (_Whole, *both), {}),
    )
