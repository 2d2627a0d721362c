"""Where failures are found: our own tables of agents and tasks, and the runs of the store."""

from __future__ import annotations

from typing import Any, NamedTuple

from triage.diagnosis import Diagnosis
from triage.events import AttemptFailed, Event, RunFinished, RunSuspended
from triage.stores import RunInfo
from triage.stores._rows import from_column
from triage.taxonomy import Cause, FailureType, Severity

from ._cycles import cycles
from ._db import Db
from ._model import Sighting
from ._playbook import said
from ._settings import Watch

RUNS = "runs"
OVERLAP_S = 300.0
"""How far behind the last look a source is read again, for rows that were committed late."""
FAILED = ("escalated", "aborted", "fatal", "error")
"""How a run may end that operations must see."""
_LEFT = Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.PROCESS_DIED, severity=Severity.RETRIABLE)
TAIL = 12
"""Events at the end of a journal that are read to learn why."""

FAILED_AGENTS = """
SELECT agent_id, agent_type, task_id, status, message, ended, root FROM agents
WHERE unseen = 1 ORDER BY ended LIMIT :most"""
SILENT_AGENTS = """
SELECT agent_id, agent_type, task_id, heartbeat, heartbeat_s, root, started FROM agents
WHERE status = 'running' AND due < :now ORDER BY due LIMIT :most"""
WAITS = """
SELECT waits.task_id, waits.waits_for FROM waits JOIN tasks ON tasks.task_id = waits.task_id
WHERE tasks.status = 'open'"""
_RUN = "run_id, agent, status, updated, events, epoch, lease_until"
_UNSEEN = "NOT EXISTS (SELECT 1 FROM sightings s WHERE s.source = 'runs' AND s.key = {key})"
_OF = "'{word}:' || runs.run_id || ':' || CAST(runs.{column} AS TEXT)"


class Query(NamedTuple):
    """What finds runs. word: what is the matter with them."""

    word: str
    statement: str


def run_queries() -> tuple[Query, ...]:
    """The questions about runs; each is answered from an index."""
    ends = ", ".join(f"'{status}'" for status in FAILED)
    asked = (
        # By its end, not by its status: of those that ever failed there are many, of new ones few.
        ("ended", "epoch", f"finished > :since AND status || '' IN ({ends})", "finished"),
        ("dead", "epoch", "status = 'dead_letter'", "id"),
        ("lost", "epoch", "status = 'running' AND lease_until < :lost", "id"),
        ("left", "events", "status = 'running' AND lease_until IS NULL AND updated < :lost", "id"),
        ("waits", "events", "status = 'suspended' AND updated < :waiting", "id"),
    )
    found: list[Query] = []
    for word, column, where, order in asked:
        key = _OF.format(word=word, column=column)
        # Only words of ours get into statements; values are bound.
        statement = (
            f"SELECT {_RUN}, {key} FROM runs WHERE {where} AND parent IS NULL "  # noqa: S608
            f"AND {_UNSEEN.format(key=key)} ORDER BY {order} LIMIT :most"
        )
        found.append(Query(word, statement))
    return tuple(found)


class FoundRun(NamedTuple):
    """A run that something is the matter with. word: as in its query."""

    word: str
    key: str
    run_id: str
    agent: str
    status: str
    events: int
    at: float
    lease_until: float | None


class Found(NamedTuple):
    """What a look at the tables has shown. now: on the store's clock. full: there may be more."""

    now: float
    sightings: list[Sighting]
    runs: list[FoundRun]
    full: bool


def own_tables(db: Db, most: int) -> list[Sighting]:
    """Agents that failed or fell silent, and tasks that wait for each other."""
    found: list[Sighting] = []
    for agent_id, kind, task_id, status, message, ended, root in db.rows(
        FAILED_AGENTS, {"most": most}
    ):
        found.append(
            Sighting(
                "agents", f"{agent_id}:{status}:{ended!r}", said(status, message), agent_id, kind,
                task_id, status=status, at=ended, scope=root,
            )
        )  # fmt: skip
    values = {"now": db.now, "most": most}
    for agent_id, kind, task_id, beat, every, root, started in db.rows(SILENT_AGENTS, values):
        last = started if beat is None else beat
        text = f"Process died: agent {agent_id} sent no heartbeat for {db.now - last:.0f} s"
        text += f", every {every:g} s was promised" if every else ""
        found.append(
            Sighting(
                "agents", f"{agent_id}:dead:{last!r}", text, agent_id, kind, task_id,
                status="dead", at=db.now, scope=root,
            )
        )  # fmt: skip
    for path in cycles((row[0], row[1]) for row in db.rows(WAITS)):
        around = " waits for ".join((*path, path[0]))
        found.append(
            Sighting(
                "tasks", f"cycle:{':'.join(sorted(path))}"[:500], f"Deadlock detected: {around}",
                task_id=path[0], status="deadlock", at=db.now,
            )
        )  # fmt: skip
    return [one for one in found if one.source != "tasks" or not is_known(db, one)]


