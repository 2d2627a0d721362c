"""Reading untrusted objects: nothing here raises or grows without bound.

A property of an exception is somebody's function, and may sleep or wait for a network. Where reading an
exception would run code that came neither with the interpreter nor with an installed package
(`runs_foreign_code`), it is read in a thread that is waited for only briefly (`within`).
"""

from __future__ import annotations

import abc
import math
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import islice
from queue import Empty, SimpleQueue
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    WrapperDescriptorType,
)
from typing import Any, TypeVar, cast

MAX_TEXT = 4_000
"""Characters kept of a message."""
MAX_ITEMS = 40
"""Entries kept of one container."""
MAX_DEPTH = 6
"""Containers kept inside each other."""
MAX_NODES = 400
"""Values kept of one body."""

T = TypeVar("T")


def _or_none(function: Callable[..., Any], *args: Any) -> Any:
    """What foreign code returns, None if it raises: it may raise anything, SystemExit too."""
    try:
        return function(*args)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def attr(obj: object, name: str) -> Any:
    """The attribute, or None where there is none or reading it fails."""
    return _or_none(getattr, obj, name, None)


def call(obj: object, name: str, *args: Any) -> Any:
    """What the method returns, or None."""
    method = attr(obj, name)
    return None if method is None else _or_none(method, *args)


def is_a(value: object, kind: type[T]) -> bool:
    """`isinstance` by the real class: an object that lies about `__class__` is not believed."""
    return issubclass(type(value), kind)


def is_mapping(value: object) -> bool:
    """Whether the value's real class is a mapping."""
    try:
        return issubclass(type(value), Mapping)
    except Exception:  # a metaclass that cannot be hashed, for one
        return False


def text_of(value: object, limit: int = MAX_TEXT) -> str:
    """`str(value)`, decoded if it is bytes, cut to `limit` characters; empty if that fails."""

    def text() -> str:
        if is_a(value, bytes) or is_a(value, bytearray):
            return bytes(value[:limit]).decode("utf-8", "replace")  # type: ignore[index] # bytes, as tested above
        # A subclass of str may override slicing; the base class's own methods do not run its code.
        return str.__getitem__(str.__str__(str(value)), slice(0, limit))

    return value[:limit] if type(value) is str else _or_none(text) or ""


def words(value: object, limit: int = 200) -> str | None:
    """A non-empty short text, or None for anything that is not text."""
    return (text_of(value, limit).strip() or None) if is_a(value, str) else None


def whole(value: object) -> int | None:
    """A whole number (an enum of numbers too), None for anything else; True and False are none."""
    if is_a(value, bool) or not is_a(value, int):
        return None
    return int.__int__(value)  # type: ignore[arg-type] # an int, as tested above


def seconds(value: object) -> float | None:
    """A finite number of seconds from 0, given as a number, as digits or as a timedelta."""
    if is_a(value, bool) or value is None:
        return None
    try:
        if is_a(value, str) or is_a(value, bytes):
            text = text_of(value, 40).strip()
            found = float(text[:-1] if text[-1:] in "sS" else text)
        elif is_a(value, int) or is_a(value, float):
            found = float(value)  # type: ignore[arg-type] # a number, as tested above
        else:
            total = call(value, "total_seconds")
            found = float(total) if total is not None else math.nan
    except Exception:  # not a number, or too large for one
        return None
    return found if 0 <= found < math.inf else None


def some(value: Any, limit: int = MAX_ITEMS) -> list[Any]:
    """The first items of an iterable, none if iterating fails."""
    return _or_none(lambda: list(islice(iter(value), limit))) or []


def items(value: object) -> Iterator[tuple[Any, Any]]:
    """The pairs of a mapping-like object or of a sequence of pairs, at most `MAX_ITEMS` of them."""
    pairs = call(value, "items")
    if pairs is None and (is_a(value, list) or is_a(value, tuple)):
        pairs = value
    for pair in some(pairs):
        found = some(pair, 3)
        if len(found) == 2:
            yield found[0], found[1]


def entry(container: object, key: str) -> Any:
    """`container[key]` of a mapping, None where there is none."""
    if not is_mapping(container):
        return None
    return _or_none(lambda: cast("Mapping[str, Any]", container).get(key))


