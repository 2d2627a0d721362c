"""Removing what has been over for long, so that the tables do not grow for ever."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from ._db import Db

PRUNED = 200
"""Incidents removed in one commit: others may write in between."""
_COMMITS_S = 86_400.0
"""Seconds that the mark of a desk's last commit is kept; it is asked for within some seconds."""

_OVER = """
SELECT id FROM incidents WHERE resolved_at < :border
AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.incident = incidents.id AND m.status = 'pending')
ORDER BY resolved_at LIMIT :most"""
# What another system's table or a run still shows would be found anew; it stays known.
_SHOWN = """
UPDATE sightings SET incident = NULL WHERE {these}
AND source NOT IN ('agents', 'tasks', 'reports', 'desk'){but}"""
_BUT_RUNS_THAT_ARE_GONE = """
AND (source <> 'runs' OR EXISTS (SELECT 1 FROM runs WHERE runs.run_id =
    (SELECT i.run_id FROM incidents i WHERE i.id = sightings.incident)))"""
_ENDED_AGENTS = """
DELETE FROM agents WHERE ended < :border AND unseen = 0
AND NOT EXISTS (SELECT 1 FROM agents a WHERE a.replaces = agents.agent_id)"""


class Pruned(NamedTuple):
    """How many rows were removed."""

    incidents: int = 0
    log: int = 0
    messages: int = 0
    agents: int = 0

    def and_(self, other: Pruned) -> Pruned:
        """Both together."""
        return Pruned._make(one + more for one, more in zip(self, other, strict=True))


def prunable(db: Db, older_than: float) -> int:
    """How many incidents would go."""
    statement = f"SELECT count(*) FROM ({_OVER}) found"  # noqa: S608 - a text of ours
    row = db.one(statement, {"border": db.now - older_than, "most": 1 << 60})
    return 0 if row is None else int(row[0])


def prune_some(db: Db, older_than: float) -> Pruned:
    """Remove incidents that ended so many seconds ago, with all that is theirs; at most `PRUNED`."""
    found = db.rows(_OVER, {"border": db.now - older_than, "most": PRUNED})
    if not found:
        return Pruned()
    numbers = ", ".join(str(int(row[0])) for row in found)
    these = f"incident IN ({numbers})"
    # Only numbers get into the statements.
    with _unlocked(db):
        log = db.run(f"DELETE FROM incident_log WHERE {these}")  # noqa: S608
    messages = db.run(f"DELETE FROM messages WHERE {these}")  # noqa: S608
    but = _BUT_RUNS_THAT_ARE_GONE if db.columns("runs") else ""
    db.run(_SHOWN.format(these=these, but=but))
    db.run(f"DELETE FROM sightings WHERE {these}")  # noqa: S608
    gone = db.run(f"DELETE FROM incidents WHERE id IN ({numbers})")  # noqa: S608
    return Pruned(gone, log, messages)


def prune_rest(db: Db, older_than: float) -> Pruned:
    """Remove what is as old and belongs to no incident, and the messages of open ones."""
    values = {"border": db.now - older_than}
    with _unlocked(db):
        log = db.run("DELETE FROM incident_log WHERE incident IS NULL AND at < :border", values)
    messages = db.run(
        "DELETE FROM messages WHERE status <> 'pending' AND created_at < :border", values
    )
    agents = 0
    while some := db.run(_ENDED_AGENTS, values):  # the last of a line, then the one before it
        agents += some
    db.run("DELETE FROM commits WHERE at < :border", {"border": db.now - _COMMITS_S})
    return Pruned(0, log, messages, agents)


@contextmanager
def _unlocked(db: Db) -> Generator[None]:
    """Inside, lines of the log may be removed; nobody else's."""
    db.run("INSERT INTO pruning (at) VALUES (:now)", {"now": db.now})
    yield
    db.run("DELETE FROM pruning")
