"""One encoder: any value becomes a JSON value, and events become JSON and back.

`plain` is total: whatever has no exact JSON form leaves a mark (an object with the key `$triage`)
that says what was lost. `exact` refuses instead, naming the place. `canonical` is the text that a
call's arguments are known by.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import enum
import hashlib
import json
import math
import pathlib
import uuid
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any

from .errors import UsageError

MARK = "$triage"
MAX_DEPTH = 64
MAX_REPR = 500

_ATOMS = frozenset({str, bool, int, type(None)})


class _Loss:
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
    if cls in _ATOMS:
        return value
    if cls is dict:
        # The usual tool input: a flat dict of atoms, copied without looking deeper.
        for key, item in value.items():
            if key.__class__ is not str or item.__class__ not in _ATOMS:
                break
        else:
            return value.copy()
    return _plain(value, MAX_DEPTH, "", None)


def plain_noting(value: Any) -> tuple[Any, bool]:
    """As `plain`, and whether the JSON value says all of `value`, the kind of container included."""
    if value.__class__ in _ATOMS:
        return value, True
    loss = _Loss()
    result = _plain(value, MAX_DEPTH, "", loss)
    return result, loss.place is None


def exact(value: Mapping[str, Any], field: str) -> dict[str, Any]:
    """A copy of `value` that can be restored from JSON, tuples as lists.

    Raises UsageError naming the place, its type and the remedy for anything else: a set, bytes, a
    date, NaN, a key that is not text, an object.
    """
    loss = _Loss()
    result = _plain(value, MAX_DEPTH, field, loss, tuples=True)
    if loss.place is not None:
        path, found = loss.place
        raise UsageError(
            f"{path} cannot be restored from JSON: it is of type {type(found).__name__}; "
            "keep text, numbers, booleans, None, and lists and dicts (keys are text) of them"
        )
    assert isinstance(result, dict)
    return result


def _plain(value: Any, depth: int, path: str, loss: _Loss | None, *, tuples: bool = False) -> Any:
    cls = value.__class__
    if cls in _ATOMS:
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
                if item.__class__ in _ATOMS
                else _plain(item, depth - 1, f"{path}[{key!r}]" if loss else path, loss, tuples=tuples)
                for key, item in value.items()
            }
        return _odd_mapping(value, depth, path, loss)
    if cls is list or (tuples and cls is tuple):
        return [
            item
            if item.__class__ in _ATOMS
            else _plain(item, depth - 1, f"{path}[{at}]" if loss else path, loss, tuples=tuples)
            for at, item in enumerate(value)
        ]
    try:
        return _other(value, depth, path, loss)
    except Exception as error:  # noqa: BLE001 - the user's objects may raise anything; the value is marked
        return _mark(loss, path, value, "lost", f"{type(error).__name__} while encoding")


def _mark(loss: _Loss | None, path: str, value: object, kind: str, text: str) -> dict[str, str]:
    if loss is not None:
        loss.note(path, value)
    return {MARK: kind, "type": type(value).__name__, "text": text[:MAX_REPR]}


def _odd_mapping(value: Mapping[Any, Any], depth: int, path: str, loss: _Loss | None) -> Any:
    if loss is not None:
        loss.note(path, value)
    items = [
        [_plain(key, depth - 1, path, None), _plain(item, depth - 1, path, None)]
        for key, item in value.items()
    ]
    return {MARK: "map", "items": items}


def _other(value: Any, depth: int, path: str, loss: _Loss | None) -> Any:  # noqa: PLR0911 - one return a kind
    if loss is not None:
        loss.note(path, value)
    if isinstance(value, enum.Enum):
        return _plain(value.value, depth - 1, path, None)
    for kind in (str, bool, int, float):  # their subclasses
        if isinstance(value, kind):
            return _plain(kind(value), depth, path, None)
    if isinstance(value, Mapping):
        return _plain(dict(value), depth, path, None)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _plain(dict(zip(value._fields, value, strict=True)), depth, path, None)
    if isinstance(value, tuple | list):
        return _plain(list(value), depth, path, None)
    if isinstance(value, AbstractSet):
        return [_plain(item, depth - 1, path, None) for item in sorted(value, key=repr)]
    if isinstance(value, bytes | bytearray | memoryview):
        return {MARK: "bytes", "text": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, uuid.UUID | decimal.Decimal | pathlib.PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        named = {entry.name: getattr(value, entry.name) for entry in dataclass_fields(value)}
        return _plain(named, depth, path, None)
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return _plain(value.model_dump(mode="json"), depth, path, None)
    return {MARK: "lost", "type": type(value).__name__, "text": repr(value)[:MAX_REPR]}


# What a call's arguments are known by -------------------------------------------------------------


def canonical(value: Any, field: str) -> str:
    """The text that stands for `value` in a call's key: equal values, equal text.

    Knows JSON values, tuples, sets, bytes, dates, UUIDs, decimals, paths, enums, dataclasses and
    pydantic models. Raises UsageError naming the parameter and the remedy for anything else.
    """
    return json.dumps(_canonical(value, field, MAX_DEPTH), sort_keys=True, separators=(",", ":"))


def _canonical(value: Any, field: str, depth: int) -> Any:  # noqa: PLR0911 - one return a kind
    cls = value.__class__
    if cls in _ATOMS:
        return value
    if depth <= 0:
        raise _no_form(value, field, "it is nested too deeply or contains itself")
    if cls is float:
        return value if math.isfinite(value) else [MARK, "float", repr(value)]
    if isinstance(value, enum.Enum):
        return [MARK, type(value).__qualname__, _canonical(value.value, field, depth - 1)]
    for kind in (str, bool, int, float):
        if isinstance(value, kind):
            return _canonical(kind(value), field, depth - 1)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        value = dict(zip(value._fields, value, strict=True))
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {
                str(key): _canonical(item, f"{field}[{key!r}]", depth - 1)
                for key, item in value.items()
            }
        items = [
            [_canonical(key, field, depth - 1), _canonical(item, f"{field}[{key!r}]", depth - 1)]
            for key, item in value.items()
        ]
        return [MARK, "map", sorted(items, key=json.dumps)]
    if isinstance(value, list | tuple):
        return [_canonical(item, f"{field}[{at}]", depth - 1) for at, item in enumerate(value)]
    if isinstance(value, AbstractSet):
        return [MARK, "set", sorted((_canonical(i, field, depth - 1) for i in value), key=json.dumps)]
    return _canonical_object(value, field, depth)


def _canonical_object(value: Any, field: str, depth: int) -> Any:
    name = type(value).__qualname__
    if isinstance(value, bytes | bytearray):
        return [MARK, "bytes", hashlib.sha256(value).hexdigest()]
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return [MARK, name, value.isoformat()]
    if isinstance(value, dt.timedelta):
        return [MARK, name, value.total_seconds()]
    if isinstance(value, uuid.UUID | decimal.Decimal | pathlib.PurePath):
        return [MARK, name, str(value)]
    if is_dataclass(value) and not isinstance(value, type):
        named = {entry.name: getattr(value, entry.name) for entry in dataclass_fields(value)}
        return [MARK, name, _canonical(named, field, depth - 1)]
    if hasattr(type(value), "model_dump"):
        return [MARK, name, _canonical(value.model_dump(), field, depth - 1)]
    raise _no_form(value, field, "it has no exact JSON form")


def _no_form(value: object, field: str, why: str) -> UsageError:
    return UsageError(
        f"{field} of type {type(value).__name__} cannot be part of a call's key: {why}; "
        f'name it in ignore=("{field.partition("[")[0]}",), or give key=callable to say what the '
        "call is known by"
    )


def digest(salt: str, text: str) -> str:
    """128 bits of SHA-256 over the salt and the text, as 32 hexadecimal digits."""
    return hashlib.sha256(f"{salt}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
