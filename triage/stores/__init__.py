"""Where journals are kept, and their form on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triage._lazy import lazily as _lazily
from triage.errors import UsageError

from .base import Claim, RunInfo, Store
from .memory import MemoryStore

if TYPE_CHECKING:
    from triage._wire import dump, dumps, load, loads

    from .postgres import PostgresStore
    from .redis import RedisStore
    from .sqlite import SQLiteStore

__all__ = [
    "Claim",
    "MemoryStore",
    "PostgresStore",
    "RedisStore",
    "RunInfo",
    "SQLiteStore",
    "Store",
    "dump",
    "dumps",
    "load",
    "loads",
    "open_store",
]


def open_store(store: Store | str | None) -> Store:
    """A store from what an agent was given: a store, None for memory, or text.

    `"memory:"` is a new store in memory, as is None. `"sqlite:///runs.db"` (four slashes for an absolute
    path), `"postgresql://…"` and `"redis://…"` are durable; options of ours may follow as in a URL,
    `"sqlite:///runs.db?synchronous=normal"`. Equal texts give the same object while it is in use.
    Nothing is opened yet.

    Raises UsageError for anything else, and for a store whose package is not installed.
    """
    if store is None or store == "memory:":
        return MemoryStore()
    if isinstance(store, str):
        from ._open import opened

        return opened(store)
    # Not `isinstance`: from Python 3.12 on it does not see what a wrapper of a store passes on.
    missing = [name for name in _METHODS if not callable(getattr(store, name, None))]
    if missing:
        raise UsageError(
            f"store must be a Store, text or None, not {type(store).__name__}, which has no "
            f"{', '.join(missing)}"
        )
    return store


_METHODS = (
    "append", "submit", "read", "runs", "info", "claim", "renew", "release", "find", "now", "prune",
    "close",
)  # fmt: skip

# What only stores that write need: most processes keep their runs in memory.
_HOMES = {
    "sqlite": ("SQLiteStore",),
    "postgres": ("PostgresStore",),
    "redis": ("RedisStore",),
    "._wire": ("dump", "dumps", "load", "loads"),
}


__getattr__, __dir__ = _lazily(__name__, _HOMES)
