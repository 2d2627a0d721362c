"""The clients of httpx and httpx2, through whose `send` each of their requests leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from triage.adapters.calls import Stream

from .bodies import Kept, body_of, content_type, is_stream, kept
from .requests import ModelRequest, RefusedRequest, Tee, model_request, passed, untouched

__all__ = ["Sends", "sends_of"]


class Sends(NamedTuple):
    """Makers of `send`: each takes the client's own method and returns the one to use."""

    asynchronous: Any
    synchronous: Any


def sends_of(library: Any, *, hint: bool = True) -> Sends:
    """The recording `send` of a library's clients. library: the module httpx or httpx2."""

    class AsyncTee(library.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, stream: Any, decoder: Any, tee: Tee) -> None:
            self._stream, self._decoder, self._tee = stream, decoder, tee

        async def __aiter__(self) -> AsyncIterator[bytes]:
            tee = self._tee
            try:
                async for chunk in self._stream:
                    tee.feed(self._decoder.decode(chunk))
                    if tee.over:
                        await tee.recording.durable()
                    yield chunk
            except BaseException as error:
                tee.failed(error)
                raise
            tee.end()

        async def aclose(self) -> None:
            self._tee.left()
            await self._stream.aclose()

    class SyncTee(library.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, stream: Any, decoder: Any, tee: Tee) -> None:
            self._stream, self._decoder, self._tee = stream, decoder, tee

        def __iter__(self) -> Iterator[bytes]:
            tee = self._tee
            try:
                for chunk in self._stream:
                    tee.feed(self._decoder.decode(chunk))
                    if tee.over:
                        tee.recording.durable_sync()
                    yield chunk
            except BaseException as error:
                tee.failed(error)
                raise
            tee.end()

        def close(self) -> None:
            self._tee.left()
            self._stream.close()

    class Whole(library.AsyncByteStream, library.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, body: bytes) -> None:
            self._body = body

        def __iter__(self) -> Iterator[bytes]:
            yield self._body

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield self._body

    def asked(request: Any) -> ModelRequest | None:
        if untouched(request.method, request.url.path):
            return None
        try:
            content = request.content
        except library.RequestNotRead:  # an upload in pieces asks no model
            return None
        return model_request(
            request.method, request.url.path, request.headers.items(), content, hint=hint
        )

    def given(client: Any, request: Any, known: Kept, *, stream: bool) -> Any:
        """A recorded answer as the client's own response."""
        body = body_of(known)
        content = {"stream": Whole(body)} if stream else {"content": body}
        response = library.Response(
            known["status"],
            headers=[tuple(pair) for pair in known["headers"]],
            request=request,
            extensions={"http_version": b"HTTP/1.1"},
            default_encoding=client._default_encoding,
            **content,
        )
        response.elapsed = timedelta(0)
        return response

    def sent(one: ModelRequest, request: Any) -> Any:
        body = one.changed()
        if body is None:
            return request
        headers = [(k, v) for k, v in request.headers.raw if k.lower() != b"content-length"]
        return library.Request(
            request.method, request.url, headers=headers, content=body, extensions=request.extensions
        )

    def teed(one: ModelRequest, recording: Stream, response: Any) -> Tee | None:
        """The tee of a response that comes in pieces; None for one that is read whole."""
        if response.status_code >= 400 or not is_stream(content_type(response.headers)):
            return None
        return one.tee(recording, response.status_code, response.headers.items())

    def decoder_of(response: Any) -> Any:
        """A decoder beside the response's own, which its reader uses."""
        coded = {"content-encoding": response.headers.get("content-encoding", "")}
        return library.Response(200, headers=coded)._get_content_decoder()

    def refused(response: Any) -> RefusedRequest | None:
        if response.status_code < 400:
            return None
        return RefusedRequest(response, response.status_code, response.content)

    def recorded(recording: Stream, response: Any, error: RefusedRequest | None) -> None:
        if error is None:
            status, headers = response.status_code, response.headers.items()
            recording.done(kept(status, headers, response.content))
        else:
            recording.failed(error)

    def make_async(original: Any) -> Any:
        async def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
            one = asked(request)
            if one is None:
                return await original(self, request, stream=stream, **options)
            recording = one.begin()
            if recording.known is not None:
                return given(self, request, recording.known, stream=stream)
            with recording.passing():
                while True:
                    try:
                        with passed():
                            response = await original(
                                self, sent(one, request), stream=True, **options
                            )
                        tee = teed(one, recording, response)
                        if tee is None:
                            await response.aread()
                    except Exception as error:
                        if await recording.mended(error):
                            continue
                        raise
                    if tee is not None:
                        response.stream = AsyncTee(response.stream, decoder_of(response), tee)
                        if not stream:
                            await response.aread()
                        return response
                    failed = refused(response)
                    if failed is None or not await recording.mended(failed):
                        break
            recorded(recording, response, failed)
            await recording.durable()
            return response

        return send

    def make_sync(original: Any) -> Any:
        def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
            one = asked(request)
            if one is None:
                return original(self, request, stream=stream, **options)
            recording = one.begin()
            if recording.known is not None:
                return given(self, request, recording.known, stream=stream)
            with recording.passing():
                while True:
                    try:
                        with passed():
                            response = original(self, sent(one, request), stream=True, **options)
                        tee = teed(one, recording, response)
                        if tee is None:
                            response.read()
                    except Exception as error:
                        if recording.mended_sync(error):
                            continue
                        raise
                    if tee is not None:
                        response.stream = SyncTee(response.stream, decoder_of(response), tee)
                        if not stream:
                            response.read()
                        return response
                    failed = refused(response)
                    if failed is None or not recording.mended_sync(failed):
                        break
            recorded(recording, response, failed)
            recording.durable_sync()
            return response

        return send

    return Sends(make_async, make_sync)
