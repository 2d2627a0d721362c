"""Where journals are kept, and their form on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triage.core.constructors import check_constructors
from triage.core.environment import lazily

from .base import Claim, RunInfo, Store
from .copying import copy_run
from .memory import MemoryStore
from .opening import open_store
from .writer import ThreadedStore

if TYPE_CHECKING:
    from .postgres import PostgresStore
    from .sqlite import SQLiteStore

__all__ = [
    "Claim",
    "MemoryStore",
    "PostgresStore",
    "RunInfo",
    "SQLiteStore",
    "Store",
    "ThreadedStore",
    "copy_run",
    "open_store",
]


# Imported on first use, since a program has only the driver of its own store.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "postgres": ("PostgresStore",),
        "sqlite": ("SQLiteStore",),
    },
)

check_constructors(globals())
