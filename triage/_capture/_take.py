"""From a live exception to plain data.

Everything is read by duck typing; no client library is imported, nothing is fetched, and no
exception, however hostile, makes `capture` raise or keeps it busy: texts, containers and chains are
cut, and code of an application that reading would run gets a bounded time in a thread of its own.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, Literal, cast

from triage.failures import ErrorInfo

from . import _answer, _phase, _retry_after
from ._guard import TooSlowError, within
from ._hint import is_not_attempted, written
from ._probe import MAX_TEXT, attr, is_a, seconds, some, text_of, words
from ._trust import args_of, attributes_of, plain_class, runs_foreign_code, trusted

MAX_RELATED = 24
"""Exceptions followed through causes, contexts and groups."""
MAX_CHAIN = 12
"""How deep they may hang from each other."""


def capture(exc: BaseException) -> ErrorInfo:
    """What is known of a live exception, with its causes, contexts and group members.

    Never raises. At most `MAX_RELATED` exceptions are followed, each once. An exception whose own
    code takes longer than half a second to be read is known by its class and arguments alone.
    """
    kind = type(exc)
    # A stranger's metaclass may refuse to be hashed.
    if type(kind) is type and kind in _BUILT_IN:
        args = args_of(exc)
        # What `raise ValueError("…")` makes is the commonest of all: there is nothing more to read.
        if len(args) == 1 and type(args[0]) is str and _says_only_this(exc):
            return _simple(exc)
    try:
        return _Capture("here").take(exc, "", MAX_CHAIN)
    except _NotHereError:
        pass
    if not _slow.knows(exc):
        try:
            return within(_Capture("guarded").take, exc, "", MAX_CHAIN)
        except TooSlowError:
            _slow.add(exc)
        except Exception:  # noqa: BLE001, S110 - classes can be built to break any reader; what is left is read below
            pass
    return _Capture("bare").take(exc, "", MAX_CHAIN)


def _says_only_this(exc: BaseException) -> bool:
    """True for an exception with nothing about it but its arguments."""
    return (
        not attributes_of(exc)
        and _cause_of(exc) is None
        and (_context_of(exc) is None or _suppresses(exc))
    )


def _simple(exc: BaseException) -> ErrorInfo:
    """What `_info` says of such an exception, at a fraction of the cost: most runs fail with one."""
    kind: Any = type(exc)
    name, mro, phase = _simple_class(kind)
    message = str(exc)[:MAX_TEXT]
    # All fields in their order: what is made of a tuple costs a third of a call with them.
    return _made(ErrorInfo, (
        name, "builtins", mro, message if message.strip() else name, None, None,
        _retry_after.from_text(message), phase, None, None, (), "", (),
    ))  # fmt: skip


_made = tuple.__new__


@lru_cache(maxsize=128)
def _simple_class(kind: Hashable) -> tuple[str, tuple[str, ...], str | None]:
    mro, names = _classes(kind)
    return names[0], mro, _phase.of(names, None, "", answered=False)


class _Slow:
    """Classes that were too slow to read a short while ago: nobody waits for the next of them."""

    SECONDS = 60.0
    MOST = 64

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def knows(self, exc: BaseException) -> bool:
        return bool(self._until) and self._until.get(id(type(exc)), 0.0) > time.monotonic()

    def add(self, exc: BaseException) -> None:
        if len(self._until) >= self.MOST:
            self._until.clear()
        kind = type(exc)
        # Where the class has no code of its own, what this one exception holds was slow.
        if not trusted(kind):
            self._until[id(kind)] = time.monotonic() + self.SECONDS


_slow = _Slow()


class _NotHereError(Exception):
    """Reading would run code that nobody vouches for."""


class _Capture:
    """One walk over a chain: what was seen, and the time all dates are measured from.

    how: `"here"` raises _NotHereError at the first foreign code; `"guarded"` runs it; `"bare"`
    leaves out what could run any.
    """

    __slots__ = ("how", "left", "now", "seen")

    def __init__(self, how: Literal["here", "guarded", "bare"]) -> None:
        self.how = how
        self.left = MAX_RELATED
        self.now = time.time()
        self.seen: set[int] = set()

    def take(self, exc: BaseException, relation: str, depth: int) -> ErrorInfo:
        known = self.how == "guarded" or not runs_foreign_code(exc)
        if not known and self.how == "here":
            raise _NotHereError
        self.seen.add(id(exc))
        # Depth first for causes, so that a wide group cannot use up what a chain needs.
        related = tuple(
            self.take(other, how, depth - 1)
            for other, how in self._others(exc)
            if self._admit(other, depth)
        )
        return _info(exc, relation, related, self.now, known=known)

    def _admit(self, exc: BaseException, depth: int) -> bool:
        if depth == 0 or self.left == 0 or id(exc) in self.seen:
            return False
        self.left -= 1
        return True

    @staticmethod
    def _others(exc: BaseException) -> list[tuple[BaseException, str]]:
        found: list[tuple[BaseException, str]] = []
        # By the language's own descriptors: an exception may have attributes of these names.
        cause = _cause_of(exc)
        if cause is not None:
            found.append((cause, "cause"))
        elif not _suppresses(exc):
            context = _context_of(exc)
            if context is not None:
                found.append((context, "context"))
        if is_a(exc, BaseExceptionGroup):
            members = _members_of(exc)[:MAX_RELATED]
            found += [(member, "group") for member in members if is_a(member, BaseException)]
        return found


_cause_of = BaseException.__dict__["__cause__"].__get__
_context_of = BaseException.__dict__["__context__"].__get__
_suppresses = BaseException.__dict__["__suppress_context__"].__get__
_members_of = BaseExceptionGroup.__dict__["exceptions"].__get__


def _info(
    exc: BaseException,
    relation: str,
    related: tuple[ErrorInfo, ...],
    now: float,
    *,
    known: bool,
) -> ErrorInfo:
    kind = type(exc)
    mro, names = _classes(cast("Hashable", kind)) if plain_class(kind) else _names_of(kind)
    message = _message(exc, names) if known else _from_args(exc, names)
    bare = not known or (plain_class(kind) and _bare(exc))
    answer = _answer.NOTHING if bare else _answer.read(exc, names)
    delay = _retry_after.from_text(message) if bare else _delay(exc, answer, message, now)
    phase = _phase.of(names, answer.code, message, answered=answer.status is not None)
    if is_not_attempted(exc):
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
        hint=written(exc, known=known),
        notes=_notes(exc) if known else (),
        relation=relation,
        related=related,
    )


def _bare(exc: BaseException) -> bool:
    """True for an exception of which nothing can be asked that an answer is read from: it holds none."""
    return (
        _gives_nothing(cast("Hashable", type(exc)))
        and _answer.ASKED.isdisjoint(attributes_of(exc))
        and not (isinstance(exc, OSError) and _errno_of(exc) is not None)
    )


@lru_cache(maxsize=512)
def _gives_nothing(kind: Hashable) -> bool:
    """Whether a class has none of the attributes that an answer, a delay or a code is read from."""
    assert isinstance(kind, type)
    classes = _mro_of(kind)
    if any("__getattr__" in vars(cls) or "__getattribute__" in vars(cls) for cls in classes[:-2]):
        return False
    own = (cls for cls in classes if cls is not OSError)
    return all(_answer.ASKED.isdisjoint(vars(cls)) for cls in own) and _answer.DRIVERS.isdisjoint(
        _classes(kind)[1]
    )


_errno_of = OSError.__dict__["errno"].__get__
# Those that are read in one go where they hold but a text.
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
    assert isinstance(kind, type)
    return _names_of(kind)


def _names_of(kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    full: list[str] = []
    names: list[str] = []
    for cls in _mro_of(kind)[:-1][:32]:
        name = words(_name_of(cls), 200) or "Exception"
        qualname = words(_qualname_of(cls), 200) or name
        module = words(_module(cls), 200)
        full.append(f"{module}.{qualname}" if module else qualname)
        names.append(name)
    return tuple(full), tuple(names)


_mro_of = type.__dict__["__mro__"].__get__
_name_of = type.__dict__["__name__"].__get__
_qualname_of = type.__dict__["__qualname__"].__get__
_module_of = type.__dict__["__module__"].__get__


def _module(cls: type) -> object:
    try:
        return _module_of(cls)
    except AttributeError:  # somebody has deleted it
        return None


def _message(exc: BaseException, names: tuple[str, ...]) -> str:
    message = text_of(exc)
    if not message.strip():
        # KeyError('') and a broken __str__ alike: the class is all that can be said.
        return names[0]
    return message


def _from_args(exc: BaseException, names: tuple[str, ...]) -> str:
    """The first text among the arguments, which is what most exceptions say."""
    said = (words(arg, MAX_TEXT) for arg in args_of(exc)[:4] if type(arg) is str)
    return next((text for text in said if text), names[0])


def _notes(exc: BaseException) -> tuple[str, ...]:
    notes = attributes_of(exc).get("__notes__")
    return tuple(text_of(note, 500) for note in some(notes, 8)) if notes else ()


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
    if delay is None:
        delay = _retry_after.from_text(message)
    if delay is None:
        delay = next(
            (
                found
                for headers in answer.headers
                if (found := _retry_after.from_windows(headers, answer.status, now)) is not None
            ),
            None,
        )
    return delay
