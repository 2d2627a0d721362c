"""Failures as operations sees them, in the database of a store's runs."""

from __future__ import annotations

from triage.core.constructors import check_constructors

from .desk import IncidentDesk
from .handling import recovers
from .lifecycle import Lifecycle
from .model import (
    AgentRecord,
    Hooks,
    Incident,
    IncidentBusy,
    IncidentClosed,
    IncidentError,
    LogEntry,
    Message,
    NotificationPolicy,
    OutcomeLost,
    Recovery,
    RecoveryStrategy,
    Retries,
    Status,
    TaskRecord,
    Threshold,
    UnknownIncident,
    Watch,
)
from .notifications import FileSink, LogSink, NotDelivered, WebhookSink, signature_fits
from .supervisor import Health, Supervisor

__all__ = [
    "AgentRecord",
    "FileSink",
    "Health",
    "Hooks",
    "Incident",
    "IncidentBusy",
    "IncidentClosed",
    "IncidentDesk",
    "IncidentError",
    "Lifecycle",
    "LogEntry",
    "LogSink",
    "Message",
    "NotDelivered",
    "NotificationPolicy",
    "OutcomeLost",
    "Recovery",
    "RecoveryStrategy",
    "Retries",
    "Status",
    "Supervisor",
    "TaskRecord",
    "Threshold",
    "UnknownIncident",
    "Watch",
    "WebhookSink",
    "recovers",
    "signature_fits",
]

check_constructors(globals())
