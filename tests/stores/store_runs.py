"""Events for the tests of stores."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from triage import Step
from triage.core import Event, RunFinished, RunStarted, StepRecorded
from triage.stores import Store, sqlite


def started(run_id: str) -> RunStarted:
    return RunStarted(run_id, 0, time.time(), "agent", "task")


def steps(run_id: str, at: int, count: int) -> list[Event]:
    """So many steps from a position on."""
    now = time.time()
    return [
        StepRecorded(
            run_id, seq, now, 1, seq, Step(action="look", tool_output=f"found {seq} " * 20)
        )
        for seq in range(at, at + count)
    ]


def run_of(run_id: str, count: int) -> list[Event]:
    """A whole run with so many steps."""
    end = RunFinished(run_id, count + 1, time.time(), "done", "result")
    return [started(run_id), *steps(run_id, 1, count), end]


async def created(store: Store, run_id: str, *, lease_s: float | None = None) -> None:
    """Begin a run."""
    await store.append(run_id, [started(run_id)], at=0, epoch=0, lease_s=lease_s)


async def add(store: Store, run_id: str, at: int, count: int, epoch: int = 0) -> None:
    """Append so many steps at a position."""
    await store.append(run_id, steps(run_id, at, count), at=at, epoch=epoch)


def edit_sqlite(path: str | Path, *statements: str) -> None:
    """Change the tables of a SQLite store by hand, as if the store had written it so."""
    with closing(sqlite3.connect(path)) as db:
        sqlite.add_functions(db)
        db.execute("PRAGMA foreign_keys = ON")
        for statement in statements:
            db.execute(statement)
        db.execute(f"UPDATE runs SET crc = {sqlite.ROW_CRC}")
        db.commit()
