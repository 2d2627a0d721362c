"""Whether reading an object runs code that may do anything: that of an application, or of a test.

Code of the standard library and of installed packages is trusted to come back: the properties of
clients hand out what is in memory. Any other property, `__str__` or method that reading would run
is not; `capture` then reads in a thread, see `_guard`.
"""

from __future__ import annotations

import abc
import os
import sys
from collections.abc import Hashable, Iterable
from functools import cache, lru_cache
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    WrapperDescriptorType,
)
from typing import Any, cast

_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})
_CONTAINERS = frozenset({dict, list, tuple})
_OF_THE_LANGUAGE = (
    BuiltinFunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
_METHODS = """
    __getattribute__ __getattr__ __str__ __repr__ __format__ __class__ __dict__ __iter__ __next__
    __len__ __int__ __float__ __index__ __bool__ __eq__ __hash__ __getitem__ __contains__ __call__
    items get keys values errors code trailing_metadata total_seconds
"""
_CALLED = frozenset(_METHODS.split())
"""Methods that reading may call, by the language or by name."""
_MOST_VALUES = 200
_DEEPEST = 5

# The language's own descriptors: asking them runs no code of the object's class.
_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
attributes_of = BaseException.__dict__["__dict__"].__get__
args_of = BaseException.__dict__["args"].__get__


def runs_foreign_code(exc: BaseException) -> bool:
    """Whether reading this exception, its values included, may run code that nobody vouches for."""
    return not _Check().exception(exc)


class _Check:
    """One look at an exception; as soon as it has become long, the answer is no."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _MOST_VALUES

    def exception(self, exc: BaseException) -> bool:
        if not trusted(type(exc)):
            return False
        held: dict[str, Any] = attributes_of(exc)
        # The members of a group are looked at one by one, as far as they are followed.
        args = args_of(exc)[: 1 if issubclass(type(exc), BaseExceptionGroup) else None]
        return self.all(args, _DEEPEST) and (not held or self.all(held.values(), _DEEPEST))

    def all(self, values: Iterable[Any], depth: int) -> bool:
        return all(type(value) in _SCALARS or self.value(value, depth) for value in values)

    def value(self, value: Any, depth: int) -> bool:
        kind = type(value)
        self.left -= 1
        if depth == 0 or self.left < 0:
            return False
        if kind in _CONTAINERS:
            inner = (*value, *value.values()) if kind is dict else value
            return self.all(inner, depth - 1)
        if kind is FunctionType or kind is MethodType:
            return _vouched(value)
        if not trusted(kind):
            return False
        held = None if _of_a_package(cast("Hashable", kind)) else _held(value)
        return held is None or self.all(held.values(), depth - 1)


def _held(value: object) -> dict[str, Any] | None:
    """The attributes of an object whose class has none of its own to give them."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def trusted(kind: type) -> bool:
    """Whether an instance can be read, apart from what it holds, without running foreign code."""
    return plain_class(kind) and _class(cast("Hashable", kind))


def plain_class(kind: type) -> bool:
    """Whether a class can be hashed and asked for its name: a stranger's metaclass may forbid both."""
    meta = type(kind)
    return (
        meta is type
        or meta is abc.ABCMeta
        or (type(meta) is type and _installed_class(cast("Hashable", meta)))
    )


@lru_cache(maxsize=1024)
def _class(kind: Hashable) -> bool:
    return all(_plain_names(_namespace(cls)) for cls in _mro(kind))


def _plain_names(namespace: Any) -> bool:
    return all(
        _member(value, called=name in _CALLED)
        for name, value in namespace.items()
        if name not in ("__weakref__", "__doc__", "__module__")
    )


def _member(value: Any, *, called: bool) -> bool:
    """Whether a class may have this among its members and still be read without a thread."""
    kind: Any = type(value)
    if kind in _SCALARS or kind in _OF_THE_LANGUAGE:
        return True
    if kind is FunctionType or kind is MethodType:
        return not called or _vouched(value)
    if kind is property or kind is classmethod or kind is staticmethod:
        function = value.fget if kind is property else value.__func__
        return not (called or kind is property) or function is None or _vouched(function)
    if kind is MemberDescriptorType:  # a slot can hold anything
        return not value.__objclass__.__flags__ & _MADE_BY_A_STATEMENT
    if kind in _CONTAINERS:
        inner = (*value, *value.values()) if kind is dict else value
        return all(type(item) in _SCALARS for item in inner)
    wrapped = getattr(value, "func", None) if _installed_class(kind) else None
    if wrapped is not None:  # cached_property and its like
        return _vouched(wrapped)
    return _installed_class(kind)


def _vouched(function: Any) -> bool:
    """Whether the code of a function or method came with the interpreter or with a package."""
    kind = type(function)
    if kind is MethodType:
        return _vouched(function.__func__)
    if kind is FunctionType:
        return _installed(function.__code__.co_filename)
    return kind in _OF_THE_LANGUAGE


_MADE_BY_A_STATEMENT = 1 << 9
"""The flag of a type that is no part of the interpreter (Py_TPFLAGS_HEAPTYPE)."""


@lru_cache(maxsize=1024)
def _of_a_package(kind: Hashable) -> bool:
    """Whether the class was written in an installed package, by the code of its own methods."""
    codes = [value for value in _namespace(kind).values() if type(value) is FunctionType]
    return bool(codes) and all(_installed(value.__code__.co_filename) for value in codes)


@lru_cache(maxsize=1024)
def _installed_class(kind: Hashable) -> bool:
    """Whether all code of a descriptor's class is the language's or an installed package's."""
    return all(
        _installed(value.__code__.co_filename)
        for cls in _mro(kind)
        for value in _namespace(cls).values()
        if type(value) is FunctionType
    )


@cache
def _places() -> tuple[str, ...]:
    """Where the interpreter and installed packages keep their code, without a look at the disk: this
    is asked for in an event loop.
    """
    found = {os.__file__.rpartition("os.py")[0]}
    found |= {f"{path}/" for path in sys.path if path.endswith(_OF_PACKAGES)}
    return (*(path.replace("\\", "/") for path in found), "<frozen ")


_OF_PACKAGES = ("site-packages", "dist-packages")


@lru_cache(maxsize=4096)
def _installed(filename: str) -> bool:
    """Whether code of this file came with the interpreter or with a package."""
    return filename.replace("\\", "/").startswith(_places())
