"""Where journals are kept, and their form on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triage.errors import UsageError
from triage.redact import redact

from .base import RunInfo, Store
from .memory import MemoryStore

if TYPE_CHECKING:
    from triage._wire import dump, dumps, load, loads

__all__ = ["MemoryStore", "RunInfo", "Store", "dump", "dumps", "load", "loads", "open_store"]


def open_store(store: Store | str | None) -> Store:
    """A store from what an agent was given: a store, `"memory:"`, or None for memory.

    Raises UsageError for anything else.
    """
    if store is None or store == "memory:":
        return MemoryStore()
    if isinstance(store, str):
        raise UsageError(f'store {redact(store)!r} is not known; write "memory:" or give a Store')
    if not isinstance(store, Store):
        raise UsageError(
            f"store must be a Store (append, read, runs), text or None, not {type(store).__name__}"
        )
    return store


def __getattr__(name: str) -> Any:
    # The form on the wire is for stores that write: most processes keep their runs in memory.
    if name in ("dump", "dumps", "load", "loads"):
        from triage import _wire

        return getattr(_wire, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
