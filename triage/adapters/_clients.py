"""Clients of model providers whose calls are recorded.

The clients send every request through their public method `post`; a subclass made for the client's own
class overrides that one method. So all ways to ask (whole, streamed, parsed, in helpers) are recorded
alike, copies of the client too, and everything else of it is as ever.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Self, cast, get_args

from triage._options import misuse
from triage._recorder import current
from triage._retry_layers import say
from triage._run import Run
from triage._tally import tally, within_call
from triage.steps import Step

from ._forms import Answer, Form
from ._hints import told
from ._recording import (
    MODEL,
    ModelCall,
    Stream,
    StreamLeft,
    UnfinishedStream,
    call_model,
    call_model_sync,
    told_nobody,
)
from ._sent import Around, Opened, key_of_next

__all__ = ["Endpoint", "Provider", "StreamLeft", "recorded"]

_RAW = "x-stainless-raw-response"
_NONE: dict[str, Any] = {}


class Endpoint(NamedTuple):
    """One way to ask a provider. path: how its address ends. conversation: the name of the messages in
    a request's body.

    read: what an answer says. prepared: a request's body, with a hint (None: without one), and repaired
    unless it is valid. opened: which calls are open after messages. said: what is new in a body, for the
    step. whole: the answer that streamed pieces make up. ended: whether such pieces have come to its end.
    """

    path: str
    conversation: str
    read: Callable[[Any], Answer]
    prepared: Callable[[dict[str, Any], str | None, bool], dict[str, Any]]
    opened: Opened
    said: Callable[[Mapping[str, Any]], Any]
    whole: Callable[[list[Any]], Any]
    ended: Callable[[list[Any]], bool]


class Provider(NamedTuple):
    """A package of clients. name: that of the package."""

    name: str
    clients: tuple[str, ...]
    endpoints: tuple[Endpoint, ...]


def recorded(provider: Provider, client: Any, *, hint: bool) -> Any:
    """A copy of the client whose model calls are recorded; see `record` of each provider."""
    kinds = [kind.__name__ for kind in type(client).__mro__ if _package(kind) == provider.name]
    if not any(name in provider.clients for name in kinds):
        wanted = f"a client of {provider.name}, {' or '.join(provider.clients)}"
        raise misuse(f"{provider.name}.record(client)", client, wanted)
    if isinstance(getattr(type(client), "triage_recorded", None), bool):
        return client
    if not isinstance(hint, bool):
        raise misuse(f"{provider.name}.record(hint=…)", hint, "True or False")
    say(client)
    made = client.with_options()
    is_async = any(name.startswith("Async") for name in kinds)
    make = _async_kind if is_async else _sync_kind
    made.__class__ = make(type(client), provider, hint=hint)
    return made


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _async_kind(kind: type[Any], provider: Provider, *, hint: bool) -> type[Any]:
    usual: dict[str, Around] = {}

    async def post(self: Any, path: str, **options: Any) -> Any:
        call = _call(provider, path, options, usual, hint=hint)
        if call is None:
            return await kind.post(self, path, **options)

        def send() -> Awaitable[Any]:
            options["body"] = call.body()
            return cast("Awaitable[Any]", kind.post(self, path, **options))

        if call.raw:
            with _noted(call):
                return await send()
        if call.streamed:
            return await _streamed(call, send)
        return await call_model(call.run, call.call, send)

    return type(kind.__name__, (kind,), {**_NAMES(kind), "post": post})


def _sync_kind(kind: type[Any], provider: Provider, *, hint: bool) -> type[Any]:
    usual: dict[str, Around] = {}

    def post(self: Any, path: str, **options: Any) -> Any:
        call = _call(provider, path, options, usual, hint=hint)
        if call is None:
            return kind.post(self, path, **options)

        def send() -> Any:
            options["body"] = call.body()
            return kind.post(self, path, **options)

        if call.raw:
            with _noted(call):
                return send()
        if call.streamed:
            return _streamed_sync(call, send)
        return call_model_sync(call.run, call.call, send)

    return type(kind.__name__, (kind,), {**_NAMES(kind), "post": post})


def _NAMES(kind: type[Any]) -> dict[str, Any]:  # noqa: N802 - reads as the constant it is
    return {"__module__": kind.__module__, "__doc__": kind.__doc__, "triage_recorded": True}


# One request ----------------------------------------------------------------------------------------


class _Call:
    """A request on its way. given: its body. options: all that is asked with it. streamed: its
    answer comes in pieces. raw: its caller wants the HTTP response. valid: its messages
    need not be repaired.
    """

    __slots__ = (
        "call", "endpoint", "given", "hint", "options", "provider", "raw", "run", "streamed", "valid",
    )  # fmt: skip

    def __init__(
        self, run: Run, provider: Provider, endpoint: Endpoint, options: dict[str, Any],
        usual: dict[str, Around], *, hint: bool,
    ) -> None:  # fmt: skip
        self.run = run
        self.provider = provider
        self.endpoint = endpoint
        self.options = options
        self.streamed = bool(options.get("stream"))
        more = options.get("options") or _NONE
        self.raw = _RAW in map(str.lower, more.get("headers") or ())
        self.given: dict[str, Any] = options["body"]
        self.hint = hint
        # A loop inside of a tool is a conversation of its own, which is matched by itself.
        inside = within_call(run.run_id)
        name = f"{provider.name} {inside}" if inside else provider.name
        known = (name, endpoint.path, endpoint.conversation)
        beside = tally(run).beside
        key, self.valid = key_of_next(beside, usual, known, self.given, endpoint.opened)
        model, said = str(self.given.get("model", "")), endpoint.said(self.given)
        self.call = ModelCall(name, model, said, key, self._form(more.get("post_parser")))

    def body(self) -> dict[str, Any]:
        """What is sent: read when it is, as the hint may have come meanwhile."""
        hint = told(self.run.guidance) if self.hint else None
        if self.valid and hint is None:
            return self.given
        return self.endpoint.prepared(self.given, hint, self.valid)

    def _form(self, parse: Any) -> Form:
        read, whole = self.endpoint.read, self.endpoint.whole
        if self.streamed:  # its pieces, as JSON
            return Form(read=lambda kept: read(whole(kept)), own=True)
        package, kind = self.provider.name, self.options.get("cast_to")

        def load(data: Any) -> Any:  # knows nothing of the call, which would know itself by it
            made = _builder(package)(type_=kind, value=data)
            return parse(made) if callable(parse) else made

        return Form(_json, load, read, own=True)

    def piece(self, data: Any) -> Any:
        """A recorded piece of an answer as the client makes it."""
        kinds = get_args(self.options.get("stream_cls")) or (object,)
        return _builder(self.provider.name)(type_=kinds[0], value=data)


def _call(
    provider: Provider, path: str, options: dict[str, Any], usual: dict[str, Around], *, hint: bool
) -> _Call | None:
    """The recorded call that a request is; None outside of a run, and for what asks no model."""
    run = current.get()
    if not isinstance(run, Run) or not isinstance(options.get("body"), dict):
        return None
    address = path.partition("?")[0]
    for endpoint in provider.endpoints:
        if address.endswith(endpoint.path):
            return _Call(run, provider, endpoint, options, usual, hint=hint)
    return None


@cache
def _builder(package: str) -> Callable[..., Any]:
    """What a package of clients makes its answers with."""
    found: Callable[..., Any] = import_module(f"{package}._models").construct_type
    return found


def _json(answer: Any) -> Any:
    """An answer of the client's as the provider sent it, in containers that nobody else has."""
    return answer.to_dict(mode="json", warnings=False)


