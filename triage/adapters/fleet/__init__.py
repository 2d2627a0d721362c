"""Runs on more than one machine: queues in Postgres, workers anywhere, one journal.

`triage.adapters.dbos` provides the `Fleet`, with DBOS as its queue engine. This package holds what is not
DBOS's own.
"""

from __future__ import annotations

from triage.core import Deduplicated
from triage.core.constructors import check_constructors

from .database import Database, in_thread, rows_from, unavailable
from .engine import (
    ABILITIES,
    WAKE,
    Carry,
    Due,
    FleetEngine,
    Job,
    Place,
    Queue,
    Ticket,
)
from .fleet import Fleet, postgres_of
from .worker import Worker

__all__ = [
    "ABILITIES",
    "WAKE",
    "Carry",
    "Database",
    "Deduplicated",
    "Due",
    "Fleet",
    "FleetEngine",
    "Job",
    "Place",
    "Queue",
    "Ticket",
    "Worker",
    "in_thread",
    "postgres_of",
    "rows_from",
    "unavailable",
]

check_constructors(globals())
