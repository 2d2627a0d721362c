"""Every exception of triage.

TriageError
├── UsageError                 our caller's mistake: names the field and the remedy
├── TriageEscalationError      the run gave up and hands over
├── TriageAbortError           the run was stopped for good
├── TriageFatalError           the failure allows no recovery at all
├── TriageSuspendedError       the run waits for a person; has the token
├── AlreadyResumed             the token was used before
├── TokenExpired               the answer came after its time
├── AttemptOver                a handle of an attempt was used after its end
├── CircuitOpen                a call was not made: its service fails for everybody
├── RetryBudgetSpent           a call was not repeated: too many are
├── ResultLost                    a call has happened, and its result is gone
└── StoreError                 the store could not do it
    ├── StaleWriter            another process owns the run now
    ├── RunBusy                another process' lease on the run lives
    ├── RunOver                the run has finished: there is nothing to take over
    ├── DeadLetter             too many workers have died with this run
    ├── UnknownRun             the store knows no such run
    ├── StoreUnavailable       locked, gone, not answering, or closed to us: later may be better
    ├── StoreFull              no room is left
    ├── StoreReadOnly          it may not be written
    ├── StoreCorrupt           what it holds is damaged, or is no store
    └── StoreTooNew            a newer release wrote it

AttemptInterrupted             a BaseException: unwinds an attempt that has been stopped from inside
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .taxonomy import Cause, FailureType, Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from .diagnosis import Diagnosis
    from .failures import FailureContext
    from .reports import Report


class TriageError(Exception):
    """Base of all. `context` is the `FailureContext` of the failure, None where there is none.

    reporter: makes the report of an error that ends a run; set where it is raised.

    Pickles whatever the original exception was: the live exception stays behind, its facts
    (`context.error`) travel.
    """

    context: FailureContext | None
    reporter: Callable[[TriageError], Report] | None = None
    _report: Report | None = None
    _severity: ClassVar[Severity] = Severity.CRITICAL
    _triage_hint: dict[str, Any]
    _triage_not_attempted: bool

    def __init__(self, message: str = "", context: FailureContext | None = None) -> None:
        super().__init__(message)
        self.context = context
        if context is not None:
            # For a run around the one that ended: its recovery was tried, and is not tried again.
            self._triage_hint = {
                "failure_type": context.failure_type.value,
                "cause": context.diagnosis.cause,
                "severity": self._severity.value,
                "user_message": context.diagnosis.user_message or None,
            }

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args), dict(self.__dict__))

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the failure, None without a context."""
        return None if self.context is None else self.context.diagnosis

    @property
    def report(self) -> Report | None:
        """What to tell a person or a developer of the run that ended; None if this ended none.

        Made when it is first asked for; that never raises.
        """
        if self._report is None and self.reporter is not None:
            self._report = self.reporter(self)
        return self._report


def _rebuild(cls: type[TriageError], args: tuple[Any, ...]) -> TriageError:
    error = cls.__new__(cls)
    error.args = args
    return error


class UsageError(TriageError, TypeError, ValueError):
    """triage was called wrongly. Raised as early as it can be known, never "recovered"."""


class TriageEscalationError(TriageError):
    """A person must look: the policy escalated, a limit was reached or no strategy applied.

    Raised from the exception that ended the last attempt.
    """


class TriageAbortError(TriageError):
    """A strategy stopped the run for good. Raised from the original exception."""


class TriageFatalError(TriageError):
    """The failure is FATAL: nothing was tried. Raised from the original exception."""

    _severity: ClassVar[Severity] = Severity.FATAL


class TriageSuspendedError(TriageError):
    """The run waits for an answer. `token` resumes it once, `question` is what is asked."""

    token: str
    question: str

    def __init__(
        self, message: str, context: FailureContext | None = None, *, token: str, question: str
    ) -> None:
        super().__init__(message, context)
        self.token = token
        self.question = question


class AlreadyResumed(TriageError):
    """The token was used before: it answers one question, once."""


