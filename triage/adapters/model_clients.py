"""Clients of model providers whose calls are recorded, and the loop that runs tools with one.

The clients send every request through their public method `post`; a subclass made for the client's own
class overrides that one method. So all ways to ask (whole, streamed, parsed, in helpers) are recorded
alike, copies of the client too, and everything else of it is as ever.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast, get_args

import anyio
from pydantic import BaseModel

from triage.core import Step, check_count, misuse
from triage.core.messages.base import (
    Asked,
    ProviderWire,
    Shrink,
    as_data,
    ending_of,
    max_tokens_of,
    text_of,
)
from triage.engine import MODEL, TOOL_ATTRIBUTE, Manifest, Run, Tool, current, schema_of, tally
from triage.strategies import warn_of_retries

from .base import cut_short
from .calls import (
    Form,
    ModelCall,
    RecordedModelCall,
    Stream,
    StreamLeft,
    UnfinishedStream,
    ask_model,
    ask_model_sync,
    conversation,
    is_brief,
    key_of,
    within,
)
from .conversations import Turn, carried, continued, guidance_text, repaired, use
from .tools import note_refused, refusal_of

__all__ = ["Conversation", "Endpoint", "Provider", "converse", "recorded"]


C = TypeVar("C")
_RAW = "x-stainless-raw-response"
_IDS = ("_request_id", "_workspace_id")
"""Public attributes of an answer, which come from the headers of the HTTP response."""
_LEFT_OUT = ("Omit", "NotGiven")
"""Classes of the marks by which a client says that a field of the body is not sent."""


class Endpoint(NamedTuple):
    """One way to ask a provider. path: how its address ends. conversation: the name of the messages in
    a request's body.
    """

    path: str
    conversation: str
    wire: ProviderWire


class Provider(NamedTuple):
    """A package of clients. name: that of the package."""

    name: str
    clients: tuple[str, ...]
    endpoints: tuple[Endpoint, ...]


def recorded(provider: Provider, client: C, *, hint: bool) -> C:
    """A copy of the client whose model calls are recorded; see `record` of each provider."""
    kinds = [
        kind.__name__
        for kind in type(client).__mro__
        if kind.__module__.partition(".")[0] == provider.name
    ]
    if not any(name in provider.clients for name in kinds):
        wanted = f"a client of {provider.name}, {' or '.join(provider.clients)}"
        raise misuse(f"{provider.name}.record(client)", client, wanted)
    if isinstance(getattr(type(client), "triage_recorded", None), bool):
        return client
    if not isinstance(hint, bool):
        raise misuse(f"{provider.name}.record(hint=…)", hint, "True or False")
    warn_of_retries(client)
    is_async = any(name.startswith("Async") for name in kinds)
    kind: Any = type(client)
    post = (_post_async if is_async else _post_sync)(kind, provider, hint=hint)
    names = {"__module__": kind.__module__, "__doc__": kind.__doc__, "triage_recorded": True}
    # Not by `with_options`, which calls a subclass's constructor. What is cached refers to the client.
    made: Any = copy.copy(client)
    made.__class__ = type(kind.__name__, (kind,), {**names, "post": post})
    for name in list(vars(made)):
        if isinstance(inspect.getattr_static(kind, name, None), cached_property):
            delattr(made, name)
    return cast("C", made)


def _post_async(kind: Any, provider: Provider, *, hint: bool) -> Any:
    async def post(self: Any, path: str, **options: Any) -> Any:
        call = _call(provider, path, options, hint=hint)
        if call is None:
            return await kind.post(self, path, **options)

        def send() -> Awaitable[Any]:
            return cast("Awaitable[Any]", kind.post(self, path, **call.options()))

        if call.raw:
            with call.noted():
                return await send()
        if not call.streamed:
            return call.parse(await ask_model(call.run, call.asking(send)))
        stream = call.stream()
        if stream.known is not None:
            return _AsyncPieces(call, None, stream)
        with stream.passing():
            pieces = await send()
        return _AsyncPieces(call, pieces, stream)

    return post


def _post_sync(kind: Any, provider: Provider, *, hint: bool) -> Any:
    def post(self: Any, path: str, **options: Any) -> Any:
        call = _call(provider, path, options, hint=hint)
        if call is None:
            return kind.post(self, path, **options)

        def send() -> Any:
            return kind.post(self, path, **call.options())

        if call.raw:
            with call.noted():
                return send()
        if not call.streamed:
            return call.parse(ask_model_sync(call.run, call.asking(send)))
        stream = call.stream()
        if stream.known is not None:
            return _Pieces(call, None, stream)
        with stream.passing():
            pieces = send()
        return _Pieces(call, pieces, stream)

    return post


# One request ----------------------------------------------------------------------------------------


def _call(provider: Provider, path: str, options: dict[str, Any], *, hint: bool) -> _Call | None:
    """The recorded call that a request is; None outside of a run, and for what asks no model."""
    run = current.get()
    if not isinstance(run, Run) or not isinstance(options.get("body"), dict):
        return None
    address = path.partition("?")[0]
    for endpoint in provider.endpoints:
        if address.endswith(endpoint.path):
            return _Call(run, provider, endpoint, options, hint=hint)
    return None


class _Call:
    """A request on its way. given: its body. streamed: its answer comes in pieces. raw: its caller wants
    the HTTP response.
    """

    def __init__(
        self,
        run: Run,
        provider: Provider,
        endpoint: Endpoint,
        options: dict[str, Any],
        *,
        hint: bool,
    ) -> None:
        self.run = run
        self.wire = endpoint.wire
        self.streamed = bool(options.get("stream"))
        self._request_options: Mapping[str, Any] = options.get("options") or {}
        self.raw = _RAW in map(str.lower, self._request_options.get("headers") or ())
        self.given: dict[str, Any] = options["body"]
        self._conversation = endpoint.conversation
        self._hint = hint
        self._options = options
        self._package = provider.name
        self._sent: RecordedModelCall | Stream | None = None
        # A loop inside of a tool is a conversation of its own, which is matched by itself.
        inside = within()
        sent = {
            name: value
            for name, value in self.given.items()
            if type(value).__name__ not in _LEFT_OUT
        }
        self._call = ModelCall(
            name=f"{provider.name} {inside}" if inside else provider.name,
            model=run.guidance.model or str(self.given.get("model", "")),
            said=self.wire.new_in(self.given.get(endpoint.conversation)),
            key=key_of([endpoint.path, sent]),
            form=self._form(),
            is_brief=is_brief(max_tokens_of(self.given)),
        )

    def _form(self) -> Form:
        wire, kind, package = self.wire, self._options.get("cast_to"), self._package
        if self.streamed:  # its pieces, as JSON
            return Form(read=lambda kept: wire.answer(wire.whole(kept)))

        def load(data: Any) -> Any:  # knows nothing of the call, which would know itself by it
            made = _built(package, kind, data)
            if isinstance(made, BaseModel):  # what clients set on each answer, and users read
                for name in _IDS:
                    setattr(made, name, None)
            return made

        return Form(_json, load, wire.answer)

    def parse(self, answer: Any) -> Any:
        """The answer as its caller declared it.

        Outside of the recorded call: an answer that cannot be parsed has come, and is paid for.
        """
        parse = self._request_options.get("post_parser")
        return parse(answer) if callable(parse) else answer

    def asking(self, send: Callable[[], Any]) -> RecordedModelCall:
        self._sent = asking = RecordedModelCall(self._call, send)
        return asking

    def stream(self) -> Stream:
        self._sent = stream = Stream(self.run, self._call)
        return stream

    def options(self) -> dict[str, Any]:
        """The client's options for the request. Read when it is sent: the hint may come meanwhile."""
        options = {**self._options, "body": self._body()}
        if not self.raw and "post_parser" in self._request_options:
            kept = {k: v for k, v in self._request_options.items() if k != "post_parser"}
            options["options"] = kept
        return options

    def _body(self) -> dict[str, Any]:
        guidance = self.run.guidance
        body, name = dict(self.given), self._conversation
        if guidance.model is not None:
            body["model"] = guidance.model
            if self._sent is not None:
                self._sent.asks(guidance.model)
        messages = self.wire.shrunk(body.get(name) or [], Shrink.of(guidance, self.run))
        if not isinstance(messages, str) and not _is_continued(body):
            messages = repaired(self.wire, messages).messages
        return {
            **body,
            name: self.wire.hinted(messages, guidance_text(guidance) if self._hint else None),
        }

    def piece(self, data: Any) -> Any:
        """A recorded piece of an answer as the client makes it."""
        kinds = get_args(self._options.get("stream_cls")) or (object,)
        return _built(self._package, kinds[0], data)

    @contextmanager
    def noted(self) -> Generator[None]:
        """Around a request whose answer only its caller reads: a step of its own, nothing to be reused."""
        self.run.check_open()
        step: dict[str, Any] = {
            "action": MODEL,
            "tool_input": self._call.said,
            "metadata": {MODEL: self._call.model},
        }
        try:
            yield
        except Exception as error:
            kind = type(error).__name__
            failed = Step(**step, error=str(error) or kind, exception_type=kind)
            self.run.record_call_step(failed)
            raise
        self.run.record_call_step(Step(**step, tool_output={"raw": True}))


