"""Any value as a text that may be shown, any record as one of plain values; total, bounded, redacted."""

from __future__ import annotations

import json
import math
import re
import sys
import types
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from triage._capture._probe import is_a, plain, some, text_of, whole
from triage.errors import UsageError

if TYPE_CHECKING:
    from triage.redact import Redactor

MAX_ITEMS = 60
"""Entries kept of one list; of steps and attempts the newest."""
MAX_TEXT = 2_000
_MAX_TEXTS = 30
_LONGEST_ITEM = 500
_LIMITS = {
    "given": 300,
    "result": 300,
    "name": 120,
    "error": 600,
    "hint": 800,
    "run_id": 160,
    "agent": 120,
    "description": 300,
    "partial": 800,
    "task": 1_000,
}
"""Characters kept of a field, where it is not `MAX_TEXT`."""
_READ = 16
"""So many times the limit is looked at, so that no secret is cut in two before it is seen."""

# Controls, marks that are not seen or turn the direction of writing, and halves of surrogate pairs.
UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)

R = TypeVar("R")


def passes(error: BaseException) -> bool:
    """Whether an exception is none of ours to catch: a cancellation, or the user's interrupt."""
    if isinstance(error, BaseExceptionGroup):
        return any(passes(inner) for inner in error.exceptions)
    return isinstance(error, _passing())


def _passing() -> tuple[type[BaseException], ...]:
    found: list[type[BaseException]] = [KeyboardInterrupt]
    for module, name in (("asyncio", "CancelledError"), ("trio", "Cancelled")):
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None:
            found.append(kind)
    return tuple(found)


def safely(make: Callable[[], R], otherwise: R) -> R:
    """What `make` returns, `otherwise` where it raises anything that may be caught."""
    try:
        return make()
    except BaseException as error:
        if passes(error):
            raise
        return otherwise


class Cleaner:
    """Makes values fit to be shown. redactor: finds the secrets in them."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def text(self, value: object, limit: int = MAX_TEXT) -> str:
        """The value in words: no secret, no unseen character, at most `limit` characters."""
        if value is None:
            return ""
        if is_a(value, str) or is_a(value, bytes):
            found = text_of(value, limit * _READ)
        elif is_a(value, bool) or whole(value) is not None or is_a(value, float):
            found = text_of(value)
        else:
            found = self._of_value(value, limit)
        return _cut(UNSEEN.sub("", self._redactor.text(found)).strip(), limit)

    def _of_value(self, value: object, limit: int) -> str:
        if any(is_a(value, kind) for kind in (dict, list, tuple)):
            shown, _ = self._redactor.value(plain(value))
            return json.dumps(shown, ensure_ascii=False)
        found = text_of(value, limit * _READ)
        return found or f"<{text_of(type.__dict__['__name__'].__get__(type(value)), 60)}>"

    def record(self, cls: Any, value: Any) -> Any:
        """A named tuple of `cls` with fields that are as they are declared, whatever they were."""
        given: dict[str, Any] = {}
        for name, kind in kinds_of(cls).items():
            held = safely(partial(getattr, value, name, None), None)
            given[name] = self._field(name, kind, held)
        return cls(**{name: item for name, item in given.items() if item is not None})

    def _field(self, name: str, kind: Any, value: Any) -> Any:
        if value is None:
            return None
        if kind is str:
            return self.text(value, _LIMITS.get(name, MAX_TEXT))
        if kind is bool:
            return value is True
        if kind is int:
            number = whole(value)
            return None if number is None or abs(number) > 1 << 53 else number
        if kind is float:
            return _number(value)
        items = some(value, 5_000) if not is_a(value, str) else [value]
        inner = get_args(kind)[0]
        if inner is str:
            shown = (self.text(item, _LONGEST_ITEM) for item in items[:_MAX_TEXTS])
            return tuple(text for text in shown if text)
        kept = [item for item in items if is_a(item, inner)][-MAX_ITEMS:]
        return tuple(self.record(inner, item) for item in kept)


def _number(value: object) -> float | None:
    number = whole(value)
    if number is not None:
        return float(number) if abs(number) < 1 << 53 else None
    if not is_a(value, float):
        return None
    found = float.__float__(value)  # type: ignore[arg-type] # a float, as tested above
    return found if math.isfinite(found) else None


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# --- the shape of a record ------------------------------------------------------------------------


@cache
def kinds_of(cls: Any) -> dict[str, Any]:
    """What each field of a named tuple holds: `str`, `int`, `float`, `bool`, or a tuple of one kind."""
    return {name: _kind(hint) for name, hint in get_type_hints(cls).items()}


def _kind(hint: Any) -> Any:
    if hint is Any:
        return str
    if get_origin(hint) in (Union, types.UnionType):
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint


def as_json(record: Any) -> dict[str, Any]:
    """A record of plain values as a JSON object; fields that have their defaults are left out."""
    defaults = type(record)._field_defaults
    found: dict[str, Any] = {}
    for name, value in zip(record._fields, record, strict=True):
        if value == defaults.get(name):
            continue
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            found[name] = [as_json(item) if hasattr(item, "_fields") else item for item in value]
        else:
            found[name] = value
    return found


def from_json(cls: Any, data: object, where: str) -> Any:
    """The record that `as_json` made `data` of. Raises UsageError naming `where` and the field.

    Fields it does not know are ignored.
    """
    if not isinstance(data, dict):
        raise UsageError(f"{where} must be a JSON object, not {type(data).__name__}")
    given: dict[str, Any] = {}
    for name, kind in kinds_of(cls).items():
        if name not in data:
            continue
        value, at = data[name], f"{where}.{name}"
        if get_origin(kind) is tuple:
            inner = get_args(kind)[0]
            if not isinstance(value, list):
                raise UsageError(f"{at} must be a list, not {type(value).__name__}")
            given[name] = tuple(
                _scalar(inner, item, f"{at}[{n}]")
                if inner is str
                else from_json(inner, item, f"{at}[{n}]")
                for n, item in enumerate(value)
            )
        else:
            given[name] = _scalar(kind, value, at)
    return cls(**given)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise UsageError(f"{where} must be {kind.__name__}, not {type(value).__name__}")
    return value