class TokenExpired(TriageError):
    """The question had to be answered sooner. The run still waits; a new question must be asked."""


class AttemptOver(TriageError):
    """`record_step`, `update_state` or another handle was used after its attempt had ended.

    Nothing reached the journal. The usual reason is a task or thread the agent left running.
    """


class CircuitOpen(TriageError):
    """A `CircuitBreaker` let no call through: the service has failed for everybody. Nothing was sent.

    name: of the breaker, empty without one. retry_after_s: seconds until a probe is allowed.
    """

    name: str
    retry_after_s: float

    def __init__(
        self,
        message: str,
        context: FailureContext | None = None,
        *,
        name: str = "",
        retry_after_s: float,
    ) -> None:
        super().__init__(message, context)
        self.name = name
        self.retry_after_s = retry_after_s
        _say(self, Cause.CIRCUIT_OPEN, Severity.RETRIABLE, retry_after_s)


class RetryBudgetSpent(TriageError):
    """A `RetryBudget` let a call not be made again. Nothing was sent.

    key: of the bucket that is empty. retry_after_s: seconds until it has a token, `inf` if time alone
    brings none.
    """

    key: str
    retry_after_s: float

    def __init__(
        self,
        message: str,
        context: FailureContext | None = None,
        *,
        key: str = "",
        retry_after_s: float,
    ) -> None:
        super().__init__(message, context)
        self.key = key
        self.retry_after_s = retry_after_s
        _say(self, "retry_budget_spent", Severity.CRITICAL, None)


def _say(error: TriageError, cause: str, severity: Severity, retry_after_s: float | None) -> None:
    """Write onto an error of a gate what a classifier would have to find out."""
    error._triage_hint = {  # noqa: SLF001 - one of ours
        "failure_type": FailureType.EXTERNAL_FAULT.value,
        "cause": str(cause),
        "severity": severity.value,
        "retry_after_s": retry_after_s,
    }
    error._triage_not_attempted = True  # noqa: SLF001 - one of ours


class ResultLost(TriageError):
    """A call with an effect has completed, and its result can neither be read back nor be had again.

    tool: its name. key: names the call in the journal.
    """

    tool: str
    key: str

    def __init__(
        self, message: str, context: FailureContext | None = None, *, tool: str, key: str
    ) -> None:
        super().__init__(message, context)
        self.tool = tool
        self.key = key


class StoreError(TriageError):
    """The store could not read or write."""


class StaleWriter(StoreError):
    """Another writer has gone on with this run: this one must stop."""


class RunBusy(StoreError):
    """The run has an owner whose lease lives. wait_s: seconds until it ends, unless it is renewed."""

    wait_s: float

    def __init__(
        self, message: str, context: FailureContext | None = None, *, wait_s: float
    ) -> None:
        super().__init__(message, context)
        self.wait_s = wait_s


class RunOver(StoreError):
    """The run has finished: its result or error stands in its journal."""


class DeadLetter(StoreError):
    """The run was taken over too often without coming to an end: its workers seem to die of it."""


class UnknownRun(StoreError, LookupError):
    """The store knows no run of this id."""


class StoreUnavailable(StoreError):
    """The store is locked, unreachable or refuses us. To try again later may help."""


class StoreFull(StoreError):
    """The store has no room left. What it holds can be read; nothing of the append was kept."""


class StoreReadOnly(StoreError):
    """The store may be read, not written."""


class StoreCorrupt(StoreError):
    """What the store holds is damaged, or is no store of triage. It is left as it is."""


class StoreTooNew(StoreError):
    """A newer release of triage wrote this. It is left as it is."""


class AttemptInterrupted(BaseException):
    """Unwinds an attempt that was stopped from inside (a limit, a finding).

    A BaseException, so that `except Exception` in an agent cannot swallow it. Never seen by the
    caller of `Agent.run`: it becomes a diagnosed failure.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis)
        self.diagnosis = diagnosis
