"""From a live exception to plain data.

Everything is read by duck typing; no client library is imported, nothing is fetched, and no
exception, however hostile, makes `capture` raise or keeps it busy: texts, containers and chains are
cut.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Hashable
from functools import lru_cache
from typing import cast

from triage.failures import ErrorInfo

from . import _answer, _phase, _retry_after
from ._hint import is_not_attempted, written
from ._probe import attr, is_a, seconds, some, text_of, words

MAX_RELATED = 24
"""Exceptions followed through causes, contexts and groups."""
MAX_CHAIN = 12
"""How deep they may hang from each other."""


def capture(exc: BaseException) -> ErrorInfo:
    """What is known of a live exception, with its causes, contexts and group members.

    Never raises. At most `MAX_RELATED` exceptions are followed, each once.
    """
    return _Capture().take(exc, "", MAX_CHAIN)


class _Capture:
    """One walk over a chain: what was seen, and the time all dates are measured from."""

    __slots__ = ("left", "now", "seen")

    def __init__(self) -> None:
        self.left = MAX_RELATED
        self.now = time.time()
        self.seen: set[int] = set()

    def take(self, exc: BaseException, relation: str, depth: int) -> ErrorInfo:
        self.seen.add(id(exc))
        # Depth first for causes, so that a wide group cannot use up what a chain needs.
        related = tuple(
            self.take(other, how, depth - 1)
            for other, how in self._others(exc)
            if self._admit(other, depth)
        )
        return _info(exc, relation, related, self.now)

    def _admit(self, exc: BaseException, depth: int) -> bool:
        if depth == 0 or self.left == 0 or id(exc) in self.seen:
            return False
        self.left -= 1
        return True

    @staticmethod
    def _others(exc: BaseException) -> list[tuple[BaseException, str]]:
        found: list[tuple[BaseException, str]] = []
        cause = attr(exc, "__cause__")
        if is_a(cause, BaseException):
            found.append((cause, "cause"))
        elif attr(exc, "__suppress_context__") is not True:
            context = attr(exc, "__context__")
            if is_a(context, BaseException):
                found.append((context, "context"))
        if is_a(exc, BaseExceptionGroup):
            members = some(attr(exc, "exceptions"), MAX_RELATED)
            found += [(member, "group") for member in members if is_a(member, BaseException)]
        return found


def _info(
    exc: BaseException, relation: str, related: tuple[ErrorInfo, ...], now: float
) -> ErrorInfo:
    mro, names = _classes(cast("Hashable", type(exc)))
    message = _message(exc, names)
    bare = _bare(exc)
    answer = _answer.NOTHING if bare else _answer.read(exc, names)
    delay = _retry_after.from_text(message) if bare else _delay(exc, answer, message, now)
    phase = _phase.of(names, answer.code, message, answered=answer.status is not None)
    if not bare and is_not_attempted(exc):
        phase = "not_sent"
    if phase is None and _phase.wraps(names):
        phase = next((info.phase for info in related if info.phase in ("not_sent", "sent")), None)
    return ErrorInfo(
        type_name=names[0],
        module=mro[0].rpartition(".")[0] if "." in mro[0] else "",
        mro=mro,
        message=message,
        status_code=answer.status,
        code=answer.code,
        retry_after_s=delay,
        phase=phase,
        body=answer.body,
        hint=None if bare else written(exc),
        notes=() if bare else tuple(text_of(note, 500) for note in some(attr(exc, "__notes__"), 8)),
        relation=relation,
        related=related,
    )


def _bare(exc: BaseException) -> bool:
    """True for a built-in exception that nobody has hung anything on: it holds no answer."""
    return (
        type(exc) in _BUILT_IN
        and not BaseException.__getattribute__(exc, "__dict__")
        and not (isinstance(exc, OSError) and exc.errno is not None)
    )


# Those whose own attributes say nothing of an answer, of a delay or of a code.
_BUILT_IN = frozenset(
    kind
    for kind in vars(builtins).values()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, BaseExceptionGroup | UnicodeError | SyntaxError | StopIteration)
)


@lru_cache(maxsize=512)
def _classes(kind: Hashable) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`module.QualName` and the plain names of a class and its bases, `object` left out."""
    full: list[str] = []
    names: list[str] = []
    assert isinstance(kind, type)
    for cls in type.mro(kind)[:-1][:32]:
        name = words(attr(cls, "__name__"), 200) or "Exception"
        module, qualname = (
            words(attr(cls, "__module__"), 200),
            words(attr(cls, "__qualname__"), 200),
        )
        full.append(f"{module}.{qualname or name}" if module else qualname or name)
        names.append(name)
    return tuple(full), tuple(names)


def _message(exc: BaseException, names: tuple[str, ...]) -> str:
    message = text_of(exc)
    if not message.strip():
        # KeyError('') and a broken __str__ alike: the class is all that can be said.
        return names[0]
    return message


def _delay(exc: BaseException, answer: _answer.Answer, message: str, now: float) -> float | None:
    for headers in answer.headers:
        delay = _retry_after.from_headers(headers, now)
        if delay is not None:
            return delay
    delay = _retry_after.from_details(exc)
    if delay is None:
        delay = _retry_after.from_body(answer.body)
    if delay is None:
        delay = seconds(attr(exc, "retry_after"))
    return _retry_after.from_text(message) if delay is None else delay
