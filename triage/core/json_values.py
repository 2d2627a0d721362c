"""Turn any value into a JSON value.

Never fails: a value without an exact JSON form becomes a mark, an object with the key `$triage` that
describes the loss.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import enum
import hashlib
import json
import marshal
import math
import pathlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from sys import float_info
from typing import Annotated, Any, TypeAlias

import msgspec

from .errors import UsageError
from .patterns import Pattern

MARK = "$triage"
MAX_DEPTH = 64
MAX_NODES = 1_000_000
"""Maximum number of containers, such as rows, in one payload; marks replace the rest."""
MAX_REPR = 500
HUGE = 10**4000
"""Integers from this size on become marks: Python's JSON reader refuses more than 4,300 digits."""
LEAST = -HUGE

ATOMS = frozenset({str, bool, int, type(None)})
DATES = (dt.datetime, dt.date, dt.time)
"""Classes written with `isoformat`."""
TEXTS = (uuid.UUID, decimal.Decimal, pathlib.PurePath)
"""Classes written with `str`."""
_UNCHANGED = frozenset({str, bool, type(None)})
_KEYS = frozenset({str})


def _dumped(dump: Callable[..., Any]) -> Any:
    """Dump a pydantic model without warnings, which would show values that do not fit the fields."""
    try:
        return dump(mode="json", warnings=False)
    except TypeError:  # not pydantic's own `model_dump`
        return dump(mode="json")


def duration(value: dt.timedelta) -> str:
    """Write a duration in ISO 8601, to the microsecond: `P1DT7200.000000S` is 26 hours."""
    sign, size = ("-", -value) if value.days < 0 else ("", value)
    return f"{sign}P{size.days}DT{size.seconds}.{size.microseconds:06d}S"


def plain(value: Any) -> Any:
    """Return `value` as a JSON value: copy containers, and mark values without a JSON form.

    Never raises. Tuples become lists; depth is cut at 64 levels, size at a million containers.
    """
    return value if type(value) in _UNCHANGED else _Encoder().encode(value, MAX_DEPTH)


def plain_noting(value: Any) -> tuple[Any, bool]:
    """Return the value of `plain`, and whether it is exact, down to the kind of each container."""
    encoder = _Encoder()
    result = encoder.encode(value, MAX_DEPTH)
    return result, encoder.lost is None


MANY_ROWS = 10_000
"""Minimum number of rows for which a table is copied in C."""
_Cell: TypeAlias = (
    bool
    | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    | Annotated[float, msgspec.Meta(ge=-float_info.max, le=float_info.max)]  # so no NaN either
    | str
    | None
)
_Rows = list[dict[str, _Cell]]


class _Encoder:
    """One walk over a value, which tracks open containers, to detect cycles, and the size so far.

    field: the value's name in errors. tuples: a tuple counts as exact. lost: the path of the first value
    without an exact JSON form, the value, and its mark (empty for none); None if everything is exact.
    """

    __slots__ = ("left", "lost", "open", "path", "tuples")

    def __init__(self, field: str = "", *, tuples: bool = False) -> None:
        self.lost: tuple[str, object, str] | None = None
        self.tuples = tuples
        self.left = MAX_NODES
        self.open: set[int] = set()
        self.path: list[object] = [field]

    def encode(self, value: Any, depth: int) -> Any:  # noqa: PLR0911 - one return a kind
        """Return the JSON form of the value at the path."""
        kind = type(value)
        if kind in _UNCHANGED:
            return value
        if kind is int:
            if LEAST < value < HUGE:
                return value
            return self._mark(value, "int", f"{value.bit_length()} bits")
        if kind is float:
            if math.isfinite(value):
                return value
            return self._mark(value, "float", repr(value))
        self.left -= 1
        if depth <= 0 or self.left <= 0:
            return self._mark(value, "deep" if depth <= 0 else "large", kind.__name__)
        if id(value) in self.open:
            return self._mark(value, "cycle", kind.__name__)
        self.open.add(id(value))
        length = len(self.path)
        try:
            if kind is dict:
                return self._mapping(value, depth - 1)
            if kind is list or (self.tuples and kind is tuple):
                return self._items(value, depth - 1)
            return self._other(value, depth)
        except Exception as error:
            del self.path[length:]
            return self._mark(value, "lost", f"{type(error).__name__} while encoding")
        finally:
            self.open.discard(id(value))

    def _lose(self, value: object, mark: str = "") -> None:
        """Note that the value at the path has no exact JSON form."""
        if self.lost is None:
            field, *keys = self.path
            self.lost = (str(field) + "".join(f"[{key!r}]" for key in keys), value, mark)

    def _mark(self, value: object, kind: str, text: str) -> dict[str, str]:
        self._lose(value, kind)
        return {MARK: kind, "type": type(value).__name__, "text": text[:MAX_REPR]}

    def _mapping(self, value: dict[Any, Any], depth: int) -> Any:
        if _KEYS.issuperset(map(type, value)):
            return {
                key: item if type(item) in _UNCHANGED else self._at(key, item, depth)
                for key, item in value.items()
            }
        self._lose(value)
        items = [[self.encode(key, depth), self.encode(item, depth)] for key, item in value.items()]
        return {MARK: "map", "items": items}

    def _items(self, value: Iterable[Any], depth: int) -> list[Any]:
        items = value if type(value) is list else list(value)
        if len(items) >= MANY_ROWS and depth > 0 and type(items[0]) is dict:
            rows = self._rows(items)
            if rows is not None:
                return rows
        return [self._at(number, item, depth) for number, item in enumerate(items)]

    def _rows(self, rows: list[Any]) -> list[Any] | None:
        """Copy rows in C, which is several times faster; None if a cell is no JSON scalar."""
        if self.left <= len(rows):
            return None
        try:
            marshal.dumps(rows)  # refuses subclasses of str, dict and the like
            copy = msgspec.convert(rows, _Rows)
        except (ValueError, TypeError):
            return None
        self.left -= len(rows)
        return copy

    def _at(self, key: object, item: Any, depth: int) -> Any:
        """Return the JSON form of an item of the container at the path."""
        self.path.append(key)
        form = self.encode(item, depth)
        self.path.pop()
        return form

    def _other(self, value: Any, depth: int) -> Any:  # noqa: C901, PLR0911 - one return a kind
        self._lose(value)
        kinds = type(value).__mro__
        if enum.Enum in kinds:
            return self.encode(value.value, depth - 1)
        for kind in (str, bool, int, float):  # their subclasses
            if kind in kinds:
                return self.encode(kind(value), depth - 1)
        as_dict = getattr(type(value), "_asdict", None)  # of a named tuple
        if as_dict is not None:
            return self.encode(as_dict(value), depth - 1)
        if msgspec.Struct in kinds:
            return self.encode(msgspec.structs.asdict(value), depth - 1)
        if list in kinds or tuple in kinds:
            return self.encode(list(value), depth - 1)
        if isinstance(value, Mapping):
            return self.encode(dict(value), depth - 1)
        if isinstance(value, AbstractSet):
            return [self.encode(item, depth - 1) for item in sorted(value, key=repr)]
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
            return self.encode(named, depth - 1)
        dump = getattr(value, "model_dump", None)
        if dump is not None:
            return self.encode(_dumped(dump), depth - 1)
        return {MARK: "lost", "type": type(value).__name__, "text": repr(value)[:MAX_REPR]}


