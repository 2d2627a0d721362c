"""Find failures in our own tables and in the runs of the store, and turn them into incidents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from triage.classifiers.base import Classifier
from triage.core.diagnosis import Diagnosis
from triage.core.events import AttemptFailed, Event, RunFinished, RunSuspended
from triage.core.failures import ErrorInfo
from triage.core.redaction import Redactor
from triage.core.taxonomy import Cause, FailureType, Level, Severity
from triage.stores.base import RunInfo
from triage.stores.rows import from_column

from . import database as rows
from . import model, playbook
from .agents import ensure_task, task
from .database import Db

# Deadlocks: who waits for whom in a circle.

Edge = tuple[str, str]
"""(who waits, what for)."""


def cycles(edges: Iterable[Edge]) -> list[tuple[str, ...]]:
    """Find the cycles in who waits for whom.

    Returns one shortest cycle for each strongly connected part, starting with the least name; sorted.
    Linear in the edges, and without recursion, so that no chain is too long.
    """
    graph: dict[str, list[str]] = {}
    for waits, what in sorted(set(edges)):
        graph.setdefault(waits, []).append(what)
        graph.setdefault(what, [])
    found = [
        knot
        for knot in _knots(graph)
        if len(knot) > 1 or next(iter(knot)) in graph[next(iter(knot))]
    ]
    return sorted(_path(graph, knot) for knot in found)


def _knots(graph: dict[str, list[str]]) -> Iterator[set[str]]:
    """The strongly connected parts, by Tarjan's algorithm with an explicit stack."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: dict[str, None] = {}
    for root, first in graph.items():
        if root in index:
            continue
        work = [(root, iter(first))]
        index[root] = low[root] = len(index)
        open_[root] = None
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    open_[other] = None
                    work.append((other, iter(graph[other])))
                    break
                if other in open_:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    knot: set[str] = set()
                    while node not in knot:
                        knot.add(open_.popitem()[0])
                    yield knot


def _path(graph: dict[str, list[str]], knot: set[str]) -> tuple[str, ...]:
    """A shortest cycle through the least name of a strongly connected part."""
    start = min(knot)
    came: dict[str, str] = {}
    queue = [start]
    for node in queue:
        for other in graph[node]:
            if other == start:
                path = [node]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return tuple(reversed(path))
            if other in knot and other not in came:
                came[other] = node
                queue.append(other)
    return tuple(sorted(knot))  # pragma: no cover - every name of a knot is in a cycle


RUNS = "runs"
OVERLAP_S = 300.0
"""Seconds before the last look from which a source is read again, for rows committed late."""
FAILED = ("escalated", "aborted", "fatal", "error")
"""Ends of runs that are failures."""
_LEFT = Diagnosis(FailureType.EXTERNAL_FAULT, cause=Cause.PROCESS_DIED, severity=Severity.RETRIABLE)
TAIL = 12
"""Events at the end of a journal that are read to learn why a run failed."""

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
    """A query for failed runs. word: what is wrong with them."""

    word: str
    statement: str


def run_queries() -> tuple[Query, ...]:
    """The queries for failed runs. Each uses an index."""
    ends = ", ".join(f"'{status}'" for status in FAILED)
    asked = (
        # By time of end, not by status: many runs have ever failed, few have since the last look.
        ("ended", "epoch", f"finished > :since AND status || '' IN ({ends})", "finished"),
        ("dead", "epoch", "status = 'dead_letter'", "id"),
        ("lost", "epoch", "status = 'running' AND lease_until < :lost", "id"),
        ("left", "events", "status = 'running' AND lease_until IS NULL AND updated < :lost", "id"),
        ("waits", "events", "status = 'suspended' AND updated < :waiting", "id"),
    )
    found: list[Query] = []
    for word, column, where, order in asked:
        key = _OF.format(word=word, column=column)
        # Only our own words get into statements; values are bound.
        statement = (
            f"SELECT {_RUN}, {key} FROM runs WHERE {where} AND parent IS NULL "
            f"AND {_UNSEEN.format(key=key)} ORDER BY {order} LIMIT :most"
        )
        found.append(Query(word, statement))
    return tuple(found)


class FoundRun(NamedTuple):
    """A failed run. word: as in its query."""

    word: str
    key: str
    run_id: str
    agent: str
    status: str
    events: int
    at: float
    lease_until: float | None


