"""What the desk asks of large tables is answered from indexes: the databases' own plans say so."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
from incident_desks import World
from psycopg import sql
from store_kinds import POSTGRES

from triage.incidents import Lifecycle
from triage.incidents import handling as acting
from triage.incidents import notifications as outbox
from triage.incidents.database import _for_postgres
from triage.incidents.detection import FAILED_AGENTS, SILENT_AGENTS, run_queries

pytestmark = pytest.mark.anyio
THEIRS = Lifecycle(heartbeat="beat", task_table=None)
TABLE = """CREATE TABLE agent_lifecycle (agent_id TEXT, agent_type TEXT, task_id TEXT, status TEXT,
error_message TEXT, completed_at TEXT, beat TEXT)"""
INDEXES = (
    "CREATE INDEX theirs_ended ON agent_lifecycle (status, completed_at)",
    "CREATE INDEX theirs_beat ON agent_lifecycle (status, beat)",
)
ASKED: dict[str, str] = {
    "agents that failed": FAILED_AGENTS,
    "agents that are silent": SILENT_AGENTS,
    **{f"runs: {query.word}": query.statement for query in run_queries()},
    **{
        f"due: {name}": f"SELECT id FROM incidents WHERE {where} ORDER BY {order} LIMIT :most"
        for name, (where, order) in acting.DUE_QUERIES.items()
    },
    "not acknowledged": f"SELECT id FROM incidents WHERE {acting.UNHEARD} ORDER BY ack_due LIMIT :most",
    "of a kind": "SELECT id FROM incidents WHERE fingerprint = :key ORDER BY id DESC LIMIT :most",
    "of a task": f"SELECT id FROM incidents WHERE {acting._OPEN_OF_TASK} ORDER BY id DESC LIMIT :most",
    "seen before": "SELECT 1 FROM sightings WHERE source = :source AND key = :key",
    "errors of a task": "SELECT count(*) FROM incidents i JOIN sightings s ON s.incident = i.id "
    "WHERE i.task_id = :task AND s.at > :since",
    "errors of all": "SELECT count(*) FROM sightings WHERE at > :since",
    "not handled": "SELECT id FROM incidents WHERE status = 'detected' ORDER BY last_seen DESC, id DESC "
    "LIMIT :most",
    "open ones": "SELECT id FROM incidents WHERE resolved_at IS NULL ORDER BY last_seen DESC, id DESC "
    "LIMIT :most",
    "messages": outbox.DUE.format(but=""),
    "messages to those not full": outbox.DUE.format(but=" AND role NOT IN (:role)"),
    "messages of a role": outbox._SENT,
    "theirs since": THEIRS.statement("since"),
    "theirs without an end": THEIRS.statement("open"),
}
VALUES: dict[str, Any] = {
    "most": 10, "now": 1.0, "since": 1.0, "lost": 1.0, "waiting": 1.0, "key": "k", "source": "s",
    "task": "t", "role": "r", "word": "failed",
}  # fmt: skip


@pytest.fixture
async def sqlite(tmp_path: Path) -> sqlite3.Connection:
    with World("sqlite", tmp_path) as world:
        await world.desk().stats()
        await world.close()
        db = sqlite3.connect(world.opened.name)
    for statement in (TABLE, *INDEXES):
        db.execute(statement)
    return db


async def test_sqlite_scans_no_table(sqlite: sqlite3.Connection) -> None:
    plans = {
        name: [row[3] for row in sqlite.execute(f"EXPLAIN QUERY PLAN {asked}", VALUES)]
        for name, asked in ASKED.items()
    }
    scans = {
        name: line
        for name, plan in plans.items()
        for line in plan
        if line.startswith("SCAN") and "INDEX" not in line
    }
    assert scans == {}
    assert "USING INDEX theirs_ended (status=? AND completed_at>?)" in plans["theirs since"][0]
    assert "USING INDEX runs_by_end (finished>?)" in plans["runs: ended"][0]
    assert "USING INDEX agents_by_status (status=? AND due<?)" in plans["agents that are silent"][0]
    # Nothing that grows with a table is sorted.
    sorts = {name for name, plan in plans.items() if any("TEMP B-TREE" in line for line in plan)}
    assert sorts <= {"of a task"}
    sqlite.close()


async def test_without_their_index_the_plan_is_a_scan_so_the_test_can_fail(
    sqlite: sqlite3.Connection,
) -> None:
    sqlite.execute("DROP INDEX theirs_ended")
    sqlite.execute("DROP INDEX theirs_beat")
    asked = f"EXPLAIN QUERY PLAN {THEIRS.statement('since')}"
    assert any(row[3].startswith("SCAN al") for row in sqlite.execute(asked, VALUES))
    sqlite.close()


async def test_postgres_can_answer_all_of_it_from_indexes(tmp_path: Path) -> None:
    with World("postgres", tmp_path) as world:
        await world.desk().stats()
        await world.close()
        with psycopg.connect(POSTGRES, autocommit=True) as db:
            db.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(world.opened.name)))
            # Empty tables are read whole whatever there is: what is asked is whether an index fits.
            db.execute("SET enable_seqscan = off")
            for statement in (TABLE, *INDEXES):
                db.execute(statement.encode())
            values = {**VALUES, "since": 1.0}
            for name, asked in ASKED.items():
                given = {**values, "since": "2025"} if name.startswith("theirs") else values
                rows = db.execute(b"EXPLAIN " + _for_postgres(asked), given).fetchall()
                plan = "\n".join(row[0] for row in rows)
                assert "Seq Scan" not in plan, f"{name}\n{plan}"
