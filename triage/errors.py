"""Every exception of triage.

TriageError
├── UsageError                 our caller's mistake: names the field and the remedy
├── TriageEscalationError      the run gave up and hands over
├── TriageAbortError           the run was stopped for good
├── TriageFatalError           the failure allows no recovery at all
├── TriageSuspendedError       the run waits for a person; has the token
├── AlreadyResumed             the token was used before
├── AttemptOver                a handle of an attempt was used after its end
├── InDoubt                    a call may have happened; a person must say
└── StoreError                 the store could not do it
    └── StaleWriter            another process owns the run now

AttemptInterrupted             a BaseException: unwinds an attempt that has been stopped from inside
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .diagnosis import Diagnosis
    from .failures import FailureContext


class TriageError(Exception):
    """Base of all. `context` is the `FailureContext` of the failure, None where there is none.

    Pickles whatever the original exception was: the live exception stays behind, its facts
    (`context.error`) travel.
    """

    context: FailureContext | None

    def __init__(self, message: str = "", context: FailureContext | None = None) -> None:
        super().__init__(message)
        self.context = context

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args), dict(self.__dict__))

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the failure, None without a context."""
        return None if self.context is None else self.context.diagnosis


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
    """The token was used before, has expired, or belongs to no suspended run."""


class AttemptOver(TriageError):
    """`record_step`, `update_state` or another handle was used after its attempt had ended.

    Nothing reached the journal. The usual reason is a task or thread the agent left running.
    """


class InDoubt(TriageError):
    """A call with an effect may or may not have happened, and must not be guessed.

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


class AttemptInterrupted(BaseException):
    """Unwinds an attempt that was stopped from inside (a limit, a finding).

    A BaseException, so that `except Exception` in an agent cannot swallow it. Never seen by the
    caller of `Agent.run`: it becomes a diagnosed failure.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis)
        self.diagnosis = diagnosis
