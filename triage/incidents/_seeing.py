"""From a failure that was seen to its incident: a new one, one more occurrence, or one that is back."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from triage.classifiers import Classifier
from triage.diagnosis import Diagnosis
from triage.failures import ErrorInfo
from triage.redact import Redactor
from triage.taxonomy import FailureType, Level, Severity

from . import _rows as rows
from ._db import Db
from ._machine import seen
from ._model import Incident, Sighting, Status
from ._playbook import PLAYS, classified, operations_classifier, play_of
from ._settings import NotificationPolicy, Retries, Threshold
from ._sources import is_known
from ._texts import MAX_ID, MAX_MESSAGE, MAX_TRACE, clean, files_in, fingerprint

ON_DETECTION = (Level.CRITICAL, Level.HIGH)
"""Levels whose roles are told at once; of lower ones they hear when something is done."""


class Rules(NamedTuple):
    """What the desk was configured with, as far as the tables need it."""

    owner: str
    threshold: Threshold
    retries: Retries
    notifications: NotificationPolicy


class Judge(NamedTuple):
    """Makes draft incidents of sightings; slow beside all else, so it runs in a worker thread."""

    classifier: Classifier | None
    redactor: Redactor
    retries: Retries

    def drafts(self, sightings: list[Sighting]) -> list[tuple[Sighting, Incident]]:
        """Each with the incident it would be, were it new."""
        return [(one, self.draft(one)) for one in sightings]

    def draft(self, sighting: Sighting) -> Incident:
        """The incident of one, without number and times; its texts are free of secrets."""
        message = self.text(sighting.message, MAX_MESSAGE) or "no message"
        diagnosis = self._diagnosis(message, sighting.diagnosed)
        play = play_of(diagnosis)
        cause = None if diagnosis.cause is None else clean(str(diagnosis.cause), MAX_ID)
        task, run = sighting.task_id, sighting.run_id
        scope = task or run or sighting.scope or sighting.agent_id or ""
        trace = sighting.trace
        files = (*sighting.files, *files_in(message, trace))
        return Incident(
            id=0,
            fingerprint=fingerprint(
                scope, sighting.agent_type, diagnosis.failure_type, cause, message
            ),
            source=clean(sighting.source, MAX_ID),
            agent_id=_id(sighting.agent_id),
            agent_type=clean(sighting.agent_type, MAX_ID),
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
            status=Status.DETECTED,
            attempt=0,
            max_retries=self.retries.most_for(cause),
            retry_after_s=diagnosis.retry_after_s,
            next_attempt_at=None,
            escalation_level=None,
            ack_due=None,
            acknowledged_by=None,
            owner=None,
            lease_until=None,
            stamp="",
            files=tuple(dict.fromkeys(self.text(name, MAX_ID) for name in files))[:20],
            stack_trace=None if trace is None else self.text(trace, MAX_TRACE),
            recovery_action=None,
            first_seen=0.0,
            last_seen=0.0,
            occurrences=1,
            resolved_at=None,
            version=0,
        )

    def text(self, text: str, most: int = MAX_MESSAGE) -> str:
        """A text as it is kept: cleaned, capped, without secrets."""
        return self.redactor.text(clean(text, most))

    def _diagnosis(self, message: str, known: Any) -> Diagnosis:
        if isinstance(known, Diagnosis):
            return known
        if isinstance(known, str):
            return Diagnosis(FailureType.EXTERNAL_FAULT, cause=known, severity=Severity.CRITICAL)
        classifier = self.classifier or operations_classifier()
        error = known if isinstance(known, ErrorInfo) else None
        try:
            found = classified(message, error, classifier)
            # An exception's class may say nothing where its words do.
            if error is not None and found.failure_type is FailureType.UNKNOWN:
                found = classified(message, None, classifier)
        except Exception as error:  # noqa: BLE001 - a classifier that fails must not lose the incident
            name = type(error).__name__
            return Diagnosis(FailureType.UNKNOWN, technical_details=f"the classifier raised {name}")
        return found


def _id(text: str | None) -> str | None:
    """An id as it is kept: one that is too long keeps its beginning and a digest of the rest."""
    if text is None:
        return None
    if len(text) > MAX_ID:
        text = f"{text[: MAX_ID - 34]}~{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:32]}"
    return clean(text, MAX_ID)


def see(db: Db, rules: Rules, sighting: Sighting, draft: Incident) -> Incident | None:
    """Write down that a failure was seen; its incident, None if it was seen before."""
    key = _id(sighting.key) or ""
    if is_known(db, sighting._replace(key=key)):
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
        after = seen(before, db.now)
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


def _of_same_kind(db: Db, draft: Incident, rules: Rules) -> Incident | None:
    """The incident this belongs to: one that is open, or one that had recovered not long ago."""
    of = {"fingerprint": draft.fingerprint}
    found = rows.find(db, "fingerprint = :fingerprint", of, order="id DESC", limit=1)
    if not found:
        return None
    last = found[0]
    if not last.closed:
        return last
    recent = last.resolved_at is not None and last.resolved_at > db.now - rules.threshold.window_s
    return last if last.status is Status.RECOVERED and recent else None


def _note_task(db: Db, task_id: str, sighting: Sighting) -> None:
    """Keep what a source knows of a task, unless it is ours already."""
    if rows.task(db, task_id) is None:
        rows.ensure_task(db, task_id)
        db.run(
            "UPDATE tasks SET priority = :priority, estimated_hours = :hours WHERE task_id = :task_id",
            {"priority": sighting.priority, "hours": sighting.estimated_hours, "task_id": task_id},
        )


def _note_agent(db: Db, agent_id: str, *, silent: bool) -> None:
    """An agent whose failure has its incident is not looked at again."""
    if silent:
        db.run(
            "UPDATE agents SET status = 'dead', ended = :now, due = NULL, unseen = 0 "
            "WHERE agent_id = :agent_id AND status = 'running'",
            {"now": db.now, "agent_id": agent_id},
        )
    else:
        db.run("UPDATE agents SET unseen = 0 WHERE agent_id = :agent_id", {"agent_id": agent_id})


def errors_in_window(db: Db, incident: Incident, threshold: Threshold) -> int:
    """How many failures were seen in the incident's scope within the window, this one included."""
    values: dict[str, Any] = {"since": db.now - threshold.window_s}
    if threshold.scope == "all":
        row = db.one("SELECT count(*) FROM sightings WHERE at > :since", values)
        return 0 if row is None else int(row[0])
    column, value = _scope(incident, threshold)
    statement = (
        "SELECT count(*) FROM incidents i JOIN sightings s ON s.incident = i.id "  # noqa: S608
        f"WHERE i.{column} = :value AND s.at > :since"
    )
    row = db.one(statement, {**values, "value": value})
    return 0 if row is None else int(row[0])


def _scope(incident: Incident, threshold: Threshold) -> tuple[str, Any]:
    if threshold.scope == "agent_type":
        return "agent_type", incident.agent_type
    if incident.task_id is not None:
        return "task_id", incident.task_id
    if incident.run_id is not None:
        return "run_id", incident.run_id
    return "fingerprint", incident.fingerprint


def first_line(text: str, most: int = 160) -> str:
    """The first line of a text, cut."""
    line = " ".join(text.partition("\n")[0].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def title_of(incident: Incident) -> tuple[str, str]:
    """How its escalation begins, and what it requires."""
    play = PLAYS.get(incident.cause or "")
    if play is None or not play.title:
        return first_line(incident.message), "manual review" if play is None else play.need
    return play.title, play.need
