"""An incident is a journal: its entries, what they mean, and the moves that it allows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

import msgspec
from msgspec.structs import replace

from triage.core.constructors import Value
from triage.core.errors import StoreCorrupt
from triage.core.events import Event, Noted
from triage.core.taxonomy import FailureType, Level, Severity

from .model import (
    CLOSED,
    IncidentBusy,
    IncidentClosed,
    LogEntry,
    Message,
    RecoveryStrategy,
    Status,
    iso,
)

KIND = "incident"
"""The kind of these journals in a store."""


class Seen(Value, frozen=True):
    """A failure that belongs to an incident. key: of the source and the failure. at: when it was found."""

    key: str
    at: float


class Incident(Value, frozen=True):
    """A failure as operations sees it, read from its journal.

    fingerprint: the same for all failures of one kind in one task, run or agent. occurrence: from 1, one
    more for each incident of this fingerprint. source: who found it: `runs`, `tasks`, `reports`, `desk`,
    or a source's name. agent_type: the type of the agent; for a run, the agent's name. cause: the finer
    name, None if unknown. action: the recommended action, as a word. strategy: what carries it out.
    alternative: another way to get the task done, in a sentence. attempt: recoveries begun. new_agent_id:
    the agent that took the place of `agent_id`. escalation_level: the role that was told last. ack_due:
    when the next role is told, unless somebody acknowledges. owner: who is recovering it. Times are
    seconds since the epoch on the desk's clock, None where something has not happened; lease_until, by the
    store's clock: until when only the owner of the lease may recover it. events, epoch: of the journal.
    """

    error_id: str
    fingerprint: str
    source: str
    message: str
    failure_type: FailureType
    severity: Severity
    level: Level
    retryable: bool
    action: str
    strategy: RecoveryStrategy
    max_retries: int
    scope: str = ""
    occurrence: int = 1
    agent_id: str | None = None
    agent_type: str = ""
    task_id: str | None = None
    run_id: str | None = None
    cause: str | None = None
    files: tuple[str, ...] = ()
    stack_trace: str | None = None
    alternative: str = ""
    retry_after_s: float | None = None
    status: Status = Status.DETECTED
    attempt: int = 0
    next_attempt_at: float | None = None
    recovery_action: str | None = None
    new_agent_id: str | None = None
    owner: str | None = None
    lease_until: float | None = None
    escalation_level: str | None = None
    ack_due: float | None = None
    acknowledged_by: str | None = None
    first_seen: float = 0.0
    last_seen: float = 0.0
    resolved_at: float | None = None
    sightings: tuple[Seen, ...] = ()
    messages: tuple[Message, ...] = ()
    log: tuple[LogEntry, ...] = ()
    events: int = 0
    epoch: int = 0

    @property
    def closed(self) -> bool:
        """Whether its status is final."""
        return self.status in CLOSED

    @property
    def occurrences(self) -> int:
        """How many failures belong to it."""
        return len(self.sightings)

    @property
    def subject(self) -> str:
        """How a store finds its journal: by its scope, and by its fingerprint."""
        return f"{self.scope} {self.fingerprint}"

    @property
    def pending(self) -> tuple[Message, ...]:
        """The messages that no sink has accepted yet."""
        return tuple(one for one in self.messages if one.status == "pending")

    @property
    def due(self) -> float | None:
        """When it needs a desk: for its next move or a message; None for never."""
        own = {
            Status.DETECTED: self.last_seen,
            Status.WAITING: self.next_attempt_at,
            Status.RECOVERING: self.last_seen,  # once its lease is over
            Status.ESCALATED: self.ack_due,
        }.get(self.status)
        times = [one.due for one in self.pending] + ([] if own is None else [own])
        return min(times, default=None)

    def has_seen(self, key: str) -> bool:
        """Whether a failure belongs to it."""
        return any(one.key == key for one in self.sightings)


# The moves of an incident -------------------------------------------------------------------------

_S = Status
_OPEN = tuple(status for status in _S if status not in CLOSED)
_SAME = {status: status for status in _S}

MOVES: Mapping[str, Mapping[Status, Status]] = {
    "seen again": {status: status for status in _OPEN},
    "reopened": {_S.RECOVERED: _S.DETECTED},
    "postponed": {_S.DETECTED: _S.WAITING, _S.RECOVERING: _S.WAITING},
    "given back": {_S.RECOVERING: _S.WAITING},
    "recovering": dict.fromkeys(_OPEN, _S.RECOVERING),
    "recovered": {_S.RECOVERING: _S.RECOVERED},
    "escalated": dict.fromkeys(_OPEN, _S.ESCALATED),
    "unheard": {_S.ESCALATED: _S.ESCALATED},
    "acknowledged": {status: _S.ACKNOWLEDGED for status in _OPEN if status is not _S.RECOVERING},
    **{f"resolved as {end}": dict.fromkeys(_OPEN, end) for end in sorted(CLOSED)},
    "messages": _SAME,
    "came too late": _SAME,
}
"""For each verb, the status after by the status before. Other moves are impossible."""
OPENING = ("detected", "migrated")
"""The verbs that begin a journal."""
_SEES = ("detected", "seen again", "reopened")
_NO_FIELDS = ("key", "asked", "delivered")
_TYPES = get_type_hints(Incident)


def applied(before: Incident | None, entry: Noted) -> Incident:
    """Return the incident after an entry of its journal.

    Raises IncidentClosed or IncidentBusy if its status does not allow the move.
    """
    fields = {
        name: msgspec.convert(value, _TYPES[name])
        for name, value in entry.values.items()
        if name not in _NO_FIELDS
    }
    if before is None:
        after = Incident(**{**fields, "error_id": entry.run_id})
    else:
        status = MOVES[entry.verb].get(before.status)
        if status is None:
            raise refusal(before, 0.0)
        after = replace(before, **{**_of_status(before, entry, status), **fields})
    if entry.verb in _SEES:
        seen = Seen(entry.values["key"], entry.time)
        after = replace(after, sightings=(*after.sightings, seen), last_seen=entry.time)
    messages = _delivered(after, entry, entry.values.get("delivered", {}))
    asked = entry.values.get("asked", ())
    messages += tuple(_asked(after, entry, one) for one in asked)
    logged = LogEntry(
        error_id=after.error_id,
        at=entry.time,
        verb=entry.verb,
        by=entry.by,
        status=after.status,
        attempt=after.attempt,
        text=entry.text,
    )
    return replace(after, messages=messages, log=(*after.log, logged), events=entry.seq + 1)


def _of_status(before: Incident, entry: Noted, status: Status) -> dict[str, Any]:
    """Return the fields that follow from the verb and the new status."""
    fields: dict[str, Any] = {"status": status}
    if status is not before.status:
        fields["resolved_at"] = entry.time if status in CLOSED else None
    if status is not _S.RECOVERING:
        fields["owner"] = None
    if status is not _S.WAITING:
        fields["next_attempt_at"] = None
    if status is not _S.ESCALATED:
        fields["ack_due"] = None
    match entry.verb:
        case "recovering":
            fields["attempt"] = before.attempt + 1
        case "given back":
            fields["attempt"] = before.attempt - 1
        case "reopened":
            fields |= {"escalation_level": None, "acknowledged_by": None}
        case "escalated":
            fields["acknowledged_by"] = None
        case _:
            pass
    return fields


def _asked(incident: Incident, entry: Noted, asked: Mapping[str, str]) -> Message:
    role, kind = asked["role"], asked["kind"]
    return Message(
        error_id=incident.error_id,
        role=role,
        level=incident.level,
        kind=kind,
        key=f"{incident.error_id}/{entry.seq}/{kind}/{role}",
        text=asked["text"],
        created_at=entry.time,
        due=entry.time,
    )


def _delivered(
    incident: Incident, entry: Noted, outcomes: Mapping[str, Mapping[str, Any]]
) -> tuple[Message, ...]:
    """Return the messages after these deliveries. outcomes: changes of each message, by its key."""
    return tuple(
        replace(one, **outcomes[one.key]) if one.key in outcomes else one
        for one in incident.messages
    )


def entry_of(
    before: Incident | None,
    verb: str,
    *,
    by: str,
    now: float,
    text: str = "",
    draft: Incident | None = None,
    **values: Any,
) -> tuple[Noted, Incident]:
    """Make the next entry of an incident's journal; also return the incident after it.

    draft: the incident that the entry begins. values: fields that change, and `key`, `asked` and
    `delivered` as the fold reads them. Raises as `applied`.
    """
    start = {} if draft is None else msgspec.structs.asdict(draft)
    fields = {
        name: value
        for name, value in msgspec.to_builtins({**start, **values}).items()
        if draft is None or value != _DEFAULTS.get(name)
    }
    entry = Noted(
        run_id=fields.pop("error_id") if before is None else before.error_id,
        seq=0 if before is None else before.events,
        time=now,
        kind=KIND,
        verb=verb,
        status="",
        by=by,
        text=text,
        values=fields,
    )
    after = applied(before, entry)
    told = replace(
        entry,
        status=str(after.status),
        subject=after.subject if before is None else None,
        due=after.due,
        leased=after.status is _S.RECOVERING,
        ended=after.closed and not after.pending,
    )
    return told, after


_DEFAULTS = {
    field.name: msgspec.to_builtins(field.default)
    for field in msgspec.structs.fields(Incident)
    if field.default is not msgspec.NODEFAULT
}


def fold(error_id: str, events: Iterable[Event], before: Incident | None = None) -> Incident:
    """Read an incident from its journal. before: the incident that earlier events have made.

    Raises StoreCorrupt for events that no desk has written so.
    """
    incident = before
    for event in events:
        if not isinstance(event, Noted) or event.kind != KIND:
            raise StoreCorrupt(f"{error_id} is no journal of an incident")
        if event.verb not in MOVES and not (incident is None and event.verb in OPENING):
            raise StoreCorrupt(f"{error_id}: its entry {event.seq} has the verb {event.verb!r}")
        try:
            incident = applied(incident, event)
        except (IncidentBusy, IncidentClosed, KeyError, TypeError, ValueError) as error:
            raise StoreCorrupt(f"{error_id}: its entry {event.seq} cannot be: {error}") from error
        if str(incident.status) != event.status:
            raise StoreCorrupt(f"{error_id}: its entry {event.seq} makes it {incident.status}")
    if incident is None:
        raise StoreCorrupt(f"{error_id} has no entries")
    return incident


# Who may change it --------------------------------------------------------------------------------


def refusal(incident: Incident, now: float) -> IncidentClosed | IncidentBusy:
    """Make the error for an incident that does not allow a move. now: on the desk's clock."""
    if incident.closed:
        return IncidentClosed(f"{incident.error_id} is {incident.status} already")
    if incident.status is _S.RECOVERING:
        return IncidentBusy(f"{incident.error_id} is being recovered by {incident.owner}")
    if incident.status is _S.WAITING and incident.next_attempt_at is not None:
        left = max(0.0, incident.next_attempt_at - now)
        return IncidentBusy(f"{incident.error_id} is tried again in {left:.1f} s", wait_s=left)
    who = incident.acknowledged_by or incident.escalation_level or "a person"
    return IncidentBusy(
        f"{incident.error_id} is {incident.status}: {who} has it; recover it by a strategy or resolve it"
    )


def is_leased(incident: Incident, store_now: float) -> bool:
    """Whether a living desk is recovering it. store_now: seconds since the epoch on the store's clock."""
    return incident.status is _S.RECOVERING and (incident.lease_until or 0.0) > store_now


def check_free(incident: Incident, store_now: float) -> None:
    """Raise IncidentClosed for a closed incident, IncidentBusy while a living desk is recovering it."""
    if incident.closed:
        raise refusal(incident, 0.0)
    if is_leased(incident, store_now):
        left = (incident.lease_until or 0.0) - store_now
        raise IncidentBusy(
            f"{incident.error_id} is being recovered by {incident.owner}, whose lease lasts "
            f"{left:.1f} s more",
            wait_s=left,
        )


def body_of(incident: Incident, message: Message) -> dict[str, Any]:
    """Return the body of a message: the incident as a JSON object."""
    return {
        "kind": message.kind,
        "text": message.text,
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
        "suggested_alternative": incident.alternative,
        "files_affected": list(incident.files),
        "occurrences": incident.occurrences,
        "attempt": incident.attempt,
        "timestamp": iso(incident.last_seen),
    }
