"""The one encoder: any value becomes a JSON value.

It is total: whatever has no exact JSON form leaves a mark (an object with the key `$triage`) that says
what was lost, and `Loss` notes the first place.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import enum
import math
import pathlib
import uuid
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any

MARK = "$triage"
MAX_DEPTH = 64
MAX_REPR = 500

ATOMS = frozenset({str, bool, int, type(None)})


class Loss:
    """Notes the first place where a value had no exact JSON form."""

    __slots__ = ("place",)

    def __init__(self) -> None:
        self.place: tuple[str, object] | None = None

    def note(self, path: str, value: object) -> None:
        if self.place is None:
            self.place = (path, value)


def plain(value: Any) -> Any:
    """`value` as a JSON value of its own: containers are copied, what cannot be kept is marked.

    Never raises. Tuples become lists; depth is cut at 64.
    """
    cls = value.__class__
    if cls is dict:
        # The usual tool input: a flat dict of atoms, copied without looking deeper.
        for key, item in value.items():
            if key.__class__ is not str or item.__class__ not in ATOMS:
                break
        else:
            return value.copy()
    elif cls in ATOMS:
        return value
    return to_plain(value, MAX_DEPTH, "", None)


def plain_noting(value: Any) -> tuple[Any, bool]:
    """As `plain`, and whether the JSON value says all of `value`, the kind of container included."""
    if value.__class__ in ATOMS:
        return value, True
    loss = Loss()
    result = to_plain(value, MAX_DEPTH, "", loss)
    return result, loss.place is None


def to_plain(  # noqa: PLR0911 - one return a kind
    value: Any, depth: int, path: str, loss: Loss | None, *, tuples: bool = False
) -> Any:
    cls = value.__class__
    if cls in ATOMS:
        return value
    if cls is float:
        if math.isfinite(value):
            return value
        return _mark(loss, path, value, "float", repr(value))
    if depth <= 0:
        return _mark(loss, path, value, "deep", type(value).__name__)
    if cls is dict:
        if all(key.__class__ is str for key in value):
            return {
                key: item
                if item.__class__ in ATOMS
                else to_plain(
                    item, depth - 1, f"{path}[{key!r}]" if loss else path, loss, tuples=tuples
                )
                for key, item in value.items()
            }
        return _odd_mapping(value, depth, path, loss)
    if cls is list or (tuples and cls is tuple):
        return [
            item
            if item.__class__ in ATOMS
            else to_plain(item, depth - 1, f"{path}[{at}]" if loss else path, loss, tuples=tuples)
            for at, item in enumerate(value)
        ]
    try:
        return _other(value, depth, path, loss)
    except Exception as error:  # noqa: BLE001 - the user's objects may raise anything; the value is marked
        return _mark(loss, path, value, "lost", f"{type(error).__name__} while encoding")


def _mark(loss: Loss | None, path: str, value: object, kind: str, text: str) -> dict[str, str]:
    if loss is not None:
        loss.note(path, value)
    return {MARK: kind, "type": type(value).__name__, "text": text[:MAX_REPR]}


def _odd_mapping(value: Mapping[Any, Any], depth: int, path: str, loss: Loss | None) -> Any:
    if loss is not None:
        loss.note(path, value)
    items = [
        [to_plain(key, depth - 1, path, None), to_plain(item, depth - 1, path, None)]
        for key, item in value.items()
    ]
    return {MARK: "map", "items": items}


def _other(  # noqa: C901, PLR0911 - one return a kind
    value: Any, depth: int, path: str, loss: Loss | None
) -> Any:
    if loss is not None:
        loss.note(path, value)
    if isinstance(value, enum.Enum):
        return to_plain(value.value, depth - 1, path, None)
    for kind in (str, bool, int, float):  # their subclasses
        if isinstance(value, kind):
            return to_plain(kind(value), depth, path, None)
    if isinstance(value, Mapping):
        return to_plain(dict(value), depth, path, None)
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return to_plain(dict(zip(names, value, strict=True)), depth, path, None)
    if isinstance(value, tuple | list):
        return to_plain(list(value), depth, path, None)
    if isinstance(value, AbstractSet):
        return [to_plain(item, depth - 1, path, None) for item in sorted(value, key=repr)]
    if isinstance(value, bytes | bytearray | memoryview):
        return {MARK: "bytes", "text": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, uuid.UUID | decimal.Decimal | pathlib.PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        named = {entry.name: getattr(value, entry.name) for entry in dataclass_fields(value)}
        return to_plain(named, depth, path, None)
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return to_plain(dump(mode="json"), depth, path, None)
    return {MARK: "lost", "type": type(value).__name__, "text": repr(value)[:MAX_REPR]}