def own_tables(db: Db, most: int) -> list[model.Sighting]:
    """Agents that failed or fell silent, and deadlocked tasks."""
    found: list[model.Sighting] = []
    for agent_id, kind, task_id, status, message, ended, root in db.rows(
        FAILED_AGENTS, {"most": most}
    ):
        found.append(
            model.Sighting(
                source="agents",
                key=f"{agent_id}:{status}:{ended!r}",
                message=playbook.failure_text(status, message),
                agent_id=agent_id,
                agent_type=kind,
                task_id=task_id,
                status=status,
                at=ended,
                scope=root,
            )
        )
    values = {"now": db.now, "most": most}
    for agent_id, kind, task_id, beat, every, root, started in db.rows(SILENT_AGENTS, values):
        last = started if beat is None else beat
        text = f"Process died: agent {agent_id} sent no heartbeat for {db.now - last:.0f} s"
        text += f", every {every:g} s was promised" if every else ""
        found.append(
            model.Sighting(
                source="agents",
                key=f"{agent_id}:dead:{last!r}",
                message=text,
                agent_id=agent_id,
                agent_type=kind,
                task_id=task_id,
                status="dead",
                at=db.now,
                scope=root,
            )
        )
    for path in cycles((row[0], row[1]) for row in db.rows(WAITS)):
        around = " waits for ".join((*path, path[0]))
        key = f"cycle:{':'.join(sorted(path))}"[:500]
        if not is_known(db, "tasks", key):
            found.append(
                model.Sighting(
                    source="tasks",
                    key=key,
                    message=f"Deadlock detected: {around}",
                    task_id=path[0],
                    status="deadlock",
                    at=db.now,
                )
            )
    return found


def is_known(db: Db, source: str, key: str) -> bool:
    """Whether this failure has been seen."""
    known = "SELECT 1 FROM sightings WHERE source = :source AND key = :key"
    return db.one(known, {"source": source, "key": key}) is not None


def of_runs(db: Db, watch: model.Watch, most: int, *, full: bool) -> list[FoundRun]:
    """Unseen runs that failed, lost their process, or wait too long."""
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
                    word=query.word,
                    key=key,
                    run_id=from_column(run_id),
                    agent=from_column(agent),
                    status=status,
                    events=events,
                    at=updated,
                    lease_until=lease,
                )
            )
    return found


def of_listing(infos: list[RunInfo], watch: model.Watch, now: float) -> list[FoundRun]:
    """The same for a store without tables."""
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
            found.append(
                FoundRun(
                    word=word,
                    key=f"{word}:{info.run_id}:{mark}",
                    run_id=info.run_id,
                    agent=info.agent,
                    status=info.status,
                    events=info.events,
                    at=info.updated,
                    lease_until=info.lease_until,
                )
            )
    return found


def of_journal(run: FoundRun, events: list[Event], now: float) -> model.Sighting:
    """The failure of a run, according to the end of its journal."""
    sighting = model.Sighting(
        source=RUNS,
        key=run.key,
        message="",
        agent_id=run.run_id,
        agent_type=run.agent,
        run_id=run.run_id,
        status=run.status,
        at=run.at,
    )
    match run.word:
        case "ended":
            message, diagnosis = _failure_of(run, events)
            return sighting._replace(message=message, diagnosed=diagnosis)
        case "lost":
            silent = 0.0 if run.lease_until is None else now - run.lease_until
            text = f"Process died: run {run.run_id} lost its owner's lease {silent:.0f} s ago"
            return sighting._replace(message=text)
        case "left":
            ago = f"{now - run.at:.0f} s ago"
            text = f"Run {run.run_id} was given back {ago}, and nobody goes on with it"
            return sighting._replace(message=text, diagnosed=_LEFT)
        case "dead":
            text = f"Run {run.run_id} is a dead letter: too many processes died with it"
            return sighting._replace(message=text, diagnosed="dead_letter")
        case _:
            asked = next((e for e in reversed(events) if isinstance(e, RunSuspended)), None)
            question = f": {asked.question}" if asked is not None and asked.question else ""
            days = (now - run.at) / 86_400
            text = f"Run {run.run_id} waits for an answer since {days:.1f} days{question}"
            return sighting._replace(message=text, diagnosed="waits_for_answer")


def _failure_of(run: FoundRun, events: list[Event]) -> tuple[str, Diagnosis | None]:
    """The error of a run, else that of its last failed attempt."""
    last = events[-1] if events else None
    failed = next((event for event in reversed(events) if isinstance(event, AttemptFailed)), None)
    error = last.error if isinstance(last, RunFinished) else None
    text = ""
    if error is not None:
        text = str(error)
    elif failed is not None:
        text = str(failed.error) if failed.error is not None else ""
    if not text and failed is not None:
        text = failed.diagnosis.technical_details or failed.diagnosis.user_message
    text = text or f"Run {run.run_id} ended as {run.status}"
    return text, None if failed is None else failed.diagnosis


