"""Failures as operations sees them, kept as journals in the store of the runs."""

from __future__ import annotations

from triage.core.constructors import check_constructors

from .desk import Attended, IncidentDesk, log_message
from .handling import Recovery, recovers
from .journal import Incident, Seen
from .lifecycle import lifecycle
from .model import (
    Failure,
    Hooks,
    IncidentBusy,
    IncidentClosed,
    IncidentError,
    LogEntry,
    Message,
    NotificationPolicy,
    OutcomeLost,
    RecoveryStrategy,
    Retries,
    Status,
    TaskRecord,
    Threshold,
    UnknownIncident,
    Watch,
)
from .supervisor import Health, Supervisor

__all__ = [
    "Attended",
    "Failure",
    "Health",
    "Hooks",
    "Incident",
    "IncidentBusy",
    "IncidentClosed",
    "IncidentDesk",
    "IncidentError",
    "LogEntry",
    "Message",
    "NotificationPolicy",
    "OutcomeLost",
    "Recovery",
    "RecoveryStrategy",
    "Retries",
    "Seen",
    "Status",
    "Supervisor",
    "TaskRecord",
    "Threshold",
    "UnknownIncident",
    "Watch",
    "lifecycle",
    "log_message",
    "recovers",
]

check_constructors(globals())
