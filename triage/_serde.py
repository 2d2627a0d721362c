"""Where a loss is refused: state that must be restored, and the arguments a call is known by.

`exact` and `canonical` name the place of what has no JSON form; `digest` makes a call's key of the text.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from ._plain import ATOMS, MARK, MAX_DEPTH, Loss, foreign, restorable
from .errors import UsageError


def exact(value: Mapping[str, Any], field: str) -> dict[str, Any]:
    """A copy of `value` that can be restored from JSON, tuples as lists.

    Raises UsageError naming the place, its type and the remedy for anything else: a set, bytes, a
    date, NaN, a key that is not text, an object.
    """
    loss = Loss()
    result = restorable(value, field, loss)
    if loss.place is not None:
        path, found = loss.place
        raise UsageError(
            f"{path} cannot be restored from JSON: it is of type {type(found).__name__}; "
            "keep text, numbers, booleans, None, and lists and dicts (keys are text) of them"
        )
    assert isinstance(result, dict)
    return result


def canonical(value: Any, field: str) -> str:
    """The text that stands for `value` in a call's key: equal values, equal text.

    Knows JSON values, tuples, sets, bytes, dates, UUIDs, decimals, paths, enums, dataclasses and
    pydantic models. Raises UsageError naming the parameter and the remedy for anything else.
    """
    return _encoder()(_canonical(value, field, MAX_DEPTH))


def canonical_items(named: Iterable[tuple[str, str]], values: Mapping[str, Any]) -> str:
    """The text that stands for those of the values that are named, each with what stands before it.

    Raises what `canonical` raises.
    """
    quoted = _quoting()
    text = ""
    for name, before in named:
        value = values[name]
        kind = value.__class__
        text += before
        # Most are texts and numbers, and the general way is felt.
        if kind is str:
            text += quoted(value)
        elif kind is int:
            text += f"{value}"
        else:
            text += canonical(value, name)
    return text


@cache
def _quoting() -> Callable[[str], str]:
    from json.encoder import encode_basestring_ascii

    return encode_basestring_ascii


@cache
def _encoder() -> Callable[[Any], str]:
    import json

    return json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _sorted(items: Iterable[Any]) -> list[Any]:
    import json

    return sorted(items, key=json.dumps)


def _canonical(value: Any, field: str, depth: int) -> Any:  # noqa: PLR0911 - one return a kind
    cls = value.__class__
    if cls in ATOMS:
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
    as_dict = getattr(type(value), "_asdict", None)  # of a named tuple, and of a step
    if as_dict is not None:
        value = as_dict(value)
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
        return [MARK, "map", _sorted(items)]
    if isinstance(value, list | tuple):
        return [_canonical(item, f"{field}[{at}]", depth - 1) for at, item in enumerate(value)]
    if isinstance(value, AbstractSet):
        return [
            MARK,
            "set",
            _sorted(_canonical(i, field, depth - 1) for i in value),
        ]
    return _canonical_object(value, field, depth)


def _canonical_object(value: Any, field: str, depth: int) -> Any:
    name = type(value).__qualname__
    if isinstance(value, bytes | bytearray):
        import hashlib

        return [MARK, "bytes", hashlib.sha256(value).hexdigest()]
    import datetime as dt

    dates, texts = foreign()
    if isinstance(value, dates):
        return [MARK, name, value.isoformat()]
    if isinstance(value, dt.timedelta):
        return [MARK, name, value.total_seconds()]
    if isinstance(value, texts):
        return [MARK, name, str(value)]
    if is_dataclass(value) and not isinstance(value, type):
        named = {entry.name: getattr(value, entry.name) for entry in dataclass_fields(value)}
        return [MARK, name, _canonical(named, field, depth - 1)]
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return [MARK, name, _canonical(dump(), field, depth - 1)]
    raise _no_form(value, field, "it has no exact JSON form")


def _no_form(value: object, field: str, why: str) -> UsageError:
    return UsageError(
        f"{field} of type {type(value).__name__} cannot be part of a call's key: {why}; "
        f'name it in ignore=("{field.partition("[")[0]}",), or give key=callable to say what the '
        "call is known by"
    )


def digest(salt: str, text: str) -> str:
    """128 bits of SHA-256 over the salt and the text, as 32 hexadecimal digits."""
    found: str = _sha256()(f"{salt}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()
    return found[:32]


@cache
def _sha256() -> Callable[[bytes], Any]:
    import hashlib

    return hashlib.sha256
