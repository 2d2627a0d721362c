"""Read failures from a table of agents that another system writes, `agent_lifecycle` by default."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from triage.core.errors import misuse

from .model import Failure, Source, seconds_of
from .playbook import failure_text

_NAME = re.compile(r"[A-Za-z_]\w{0,62}(\.[A-Za-z_]\w{0,62})?", re.ASCII)
_FAILED = ("failed", "killed", "timeout")


def lifecycle(
    connect: Callable[[], Any],
    *,
    table: str = "agent_lifecycle",
    task_table: str | None = "orchestrator_task",
    failed: tuple[str, ...] = _FAILED,
) -> Source:
    """Make a source of the failed agents in a table, which is only read.

    connect: opens a connection of a DB-API driver, such as `partial(sqlite3.connect, "theirs.db")`; it is
    closed after each look. table: has the columns agent_id, agent_type, task_id, status, error_message and
    completed_at, which is an ISO 8601 text (UTC without a zone), seconds since the epoch, or a timestamp;
    None counts as now. task_table: has priority and estimated_hours by task_id; None without one. failed:
    values of `status` that mean a failure. For a table with other names, make a view.

    Raises UsageError for an invalid name, and the driver's error for a missing table or column.
    """
    for field, name in (("table", table), ("task_table", task_table)):
        if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise misuse(f"lifecycle.{field}", name, "a name of letters, digits and _")
    words = ", ".join(f"'{word}'" for word in failed if re.fullmatch(r"\w+", word))
    joined = "(SELECT t.{} FROM " + f"{task_table} t WHERE t.task_id = al.task_id LIMIT 1)"
    extra = [
        joined.format(name) if task_table else "NULL" for name in ("priority", "estimated_hours")
    ]
    # A subquery, since a join would repeat the failure if two tasks had the same id.
    statement = (
        "SELECT agent_id, agent_type, task_id, status, error_message, completed_at, "
        f"{', '.join(extra)} FROM {table} al WHERE status IN ({words}) "
        "ORDER BY completed_at IS NOT NULL, completed_at DESC"
    )

    def failures(since: float) -> Iterator[Failure]:
        db = connect()
        try:
            cursor = db.cursor()
            cursor.execute(statement)
            for agent, kind, task, status, message, ended, priority, hours in cursor:
                at = seconds_of(ended)
                if at is not None and at < since:
                    break
                yield Failure(
                    source=table,
                    key=f"{agent}:{status}:{ended or ''}",
                    message=failure_text(str(status), message),
                    agent_id=str(agent),
                    agent_type=str(kind or ""),
                    task_id=None if task is None else str(task),
                    status=str(status),
                    at=at,
                    scope=str(agent),
                    priority=priority,
                    estimated_hours=hours,
                )
        finally:
            db.close()

    return failures
