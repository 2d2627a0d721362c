"""Turn any value into short text without secrets, and any record into plain values."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from triage.core.errors import leaves
from triage.core.escaping import UNSEEN
from triage.core.foreign import attr, is_a, name_of, plain, some, text_of
from triage.core.redaction import Redactor

MAX_ITEMS = 60
"""Maximum records kept of one list, the newest."""
_MAX_TEXT = 2_000
_MAX_TEXTS = 30
_MAX_TEXT_OF_LIST = 500
_LIMITS = {
    "given": 300, "result": 300, "name": 120, "error": 600, "hint": 800, "run_id": 160,
    "agent": 120, "description": 300, "partial": 800, "task": 1_000, "by": 120,
}  # fmt: skip
"""Maximum characters of a field, if not `_MAX_TEXT`."""
_READ = 16
"""Factor by which a redacted text exceeds its limit before the cut, so that no secret is cut unfound."""

_kinds_of = cache(get_type_hints)


def passes(error: BaseException) -> bool:
    """Whether an exception must not be caught, as a cancellation or the user's interrupt."""
    kinds = (KeyboardInterrupt, asyncio.CancelledError)
    return any(isinstance(one, kinds) or type(one).__name__ == "Cancelled" for one in leaves(error))


def class_name(value: object) -> str:
    """Return the name of a value's class, bypassing its metaclass."""
    return text_of(name_of(type(value)), 60)


class Cleaner:
    """Prepares values to be shown. redactor: finds their secrets."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def text(self, value: object, limit: int = _MAX_TEXT) -> str:
        """Return the value as text without secrets or invisible characters, cut to `limit` characters."""
        if any(is_a(value, kind) for kind in (dict, list, tuple)):
            found = json.dumps(self._redactor.value(plain(value))[0], ensure_ascii=False)
        else:
            found = text_of(value, limit * _READ)
            if not found and not (is_a(value, str) or is_a(value, bytes)):
                found = f"<{class_name(value)}>"
        found = UNSEEN.sub("", self._redactor.text(found)).strip()
        return found if len(found) <= limit else f"{found[: limit - 1]}…"

    def record(self, cls: Any, given: object) -> Any:
        """Make a `cls` from any values, with the declared type of each field."""
        values = ((name, kind, attr(given, name)) for name, kind in _kinds_of(cls).items())
        known = {one[0]: self._field(*one) for one in values if one[2] is not None}
        return cls(**{name: value for name, value in known.items() if value is not None})

    def _field(self, name: str, kind: Any, value: object) -> Any:
        if kind is str or kind is Any:
            return self.text(value, _LIMITS.get(name, _MAX_TEXT))
        if get_origin(kind) is not tuple:
            try:
                return msgspec.convert(plain(value), kind)
            except (msgspec.ValidationError, ValueError):
                return None
        items = [value] if is_a(value, str) else some(value, 100 * MAX_ITEMS)
        inner = get_args(kind)[0]
        if inner is str:
            texts = (self.text(item, _MAX_TEXT_OF_LIST) for item in items[:_MAX_TEXTS])
            return tuple(filter(None, texts))
        kept = [item for item in items if is_a(item, inner)][-MAX_ITEMS:]
        return tuple(self.record(inner, item) for item in kept)
