"""Where journals are kept, and their form on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .postgres import PostgresStore
    from .redis import RedisStore

from triage.core import dump, dumps, load, loads

from .base import OPEN, Claim, RunInfo, Store, is_progress, ticks
from .memory import MemoryStore
from .opening import open_store
from .rows import Outgoing, from_column
from .sqlite import SQLiteStore, translated
from .writer import Call, Lane, ThreadedStore, ThreadWaiter, Waiter, stop_with, together

__all__ = [
    "OPEN",
    "Call",
    "Claim",
    "Lane",
    "MemoryStore",
    "Outgoing",
    "PostgresStore",
    "RedisStore",
    "RunInfo",
    "SQLiteStore",
    "Store",
    "ThreadWaiter",
    "ThreadedStore",
    "Waiter",
    "dump",
    "dumps",
    "from_column",
    "is_progress",
    "load",
    "loads",
    "open_store",
    "stop_with",
    "ticks",
    "together",
    "translated",
]


def __getattr__(name: str) -> Any:
    # Their drivers are extras.
    if name == "PostgresStore":
        from .postgres import PostgresStore

        return PostgresStore
    if name == "RedisStore":
        from .redis import RedisStore

        return RedisStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
