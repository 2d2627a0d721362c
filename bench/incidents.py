"""What the desk takes over small and large tables: `python -m bench.incidents [--store postgres]`.

A table of another system with a thousand lifecycle rows, then with a million, and a thousand open
incidents, then a hundred thousand: each figure is the median of many calls, and its growth from the small
to the large. Nothing is said about absolute times: they belong to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from triage.incidents import Hooks, IncidentDesk, Lifecycle

POSTGRES = os.environ.get("TRIAGE_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
SIZES = ((1_000, 1_000), (1_000_000, 100_000))
"""(lifecycle rows, open incidents) of the small and the large tables."""
FAILED_EVERY = 50
"""One in so many agents has failed."""
TABLE = (
    "CREATE TABLE agent_lifecycle (agent_id bigint PRIMARY KEY, agent_type text, task_id text, "
    "status text, error_message text, completed_at float8, beat float8)"
)
INDEXES = (
    "CREATE INDEX theirs_ended ON agent_lifecycle (status, completed_at)",
    "CREATE INDEX theirs_beat ON agent_lifecycle (status, beat)",
)
ROW = "INSERT INTO agent_lifecycle VALUES ({}, {}, {}, {}, {}, {}, {})"


class Tables:
    """The tables of a store, written by hand: a hundred thousand reports would take long."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        if kind == "sqlite":
            path = folder / "runs.db"
            self.text = f"sqlite:///{path}?synchronous=normal"
            self._place: Any = path
        else:
            self._place = f"bench_{uuid.uuid4().hex[:12]}"
            self.text = f"{POSTGRES}?schema={self._place}"

    def many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert rows. statement: with `{}` for each value."""
        found = list(rows)
        if self.kind == "sqlite":
            with sqlite3.connect(self._place) as db:
                db.executemany(statement.replace("{}", "?"), found)
            db.close()
            return
        with self._postgres() as db, db.cursor() as cursor:
            cursor.executemany(statement.replace("{}", "%s"), found)

    def run(self, *statements: str) -> None:
        """Do something else."""
        if self.kind == "sqlite":
            with sqlite3.connect(self._place) as db:
                for statement in statements:
                    db.execute(statement)
            db.close()
            return
        with self._postgres() as db:
            for statement in statements:
                db.execute(statement)

    def _postgres(self) -> Any:
        import psycopg

        return psycopg.connect(POSTGRES, autocommit=True, options=f"-c search_path={self._place}")

    def drop(self) -> None:
        """Leave nothing in the database."""
        if self.kind == "postgres":
            self.run(f"DROP SCHEMA {self._place} CASCADE")


def lifecycle(count: int, now: float) -> Iterable[tuple[Any, ...]]:
    """Agents that are done, and some that failed long ago."""
    for number in range(count):
        failed = number % FAILED_EVERY == 0
        ended = now - 86_400 * 30 + number * 0.001
        status, text = ("failed", "Process died unexpectedly") if failed else ("done", None)
        yield number, "coder", f"T-{number}", status, text, ended, ended


def known(count: int, now: float) -> Iterable[tuple[Any, ...]]:
    """Incidents that wait for a person."""
    for number in range(count):
        yield (
            f"f-{number}", "reports", f"U-{number}", "Merge conflict", "external_fault",
            "merge_conflict", "critical", "high", 0, "manual_intervention", "manual", "escalated",
            0, 3, now - 1000, now - 1000 + number * 0.001,
        )  # fmt: skip


INCIDENT = (
    "INSERT INTO incidents (fingerprint, source, task_id, message, failure_type, cause, severity, level, "
    "retryable, action, strategy, status, attempt, max_retries, first_seen, last_seen) VALUES "
    "({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})"
)


async def measured(kind: str, rows: int, incidents: int, rounds: int) -> dict[str, float]:
    """Seconds of each operation, the median of the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        tables = Tables(kind, Path(folder))
        source = Lifecycle(task_table=None, heartbeat="beat")
        desk = IncidentDesk(
            tables.text,
            hooks=Hooks(restart=lambda _recovery: None),
            sources=[source],
            sinks={"*": lambda _message: None},
        )
        try:
            await IncidentDesk(desk.store).stats()
            now = time.time()
            tables.run(TABLE)
            tables.many(ROW, lifecycle(rows, now))
            tables.run(*INDEXES)
            tables.many(INCIDENT, known(incidents, now))
            # What failed long ago was seen long ago.
            tables.run(
                "INSERT INTO sightings SELECT 'agent_lifecycle', CAST(agent_id AS TEXT) || ':' || status "
                "|| ':' || CAST(completed_at AS TEXT), 1, completed_at FROM agent_lifecycle "
                "WHERE status = 'failed'",
                f"INSERT INTO cursors SELECT 'agent_lifecycle:failed', '{now - 400!r}'",
                "ANALYZE",
            )
            return await _rounds(desk, tables, rows, rounds)
        finally:
            await desk.close()
            await desk.store.close()
            tables.drop()


async def _rounds(desk: IncidentDesk, tables: Tables, rows: int, rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {}

    async def timed(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        start = time.perf_counter()
        answer = await call()
        taken.setdefault(name, []).append(time.perf_counter() - start)
        return answer

    for number in range(rounds):
        await timed("look, nothing new", desk.look)
        agent = rows + number
        died = (
            agent,
            "coder",
            f"N-{number}",
            "failed",
            "Process died unexpectedly",
            time.time(),
            0.0,
        )
        tables.many(ROW, [died])
        new = await timed("look, one new", desk.look)
        assert new == 1, new
        answer = await timed("detect", desk.detect)
        assert answer["errors_found"] == 1, answer["errors_found"]
        error_id = answer["errors"][0]["error_id"]
        await timed("handle", partial(desk.handle, error_id))
        await timed("tick", desk.tick)
        await timed("list 100", desk.incidents)
    await timed("stats", desk.stats)
    return {name: statistics.median(values) for name, values in taken.items()}


async def main(kind: str, rounds: int) -> None:
    """Print a line an operation."""
    small, large = [await measured(kind, *size, rounds) for size in SIZES]
    head = " and ".join(f"{count:,}" for count in SIZES[1])
    print(f"{kind}: {head} rows and incidents, beside 1,000 of each; median of {rounds}")
    for name, seconds in large.items():
        growth = seconds / small[name]
        print(f"{name:20} {small[name] * 1e3:9.2f} ms {seconds * 1e3:9.2f} ms {growth:7.2f} times")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.incidents", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    asyncio.run(main(options.store, options.rounds))