# Answers that are only noted --------------------------------------------------------------------------


@contextmanager
def _noted(call: _Call) -> Generator[None]:
    call.run.check_open()
    try:
        yield
    except Exception as error:
        _note(call, error=error)
        raise
    _note(call)


def _note(call: _Call, error: Exception | None = None) -> None:
    """A step for a call whose answer only its caller reads."""
    step = Step(
        action=MODEL,
        tool_input=call.call.said,
        tool_output=None if error else {"raw": True},
        error=None if error is None else str(error) or type(error).__name__,
        exception_type=None if error is None else type(error).__name__,
        metadata={MODEL: call.call.model},
    )
    call.run.record_call_step(step)


# Streams --------------------------------------------------------------------------------------------


async def _streamed(call: _Call, send: Callable[[], Awaitable[Any]]) -> Any:
    recording = Stream(call.run, call.call, told_nobody)
    if recording.known is not None:
        return _AsyncPieces(call, None, recording)
    try:
        stream = await send()
    except BaseException as error:
        recording.failed(error)
        raise
    return _AsyncPieces(call, stream, recording)


def _streamed_sync(call: _Call, send: Callable[[], Any]) -> Any:
    recording = Stream(call.run, call.call, told_nobody)
    if recording.known is not None:
        return _Pieces(call, None, recording)
    try:
        stream = send()
    except BaseException as error:
        recording.failed(error)
        raise
    return _Pieces(call, stream, recording)


