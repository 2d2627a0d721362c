"""Events as JSON and back: what stores write, golden files hold and other programs read.

An event is an object with `"event"`, its type's name, and its fields by name; a field that has its
default is left out; fields in seconds end in `_s`; `"v"` is always there. A reader ignores fields it
does not know and refuses a version newer than its own.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, is_dataclass
from dataclasses import fields as dataclass_fields
from enum import Enum
from functools import cache, lru_cache
from json.encoder import encode_basestring_ascii as _quoted
from math import isfinite
from typing import Any, Union, cast, get_args, get_origin

from . import actions, diagnosis, events, failures, steps, taxonomy
from ._plain import HUGE, LEAST, plain
from .errors import StoreError, StoreTooNew
from .events import Event

EVENTS: dict[str, type[Event]] = {cls.__name__: cls for cls in get_args(events.Event)}
"""Every event type by its name on the wire."""

VERSIONS: dict[str, int] = {
    name: cast("Any", cls)._field_defaults["v"] for name, cls in EVENTS.items()
}
"""The newest version of each event type that this release reads, which is the one it writes."""

_STEP_VERSION = VERSIONS["StepRecorded"]
_RENAMED = {"delay": "delay_s"}
_NAMES = {
    **{
        name: value
        for module in (taxonomy, steps, failures, diagnosis, actions, events)
        for name, value in vars(module).items()
        if not name.startswith("_")
    },
    "Mapping": Mapping,
    "Any": Any,
}


def dump(event: Event) -> dict[str, Any]:
    """An event as a JSON object. Total: what has no JSON form is marked as `plain` marks it."""
    return {"event": type(event).__name__, **_fields_out(event), "v": event.v}


def dumps(event: Event) -> str:
    """An event as one line of JSON, without a line break, in ASCII: the text of what `dump` gives."""
    return (
        f'{{"event":"{event.__class__.__name__}"{_written(event.__class__, event)},"v":{event.v}}}'
    )


def step_line(run_id: str, seq: int, time: float, attempt: int, index: int, row: steps.Row) -> str:
    """`dumps` of the `StepRecorded` of these fields, without making one: steps come often."""
    when = repr(time) if time.__class__ is float and isfinite(time) else _text(time)
    fields = _written(steps.Step, row)[1:]
    return (
        f'{{"event":"StepRecorded","run_id":{_id(run_id)},"seq":{seq},"time":{when},'
        f'"attempt":{attempt},"index":{index},"step":{{{fields}}},"v":{_STEP_VERSION}}}'
    )


def load(data: Mapping[str, Any]) -> Event:
    """The event of a JSON object. Raises StoreError naming what is wrong with it."""
    if not isinstance(data, Mapping):
        raise StoreError(f"an event must be a JSON object, not {type(data).__name__}")
    name = data.get("event")
    cls = EVENTS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise StoreError(f"unknown event {name!r}; this release knows {', '.join(EVENTS)}")
    version = data.get("v")
    if type(version) is not int or version < 1:
        raise StoreError(f"{name}.v must be a version from 1, not {version!r}")
    if version > VERSIONS[cls.__name__]:
        raise StoreTooNew(
            f"{name} has version {version}, this release reads up to {VERSIONS[cls.__name__]}; "
            "read it with the release that wrote it or a newer one"
        )
    try:
        return cast("Event", from_json(cls, data, cls.__name__))
    except RecursionError:
        raise StoreError(f"{name} is nested too deeply to be read") from None


def loads(line: str) -> Event:
    """The event of one line of JSON. Raises StoreError naming what is wrong with it."""
    try:
        data = json.loads(line, parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"an event must be one line of JSON: {error}") from None
    return load(data)


def _no_json(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


# Out ----------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """A value of ours as JSON values: fields that have their defaults are left out."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, actions.RecoveryAction):
        return {"action": value.kind, **_fields_out(value)}
    if hasattr(value, "_field_defaults") or isinstance(value, diagnosis.Diagnosis):
        return _fields_out(value)
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return plain(value)


@cache
def _defaults(cls: type) -> dict[str, Any]:
    """Field names in order, with their defaults (MISSING where there is none)."""
    if is_dataclass(cls):
        return {
            entry.name: entry.default_factory()
            if entry.default_factory is not MISSING
            else entry.default
            for entry in dataclass_fields(cls)
        }
    if cls is steps.Usage:
        return cls()._asdict()
    named = cast("Any", cls)
    return {name: named._field_defaults.get(name, MISSING) for name in named._fields}


