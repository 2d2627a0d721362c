"""A durable store from its text."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from triage._options import nearest
from triage.errors import UsageError
from triage.redact import redact

from ._threaded import ThreadedStore

_opened: weakref.WeakValueDictionary[str, ThreadedStore] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def opened(text: str) -> ThreadedStore:
    """The store of a text; equal texts share one, whose commits then serve all who use it.

    Raises UsageError for a text that names none.
    """
    scheme, colon, _ = text.partition(":")
    make = _SCHEMES.get(scheme) if colon else None
    if make is None:
        guess = nearest(scheme, _SCHEMES)
        raise UsageError(
            f'store {redact(text)!r} is not known; write "memory:", "sqlite:///runs.db", '
            f'"postgresql://…", "redis://…" or give a Store{guess and f"; {guess}"}'
        )
    store = make(text)
    with _lock:
        # A path is where the process was, so equal texts may mean two files.
        return _opened.setdefault(f"{text}\n{store!r}", store)


def _options(text: str, ours: Mapping[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    """The text without the options that are ours, and those."""
    base, _, query = text.partition("?")
    rest: list[tuple[str, str]] = []
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in ours:
            rest.append((name, value))
            continue
        try:
            options[name] = ours[name](value)
        except ValueError:
            raise UsageError(f"store option {name} must be a number, not {value!r}") from None
    return (f"{base}?{urlencode(rest)}" if rest else base), options


def _sqlite(text: str) -> ThreadedStore:
    from .sqlite import SQLiteStore

    base, options = _options(text, {"synchronous": str, "timeout": float})
    place, mark, rest = base.partition("?")
    if mark:
        known = "synchronous and timeout"
        raise UsageError(f"store {redact(text)!r} has options not known: {rest}; known are {known}")
    path = place.removeprefix("sqlite:///")
    if path == place or not path:
        raise UsageError(
            f'store {redact(text)!r} names no file; write "sqlite:///runs.db", with four slashes '
            "for an absolute path"
        )
    return SQLiteStore(unquote(path), **options)


def _postgres(text: str) -> ThreadedStore:
    from .postgres import PostgresStore

    base, options = _options(text, {"schema": str, "timeout": float})
    return PostgresStore(base, **options)


def _redis(text: str) -> ThreadedStore:
    from .redis import RedisStore

    ours: dict[str, Callable[[str], Any]] = {
        "prefix": str,
        "persistence": str,
        "wait_replicas": int,
        "timeout": float,
    }
    base, options = _options(text, ours)
    return RedisStore(base, **options)


_SCHEMES: dict[str, Callable[[str], ThreadedStore]] = {
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "redis": _redis,
    "rediss": _redis,
    "unix": _redis,
}
