"""Turn any value into a JSON value.

Nothing fails: whatever has no exact JSON form becomes a mark (an object with the key `$triage`) that
says what was lost, and `Loss` notes the first such place.
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
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from json.encoder import encode_basestring_ascii as _quoted
from math import inf
from typing import Any, Protocol, TypeVar

import msgspec

from .errors import UsageError

MARK = "$triage"
MAX_DEPTH = 64
MAX_NODES = 200_000
"""Values kept of one payload; the rest is replaced by a mark."""
MAX_REPR = 500
HUGE = 10**4000
"""Whole numbers from here on become marks: Python's own JSON reader refuses more than 4,300 digits."""
LEAST = -HUGE

ATOMS = frozenset({str, bool, int, type(None)})
DATES = (dt.datetime, dt.date, dt.time)
"""Classes written with `isoformat`."""
TEXTS = (uuid.UUID, decimal.Decimal, pathlib.PurePath)
"""Classes written with `str`."""


def _dumped(dump: Callable[..., Any]) -> Any:
    """Dump a pydantic model, without the warnings that would show values which do not fit its fields."""
    try:
        return dump(mode="json", warnings=False)
    except TypeError:  # not pydantic's own `model_dump`
        return dump(mode="json")


def duration(value: dt.timedelta) -> str:
    """Write a duration in ISO 8601, to the microsecond: `P1DT7200.000000S` is 26 hours."""
    sign, size = ("-", -value) if value.days < 0 else ("", value)
    return f"{sign}P{size.days}DT{size.seconds}.{size.microseconds:06d}S"


class Loss:
    """Notes the first place where a value had no exact JSON form."""

    __slots__ = ("place",)

    def __init__(self) -> None:
        self.place: tuple[str, object] | None = None

    def note(self, path: str, value: object) -> None:
        """Note that the value at this place was changed."""
        if self.place is None:
            self.place = (path, value)


def plain(value: Any) -> Any:
    """Return `value` as a JSON value: containers are copied, and what has no JSON form becomes a mark.

    Never raises. Tuples become lists; depth is cut at 64 levels, size at 200,000 values.
    """
    return _Encoder(Loss()).encode(value, MAX_DEPTH, "")


def plain_noting(value: Any) -> tuple[Any, bool]:
    """As `plain`, and whether the JSON value loses nothing, not even the kind of a container."""
    loss = Loss()
    result = _Encoder(loss).encode(value, MAX_DEPTH, "")
    return result, loss.place is None


def restorable(value: Any, field: str, loss: Loss) -> Any:
    """As `plain`, but a tuple is no loss; `loss` gets the first place that JSON cannot restore."""
    return _Encoder(loss, tuples=True).encode(value, MAX_DEPTH, field)