def _is_continued(body: Mapping[str, Any]) -> bool:
    """Whether the provider holds the conversation: calls whose results are sent are known to it alone."""
    thread = body.get("thread")
    return bool(
        body.get("previous_response_id")
        or body.get("conversation")
        or (isinstance(thread, Mapping) and thread.get("previous_message_id"))
    )


def _built(package: str, kind: Any, data: Any) -> Any:
    """An answer as a package of clients makes it."""
    return import_module(f"{package}._models").construct_type(type_=kind, value=data)


def _json(answer: Any) -> Any:
    """An answer of the client's as the provider sent it."""
    return answer.to_dict(mode="json", warnings=False)


# Streams --------------------------------------------------------------------------------------------


class _Closed:
    """Stands for the HTTP response of a stream that is given again, and for its request."""

    headers: ClassVar[Mapping[str, str]] = {}
    is_closed = True
    status_code = 200

    @property
    def request(self) -> Self:
        """The request, of which nothing is left either."""
        return self

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
        self._last: list[Any] = []
        self._late: Exception | None = None
        self._iterator: Any = self._pieces()

    def __getattr__(self, name: str) -> Any:
        if self._stream is not None:
            return getattr(self._stream, name)
        if name == "response":
            return _Closed()
        raise AttributeError(f"a stream that is given again from the journal has no {name}")

    def _pieces(self) -> Any:
        raise NotImplementedError

    @contextmanager
    def _passing(self) -> Generator[None]:
        """Around the reading of the pieces: what ends it before the answer's end is the call's error.

        An error behind that end is raised to the reader who reads on until there.
        """
        wire, late = self._call.wire, None
        with self._recording.passing():
            try:
                yield
            except Exception as error:
                if not wire.is_whole(self._kept):
                    raise
                late = error
            if not wire.is_whole(self._kept):
                raise UnfinishedStream
        self._recording.done(self._kept)
        self._late = late

    def _keep(self, piece: Any) -> bool:
        """Keep a piece; whether to pass it on at once.

        With the answer's end, what may come behind it (the tokens) is waited for, and all is recorded
        before it is passed on: many stop reading at the end that they see.
        """
        data = _json(piece)
        self._kept.append(data)
        is_whole = self._call.wire.is_whole
        if self._last or (is_whole([data]) and is_whole(self._kept)):
            self._last.append(piece)
        return not self._last


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
        with self._passing():
            async for piece in self._stream:
                if self._keep(piece):
                    yield piece
        await self._recording.durable()
        for piece in self._last:
            yield piece
        if self._late is not None:
            raise self._late

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._recording.failed(StreamLeft())
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
        with self._passing():
            for piece in self._stream:
                if self._keep(piece):
                    yield piece
        yield from self._last
        if self._late is not None:
            raise self._late

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._recording.failed(StreamLeft())
        if self._stream is not None:
            self._stream.close()


