"""What the desk raises when an incident is not as its caller thinks."""

from __future__ import annotations

from triage.errors import TriageError


class IncidentError(TriageError):
    """The desk cannot do this with the incident; nothing was changed."""


class UnknownIncident(IncidentError, LookupError):
    """The store knows no incident of this id, or none that is open for this task."""


class IncidentBusy(IncidentError):
    """Somebody else has it, or its time has not come.

    wait_s: seconds until it may be tried again, None where a person has it.
    """

    wait_s: float | None

    def __init__(self, message: str, *, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class IncidentClosed(IncidentError):
    """It is recovered, failed or ignored already."""


class OutcomeLost(IncidentError):
    """A hook has run, and the store failed before it could be written down how that ended.

    The recovery stays as it is until its lease ends; then it is in doubt.
    """
