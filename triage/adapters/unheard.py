"""Models that may not ask over HTTP: their calls are recorded where the framework makes them.

Whether one does is known once it has been asked. Until then its call is recorded when it has ended, and
only if nothing of it was seen on the wire meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from triage.engine.drivers import ASYNC, Driver

from .calls import Passing, Stream

T = TypeVar("T")
_listening: ContextVar[_Heard | None] = ContextVar("triage_listening", default=None)


class Kind(NamedTuple):
    """A model as a framework has it: its class, and its name."""

    type: type
    name: str


class _Heard:
    """Whether a request to a model has left meanwhile. who: the agent that asks; here: as of `Unheard`."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.any = False
        self.here = False


ON_WIRE: set[Kind] = set()
"""Models that ask over HTTP, where their calls are recorded."""
UNHEARD: set[Kind] = set()
"""Models whose calls are recorded here."""


def note_heard() -> str | None:
    """Note that a request to a model leaves; the agent that asks, empty where nobody says so.

    None for the request of a call that is recorded where the framework makes it.
    """
    heard = _listening.get()
    if heard is None:
        return ""
    heard.any = True
    return None if heard.here else heard.who


def is_listening() -> bool:
    """Whether this code is part of a model call, as is that of a model that asks another one."""
    return _listening.get() is not None


class Unheard(Passing):
    """A model call of a framework. known: its recorded answer; None where it must be asked for.

    hint: gives what the framework tells the model; None where that is written into the request that leaves.
    begin: begins the recorded call; None for one that is recorded on the wire. here: it is begun before the
    model is asked, and what leaves is a part of it. who: as of `ModelOptions`.
    """

    def __init__(
        self,
        kind: Kind,
        begin: Callable[[], Stream] | None,
        hint: Callable[[], str | None],
        *,
        here: bool,
        who: str = "",
    ) -> None:
        self._kind = kind
        self._begin = begin
        self._heard = _listening.get() or _Heard(who)
        self._made = begin() if here and begin is not None else None
        self._heard.here |= self._made is not None
        # Behind what is given again: only then is it known what this attempt is told.
        self.hint = None if begin is None else hint()
        self.known: Any = None if self._made is None else self._made.known

    @contextmanager
    def listening(self) -> Generator[None]:
        """Around code that may send the request; not around a `yield`."""
        token = _listening.set(self._heard)
        try:
            yield
        finally:
            _listening.reset(token)

    async def pieces(self, source: AsyncIterator[T]) -> AsyncGenerator[T]:
        """The pieces of an answer as they come; the first one may send the request."""
        while True:
            with self.listening():
                piece = await anext(source, _END)
            if isinstance(piece, _End):
                return
            yield piece

    def pieces_sync(self, source: Iterator[T]) -> Iterator[T]:
        """`pieces` for sync code."""
        while True:
            with self.listening():
                piece = next(source, _END)
            if isinstance(piece, _End):
                return
            yield piece

    def done(self, answer: Any) -> None:
        """Record the complete answer, as the framework has it."""
        made = self._recorded()
        if made is not None:
            made.done(answer)

    def failed(self, error: BaseException) -> None:
        """Record that the call broke off with this error. Does nothing after `done`."""
        made = self._recorded()
        if made is not None:
            made.failed(error)

    def _recorded(self) -> Stream | None:
        """The recorded call, begun now at the latest; None where it is recorded on the wire."""
        begin, self._begin = self._begin, None
        if self._heard.any:
            ON_WIRE.add(self._kind)
            UNHEARD.discard(self._kind)
        elif begin is not None and self._made is None:
            UNHEARD.add(self._kind)
            self._made = begin()
        return self._made

    async def durable(self, driver: Driver = ASYNC) -> None:
        """As `Stream.durable`."""
        if self._made is not None:
            await self._made.durable(driver)


class _End:
    """Stands behind the last piece."""


_END = _End()