def _fields_out(value: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, default in _defaults(cast("Any", type(value))).items():
        item = getattr(value, name)
        if item is default or (type(item) is type(default) and item == default):
            continue
        result[_RENAMED.get(name, name)] = to_json(item)
    return result


# Out, as text: steps are written with each turn, so no objects are made for those fields that are text,
# numbers or flat dicts. `dump` says the same, and the tests compare them.

_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
FLAT = 8
"""Dicts of up to so many atoms are written here, larger ones by the library."""
LONG = 100
"""Texts from so many characters on are looked through before any of them is escaped: most need none."""
_AS_THEY_ARE = bytes(code for code in range(32, 127) if code not in b'"\\')
# Changes whatever else there is.
_ESCAPED = bytes(code if code in _AS_THEY_ARE else code ^ 1 for code in range(256))
# A run's id comes again with each of its steps.
_id = lru_cache(1024)(_quoted)


@cache
def _slots(cls: type) -> tuple[tuple[str, Any, type], ...]:
    """For each field but `v`: what stands before its value, its default and its default's type."""
    return tuple(
        (f',"{_RENAMED.get(name, name)}":', default, type(default))
        for name, default in _defaults(cls).items()
        if name != "v"
    )


def _written(named: type, values: tuple[Any, ...]) -> str:
    """The fields of a type in their order, each with a comma before it."""
    text = ""
    for item, (before, default, kind) in zip(values, _slots(named), strict=False):
        if item is default:
            continue
        cls = item.__class__
        if cls is kind and item == default:
            continue
        if cls is str:
            text += before + (_quoted(item) if len(item) < LONG else _long(item))
        elif cls is int and LEAST < item < HUGE:
            text += f"{before}{item!r}"
        elif cls is steps.Step:
            text += f"{before}{{{_written(cls, item.row)[1:]}}}"
        elif cls is steps.Usage:
            text += f"{before}{{{_written(cls, item)[1:]}}}"
        else:
            text += before + _text(item)
    return text


def _long(text: str) -> str:
    """A long text, quoted."""
    if text.isascii():
        raw = text.encode()
        if raw.translate(_ESCAPED) == raw:
            return f'"{text}"'
    return _quoted(text)


def _text(value: Any) -> str:
    cls = value.__class__
    if cls is float and isfinite(value):
        return repr(value)
    if cls is dict and len(value) <= FLAT:
        pairs: list[str] = []
        for key, item in value.items():
            if key.__class__ is not str:
                break
            if item.__class__ is str:
                pairs.append(f"{_quoted(key)}:{_quoted(item)}")
            elif item.__class__ is int and LEAST < item < HUGE:
                pairs.append(f"{_quoted(key)}:{item!r}")
            else:
                break
        else:
            return f"{{{','.join(pairs)}}}"
    return _json(to_json(value))


# In -----------------------------------------------------------------------------------------------


def from_json(cls: type, data: object, where: str) -> Any:
    """The `cls` that `to_json` made `data` of. Raises StoreError naming `where` and the field."""
    if not isinstance(data, Mapping):
        raise StoreError(f"{where} must be a JSON object, not {type(data).__name__}")
    given: dict[str, Any] = {}
    for name, (default, read) in _readers(cls).items():
        wire = _RENAMED.get(name, name)
        if wire in data:
            given[name] = read(data[wire], f"{where}.{wire}")
        elif default is MISSING:
            raise StoreError(f"{where} has no {wire}")
    try:
        return cls(**given)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{where} cannot be read: {error}") from None


Reader = Callable[[Any, str], Any]


@cache
def _readers(cls: type) -> dict[str, tuple[Any, Reader]]:
    hints = _hints(cls)
    return {name: (default, _reader(hints[name])) for name, default in _defaults(cls).items()}


def _hints(cls: type) -> dict[str, Any]:
    if cls is steps.Step:
        fields = {name: getattr(cls, name).fget for name in cls._fields}
        return {name: _hints(field)["return"] for name, field in fields.items()}
    holder = cls.__mro__[1] if cls is steps.Usage else cls
    return typing.get_type_hints(holder, globalns=_NAMES)


def _reader(hint: Any) -> Reader:  # noqa: PLR0911 - one return a kind
    """How a field of this annotation is read; checks its type and says where it is wrong."""
    if hint is Any:
        return lambda value, _where: value
    if hint == actions.Action:
        return _read_action
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _reader_of_union(arguments)
    if origin is tuple:
        return _reader_of_tuple(_reader(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _reader_of_type(dict)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _reader_of_enum(hint)
    if hasattr(hint, "_field_defaults") or hint is diagnosis.Diagnosis:
        return lambda value, where: from_json(hint, value, where)
    return _reader_of_type(hint)


def _reader_of_type(kind: type) -> Reader:
    def read(value: Any, where: str) -> Any:
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise StoreError(f"{where} must be {kind.__name__}, not {type(value).__name__}")
        return value

    return read


def _reader_of_enum(enum: type[Enum]) -> Reader:
    def read(value: Any, where: str) -> Any:
        try:
            return enum(value)
        except ValueError:
            raise StoreError(f"{where} is no {enum.__name__}: {value!r}") from None

    return read


def _reader_of_tuple(item: Reader) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise StoreError(f"{where} must be a list, not {type(value).__name__}")
        return tuple(item(entry, f"{where}[{at}]") for at, entry in enumerate(value))

    return read


def _reader_of_union(members: tuple[Any, ...]) -> Reader:
    rest = [member for member in members if member is not type(None)]
    # `Cause | str`: a known word becomes the enum's member, any other stays text.
    if taxonomy.Cause in rest:
        return lambda value, where: (
            None if value is None else diagnosis.known_cause(_reader_of_type(str)(value, where))
        )
    inner = _reader(rest[0])
    optional = len(rest) < len(members)
    return lambda value, where: None if value is None and optional else inner(value, where)


def _read_action(value: Any, where: str) -> Any:
    kind = value.get("action") if isinstance(value, Mapping) else None
    for cls in actions.ACTIONS:
        if cls.kind == kind:
            return from_json(cls, value, where)
    raise StoreError(f"{where} is no action: {kind!r}")