def is_known(db: Db, sighting: Sighting) -> bool:
    """Whether this failure belongs to an incident already."""
    values = {"source": sighting.source, "key": sighting.key}
    return (
        db.one("SELECT 1 FROM sightings WHERE source = :source AND key = :key", values) is not None
    )


def of_runs(db: Db, watch: Watch, most: int, *, full: bool) -> list[FoundRun]:
    """Runs that failed, lost their process, or wait too long; those seen before left out."""
    row = None if full else db.one("SELECT mark FROM cursors WHERE source = 'runs'")
    values = {
        "since": -1e308 if row is None else float(row[0]) - OVERLAP_S,
        "lost": db.now - watch.lease_lost_s,
        "waiting": -1e308 if watch.suspended_s is None else db.now - watch.suspended_s,
        "most": most,
    }
    found: list[FoundRun] = []
    for query in run_queries():
        for run_id, agent, status, updated, events, _, lease, key in db.rows(
            query.statement, values
        ):
            found.append(
                FoundRun(
                    query.word, key, from_column(run_id), from_column(agent), status, events, updated,
                    lease,
                )
            )  # fmt: skip
    return found


def of_listing(infos: list[RunInfo], watch: Watch, now: float) -> list[FoundRun]:
    """The same of a store that is no table."""
    found: list[FoundRun] = []
    for info in infos:
        ended = info.lease_until is not None and info.lease_until < now - watch.lease_lost_s
        late = watch.suspended_s is not None and info.updated < now - watch.suspended_s
        word = ""
        if info.status in FAILED:
            word = "ended"
        elif info.status == "dead_letter":
            word = "dead"
        elif info.status == "running" and ended:
            word = "lost"
        elif info.status == "suspended" and late:
            word = "waits"
        if word and info.parent is None:
            mark = info.events if word == "waits" else info.epoch
            key = f"{word}:{info.run_id}:{mark}"
            found.append(
                FoundRun(
                    word, key, info.run_id, info.agent, info.status, info.events, info.updated,
                    info.lease_until,
                )
            )  # fmt: skip
    return found


def of_journal(run: FoundRun, events: list[Event], now: float) -> Sighting:
    """What the end of a run's journal says of it."""
    text, known = _said_by(run, events, now)
    return Sighting(
        RUNS, run.key, text, run.run_id, run.agent, None, run.run_id, status=run.status, at=run.at,
        diagnosed=known,
    )  # fmt: skip


def _said_by(run: FoundRun, events: list[Event], now: float) -> tuple[str, Any]:
    last = events[-1] if events else None
    failed = next((event for event in reversed(events) if isinstance(event, AttemptFailed)), None)
    if run.word == "ended":
        error = last.error if isinstance(last, RunFinished) else None
        if error is None and failed is not None:
            error = failed.error
        diagnosis = None if failed is None else failed.diagnosis
        text = str(error) if error is not None else ""
        if not text and diagnosis is not None:
            text = diagnosis.technical_details or diagnosis.user_message
        return text or f"Run {run.run_id} ended as {run.status}", diagnosis
    if run.word == "lost":
        silent = 0.0 if run.lease_until is None else now - run.lease_until
        return f"Process died: run {run.run_id} lost its owner's lease {silent:.0f} s ago", None
    if run.word == "left":
        text = (
            f"Run {run.run_id} was given back {now - run.at:.0f} s ago, and nobody goes on with it"
        )
        return text, _LEFT
    if run.word == "dead":
        return f"Run {run.run_id} is a dead letter: too many processes died with it", "dead_letter"
    asked = next((event for event in reversed(events) if isinstance(event, RunSuspended)), None)
    question = f": {asked.question}" if asked is not None and asked.question else ""
    days = (now - run.at) / 86_400
    text = f"Run {run.run_id} waits for an answer since {days:.1f} days{question}"
    return text, "waits_for_answer"
