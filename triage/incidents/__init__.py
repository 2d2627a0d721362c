"""The incidents room: failures as operations sees them, in the database of a store's runs.

Nothing here is imported by `import triage`; names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triage._lazy import lazily as _lazily

if TYPE_CHECKING:
    from ._errors import IncidentBusy, IncidentClosed, IncidentError, OutcomeLost, UnknownIncident
    from ._hooks import recovers
    from ._model import (
        AgentRecord,
        Incident,
        LogEntry,
        Message,
        Recovery,
        RecoveryStrategy,
        Status,
        TaskRecord,
    )
    from ._settings import Hooks, NotificationPolicy, Retries, Threshold, Watch
    from .desk import IncidentDesk
    from .lifecycle import Lifecycle
    from .sinks import FileSink, LogSink, NotDelivered, WebhookSink, signature_fits
    from .supervisor import Health, Supervisor

_HOMES = {
    "_errors": (
        "IncidentBusy", "IncidentClosed", "IncidentError", "OutcomeLost", "UnknownIncident",
    ),
    "_hooks": ("recovers",),
    "_model": (
        "AgentRecord", "Incident", "LogEntry", "Message", "Recovery", "RecoveryStrategy", "Status",
        "TaskRecord",
    ),
    "_settings": ("Hooks", "NotificationPolicy", "Retries", "Threshold", "Watch"),
    "desk": ("IncidentDesk",),
    "lifecycle": ("Lifecycle",),
    "sinks": ("FileSink", "LogSink", "NotDelivered", "WebhookSink", "signature_fits"),
    "supervisor": ("Health", "Supervisor"),
}  # fmt: skip

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

__getattr__, __dir__ = _lazily(__name__, _HOMES)