class _Encoder:
    """One walk over a value, which tracks the open containers, to detect cycles, and the size so far."""

    __slots__ = ("left", "loss", "open", "tuples")

    def __init__(self, loss: Loss, *, tuples: bool = False) -> None:
        self.loss = loss
        self.tuples = tuples
        self.left = MAX_NODES
        self.open: set[int] = set()

    def encode(self, value: Any, depth: int, path: str) -> Any:  # noqa: PLR0911 - one return a kind
        """Return the JSON form of the value at a path."""
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
        except Exception as error:
            return self._mark(path, value, "lost", f"{type(error).__name__} while encoding")
        finally:
            self.open.discard(id(value))

    def _mark(self, path: str, value: object, kind: str, text: str) -> dict[str, str]:
        self.loss.note(path, value)
        return {MARK: kind, "type": type(value).__name__, "text": text[:MAX_REPR]}

    def _mapping(self, value: dict[Any, Any], depth: int, path: str) -> Any:
        if all(type(key) is str for key in value):
            return {
                key: self.encode(item, depth, f"{path}[{key!r}]") for key, item in value.items()
            }
        self.loss.note(path, value)
        items = [
            [self.encode(key, depth, path), self.encode(item, depth, path)]
            for key, item in value.items()
        ]
        return {MARK: "map", "items": items}

    def _items(self, value: Iterable[Any], depth: int, path: str) -> list[Any]:
        return [self.encode(item, depth, f"{path}[{at}]") for at, item in enumerate(value)]

    def _other(self, value: Any, depth: int, path: str) -> Any:  # noqa: C901, PLR0911 - one return a kind
        self.loss.note(path, value)
        kinds = type(value).__mro__
        if enum.Enum in kinds:
            return self.encode(value.value, depth - 1, path)
        for kind in (str, bool, int, float):  # their subclasses
            if kind in kinds:
                return self.encode(kind(value), depth - 1, path)
        as_dict = getattr(type(value), "_asdict", None)  # of a named tuple
        if as_dict is not None:
            return self.encode(as_dict(value), depth - 1, path)
        if msgspec.Struct in kinds:
            return self.encode(msgspec.structs.asdict(value), depth - 1, path)
        if list in kinds or tuple in kinds:
            return self.encode(list(value), depth - 1, path)
        if isinstance(value, Mapping):
            return self.encode(dict(value), depth - 1, path)
        if isinstance(value, AbstractSet):
            return [self.encode(item, depth - 1, path) for item in sorted(value, key=repr)]
        if isinstance(value, bytes | bytearray | memoryview):
            return {MARK: "bytes", "text": base64.b64encode(bytes(value)).decode()}
        if isinstance(value, DATES):
            return value.isoformat()
        if isinstance(value, dt.timedelta):
            return duration(value)
        if isinstance(value, TEXTS):
            return str(value)
        if is_dataclass(value) and not isinstance(value, type):
            named = {entry.name: getattr(value, entry.name) for entry in dataclass_fields(value)}
            return self.encode(named, depth - 1, path)
        dump = getattr(value, "model_dump", None)
        if dump is not None:
            return self.encode(_dumped(dump), depth - 1, path)
        return {MARK: "lost", "type": type(value).__name__, "text": repr(value)[:MAX_REPR]}


# Finding the one JSON value in a text that has more around it: `only_json`.


_FENCED = re.compile(r"(?P<fence>```+|~~~+)[\w+.-]*\s(?P<inside>.*?)(?P=fence)", re.DOTALL)
_ASIDE = re.compile(r"\[[^\[\]{}\"\r\n]*\]|\{[^\[\]{}\":\r\n]*\}")
"""Prose in brackets: `[the list]`, `{name}`."""
_LONGEST = 4_000_000


def only_json(text: str) -> str | None:
    """Return the JSON of the only complete value in `text`, None unless there is exactly one.

    It may be any value in a fenced block, or an object or array among prose. None also where an object
    has a key twice, where a bracket belongs to no value, and where there is a second value or block.

    >>> only_json('Here it is: {"id": 1}. Anything else?')
    '{"id": 1}'
    >>> only_json('{"id": 1} or {"id": 2}') is None
    True
    """
    if len(text) > _LONGEST:
        return None
    found = _values(text)
    if found:
        return found[0] if len(found) == 1 else None
    blocks = [] if found is None else list(_FENCED.finditer(text))
    if len(blocks) != 1:
        return None
    inside = blocks[0]["inside"].strip()
    return inside if _is_json(inside) else None


def _values(text: str) -> list[str] | None:
    """Return the outermost objects and arrays of a text; None where a bracket belongs to none of them."""
    found: list[str] = []
    at = 0
    while True:
        opened = _OPENING.search(text, at)
        if opened is None:
            return None if _CLOSING.search(text, at) else found
        if _CLOSING.search(text, at, opened.start()):
            return None
        at = opened.start()
        try:
            _, end = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            aside = _ASIDE.match(text, at)
            if aside is None:
                return None
            end = aside.end()
        else:
            found.append(text[at:end])
        at = end


_OPENING = re.compile(r"[{\[]")
_CLOSING = re.compile(r"[}\]]")


def _is_json(text: str) -> bool:
    try:
        _decoder.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")


