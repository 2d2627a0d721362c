"""What may become of an incident: one table of moves, and each move as a pure function."""

from __future__ import annotations

from typing import Any

from ._errors import IncidentBusy, IncidentClosed
from ._model import CLOSED, Incident, RecoveryStrategy, Status

_S = Status
_WITH_A_PERSON = (_S.ESCALATED, _S.ACKNOWLEDGED)
_OPEN = tuple(status for status in _S if status not in CLOSED)
_FREE = tuple(status for status in _OPEN if status is not _S.RECOVERING)

MOVES: dict[str, dict[Status, Status]] = {
    "see": {**{s: s for s in _OPEN}, _S.RECOVERED: _S.DETECTED},
    "postpone": {_S.DETECTED: _S.WAITING, _S.RECOVERING: _S.WAITING},
    "claim": dict.fromkeys(_OPEN, _S.RECOVERING),
    "recover": {_S.RECOVERING: _S.RECOVERED},
    "escalate": dict.fromkeys(_OPEN, _S.ESCALATED),
    "acknowledge": dict.fromkeys((_S.DETECTED, _S.WAITING, *_WITH_A_PERSON), _S.ACKNOWLEDGED),
    "recovered": dict.fromkeys(_FREE, _S.RECOVERED),
    "failed": dict.fromkeys(_FREE, _S.FAILED),
    "ignored": dict.fromkeys(_FREE, _S.IGNORED),
}
"""From each verb and the status before to the status after; what is not here cannot happen."""


def moved(incident: Incident, verb: str, now: float, **changes: Any) -> Incident:
    """The incident after a move, with these fields changed too.

    Raises IncidentClosed or IncidentBusy for a move that its status does not allow.
    """
    status = MOVES[verb].get(incident.status)
    if status is None:
        if incident.closed:
            raise IncidentClosed(f"{incident.error_id} is {incident.status} already")
        raise busy(incident, now)
    leaves = {"owner": None, "lease_until": None} if status is not _S.RECOVERING else {}
    again = {"next_attempt_at": None} if status is not _S.WAITING else {}
    unasked = {"ack_due": None} if status is not _S.ESCALATED else {}
    ended = {"resolved_at": now if status in CLOSED else None}
    changed = {**leaves, **again, **unasked, **ended, **changes}
    return incident._replace(status=status, version=incident.version + 1, **changed)


def busy(incident: Incident, now: float) -> IncidentBusy:
    """Why nobody may touch it at the moment."""
    if incident.status is _S.RECOVERING and incident.lease_until is not None:
        left = max(0.0, incident.lease_until - now)
        return IncidentBusy(
            f"{incident.error_id} is being recovered by {incident.owner}, whose lease lasts "
            f"{left:.1f} s more",
            wait_s=left,
        )
    if incident.status is _S.WAITING and incident.next_attempt_at is not None:
        left = max(0.0, incident.next_attempt_at - now)
        return IncidentBusy(f"{incident.error_id} is tried again in {left:.1f} s", wait_s=left)
    who = incident.acknowledged_by or incident.escalation_level or "a person"
    return IncidentBusy(
        f"{incident.error_id} is {incident.status}: {who} has it; recover it by a strategy or resolve it"
    )


def leased(incident: Incident, now: float) -> bool:
    """Whether a desk that lives is recovering it."""
    return (
        incident.status is _S.RECOVERING
        and incident.lease_until is not None
        and incident.lease_until > now
    )


def seen(incident: Incident, now: float) -> Incident:
    """After one more occurrence; one that had recovered is open again, its attempts kept."""
    if incident.status is _S.RECOVERED:
        return moved(
            incident, "see", now, last_seen=now, occurrences=incident.occurrences + 1,
            escalation_level=None, acknowledged_by=None,
        )  # fmt: skip
    return incident._replace(
        last_seen=now, occurrences=incident.occurrences + 1, version=incident.version + 1
    )


def claimed(
    incident: Incident,
    now: float,
    strategy: RecoveryStrategy,
    *,
    owner: str,
    stamp: str,
    lease_s: float,
) -> Incident:
    """After `owner` has begun to recover it: the attempt counts from here, however it ends."""
    if leased(incident, now):
        raise busy(incident, now)
    return moved(
        incident, "claim", now, owner=owner, stamp=stamp, lease_until=now + lease_s,
        attempt=incident.attempt + 1, strategy=strategy,
    )  # fmt: skip


def untouched(incident: Incident, now: float) -> None:
    """Raise for an incident that is closed, or whose owner lives: only that one may change it."""
    if incident.closed:
        raise IncidentClosed(f"{incident.error_id} is {incident.status} already")
    if leased(incident, now):
        raise busy(incident, now)