# From a failure to its incident: a new one, one more occurrence, or one that is back.

ON_DETECTION = (Level.CRITICAL, Level.HIGH)
"""Levels whose roles are told on detection; for lower ones, when something is done."""


class Rules(NamedTuple):
    """The part of the desk's configuration that the tables need."""

    owner: str
    threshold: model.Threshold
    retries: model.Retries
    notifications: model.NotificationPolicy


class Judge(NamedTuple):
    """Turns sightings into draft incidents. Slow, so it runs in a worker thread."""

    classifier: Classifier | None
    redactor: Redactor
    retries: model.Retries

    def drafts(
        self, sightings: list[model.Sighting]
    ) -> list[tuple[model.Sighting, model.Incident]]:
        return [(one, self.draft(one)) for one in sightings]

    def draft(self, sighting: model.Sighting) -> model.Incident:
        """The incident of a sighting, without number and times; its texts are redacted."""
        message = self.text(sighting.message, model.MAX_MESSAGE) or "no message"
        diagnosis = self._diagnosis(message, sighting.diagnosed)
        play = playbook.play_of(diagnosis)
        cause = None if diagnosis.cause is None else model.clean(str(diagnosis.cause), model.MAX_ID)
        task, run = sighting.task_id, sighting.run_id
        scope = task or run or sighting.scope or sighting.agent_id or ""
        trace = sighting.trace
        files = (*sighting.files, *model.files_in(message, trace))
        return model.Incident(
            id=0,
            fingerprint=model.fingerprint(
                scope, sighting.agent_type, diagnosis.failure_type, cause, message
            ),
            source=model.clean(sighting.source, model.MAX_ID),
            agent_id=_id(sighting.agent_id),
            agent_type=model.clean(sighting.agent_type, model.MAX_ID),
            task_id=_id(task),
            run_id=_id(run),
            message=message,
            failure_type=diagnosis.failure_type,
            cause=cause,
            severity=diagnosis.severity,
            level=play.level or diagnosis.level,
            retryable=play.retryable,
            action=play.action,
            strategy=play.strategy,
            alternative=self.text(playbook.alternative_to(play, diagnosis), model.MAX_MESSAGE),
            max_retries=self.retries.most_for(cause),
            retry_after_s=diagnosis.retry_after_s,
            files=tuple(dict.fromkeys(self.text(name, model.MAX_ID) for name in files))[
                : model.MAX_FILES
            ],
            stack_trace=None if trace is None else self.text(trace, model.MAX_TRACE),
        )

    def text(self, text: str, most: int = model.MAX_MESSAGE) -> str:
        """The text as it is stored: cleaned, capped, redacted."""
        return self.redactor.text(model.clean(text, most))

    def _diagnosis(self, message: str, known: Any) -> Diagnosis:
        if isinstance(known, Diagnosis):
            return known
        if isinstance(known, str):
            return Diagnosis(FailureType.EXTERNAL_FAULT, cause=known, severity=Severity.CRITICAL)
        classifier = self.classifier or playbook.operations_classifier()
        error = known if isinstance(known, ErrorInfo) else None
        try:
            found = playbook.classified(message, error, classifier)
            # Its message may say more than the class of the exception.
            if error is not None and found.failure_type is FailureType.UNKNOWN:
                found = playbook.classified(message, None, classifier)
        except Exception as error:  # a classifier that fails must not lose the incident
            name = type(error).__name__
            return Diagnosis(FailureType.UNKNOWN, technical_details=f"the classifier raised {name}")
        return found


def _id(text: str | None) -> str | None:
    """An id as it is stored: a long one is cut, and ends in a digest of all of it."""
    if text is None:
        return None
    if len(text) > model.MAX_ID:
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        text = f"{text[: model.MAX_ID - 34]}~{digest[:32]}"
    return model.clean(text, model.MAX_ID)


