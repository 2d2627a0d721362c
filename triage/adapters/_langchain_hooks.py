"""Where LangChain's model calls and tool calls pass: through the attempt's seam, inside of a run.

LangChain has hooks that listen and none, for an agent that is built already, that stand around a call.
So the methods through which every call of a chat model and of a tool goes are replaced, once in a
process, by ones that look whether a wrapped agent is running. Where none is they call straight on.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool

from ._langchain_messages import finished, hinted
from ._langchain_scope import Asking, Scope, Within, active
from .base import Seam


def entered(scope: Scope) -> AbstractContextManager[None]:
    """Have the calls of this code, and of tasks and threads it starts, pass through a seam."""
    _install()
    return Within(scope)


# What LangChain calls -------------------------------------------------------------------------------


def _agenerate(original: Any) -> Any:
    async def _agenerate_with_cache(
        self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Any:
        scope = active()
        if scope is None:
            return await original(self, messages, stop=stop, run_manager=run_manager, **options)
        asking = scope.asking(self, messages, options, stop)

        async def ask(hint: str | None) -> Any:
            given = hinted(asking.messages, hint)
            return finished(
                await original(self, given, stop=stop, run_manager=run_manager, **options)
            )

        with Within(None):
            return await scope.seam.model(ask, **asking.words)

    return _agenerate_with_cache


def _generate(original: Any) -> Any:
    def _generate_with_cache(
        self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Any:
        scope = active()
        if scope is None:
            return original(self, messages, stop=stop, run_manager=run_manager, **options)
        asking = scope.asking(self, messages, options, stop)

        def ask(hint: str | None) -> Any:
            given = hinted(asking.messages, hint)
            return finished(original(self, given, stop=stop, run_manager=run_manager, **options))

        with Within(None):
            return scope.seam.model_sync(ask, **asking.words)

    return _generate_with_cache


def _astream(original: Any) -> Any:
    async def astream(
        self: Any,
        input: Any,  # noqa: A002 - LangChain's name
        config: Any = None,
        *,
        stop: Any = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        stream = _stream_of(self, input, options, stop, is_async=True)
        if stream is None:
            async for piece in original(self, input, config, stop=stop, **options):
                yield piece
            return
        for piece in stream.known():
            yield piece
        with stream.passing() as keep:
            if keep is not None:
                async for piece in original(self, stream.given(), config, stop=stop, **options):
                    keep(piece)
                    yield piece
        await stream.durable()

    return astream


def _stream(original: Any) -> Any:
    def stream(
        self: Any,
        input: Any,  # noqa: A002 - LangChain's name
        config: Any = None,
        *,
        stop: Any = None,
        **options: Any,
    ) -> Iterator[Any]:
        found = _stream_of(self, input, options, stop, is_async=False)
        if found is None:
            yield from original(self, input, config, stop=stop, **options)
            return
        yield from found.known()
        with found.passing() as keep:
            if keep is not None:
                for piece in original(self, found.given(), config, stop=stop, **options):
                    keep(piece)
                    yield piece

    return stream


def _arun(original: Any) -> Any:
    async def arun(self: Any, tool_input: Any, *args: Any, **options: Any) -> Any:
        scope = active()
        if scope is None:
            return await original(self, tool_input, *args, **options)
        words = scope.using(self, tool_input, options.get("tool_call_id"))

        async def do() -> Any:
            try:
                return await original(self, tool_input, *args, **options)
            except Exception as error:
                scope.judge(error, words)
                raise

        return await scope.seam.tool(do=do, **words)

    return arun


def _run(original: Any) -> Any:
    def run(self: Any, tool_input: Any, *args: Any, **options: Any) -> Any:
        scope = active()
        if scope is None:
            return original(self, tool_input, *args, **options)
        words = scope.using(self, tool_input, options.get("tool_call_id"))

        def do() -> Any:
            try:
                return original(self, tool_input, *args, **options)
            except Exception as error:
                scope.judge(error, words)
                raise

        return scope.seam.tool_sync(do=do, **words)

    return run


_REPLACED: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (BaseChatModel, "_agenerate_with_cache", _agenerate),
    (BaseChatModel, "_generate_with_cache", _generate),
    (BaseChatModel, "astream", _astream),
    (BaseChatModel, "stream", _stream),
    (BaseTool, "arun", _arun),
    (BaseTool, "run", _run),
)
_lock = Lock()
_installed: list[str] = []


def _install() -> None:
    if _installed:
        return
    with _lock:
        if _installed:
            return
        for kind, name, made in _REPLACED:
            original = getattr(kind, name)
            setattr(kind, name, functools.wraps(original)(made(original)))
            _installed.append(name)


# Streams --------------------------------------------------------------------------------------------


def _stream_of(
    model: Any, given: Any, options: dict[str, Any], stop: Any, *, is_async: bool
) -> _Stream | None:
    """The recorded stream that a call is; None outside of a run, and for a model that has no streams."""
    scope = active()
    wanted = {**options, "stop": stop, "stream": True}
    if scope is None or not model._should_stream(async_api=is_async, **wanted):  # noqa: SLF001 - as the method itself decides
        return None
    messages = model._convert_input(given).to_messages()  # noqa: SLF001 - as the method itself does
    return _Stream(scope.seam, scope.asking(model, messages, options, stop))


class _Stream:
    """A model call whose answer comes in pieces."""

    def __init__(self, seam: Seam, asking: Asking) -> None:
        self._seam = seam
        self._asking = asking
        self._stream = seam.stream(**asking.words)

    def given(self) -> Sequence[BaseMessage]:
        """What is sent."""
        return hinted(self._asking.messages, self._seam.hint)

    def known(self) -> Iterator[AIMessageChunk]:
        """The answer in one piece, where it is known."""
        if self._stream.known is not None:
            yield _as_piece(self._stream.known.generations[0].message)

    @contextmanager
    def passing(self) -> Generator[Callable[[Any], None] | None]:
        """Around the pieces as they come; what keeps each of them, None where the answer is known."""
        if self._stream.known is not None:
            yield None
            return
        pieces: list[AIMessageChunk] = []
        with self._stream.passing():
            yield pieces.append
            whole = pieces[0] if pieces else AIMessageChunk(content="")
            for piece in pieces[1:]:
                whole = whole + piece
            answer = finished(ChatResult(generations=[ChatGeneration(message=whole)]))
        self._stream.done(answer)

    async def durable(self) -> None:
        """Wait until the answer is stored, where a store keeps the run."""
        await self._stream.durable()


def _as_piece(message: BaseMessage) -> AIMessageChunk:
    kept = {name: value for name, value in dict(message).items() if name != "type"}
    return AIMessageChunk(**kept, chunk_position="last")