# Finding the only JSON value among other text: `only_json`.


_FENCED = Pattern(r"(?P<fence>```+|~~~+)[\w+.-]*\s(?P<inside>.*?)(?P=fence)", re.DOTALL)
_ASIDE = Pattern(r"\[[^\[\]{}\"\r\n]*\]|\{[^\[\]{}\":\r\n]*\}")
"""Bracketed prose: `[the list]`, `{name}`."""
_LONGEST = 4_000_000


def only_json(text: str) -> str | None:
    """Return the JSON of the only complete value in `text`, None unless there is exactly one.

    Accepts any value in a fenced block, and an object or array among prose. Also returns None for a
    duplicate key, a stray bracket, and a second value or block.

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
    """Return the outermost objects and arrays of a text; None if the text has a stray bracket."""
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


def texts_within(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value, without the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from texts_within(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_within(item)


# Exact forms, of state to be restored and of arguments that identify a call: `exact` and `canonical`
# raise an error with the path of a value without one; `digest` turns the text into a key.


def exact(value: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Copy `value` so that it can be restored from JSON, with tuples as lists.

    Raises UsageError with the path, the type and the remedy for anything else: a set, bytes, a date, NaN,
    a key that is not text, an object.
    """
    encoder = _Encoder(field, tuples=True)
    result = encoder.encode(value, MAX_DEPTH)
    if encoder.lost is not None:
        path, found, mark = encoder.lost
        why = _TOO_MUCH.get(mark) or (
            f"it is of type {type(found).__name__}; "
            "keep text, numbers, booleans, None, and lists and dicts (keys are text) of them"
        )
        raise UsageError(f"{path} cannot be restored from JSON: {why}")
    assert isinstance(result, dict)
    return result


_TOO_MUCH = {
    "large": f"a value has at most {MAX_NODES:,} lists and dicts; keep it elsewhere, and where it is here",
    "deep": f"it is nested more than {MAX_DEPTH} levels deep; keep it flatter",
    "int": "it has more than 4,000 digits; keep it as text",
    "cycle": "it contains itself; keep it without the cycle",
}
"""Why a value of a valid type is refused, by its mark."""


_json_in_order = json.JSONEncoder(separators=(",", ":"), allow_nan=False, sort_keys=True).encode


def canonical(value: Any, field: str) -> str:
    """Return the text of `value` for a call's key: equal values give equal texts.

    Accepts JSON values, tuples, sets, bytes, dates, UUIDs, decimals, paths, enums, dataclasses and
    pydantic models. Raises UsageError naming the parameter and the remedy for anything else.
    """
    return _json_in_order(_canonical(value, field, MAX_DEPTH))


def canonical_items(named: Iterable[tuple[str, str]], values: Mapping[str, Any]) -> str:
    """Return the canonical text of the named values, each after its prefix; raises as `canonical`."""
    return "".join(f"{before}{canonical(values[name], name)}" for name, before in named)


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
