"""Move the incidents that 0.2.0 and its successors kept in tables of their own into journals."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
from anyio import to_thread

from triage.core.errors import StaleWriter, UsageError
from triage.core.taxonomy import Level
from triage.stores.base import Store
from triage.stores.sqlite import SQLiteStore
from triage.stores.writer import ThreadedStore

from . import journal, model
from .detection import short_id
from .journal import Incident
from .ledger import Ledger

_TABLES = ("incidents", "incident_log", "messages", "sightings", "tasks", "waits")
_BY = "migration"
Row = dict[str, Any]


async def migrate(store: Store) -> tuple[int, int]:
    """Move incidents and tasks from their old tables into journals; return how many of each were moved.

    The tables stay as they are. A repeated migration moves what an interrupted one has left. Agents, and
    log entries of no incident, are not moved.

    Raises UsageError for a store without such tables.
    """
    tables = await to_thread.run_sync(_read, store)
    ledger = Ledger(store, None)
    of_incident: dict[str, dict[int, list[Row]]] = {}
    for name in ("incident_log", "messages", "sightings"):
        of_incident[name] = defaultdict(list)
        for row in tables[name]:
            of_incident[name][row["incident"]].append(row)
    moved, occurrences = 0, Counter[str]()
    for row in sorted(tables["incidents"], key=lambda row: row["id"]):
        occurrences[row["fingerprint"]] += 1
        parts = {name: rows.get(row["id"], []) for name, rows in of_incident.items()}
        draft = _incident(row, occurrences[row["fingerprint"]], parts)
        text = f"from err-{row['id']:03d}"
        entry = journal.entry_of(
            None, "migrated", by=_BY, now=await ledger.now(), text=text, draft=draft
        )
        try:
            await ledger.write(None, entry)
        except StaleWriter:
            continue
        moved += 1
    return moved, await _move_tasks(ledger, tables)


async def _move_tasks(ledger: Ledger, tables: dict[str, list[Row]]) -> int:
    waits = defaultdict[str, list[str]](list)
    for row in tables["waits"]:
        waits[row["task_id"]].append(row["waits_for"])
    moved = 0
    for row in tables["tasks"]:
        task_id = row["task_id"]
        if await ledger.task(task_id) is None:
            record = msgspec.convert({**row, "waits_for": waits[task_id]}, model.TaskRecord)
            await ledger.put_task(task_id, _BY, partial(_first, record))
            moved += 1
    return moved


def _first(record: model.TaskRecord, before: model.TaskRecord | None) -> model.TaskRecord:
    return before or record


def _read(store: Store) -> dict[str, list[Row]]:
    """Read the old tables. Blocks."""
    if not isinstance(store, ThreadedStore):
        raise UsageError("there is nothing to migrate: incidents in memory end with their process")
    there = "SELECT to_regclass('incident_meta')"
    if isinstance(store, SQLiteStore):
        there = "SELECT max(name) FROM sqlite_master WHERE name = 'incident_meta'"
    with closing(store.connect(writes=False)) as driver, driver.translated():
        if driver.raw.execute(there).fetchone()[0] is None:
            raise UsageError("there is nothing to migrate: the store has no tables of incidents")
        tables: dict[str, list[Row]] = {}
        for name in _TABLES:
            cursor = driver.raw.execute(f"SELECT * FROM {name}")
            names = [column[0] for column in cursor.description]
            tables[name] = [dict(zip(names, row, strict=True)) for row in cursor]
    return tables


def _incident(row: Row, occurrence: int, parts: dict[str, list[Row]]) -> Incident:
    kept = {name: value for name, value in row.items() if name in Incident.__struct_fields__}
    error_id = model.error_id_of(row["fingerprint"], occurrence)
    log = [
        {**entry, "error_id": error_id, "by": entry["actor"], "status": entry["status"] or "detected",
         "attempt": entry["attempt"] or 0}
        for entry in sorted(parts["incident_log"], key=lambda entry: entry["id"])
    ]  # fmt: skip
    messages = [
        {**message, "error_id": error_id, "level": Level(message["level"]), "body": {}}
        for message in sorted(parts["messages"], key=lambda message: message["id"])
    ]
    sightings = [
        {"key": short_id(f"{one['source']}:{one['key']}"), "at": one["at"]}
        for one in parts["sightings"]
    ]
    fields = {
        **kept,
        "error_id": error_id,
        "scope": _scope(row),
        "occurrence": occurrence,
        "retryable": bool(row["retryable"]),
        "files": json.loads(row["files"]),
        "lease_until": None,
        "log": log,
        "messages": messages,
        "sightings": sightings,
    }
    return msgspec.convert(fields, Incident)


def _scope(row: Row) -> str:
    """Return the scope that made the fingerprint, empty if it is not known any more."""
    for scope in (row["task_id"], row["run_id"], row["agent_id"]):
        made_of = row["agent_type"], row["failure_type"], row["cause"], row["message"]
        if scope is not None and model.fingerprint(scope, *made_of) == row["fingerprint"]:
            return str(scope)
    return ""