def refuse_constant(constant: str) -> None:
    """Raise ValueError for NaN and Infinity: the `parse_constant` of strict JSON readers."""
    raise ValueError(f"{constant} is no JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_once, parse_constant=refuse_constant)


# Writing the JSON of a large value in parts.
#
# A call into C holds the interpreter lock until it ends, so large values are processed in slices of a
# millisecond or two each.


SLICE = 2**18
"""Characters that one call may process."""
ITEM = 8
"""What an item counts in addition to its texts."""


class Sized(Protocol):
    """Something that knows how large it is."""

    @property
    def size(self) -> int:
        """Its size, in the unit of the groups."""
        ...


S = TypeVar("S", bound=Sized)

_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def weight(values: Collection[Any], most: float = inf) -> int:
    """Count roughly the characters in JSON values and structs. most: stop counting beyond it."""
    found = 0
    todo: list[Collection[Any]] = [values]
    for container in todo:
        if ITEM * len(container) > most:  # by its items alone; empty texts are rare
            return ITEM * len(container)
        for item in container:
            if item is None:
                continue
            if isinstance(item, str):
                found += len(item)
            else:
                found += ITEM
                if isinstance(item, dict):
                    todo += (item, item.values())
                elif isinstance(item, list | tuple):
                    todo.append(item)
                elif isinstance(item, msgspec.Struct):
                    todo.append(msgspec.structs.astuple(item))
            if found > most:
                return found
    return found


def large(value: Any) -> bool:
    """Whether a JSON value is larger than a slice."""
    return weight((value,), SLICE) > SLICE


def json_parts(value: Any) -> Iterator[str]:
    """Yield the JSON text of a JSON value in parts."""
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
    """Group items in order, each group within `size`; a larger item forms a group of its own."""
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


# Refusing a loss: in state that must be restored, and in the arguments that identify a call.
#
# `exact` and `canonical` name the place of what has no JSON form; `digest` turns the text into a key.


def exact(value: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Copy `value` so that it can be restored from JSON, with tuples as lists.

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
    """Return the text that represents `value` in a call's key: equal values give equal texts.

    Accepts JSON values, tuples, sets, bytes, dates, UUIDs, decimals, paths, enums, dataclasses and
    pydantic models. Raises UsageError naming the parameter and the remedy for anything else.
    """
    return _encode(_canonical(value, field, MAX_DEPTH))


def canonical_items(named: Iterable[tuple[str, str]], values: Mapping[str, Any]) -> str:
    """Return the canonical text of the named values, each after its prefix; raises as `canonical`."""
    return "".join(f"{before}{canonical(values[name], name)}" for name, before in named)


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


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
    as_dict = getattr(type(value), "_asdict", None)  # of a named tuple
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
        return [MARK, "map", sorted(items, key=json.dumps)]
    if isinstance(value, list | tuple):
        return [_canonical(item, f"{field}[{at}]", depth - 1) for at, item in enumerate(value)]
    if isinstance(value, AbstractSet):
        items = [_canonical(item, field, depth - 1) for item in value]
        return [MARK, "set", sorted(items, key=json.dumps)]
    return _canonical_object(value, field, depth)


def _canonical_object(value: Any, field: str, depth: int) -> Any:
    name = type(value).__qualname__
    if isinstance(value, bytes | bytearray):
        return [MARK, "bytes", hashlib.sha256(value).hexdigest()]
    if isinstance(value, DATES):
        return [MARK, name, value.isoformat()]
    if isinstance(value, dt.timedelta):
        return [MARK, name, value.total_seconds()]
    if isinstance(value, TEXTS):
        return [MARK, name, str(value)]
    if is_dataclass(value) and not isinstance(value, type):
        named = {entry.name: getattr(value, entry.name) for entry in dataclass_fields(value)}
        return [MARK, name, _canonical(named, field, depth - 1)]
    if isinstance(value, msgspec.Struct):
        return [MARK, name, _canonical(msgspec.structs.asdict(value), field, depth - 1)]
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
    """Return 128 bits of SHA-256 over the salt and the text, as 32 hexadecimal digits."""
    return hashlib.sha256(f"{salt}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
