"""The tables of agents and tasks, as other systems report them."""

from __future__ import annotations

from collections.abc import Iterable

from triage.core.errors import UsageError

from .database import AGENT, TASK, Db, log
from .model import AgentRecord, Incident, TaskRecord, UnknownIncident
from .playbook import failure_text


def task(db: Db, task_id: str | None) -> TaskRecord | None:
    """A task; None if unknown."""
    if task_id is None:
        return None
    row = db.one(f"SELECT {TASK} FROM tasks WHERE task_id = :task_id", {"task_id": task_id})
    return None if row is None else TaskRecord._make(row)


def agent(db: Db, agent_id: str | None) -> AgentRecord | None:
    """An agent; None if unknown."""
    if agent_id is None:
        return None
    row = db.one(f"SELECT {AGENT} FROM agents WHERE agent_id = :agent_id", {"agent_id": agent_id})
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
    """Write a task and, unless None, what it waits for."""
    db.run(_TASK, record._asdict())
    if waits_for is None:
        return
    db.run("DELETE FROM waits WHERE task_id = :task_id", {"task_id": record.task_id})
    for other in dict.fromkeys(waits_for):
        values = {"task_id": record.task_id, "other": other}
        db.run("INSERT INTO waits (task_id, waits_for) VALUES (:task_id, :other)", values)


def ensure_task(db: Db, task_id: str | None) -> None:
    """Make sure that a task has a row."""
    if task_id is not None and task(db, task_id) is None:
        put_task(db, TaskRecord(task_id, "", "open", None, None, None), None)


def put_agent(db: Db, record: AgentRecord) -> bool:
    """Insert an agent; False if its id is taken."""
    ensure_task(db, record.task_id)
    return db.run(_AGENT, record._asdict()) == 1


def successor(db: Db, incident: Incident, new_id: str) -> None:
    """Record the agent that replaces the one of an incident; the old row stays."""
    old = agent(db, incident.agent_id)
    if old is not None:
        db.run(
            "UPDATE agents SET status = 'replaced', unseen = 0, due = NULL, "
            "ended = coalesce(ended, :now) WHERE agent_id = :agent_id",
            {"now": db.now, "agent_id": old.agent_id},
        )
    agent_type = incident.agent_type or ("" if old is None else old.agent_type)
    heartbeat_s = None if old is None else old.heartbeat_s
    put_agent(db, _running(db, new_id, agent_type, incident.task_id, heartbeat_s, old))


def start(
    db: Db,
    agent_id: str,
    agent_type: str,
    task_id: str | None,
    heartbeat_s: float | None,
    replaces: str | None,
    by: str,
) -> AgentRecord:
    """Record that an agent has started; repeating it changes nothing."""
    old = agent(db, replaces)
    if replaces is not None and old is None:
        raise UsageError(f"replaces: no agent {replaces} is known")
    record = _running(db, agent_id, agent_type, task_id, heartbeat_s, old)
    if put_agent(db, record):
        log(db, "agent started", by, f"{agent_type} {agent_id}")
        return record
    there = agent(db, agent_id)
    if there is None or (there.agent_type, there.task_id) != (agent_type, task_id):
        raise UsageError(
            f"agent_id {agent_id} is taken; an agent that is started anew has an id of its own"
        )
    return there


def _running(
    db: Db,
    agent_id: str,
    agent_type: str,
    task_id: str | None,
    heartbeat_s: float | None,
    old: AgentRecord | None,
) -> AgentRecord:
    return AgentRecord(
        agent_id=agent_id,
        agent_type=agent_type,
        task_id=task_id,
        status="running",
        started=db.now,
        heartbeat=None,
        heartbeat_s=heartbeat_s,
        due=None if heartbeat_s is None else db.now + heartbeat_s,
        ended=None,
        message=None,
        replaces=None if old is None else old.agent_id,
        root=agent_id if old is None else old.root,
        attempt=1 if old is None else old.attempt + 1,
    )


def _known(db: Db, agent_id: str) -> AgentRecord:
    found = agent(db, agent_id)
    if found is None:
        raise UnknownIncident(f"the store knows no agent {agent_id}; tell agent_started first")
    return found


def beat(db: Db, agent_id: str, by: str) -> AgentRecord:
    """Record a heartbeat; an agent taken for dead is running again."""
    record = _known(db, agent_id)
    if record.status not in ("running", "dead"):
        return record
    due = None if record.heartbeat_s is None else db.now + record.heartbeat_s
    db.run(
        "UPDATE agents SET heartbeat = :now, due = :due, status = 'running', ended = NULL "
        "WHERE agent_id = :agent_id",
        {"now": db.now, "due": due, "agent_id": agent_id},
    )
    if record.status == "dead":
        log(db, "agent came back", by, agent_id)
    return record._replace(heartbeat=db.now, due=due, status="running", ended=None)


def end(db: Db, agent_id: str, status: str, message: str, by: str) -> AgentRecord:
    record = _known(db, agent_id)
    if record.status not in ("running", "dead"):
        return record
    values = {
        "status": status,
        "now": db.now,
        "message": message or None,
        # A dead agent has its incident already.
        "unseen": int(status != "done" and record.status == "running"),
        "agent_id": agent_id,
    }
    db.run(
        "UPDATE agents SET status = :status, ended = :now, due = NULL, message = :message, "
        "unseen = :unseen WHERE agent_id = :agent_id",
        values,
    )
    text = f"{agent_id}: {status}" + (
        f", {failure_text(status, message)}" if status != "done" else ""
    )
    log(db, "agent ended", by, text)
    return record._replace(status=status, ended=db.now, due=None, message=message or None)
