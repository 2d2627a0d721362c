"""The one encoder: any value becomes a JSON value.

It is total: whatever has no exact JSON form leaves a mark (an object with the key `$triage`) that says
what was lost, and `Loss` notes the first place.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import timedelta

MARK = "$triage"
MAX_DEPTH = 64
MAX_NODES = 200_000
"""Values one payload may hold; what is beyond is marked."""
MAX_REPR = 500
HUGE = 10**4000
"""Whole numbers from here on are marked: Python's own JSON reader refuses more than 4,300 digits."""
LEAST = -HUGE
"""Negated once: it has 1.7 KB, and every step's numbers are compared with it."""

ATOMS = frozenset({str, bool, int, type(None)})
_TAKEN = ATOMS - {int}
"""Those that are JSON whatever their value."""
NUMBERS: frozenset[Any] = frozenset({int, float, bool})
NEGATIVE, SMALL = -(10**9), 10**9
"""Numbers between need no further look: they are finite, and of few digits."""
FEW = 64
"""Values that are looked at where they are needed rather than by `plain`."""


@cache
def foreign() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The classes written by `isoformat` and by `str`; most programs never need these modules."""
    import datetime as dt
    import decimal
    import pathlib
    import uuid

    return (dt.datetime, dt.date, dt.time), (uuid.UUID, decimal.Decimal, pathlib.PurePath)


@cache
def _length_of_time() -> Any:
    import datetime as dt

    return dt.timedelta


def duration(value: timedelta) -> str:
    """A length of time as ISO 8601 says it, to the microsecond: `P1DT7200.000000S` is 26 hours."""
    sign, size = ("-", -value) if value.days < 0 else ("", value)
    return f"{sign}P{size.days}DT{size.seconds}.{size.microseconds:06d}S"


class Loss:
    """Notes the first place where a value had no exact JSON form."""

    __slots__ = ("place",)

    def __init__(self) -> None:
        self.place: tuple[str, object] | None = None

    def note(self, path: str, value: object) -> None:
        """The value at this place was changed."""
        if self.place is None:
            self.place = (path, value)


def plain(value: Any) -> Any:
    """`value` as a JSON value of its own: containers are copied, what cannot be kept is marked.

    Never raises. Tuples become lists; depth is cut at 64, size at 200,000 values.
    """
    kind = type(value)
    if kind in _TAKEN or (kind in NUMBERS and LEAST < value < HUGE):
        return value
    copy = _copied(value)
    if copy is not None:
        return copy
    return _Encoder(None).encode(value, MAX_DEPTH, "")


def plain_noting(value: Any) -> tuple[Any, bool]:
    """As `plain`, and whether the JSON value says all of `value`, the kind of container included."""
    if type(value) is str:
        return value, True
    copy = _copied(value)
    if copy is not None:
        return copy, True
    loss = Loss()
    result = _Encoder(loss).encode(value, MAX_DEPTH, "")
    return result, loss.place is None


def _copied(value: Any) -> Any:
    """A copy of a dict or a list that is JSON all through; None for anything else."""
    kind = type(value)
    if kind is not dict and kind is not list:
        return None
    copy = value.copy()
    if kind is dict and len(copy) < FEW:
        for key in copy:
            item = copy[key]
            # What most are: texts and small numbers, and nothing within.
            if key.__class__ is not str or (
                item.__class__ is not str
                and (item.__class__ not in NUMBERS or not NEGATIVE < item < SMALL)
            ):
                break
        else:
            return copy
    return copy if _own(copy, MAX_DEPTH, MAX_NODES) else None


def _own(copy: Any, depth: int, left: int) -> int:
    """Copy the dicts and lists in a copy of one, which is JSON all through, as most are.

    What is left of the values it may hold; 0 where it is no such JSON, and to be encoded. What contains
    itself is found by its depth, and places are not known: to look out for either is felt.
    """
    left -= 1
    if depth <= 0 or left <= 0:
        return 0
    named = type(copy) is dict
    keys = str if named else int
    for key, item in copy.items() if named else enumerate(copy):
        if type(key) is not keys:
            return 0
        kind = type(item)
        if kind is str or item is None:
            pass
        elif kind is dict or kind is list:
            copy[key] = inner = item.copy()
            left = _own(inner, depth - 1, left)
            if not left:
                return 0
        elif kind is int:
            if not LEAST < item < HUGE:
                return 0
        elif kind is not bool and (kind is not float or not math.isfinite(item)):
            return 0
    return left


def is_flat(value: dict[Any, Any]) -> bool:
    """True for a dict of atoms under text keys: its copy is a JSON value."""
    for key, item in value.items():
        if type(item) is int:
            if not LEAST < item < HUGE:
                return False
        elif type(item) is not str and type(item) not in ATOMS:
            return False
        if type(key) is not str:
            return False
    return True


def restorable(value: Any, field: str, loss: Loss) -> Any:
    """As `plain`, with tuples as lists; `loss` gets the first place that JSON cannot restore."""
    return _Encoder(loss, tuples=True).encode(value, MAX_DEPTH, field)


class _Encoder:
    """One walk over a value: where it is, so that a value inside itself is seen, and how far."""

    __slots__ = ("left", "loss", "open", "tracing", "tuples")

    def __init__(self, loss: Loss | None, *, tuples: bool = False) -> None:
        self.loss = loss
        self.tracing = loss is not None and loss.place is None
        self.tuples = tuples
        self.left = MAX_NODES
        self.open: set[int] = set()

    def encode(self, value: Any, depth: int, path: str) -> Any:  # noqa: PLR0911 - one return a kind
        """The JSON form of a value at a path."""
        kind = type(value)
        if kind is str or kind is bool or value is None:
            return value
        if kind is int:
            if LEAST < value < HUGE:
                return value
            return self._mark(path, value, "int", f"{value.bit_length()} bits")
        if kind is float:
            if math.isfinite(value):
                return value
            return self._mark(path, value, "float", repr(value))
        self.left -= 1
        if depth <= 0 or self.left <= 0:
            return self._mark(path, value, "deep" if depth <= 0 else "large", kind.__name__)
        if id(value) in self.open:
            return self._mark(path, value, "cycle", kind.__name__)
        self.open.add(id(value))
        try:
            if kind is dict:
                return self._mapping(value, depth - 1, path)
            if kind is list or (self.tuples and kind is tuple):
                return self._items(value, depth - 1, path)
            return self._other(value, depth, path)
        except Exception as error:  # noqa: BLE001 - the user's objects may raise anything; it is marked
            return self._mark(path, value, "lost", f"{type(error).__name__} while encoding")
        finally:
            self.open.discard(id(value))

    def _mark(self, path: str, value: object, kind: str, text: str) -> dict[str, str]:
        self._note(path, value)
        return {MARK: kind, "type": type(value).__name__, "text": text[:MAX_REPR]}

    # Atoms are taken over where they stand: most values are atoms, and a call for each is felt. Nor is
    # a path made for them, and none at all once a loss is noted: only the first is asked for.

    def _mapping(self, value: dict[Any, Any], depth: int, path: str) -> Any:
        for key in value:
            if type(key) is not str:
                return self._pairs(value, depth, path)
        copy: dict[str, Any] = {}
        for key, item in value.items():
            kind = type(item)
            if kind in _TAKEN or (kind is int and LEAST < item < HUGE):
                copy[key] = item
            else:
                place = f"{path}[{key!r}]" if self.tracing else path
                copy[key] = self.encode(item, depth, place)
        return copy

    def _items(self, value: Iterable[Any], depth: int, path: str) -> list[Any]:
        copy: list[Any] = []
        for item in value:
            kind = type(item)
            if kind in _TAKEN or (kind is int and LEAST < item < HUGE):
                copy.append(item)
            else:
                place = f"{path}[{len(copy)}]" if self.tracing else path
                copy.append(self.encode(item, depth, place))
        return copy

    def _pairs(self, value: dict[Any, Any], depth: int, path: str) -> Any:
        self._note(path, value)
        items = [
            [self.encode(key, depth, path), self.encode(item, depth, path)]
            for key, item in value.items()
        ]
        return {MARK: "map", "items": items}

    def _note(self, path: str, value: object) -> None:
        if self.tracing:
            assert self.loss is not None
            self.loss.note(path, value)
            self.tracing = False

    def _other(self, value: Any, depth: int, path: str) -> Any:  # noqa: C901, PLR0911 - one return a kind
        self._note(path, value)
        kinds = type(value).__mro__
        if enum.Enum in kinds:
            return self.encode(value.value, depth - 1, path)
        for kind in (str, bool, int, float):  # their subclasses
            if kind in kinds:
                return self.encode(kind(value), depth - 1, path)
        as_dict = getattr(type(value), "_asdict", None)  # of a named tuple, and of a step
        if as_dict is not None:
            return self.encode(as_dict(value), depth - 1, path)
        if list in kinds or tuple in kinds:
            return self.encode(list(value), depth - 1, path)
        if isinstance(value, Mapping):
            return self.encode(dict(value), depth - 1, path)
        if isinstance(value, AbstractSet):
            return [self.encode(item, depth - 1, path) for item in sorted(value, key=repr)]
        if isinstance(value, bytes | bytearray | memoryview):
            import base64

            return {MARK: "bytes", "text": base64.b64encode(bytes(value)).decode()}
        dates, texts = foreign()
        if isinstance(value, dates):
            return value.isoformat()
        if isinstance(value, _length_of_time()):
            return duration(value)
        if isinstance(value, texts):
            return str(value)
        if is_dataclass(value) and not isinstance(value, type):
            named = {entry.name: getattr(value, entry.name) for entry in dataclass_fields(value)}
            return self.encode(named, depth - 1, path)
        dump = getattr(value, "model_dump", None)
        if dump is not None:
            return self.encode(dump(mode="json"), depth - 1, path)
        return {MARK: "lost", "type": type(value).__name__, "text": repr(value)[:MAX_REPR]}