# The loop that everybody writes -------------------------------------------------------------------


Ask = Callable[[list[Any], list[Any]], Awaitable[Any]]
"""Sends messages and the tools' declarations."""
Tools = Mapping[str, Callable[..., Any]]


class Conversation(NamedTuple):
    """How a conversation ended. text: the model's last words. messages: all, in the provider's form."""

    text: str
    messages: list[Any]


async def converse(
    wire: ProviderWire,
    ask: Ask,
    messages: str | Iterable[Any],
    tools: Iterable[Callable[..., Any]],
    turns: int,
) -> Conversation:
    """The loop of `run_tools`: see there."""
    check_count("run_tools(turns=…)", turns, 1, "each asks the model once")
    given = [wire.user(messages)] if isinstance(messages, str) else list(messages)
    known: dict[str, Callable[..., Any]] = {}
    for tool in tools:
        if not callable(tool):
            raise misuse("run_tools(tools=…) item", tool, "a function", "best a @triage.tool")
        declared = getattr(tool, TOOL_ATTRIBUTE, None)
        name = declared.name if isinstance(declared, Tool) else getattr(tool, "__name__", "tool")
        known[name] = tool
    run = current.get()
    if not isinstance(run, Run):
        return await _converse(wire, ask, given, known, turns)
    name = _name_of(run, given)
    token = conversation.set(name)
    try:
        return await _converse(wire, ask, [*given, *_before(wire, run, name)], known, turns)
    finally:
        conversation.reset(token)


