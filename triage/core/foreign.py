"""Read untrusted objects: nothing here raises or grows without bound.

A property of an exception is arbitrary code, which may sleep or wait for a network. An exception whose
reading would run code from neither the interpreter nor an installed package (`runs_foreign_code`) is
read by `capture` in a thread, within half a second.
"""

from __future__ import annotations

import abc
import math
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import islice
from types import (
    BuiltinFunctionType,
    FrameType,
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
"""Maximum entries kept of one container."""
MAX_DEPTH = 6
"""Maximum depth of nested containers."""
MAX_NODES = 400
"""Maximum values kept of one body."""

T = TypeVar("T")


def _or_none(function: Callable[..., Any], *args: Any) -> Any:
    """Call foreign code; return None if it raises anything, even SystemExit."""
    try:
        return function(*args)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def attr(obj: object, name: str) -> Any:
    """Return an attribute, or None if it is missing or cannot be read."""
    return _or_none(getattr, obj, name, None)


def call(obj: object, name: str, *args: Any) -> Any:
    """Return the result of a method, or None if it is missing or fails."""
    method = attr(obj, name)
    return None if method is None else _or_none(method, *args)


def is_a(value: object, kind: type[T]) -> bool:
    """As `isinstance`, but by the real class, ignoring a `__class__` that lies."""
    return issubclass(type(value), kind)


def is_mapping(value: object) -> bool:
    """Whether the value's real class is a mapping."""
    try:
        return issubclass(type(value), Mapping)
    except Exception:  # such as a class that cannot be hashed
        return False


def text_of(value: object, limit: int = MAX_TEXT) -> str:
    """Return `str(value)`, or bytes decoded, cut to `limit` characters; empty if that fails."""

    def text() -> str:
        if is_a(value, bytes) or is_a(value, bytearray):
            return bytes(value[:limit]).decode("utf-8", "replace")  # type: ignore[index] # bytes, as tested above
        # A subclass of str may override slicing, so the methods of the base class are used.
        return str.__getitem__(str.__str__(str(value)), slice(0, limit))

    return value[:limit] if type(value) is str else _or_none(text) or ""


def words(value: object, limit: int = 200) -> str | None:
    """Return a short text if it is not empty, None for anything else."""
    return (text_of(value, limit).strip() or None) if is_a(value, str) else None


def whole(value: object) -> int | None:
    """Return a whole number (also from an enum), None for anything else, booleans included."""
    if is_a(value, bool) or not is_a(value, int):
        return None
    return int.__int__(value)  # type: ignore[arg-type] # an int, as tested above


def seconds(value: object) -> float | None:
    """Return a finite number of seconds from 0, given as a number, digits or a timedelta; else None."""
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
    except Exception:  # not a number, or too large
        return None
    return found if 0 <= found < math.inf else None


def some(value: Any, limit: int = MAX_ITEMS) -> list[Any]:
    """Return the first items of an iterable; an empty list if iterating fails."""
    return _or_none(lambda: list(islice(iter(value), limit))) or []


def items(value: object) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of a mapping-like object or a sequence of pairs, at most `MAX_ITEMS`."""
    pairs = call(value, "items")
    if pairs is None and (is_a(value, list) or is_a(value, tuple)):
        pairs = value
    for pair in some(pairs):
        found = some(pair, 3)
        if len(found) == 2:
            yield found[0], found[1]


def entry(container: object, key: str) -> Any:
    """Return `container[key]` of a mapping, None without one."""
    if not is_mapping(container):
        return None
    return _or_none(lambda: cast("Mapping[str, Any]", container).get(key))


def plain(value: object) -> Any:
    """Copy a value into JSON types; large values are cut, values without a JSON form become None."""
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
    """Return a number or boolean that every JSON reader can hold; None for any other."""
    if is_a(value, bool):
        return value is True
    number = whole(value)
    if number is not None:
        return number if abs(number) < 1 << 63 else None
    return value if math.isfinite(cast("float", value)) else None


# Whether reading an exception runs code of an application or a test.
#
# Code of the standard library and of installed packages is trusted to return soon, since the properties
# of clients return data in memory. Any other property, `__str__` or method is not trusted.


_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
_CONTAINERS = frozenset({dict, list, tuple})
_BUILT_IN = (
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
"""Methods that reading an exception may call, implicitly or by name."""
_MOST_VALUES = 200
_MOST_FRAMES = 1_000
_DEEPEST = 5
_IS_HEAP_TYPE = 1 << 9
"""The flag of a class that is not part of the interpreter (Py_TPFLAGS_HEAPTYPE)."""

# The interpreter's own descriptors, which run no code of the object's class.
mro_of = type.__dict__["__mro__"].__get__
namespace_of = type.__dict__["__dict__"].__get__
name_of = type.__dict__["__name__"].__get__
attributes_of = BaseException.__dict__["__dict__"].__get__
args_of = BaseException.__dict__["args"].__get__
_traceback_of = BaseException.__dict__["__traceback__"].__get__


def frames_of(exc: BaseException) -> list[FrameType]:
    """Return the frames of an exception's traceback, outermost first, each once."""
    found: dict[int, FrameType] = {}
    traceback = _traceback_of(exc)
    while traceback is not None and len(found) < _MOST_FRAMES:
        found.setdefault(id(traceback.tb_frame), traceback.tb_frame)
        traceback = traceback.tb_next
    return list(found.values())


def runs_foreign_code(exc: BaseException) -> bool:
    """Whether reading this exception and its values may run untrusted code; also if it holds too many."""
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

    # Members of a group are checked when they are read.
    args = args_of(exc)[: 1 if issubclass(type(exc), BaseExceptionGroup) else None]
    held = attributes_of(exc).values()
    return not (trusted(type(exc)) and all_safe(args, _DEEPEST) and all_safe(held, _DEEPEST))


def instance_dict(value: object) -> dict[str, Any]:
    """Return the attributes of an object without running code of its class; empty without a dict."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def trusted(kind: type) -> bool:
    """Whether an instance, apart from its values, can be read without running foreign code."""
    return is_plain_class(kind) and _has_trusted_members(cast("Hashable", kind))


def is_plain_class(kind: type) -> bool:
    """Whether a class can be hashed; an unknown metaclass may forbid it."""
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
    """Whether a class with this member can still be read without a thread."""
    kind: Any = type(value)
    if kind in _SCALARS or kind in _BUILT_IN:
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
    """Whether the code of a function or method belongs to the interpreter or an installed package."""
    kind = type(function)
    if kind is MethodType:
        return _is_vouched(function.__func__)
    return kind in _BUILT_IN or (
        kind is FunctionType and _is_installed(function.__code__.co_filename)
    )


@lru_cache(maxsize=1024)
def _is_of_a_package(kind: Hashable) -> bool:
    """Whether a class comes from an installed package, judging by the code of its own methods."""
    own = [value for value in namespace_of(kind).values() if type(value) is FunctionType]
    return bool(own) and all(_is_installed(function.__code__.co_filename) for function in own)


@lru_cache(maxsize=1024)
def _has_installed_code(kind: Hashable) -> bool:
    """Whether all code of a class belongs to the interpreter or an installed package."""
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
    """Return the paths of the interpreter's and packages' code, without reading the disk, since an event
    loop may wait.
    """
    found = {os.__file__.rpartition("os.py")[0]}
    found |= {f"{path}/" for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    return (*(path.replace("\\", "/") for path in found), "<frozen ")


# The names in a table of tools in which a lookup raised a KeyError.


NAMES_THERE_ARE = "names there are: "
"""Prefix of the note that lists them, separated by commas."""
_MOST_NAMES = 64
_LONGEST_NAME = 80
_MOST_PLACES = 200


def note_on_table(error: BaseException) -> str | None:
    """Return a note with the names in the table that raised a KeyError; None for any other error.

    A table is a dict of names to functions within reach of the failed lookup: a variable, a global of the
    module, or an attribute of such an object. No code of the application runs.
    """
    if type(error) is not KeyError or len(error.args) != 1 or type(error.args[0]) is not str:
        return None
    frames = frames_of(error)
    if not frames:
        return None
    frame, missing = frames[-1], error.args[0]
    named = frame.f_code.co_names
    places = [*frame.f_locals.values(), *(frame.f_globals.get(name) for name in named)]
    for place in places[:_MOST_PLACES]:
        held = instance_dict(place)
        for table in (place, *(held[name] for name in named if name in held)):
            if (
                type(table) is dict
                and table
                and all(type(name) is str and len(name) <= _LONGEST_NAME for name in table)
                and missing not in table
                and all(map(callable, table.values()))
            ):
                return NAMES_THERE_ARE + ", ".join(list(table)[:_MOST_NAMES])
    return None