def see(
    db: Db, rules: Rules, sighting: model.Sighting, draft: model.Incident
) -> model.Incident | None:
    """Record a failure; returns its incident, None for a failure seen before."""
    key = _id(sighting.key) or ""
    if is_known(db, sighting.source, key):
        return None
    if draft.task_id is not None and sighting.priority is not None:
        _note_task(db, draft.task_id, sighting)
    before = _of_same_kind(db, draft, rules)
    if before is None:
        at = min(db.now, sighting.at) if sighting.at is not None else db.now
        incident = rows.insert(db, draft._replace(first_seen=at, last_seen=db.now))
        rows.log(db, "detected", rules.owner, incident.message, incident)
        fresh = True
    else:
        after = model.seen(before, db.now)
        after = after._replace(agent_id=draft.agent_id or before.agent_id)
        incident = rows.save(db, before, after)
        fresh = before.closed
        rows.log(db, "reopened" if fresh else "seen again", rules.owner, draft.message, incident)
    if fresh and incident.level in ON_DETECTION and incident.source != "desk":
        roles = rules.notifications.roles.get(incident.level, ())
        text = f"{incident.level} incident {incident.error_id}: {first_line(incident.message)}"
        rows.enqueue(db, incident, roles, "detected", text, incident.occurrences)
    values = {"source": sighting.source, "key": key, "incident": incident.id, "at": db.now}
    db.run(
        "INSERT INTO sightings (source, key, incident, at) VALUES (:source, :key, :incident, :at)",
        values,
    )
    if sighting.source == "agents" and sighting.agent_id is not None:
        _note_agent(db, sighting.agent_id, silent=sighting.status == "dead")
    return incident


def see_all(db: Db, rules: Rules, drafts: Iterable[tuple[model.Sighting, model.Incident]]) -> int:
    """Record these failures; returns how many were new."""
    return sum(see(db, rules, sighting, draft) is not None for sighting, draft in drafts)


def _of_same_kind(db: Db, draft: model.Incident, rules: Rules) -> model.Incident | None:
    """The open or recently recovered incident this belongs to."""
    of = {"fingerprint": draft.fingerprint}
    found = rows.find(db, "fingerprint = :fingerprint", of, order="id DESC", limit=1)
    if not found:
        return None
    last = found[0]
    if not last.closed:
        return last
    recent = last.resolved_at is not None and last.resolved_at > db.now - rules.threshold.window_s
    return last if last.status is model.Status.RECOVERED and recent else None


def _note_task(db: Db, task_id: str, sighting: model.Sighting) -> None:
    """Keep what a source knows about a task that has no row yet."""
    if task(db, task_id) is None:
        ensure_task(db, task_id)
        db.run(
            "UPDATE tasks SET priority = :priority, estimated_hours = :hours WHERE task_id = :task_id",
            {"priority": sighting.priority, "hours": sighting.estimated_hours, "task_id": task_id},
        )


def _note_agent(db: Db, agent_id: str, *, silent: bool) -> None:
    """Mark an agent whose failure has its incident as seen."""
    if silent:
        db.run(
            "UPDATE agents SET status = 'dead', ended = :now, due = NULL, unseen = 0 "
            "WHERE agent_id = :agent_id AND status = 'running'",
            {"now": db.now, "agent_id": agent_id},
        )
    else:
        db.run("UPDATE agents SET unseen = 0 WHERE agent_id = :agent_id", {"agent_id": agent_id})


def errors_in_window(db: Db, incident: model.Incident, threshold: model.Threshold) -> int:
    """Count the failures in the threshold's scope and window, this one included."""
    values: dict[str, Any] = {"since": db.now - threshold.window_s}
    if threshold.scope == "all":
        row = db.one("SELECT count(*) FROM sightings WHERE at > :since", values)
        return 0 if row is None else int(row[0])
    if threshold.scope == "agent_type":
        column, value = "agent_type", incident.agent_type
    elif incident.task_id is not None:
        column, value = "task_id", incident.task_id
    elif incident.run_id is not None:
        column, value = "run_id", incident.run_id
    else:
        column, value = "fingerprint", incident.fingerprint
    statement = (
        "SELECT count(*) FROM incidents i JOIN sightings s ON s.incident = i.id "
        f"WHERE i.{column} = :value AND s.at > :since"
    )
    row = db.one(statement, {**values, "value": value})
    return 0 if row is None else int(row[0])


def first_line(text: str) -> str:
    """The first line of a text, of at most 160 characters."""
    line = " ".join(text.partition("\n")[0].split())
    return line if len(line) <= 160 else f"{line[:159]}…"


def title_of(incident: model.Incident) -> tuple[str, str]:
    """The title of its escalation, and what that requires."""
    play = playbook.PLAYS.get(incident.cause or "")
    if play is None or not play.title:
        return first_line(incident.message), "manual review" if play is None else play.need
    return play.title, play.need
