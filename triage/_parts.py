"""JSON of a large value, made in parts.

One call of C keeps the interpreter from all other threads until it ends. So what may be large is worked on
in slices, each of which takes a millisecond or two.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring_ascii as _quoted
from math import inf
from typing import Any, Protocol, TypeVar

SLICE = 2**18
"""Characters that one call may take."""
ITEM = 8
"""What an item counts besides its texts."""


class Sized(Protocol):
    """Something that knows how large it is."""

    @property
    def size(self) -> int:
        """Its size, in whatever unit the groups are."""
        ...


S = TypeVar("S", bound=Sized)

_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def weight(values: Iterable[Any], most: float = inf) -> int:
    """How many characters JSON values hold, nearly. most: beyond it nothing more is counted."""
    found = 0
    todo = [values]
    for container in todo:
        for item in container:
            if item is None:
                continue
            kind = item.__class__
            if kind is str:
                found += len(item)
            else:
                found += ITEM
                if kind is dict:
                    todo += (item, item.values())
                elif kind is list:
                    todo.append(item)
            if found > most:
                return found
    return found


def large(value: Any) -> bool:
    """Whether a JSON value holds more than a slice."""
    return weight((value,), SLICE) > SLICE


def json_parts(value: Any) -> Iterator[str]:
    """The JSON text of a JSON value, in parts."""
    if not large(value):
        yield _json(value)
    elif isinstance(value, dict):
        before = "{"
        for key, item in value.items():
            yield before
            yield from json_parts(key)
            yield ":"
            yield from json_parts(item)
            before = ","
        yield "}"
    elif isinstance(value, list | tuple):
        before = "["
        for item in value:
            yield before
            yield from json_parts(item)
            before = ","
        yield "]"
    else:
        yield '"'
        for start in range(0, len(value), SLICE):
            yield _quoted(value[start : start + SLICE])[1:-1]
        yield '"'


def groups(items: Iterable[S], size: int, most: float = inf) -> Iterator[list[S]]:
    """Items in order, in groups that are no larger than this; what is larger stands alone."""
    group: list[S] = []
    held = 0
    for item in items:
        own = item.size
        held += own
        if group and (held > size or len(group) >= most):
            yield group
            group, held = [], own
        group.append(item)
    if group:
        yield group
