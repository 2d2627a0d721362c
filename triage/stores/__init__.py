"""Where journals are kept, and their form on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .postgres import PostgresStore
    from .redis import RedisRuns
    from .sqlite import SQLiteStore, translated

from triage.core import dump, dumps, lazily, load, loads
from triage.core.constructors import check_constructors

from .base import OPEN, Claim, RunInfo, Store, is_progress
from .clock import ticks
from .copying import copy_run
from .memory import MemoryStore
from .opening import open_store
from .rows import Outgoing, from_column
from .writer import (
    Call,
    Lane,
    ThreadedStore,
    ThreadWaiter,
    Waiter,
    slow_store,
    stop_with,
    together,
)

__all__ = [
    "OPEN",
    "Call",
    "Claim",
    "Lane",
    "MemoryStore",
    "Outgoing",
    "PostgresStore",
    "RedisRuns",
    "RunInfo",
    "SQLiteStore",
    "Store",
    "ThreadWaiter",
    "ThreadedStore",
    "Waiter",
    "copy_run",
    "dump",
    "dumps",
    "from_column",
    "is_progress",
    "load",
    "loads",
    "open_store",
    "slow_store",
    "stop_with",
    "ticks",
    "together",
    "translated",
]


# A program has the driver of the store that it uses, and loads no other.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "postgres": ("PostgresStore",),
        "redis": ("RedisRuns",),
        "sqlite": ("SQLiteStore", "translated"),
    },
)

check_constructors(globals())