def _name_of(run: Run, messages: list[Any]) -> str:
    """What a conversation is known by in every attempt: what it begins with, and how often one did."""
    opening = key_of(messages)
    beside = tally(run).beside
    beside[f"conversation {opening}"] = count = beside.get(f"conversation {opening}", 0) + 1
    return f"{opening[:12]}.{count}"


def _before(wire: ProviderWire, run: Run, name: str) -> list[Any]:
    """The turns of this conversation in an earlier attempt."""

    def answer(turn: Turn) -> tuple[list[Any], Iterable[Asked]] | None:
        if turn.conversation != name:
            return None
        return wire.turn(turn.value), wire.answer(turn.value).calls

    def result(asked: Asked, turn: Turn) -> Any:
        text = text_of(turn.value) if turn.error is None else turn.error
        return wire.joined([wire.result(asked, text, failed=turn.error is not None)], None)[0]

    turns = carried(run)
    return continued(turns, answer=answer, result=result, use=lambda turn: use(run, turn))


async def _converse(
    wire: ProviderWire, ask: Ask, messages: list[Any], tools: Tools, turns: int
) -> Conversation:
    declared = [wire.declared(name, tool.__doc__, schema_of(tool)) for name, tool in tools.items()]
    for _ in range(turns):
        messages = repaired(wire, messages).messages
        response = as_data(await ask(messages, declared))
        messages = [*messages, *wire.turn(response)]
        answer = wire.answer(response)
        if not answer.calls:
            ending = ending_of(answer.ended)
            if ending is not None:
                raise cut_short(ending)
            return Conversation(answer.text, messages)
        messages += wire.joined(await _side_by_side(wire, answer.calls, tools), None)
    raise RuntimeError(f"no answer after {turns} turns")


async def _side_by_side(wire: ProviderWire, calls: tuple[Asked, ...], tools: Tools) -> list[Any]:
    """What came of all calls of one turn. The first error, in the order of the calls, is raised."""
    if len(calls) == 1:  # in this task, as what several tasks ask has no order to be known by
        return [await _result(wire, calls[0], tools)]
    results: list[Any] = [None] * len(calls)
    errors: dict[int, Exception] = {}

    async def one(at: int) -> None:
        try:
            results[at] = await _result(wire, calls[at], tools)
        except Exception as error:
            errors[at] = error

    async with anyio.create_task_group() as group:
        for at in range(len(calls)):
            group.start_soon(one, at)
    if errors:
        raise errors[min(errors)]
    return results


async def _result(wire: ProviderWire, asked: Asked, tools: Tools) -> Any:
    run = current.get()
    refusal = refusal_of(asked, Manifest(tools))
    if refusal is not None:
        if run is not None:
            kind = refusal.kind
            note_refused(run, asked.name, asked.arguments, refusal.text, kind=kind, id=asked.id)
        return wire.result(asked, refusal.text, failed=True)
    tool, arguments = tools[asked.name], asked.arguments or {}
    if isinstance(run, Run):
        value = await run.call(tool, **arguments)
    else:
        value = tool(**arguments)
        value = await value if inspect.isawaitable(value) else value
    return wire.result(asked, text_of(value), failed=False)
