"""The rows of the room: read as values, written by compare-and-set."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from triage.errors import StoreCorrupt
from triage.taxonomy import FailureType, Level, Severity

from ._db import Db
from ._errors import IncidentBusy, UnknownIncident
from ._model import (
    AgentRecord,
    Incident,
    LogEntry,
    Message,
    RecoveryStrategy,
    Status,
    TaskRecord,
)
from ._texts import iso

INCIDENT = ", ".join(Incident._fields)
AGENT = ", ".join(AgentRecord._fields)
TASK = ", ".join(TaskRecord._fields)
MESSAGE = ", ".join(Message._fields)
LOG = "id, incident, at, verb, actor, status, attempt, text"

# Only names of our own fields get into statements; values are bound.
_BY_ID = f"SELECT {INCIDENT} FROM incidents WHERE id = :id"  # noqa: S608
_FIELDS = [name for name in Incident._fields if name != "id"]
_INSERT = (
    f"INSERT INTO incidents ({', '.join(_FIELDS)}) "  # noqa: S608
    f"VALUES ({', '.join(f':{name}' for name in _FIELDS)})"
)
_LAST = "SELECT max(id) FROM incidents WHERE fingerprint = :fingerprint"
_LOG = """INSERT INTO incident_log (incident, at, verb, actor, status, attempt, text)
VALUES (:incident, :at, :verb, :actor, :status, :attempt, :text)"""
_ENQUEUE = """
INSERT INTO messages (incident, role, level, kind, key, text, body, created_at, due)
VALUES (:incident, :role, :level, :kind, :key, :text, :body, :now, :now) ON CONFLICT (key) DO NOTHING"""


def incident_of(row: tuple[Any, ...]) -> Incident:
    """An incident from its columns. Raises StoreCorrupt for a row that is none."""
    raw = Incident._make(row)
    try:
        return raw._replace(
            failure_type=FailureType(raw.failure_type),
            severity=Severity(raw.severity),
            level=Level(raw.level),
            retryable=bool(raw.retryable),
            strategy=RecoveryStrategy(raw.strategy),
            status=Status(raw.status),
            files=tuple(json.loads(str(raw.files))),
        )
    except (ValueError, TypeError) as error:
        raise StoreCorrupt(f"incident {raw.id} is damaged: {error}") from error


def _columns(incident: Incident) -> dict[str, Any]:
    values = incident._asdict()
    values["files"] = json.dumps(incident.files)
    values["retryable"] = int(incident.retryable)
    for name in ("failure_type", "severity", "level", "strategy", "status"):
        values[name] = str(values[name])
    return values


def load(db: Db, number: int) -> Incident:
    """The incident of a number. Raises UnknownIncident."""
    row = db.one(_BY_ID, {"id": number})
    if row is None:
        raise UnknownIncident(f"the store knows no incident err-{number:03d}")
    return incident_of(row)


def find(db: Db, where: str, values: dict[str, Any], *, order: str, limit: int) -> list[Incident]:
    """Incidents for which a condition of ours holds, in an order of ours."""
    statement = f"SELECT {INCIDENT} FROM incidents WHERE {where} ORDER BY {order} LIMIT :most"  # noqa: S608
    return [incident_of(row) for row in db.rows(statement, {**values, "most": limit})]


def insert(db: Db, incident: Incident) -> Incident:
    """A new incident, with the number it has got."""
    values = _columns(incident)
    db.run(_INSERT, values)
    found = db.one(_LAST, {"fingerprint": incident.fingerprint})
    return incident._replace(id=int((found or (0,))[0]))


def save(db: Db, before: Incident, after: Incident) -> Incident:
    """Write what a move has changed. Raises IncidentBusy when another one was faster."""
    old, new = _columns(before), _columns(after)
    changed = [name for name in _FIELDS if old[name] != new[name]]
    if not changed:
        return after
    sets = ", ".join(f"{name} = :{name}" for name in changed)
    statement = f"UPDATE incidents SET {sets} WHERE id = :id AND version = :before"  # noqa: S608
    values = {name: new[name] for name in changed}
    if not db.run(statement, {**values, "id": before.id, "before": before.version}):
        raise IncidentBusy(f"{before.error_id} was changed by somebody else meanwhile; look again")
    return after


def log(db: Db, verb: str, actor: str, text: str = "", incident: Incident | None = None) -> None:
    """Add to the log."""
    values = {
        "incident": None if incident is None else incident.id,
        "at": db.now,
        "verb": verb,
        "actor": actor,
        "status": None if incident is None else str(incident.status),
        "attempt": None if incident is None else incident.attempt,
        "text": text,
    }
    db.run(_LOG, values)


def enqueue(
    db: Db, incident: Incident, roles: Iterable[str], kind: str, text: str, mark: object
) -> int:
    """Put a message to each role into the outbox, in this commit; how many were new.

    mark: what tells this message of the incident from others of its kind.
    """
    body = json.dumps(message_body(incident, kind, text))
    count = 0
    for role in roles:
        values = {
            "incident": incident.id,
            "role": role,
            "level": str(incident.level),
            "kind": kind,
            "key": f"{incident.error_id}/{incident.fingerprint[:8]}/{kind}/{role}/{mark}",
            "text": text,
            "body": body,
            "now": db.now,
        }
        count += db.run(_ENQUEUE, values)
    return count


def message_body(incident: Incident, kind: str, text: str) -> dict[str, Any]:
    """What a message says of its incident."""
    return {
        "kind": kind,
        "text": text,
        "error_id": incident.error_id,
        "agent_id": incident.agent_id,
        "task_id": incident.task_id,
        "run_id": incident.run_id,
        "error_message": incident.message,
        "failure_type": str(incident.failure_type),
        "cause": incident.cause,
        "severity": str(incident.level),
        "retryable": incident.retryable,
        "recommended_action": incident.action,
        "files_affected": list(incident.files),
        "occurrences": incident.occurrences,
        "attempt": incident.attempt,
        "timestamp": iso(incident.last_seen),
    }


def message_of(row: tuple[Any, ...]) -> Message:
    """A message from its columns."""
    raw = Message._make(row)
    return raw._replace(level=Level(raw.level), body=json.loads(str(raw.body)))


def log_of(row: tuple[Any, ...]) -> LogEntry:
    """A log entry from its columns."""
    return LogEntry._make(row)


def task(db: Db, task_id: str | None) -> TaskRecord | None:
    """A task's row, None for an unknown one."""
    if task_id is None:
        return None
    row = db.one(f"SELECT {TASK} FROM tasks WHERE task_id = :task_id", {"task_id": task_id})  # noqa: S608
    return None if row is None else TaskRecord._make(row)


