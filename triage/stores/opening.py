"""Open the store that a text such as `"sqlite:///runs.db"` names."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from triage.core.errors import UsageError, nearest
from triage.core.redaction import redact

from .base import Store
from .memory import MemoryStore
from .writer import ThreadedStore

_METHODS = (
    "append", "submit", "read", "runs", "info", "claim", "renew", "release", "find", "now", "prune",
    "close",
)  # fmt: skip


REDIS = ("redis", "rediss", "unix")
"""Schemes of the store in Redis of 0.2.0."""
_opened: weakref.WeakValueDictionary[str, ThreadedStore] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def open_store(store: Store | str | None) -> Store:
    """Return the store for an agent's `store`: a store, a text or None.

    None and `"memory:"` make a new store in memory. `"sqlite:///runs.db"` (four slashes for an absolute
    path) and `"postgresql://…"` are durable; options of the store follow as in a URL:
    `"sqlite:///runs.db?synchronous=normal"`. Equal texts give the same object while it is in use.
    The file or database is opened on first use.

    Raises UsageError for anything else, and for a store whose package is not installed.
    """
    if store is None or store == "memory:":
        return MemoryStore()
    if isinstance(store, str):
        return _opened_from(store)
    # Not `isinstance`: from Python 3.12 on it ignores methods that a wrapper provides by `__getattr__`.
    missing = [name for name in _METHODS if not callable(getattr(store, name, None))]
    if missing:
        raise UsageError(
            f"store must be a Store, text or None, not {type(store).__name__}, which has no "
            f"{', '.join(missing)}"
        )
    return store


def _opened_from(text: str) -> ThreadedStore:
    """Return the store of a text. Equal texts share one, so that one commit serves all its users."""
    scheme, colon, _ = text.partition(":")
    make = _SCHEMES.get(scheme) if colon else None
    if scheme in REDIS:
        raise UsageError(
            "runs are kept in Redis no more; copy them once: triage runs copy "
            f"{redact(text)} sqlite:///runs.db"
        )
    if make is None:
        guess = nearest(scheme, _SCHEMES)
        if not colon:
            guess = f"did you mean {f'sqlite:///{redact(text)}'!r}?"
        raise UsageError(
            f'store {redact(text)!r} is not known; write "memory:", "sqlite:///runs.db", '
            f'"postgresql://…" or give a Store{guess and f"; {guess}"}'
        )
    store = make(text)
    with _lock:
        # A relative path depends on the working directory, so equal texts may name two files.
        return _opened.setdefault(f"{text}\n{store!r}", store)


def _options(text: str, ours: Mapping[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    """Split the store's own options from the text."""
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


_SCHEMES: dict[str, Callable[[str], ThreadedStore]] = {
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
}
