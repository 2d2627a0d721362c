"""What fails of ours on the way of a request is logged, and its caller has what there is without us."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from triage.adapters.calls import UnfinishedStream
from triage.adapters.tools import CallRefused
from triage.core.errors import TriageError
from triage.core.observers import child_logger
from triage.engine.drivers import ASYNC, SYNC, Driver, step

if TYPE_CHECKING:
    from .requests import Tee

__all__ = ["Guarded", "Passage", "passing"]

_MEANT = (TriageError, UnfinishedStream, CallRefused)
"""Exceptions of ours that are for the caller."""
_log = child_logger("adapters")


class Passage:
    """One request on its way through our code: what the library has said of it last.

    original: the library's method, async or `immediate`. answer: what it gave, None before it did. error:
    what it raised, or what reading its answer did. meant: exceptions beside these that are for the caller.
    """

    def __init__(self, original: Any, *meant: type[Exception]) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None
        self._meant = (*_MEANT, *meant)
        self._original = original

    async def send(self, *args: Any, **kwargs: Any) -> Any:
        """Call the library's method."""
        self.answer = self.error = None
        self.answer = await self.read(self._original, *args, **kwargs)
        return self.answer

    async def read(self, work: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Do what the library does by itself: what it raises is for the caller."""
        try:
            return await work(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise

    def forgive(self, error: Exception) -> None:
        """Log an exception of ours. Raises what is for the caller."""
        if isinstance(error, self._meant):
            raise error
        if self.error is not None:
            raise self.error
        _note(error)


def _note(error: Exception) -> None:
    _log.error("a request to a model passes unrecorded, as its recording failed", exc_info=error)


class Guarded:
    """A tee that keeps what is streamed. The first mistake that it makes ends it, and nobody is told."""

    def __init__(self, tee: Tee) -> None:
        self._tee: Tee | None = tee

    def keep(self, chunk: bytes, decode: Callable[[bytes], bytes] = bytes) -> None:
        """Keep a chunk before it is given on. decode: for reading it."""
        self._do(lambda tee: tee.feed(decode(chunk)))

    async def durable(self, driver: Driver = ASYNC) -> None:
        """Wait until the whole answer is stored, once it has come."""
        if self._tee is not None and self._tee.over:
            try:
                await self._tee.recording.durable(driver)
            except Exception as error:
                self._forgive(error)

    def end(self) -> None:
        """The body has ended. Raises UnfinishedStream where the answer had not."""
        self._do(lambda tee: tee.end())

    def failed(self, error: BaseException) -> None:
        """The connection broke, or the reader left."""
        self._do(lambda tee: tee.failed(error))

    def left(self) -> None:
        """Nobody reads on."""
        self._do(lambda tee: tee.left())

    def _do(self, work: Callable[[Tee], None]) -> None:
        if self._tee is not None:
            try:
                work(self._tee)
            except Exception as error:
                self._forgive(error)

    def _forgive(self, error: Exception) -> None:
        if isinstance(error, _MEANT):
            raise error
        self._tee = None
        _note(error)


def passing(
    tee: Guarded, chunks: Iterable[bytes], decode: Callable[[bytes], bytes] = bytes
) -> Iterator[bytes]:
    """Give on the chunks of a body as they come, each after it is kept. decode: for reading it."""
    try:
        for chunk in chunks:
            tee.keep(chunk, decode)
            step(tee.durable(SYNC))
            yield chunk
    except BaseException as error:
        tee.failed(error)
        raise
    tee.end()