def agent(db: Db, agent_id: str | None) -> AgentRecord | None:
    """An agent's row, None for an unknown one."""
    if agent_id is None:
        return None
    row = db.one(f"SELECT {AGENT} FROM agents WHERE agent_id = :agent_id", {"agent_id": agent_id})  # noqa: S608
    return None if row is None else AgentRecord._make(row)


_TASK = """
INSERT INTO tasks (task_id, title, status, priority, estimated_hours, timeout_s)
VALUES (:task_id, :title, :status, :priority, :estimated_hours, :timeout_s)
ON CONFLICT (task_id) DO UPDATE SET title = excluded.title, status = excluded.status,
    priority = excluded.priority, estimated_hours = excluded.estimated_hours,
    timeout_s = excluded.timeout_s"""
_AGENT = """
INSERT INTO agents (agent_id, agent_type, task_id, status, started, heartbeat, heartbeat_s, due, ended,
    message, replaces, root, attempt)
VALUES (:agent_id, :agent_type, :task_id, :status, :started, :heartbeat, :heartbeat_s, :due, :ended,
    :message, :replaces, :root, :attempt)
ON CONFLICT (agent_id) DO NOTHING"""


def put_task(db: Db, record: TaskRecord, waits_for: Iterable[str] | None) -> None:
    """Write a task's row and, unless None, what it waits for."""
    db.run(_TASK, record._asdict())
    if waits_for is None:
        return
    db.run("DELETE FROM waits WHERE task_id = :task_id", {"task_id": record.task_id})
    for other in dict.fromkeys(waits_for):
        values = {"task_id": record.task_id, "other": other}
        db.run("INSERT INTO waits (task_id, waits_for) VALUES (:task_id, :other)", values)


def ensure_task(db: Db, task_id: str | None) -> None:
    """See that a task that somebody names has a row."""
    if task_id is not None and task(db, task_id) is None:
        put_task(db, TaskRecord(task_id, "", "open", None, None, None), None)


def put_agent(db: Db, record: AgentRecord) -> bool:
    """Write a new agent's row; False where there is one of this id."""
    ensure_task(db, record.task_id)
    return db.run(_AGENT, record._asdict()) == 1


def successor(db: Db, incident: Incident, new_id: str) -> None:
    """Note that an agent was started in place of the incident's: a new row, the old one kept."""
    old = agent(db, incident.agent_id)
    if old is not None:
        db.run(
            "UPDATE agents SET status = 'replaced', unseen = 0, due = NULL, "
            "ended = coalesce(ended, :now) WHERE agent_id = :agent_id",
            {"now": db.now, "agent_id": old.agent_id},
        )
    every = old.heartbeat_s if old is not None else None
    record = AgentRecord(
        agent_id=new_id,
        agent_type=incident.agent_type or (old.agent_type if old is not None else ""),
        task_id=incident.task_id,
        status="running",
        started=db.now,
        heartbeat=None,
        heartbeat_s=every,
        due=None if every is None else db.now + every,
        ended=None,
        message=None,
        replaces=None if old is None else old.agent_id,
        root=new_id if old is None else old.root,
        attempt=1 if old is None else old.attempt + 1,
    )
    put_agent(db, record)