class _Closed:
    """The HTTP response of a stream that is given again: there is none to be closed."""

    def close(self) -> None:
        """Nothing is open."""

    async def aclose(self) -> None:
        """Nothing is open."""


class _Stream:
    """A stream of the client's, or one that is given again; its pieces are kept as they pass."""

    def __init__(self, call: _Call, stream: Any, recording: Stream) -> None:
        self._call = call
        self._stream = stream
        self._recording = recording
        self._kept: list[Any] = []
        self._iterator: Any = self._pieces()

    def __getattr__(self, name: str) -> Any:
        if self._stream is not None:
            return getattr(self._stream, name)
        if name == "response":
            return _Closed()
        raise AttributeError(f"a stream that is given again from the journal has no {name}")

    def _pieces(self) -> Any:
        raise NotImplementedError

    def _keep(self, piece: Any) -> None:
        self._kept.append(_json(piece))

    def _check_ended(self) -> None:
        if not self._call.endpoint.ended(self._kept):
            raise UnfinishedStream

    def _left(self) -> None:
        self._recording.failed(StreamLeft())


class _AsyncPieces(_Stream):
    def __aiter__(self) -> AsyncIterator[Any]:
        return cast("AsyncIterator[Any]", self._iterator)

    async def __anext__(self) -> Any:
        return await self._iterator.__anext__()

    async def _pieces(self) -> AsyncIterator[Any]:
        if self._stream is None:
            for data in self._recording.known:
                yield self._call.piece(data)
            return
        try:
            async for piece in self._stream:
                self._keep(piece)
                yield piece
            self._check_ended()
        except GeneratorExit:
            self._left()
            raise
        except BaseException as error:
            self._recording.failed(error)
            raise
        self._recording.done(self._kept)
        await self._recording.durable()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the stream."""
        self._left()
        if self._stream is not None:
            await self._stream.close()


class _Pieces(_Stream):
    def __iter__(self) -> Iterator[Any]:
        return cast("Iterator[Any]", self._iterator)

    def __next__(self) -> Any:
        return next(self._iterator)

    def _pieces(self) -> Iterator[Any]:
        if self._stream is None:
            for data in self._recording.known:
                yield self._call.piece(data)
            return
        try:
            for piece in self._stream:
                self._keep(piece)
                yield piece
            self._check_ended()
        except GeneratorExit:
            self._left()
            raise
        except BaseException as error:
            self._recording.failed(error)
            raise
        self._recording.done(self._kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream."""
        self._left()
        if self._stream is not None:
            self._stream.close()