def plain(value: object) -> Any:
    """A small copy in JSON types; what does not fit is cut, what has no JSON form is None."""
    left = MAX_NODES

    def copy(value: object, depth: int) -> Any:
        nonlocal left
        left -= 1
        if value is None or left < 0:
            return None
        if is_a(value, str) or is_a(value, bytes):
            return text_of(value, 2_000)
        if is_a(value, int) or is_a(value, float):
            return _number(value)
        if depth > 0 and is_mapping(value):
            return {text_of(key, 100): copy(item, depth - 1) for key, item in items(value)}
        if depth > 0 and (is_a(value, list) or is_a(value, tuple)):
            return [copy(item, depth - 1) for item in some(value)]
        return None

    return copy(value, MAX_DEPTH)


def _number(value: object) -> Any:
    """A finite number that every JSON reader can hold, True and False included; None otherwise."""
    if is_a(value, bool):
        return value is True
    number = whole(value)
    if number is not None:
        return number if abs(number) < 1 << 63 else None
    return value if math.isfinite(cast("float", value)) else None


# Whether reading an exception runs code of an application, or of a test.
#
# Code of the standard library and of installed packages is trusted to come back: the properties of
# clients hand out what is in memory. Any other property, `__str__` or method that reading would run
# is not.


_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
_CONTAINERS = frozenset({dict, list, tuple})
_OF_THE_LANGUAGE = (
    BuiltinFunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
_CALLED = frozenset(
    """
    __getattribute__ __getattr__ __str__ __repr__ __format__ __class__ __dict__ __iter__ __next__
    __len__ __int__ __float__ __index__ __bool__ __eq__ __hash__ __getitem__ __contains__ __call__
    items get keys values errors code trailing_metadata total_seconds
    """.split()
)
"""Methods that reading may call, by the language or by name."""
_MOST_VALUES = 200
_DEEPEST = 5
_IS_HEAP_TYPE = 1 << 9
"""The flag of a class that is no part of the interpreter (Py_TPFLAGS_HEAPTYPE)."""

# The language's own descriptors: asking them runs no code of the object's class.
mro_of = type.__dict__["__mro__"].__get__
namespace_of = type.__dict__["__dict__"].__get__
attributes_of = BaseException.__dict__["__dict__"].__get__
args_of = BaseException.__dict__["args"].__get__


def runs_foreign_code(exc: BaseException) -> bool:
    """Whether reading this exception, its values included, may run untrusted code.

    A look that becomes long ends with True.
    """
    left = _MOST_VALUES

    def all_safe(values: Iterable[Any], depth: int) -> bool:
        return all(type(value) in _SCALARS or is_safe(value, depth) for value in values)

    def is_safe(value: Any, depth: int) -> bool:
        nonlocal left
        left -= 1
        if depth == 0 or left < 0:
            return False
        kind = type(value)
        if kind in _CONTAINERS:
            return all_safe(_values_of(value), depth - 1)
        if kind is FunctionType or kind is MethodType:
            return _is_vouched(value)
        if not trusted(kind):
            return False
        if _is_of_a_package(cast("Hashable", kind)):
            return True
        return all_safe(instance_dict(value).values(), depth - 1)

    # The members of a group are looked at one by one, as far as they are followed.
    args = args_of(exc)[: 1 if issubclass(type(exc), BaseExceptionGroup) else None]
    held = attributes_of(exc).values()
    return not (trusted(type(exc)) and all_safe(args, _DEEPEST) and all_safe(held, _DEEPEST))


def instance_dict(value: object) -> dict[str, Any]:
    """The attributes of an object, read without code of its class; none where it has no dict."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def trusted(kind: type) -> bool:
    """Whether an instance can be read, apart from what it holds, without running foreign code."""
    return is_plain_class(kind) and _has_trusted_members(cast("Hashable", kind))


def is_plain_class(kind: type) -> bool:
    """Whether a class can be hashed: the metaclass of a stranger may forbid it."""
    meta = type(kind)
    return (
        meta is type
        or meta is abc.ABCMeta
        or (type(meta) is type and _has_installed_code(cast("Hashable", meta)))
    )


@lru_cache(maxsize=1024)
def _has_trusted_members(kind: Hashable) -> bool:
    return all(
        _is_trusted_member(value, called=name in _CALLED)
        for cls in mro_of(kind)
        for name, value in namespace_of(cls).items()
    )


def _is_trusted_member(value: Any, *, called: bool) -> bool:
    """Whether a class may have this among its members and still be read without a thread."""
    kind: Any = type(value)
    if kind in _SCALARS or kind in _OF_THE_LANGUAGE:
        return True
    if kind is FunctionType or kind is MethodType:
        return not called or _is_vouched(value)
    if kind is property or kind is classmethod or kind is staticmethod:
        function = value.fget if kind is property else value.__func__
        return not (called or kind is property) or function is None or _is_vouched(function)
    if kind is MemberDescriptorType:  # a slot can hold anything
        return not value.__objclass__.__flags__ & _IS_HEAP_TYPE
    if kind in _CONTAINERS:
        return all(type(item) in _SCALARS for item in _values_of(value))
    if not _has_installed_code(kind):
        return False
    wrapped = getattr(value, "func", None)  # of cached_property and its like
    return wrapped is None or _is_vouched(wrapped)


def _values_of(container: Any) -> Iterable[Any]:
    return (*container, *container.values()) if type(container) is dict else container


def _is_vouched(function: Any) -> bool:
    """Whether the code of a function or method came with the interpreter or with a package."""
    kind = type(function)
    if kind is MethodType:
        return _is_vouched(function.__func__)
    return kind in _OF_THE_LANGUAGE or (
        kind is FunctionType and _is_installed(function.__code__.co_filename)
    )


@lru_cache(maxsize=1024)
def _is_of_a_package(kind: Hashable) -> bool:
    """Whether the class was written in an installed package, by the code of its own methods."""
    own = [value for value in namespace_of(kind).values() if type(value) is FunctionType]
    return bool(own) and all(_is_installed(function.__code__.co_filename) for function in own)


@lru_cache(maxsize=1024)
def _has_installed_code(kind: Hashable) -> bool:
    """Whether all code of a class is the language's or an installed package's."""
    return all(
        _is_installed(value.__code__.co_filename)
        for cls in mro_of(kind)
        for value in namespace_of(cls).values()
        if type(value) is FunctionType
    )


@lru_cache(maxsize=4096)
def _is_installed(filename: str) -> bool:
    return filename.replace("\\", "/").startswith(_installed_places())


@cache
def _installed_places() -> tuple[str, ...]:
    """Where the interpreter and packages keep their code, without a look at the disk: this is asked
    in an event loop.
    """
    found = {os.__file__.rpartition("os.py")[0]}
    found |= {f"{path}/" for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    return (*(path.replace("\\", "/") for path in found), "<frozen ")


# Foreign code, run where it can neither block the event loop nor take for ever.


SECONDS = 0.5
"""Seconds a reader waits. Whatever is not read by then is left out."""
_MOST_RUNNING = 8
"""Threads that may hang at once; with so many, nothing foreign is run until one comes back."""

_running: set[SimpleQueue[Any]] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # a child has none of its parent's threads


class TooSlowError(Exception):
    """The code did not come back in time, or too much of its like has not."""


def within(function: Callable[..., T], *args: Any) -> T:
    """What the function returns, or raises, if it comes back within `SECONDS`.

    Raises TooSlowError if it does not, or if `_MOST_RUNNING` earlier ones have not come back yet.
    """
    reply: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def work() -> None:
        outcome: tuple[T | None, BaseException | None]
        try:
            outcome = function(*args), None
        except BaseException as error:
            outcome = None, error
        _running.discard(reply)
        reply.put(outcome)

    if len(_running) >= _MOST_RUNNING:
        raise TooSlowError
    _running.add(reply)
    try:
        threading.Thread(target=work, name="triage-reader", daemon=True).start()
    except RuntimeError:  # the machine has no more threads, or the interpreter is ending
        _running.discard(reply)
        raise TooSlowError from None
    try:
        value, error = reply.get(timeout=SECONDS)
    except Empty:
        raise TooSlowError from None
    if error is not None:
        raise error
    return cast("T", value)
