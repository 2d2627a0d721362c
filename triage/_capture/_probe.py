"""Reading foreign objects without trusting them: nothing here raises or grows without bound."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

MAX_TEXT = 4_000
"""Characters kept of a message."""
MAX_ITEMS = 40
"""Entries kept of one container."""
MAX_DEPTH = 6
"""Containers kept inside each other."""
MAX_NODES = 400
"""Values kept of one body."""

T = TypeVar("T")


def attr(obj: object, name: str) -> Any:
    """The attribute, or None where there is none or reading it fails."""
    try:
        return getattr(obj, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a foreign property may raise anything, SystemExit too
        return None


def call(obj: object, name: str) -> Any:
    """What the method without arguments returns, or None."""
    method = attr(obj, name)
    if method is None:
        return None
    try:
        return method() if callable(method) else None
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a foreign method may raise anything
        return None


def is_a(value: object, kind: type[T]) -> bool:
    """`isinstance` by the real class: an object that lies about `__class__` is not believed."""
    return issubclass(type(value), kind)


def is_mapping(value: object) -> bool:
    """Whether the value's real class is a mapping."""
    try:
        return issubclass(type(value), Mapping)
    except Exception:  # noqa: BLE001 - a metaclass that cannot be hashed, for one
        return False


def text_of(value: object, limit: int = MAX_TEXT) -> str:
    """`str(value)`, decoded if it is bytes, cut to `limit` characters; empty if that fails."""
    try:
        if is_a(value, bytes) or is_a(value, bytearray):
            return bytes(value[:limit]).decode("utf-8", "replace")  # type: ignore[index] # bytes, as tested above
        text = value if type(value) is str else str(value)
        # A subclass of str may override slicing; the base class's own methods do not run its code.
        return str.__getitem__(str.__str__(text), slice(0, limit))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a foreign __str__ may raise anything
        return ""


def words(value: object, limit: int = 200) -> str | None:
    """A non-empty short text, or None for anything that is not text."""
    if not is_a(value, str):
        return None
    return text_of(value, limit).strip() or None


def whole(value: object) -> int | None:
    """A whole number (an enum of numbers too), None for anything else; True and False are none."""
    if is_a(value, bool) or not is_a(value, int):
        return None
    try:
        return int.__int__(value)  # type: ignore[arg-type] # an int, as tested above
    except Exception:  # noqa: BLE001 - subclasses may override anything
        return None


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
            found = float(total) if total is not None else float("nan")
    except Exception:  # noqa: BLE001 - not a number, or too large for one
        return None
    return found if 0 <= found < float("inf") else None


def items(value: object) -> Iterator[tuple[Any, Any]]:
    """The pairs of a mapping-like object or of a sequence of pairs, at most `MAX_ITEMS` of them."""
    pairs = call(value, "items")
    if pairs is None and (is_a(value, list) or is_a(value, tuple)):
        pairs = value
    if pairs is None:
        return
    for pair in some(pairs):
        try:
            key, found = pair
        except Exception:  # noqa: BLE001, S112 - not a pair: nothing to read, and nothing to report
            continue
        yield key, found


def some(value: Any, limit: int = MAX_ITEMS) -> list[Any]:
    """The first items of an iterable, none if iterating fails."""
    try:
        found: Iterable[Any] = iter(value)
        return list(islice(found, limit))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a foreign iterator may raise anything
        return []


def entry(container: object, key: str) -> Any:
    """`container[key]` of a mapping, None where there is none."""
    if not is_mapping(container):
        return None
    try:
        return container.get(key)  # type: ignore[attr-defined] # a mapping, as tested above
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a foreign mapping may raise anything
        return None


class _Budget:
    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_NODES


def plain(value: object) -> Any:
    """A small copy in JSON types; what does not fit is cut, what has no JSON form is None."""
    return _plain(value, MAX_DEPTH, _Budget())


def _plain(value: object, depth: int, budget: _Budget) -> Any:
    budget.left -= 1
    if value is None or budget.left < 0:
        return None
    if is_a(value, str) or is_a(value, bytes):
        return text_of(value, 2_000)
    if is_a(value, int) or is_a(value, float):
        return _number(value)
    if depth == 0:
        return None
    if is_mapping(value):
        return {text_of(key, 100): _plain(item, depth - 1, budget) for key, item in items(value)}
    if is_a(value, list) or is_a(value, tuple):
        return [_plain(item, depth - 1, budget) for item in some(value)]
    return None


def _number(value: object) -> Any:
    """A finite number that every JSON reader can hold, True and False included; None otherwise."""
    if is_a(value, bool):
        return value is True
    number = whole(value)
    if number is not None:
        return number if abs(number) < 1 << 63 else None
    return value if isinstance(value, float) and math.isfinite(value) else None
