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
    ├── StoreKeyMissing        a key is needed to read what is encrypted
    └── StoreTooNew            a newer release wrote it

AttemptInterrupted             a BaseException: unwinds an attempt that has been stopped from inside
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import msgspec

from .escaping import escaped
from .taxonomy import Cause, FailureType, Severity

if TYPE_CHECKING:
    from triage.engine import Report

    from .diagnosis import Diagnosis
    from .failures import FailureContext


class TriageError(Exception):
    """Base of all. `context` is the `FailureContext` of the failure, None where there is none.

    reporter: makes the report of an error that ends a run; set where it is raised. not_undone: the effects
    that stay although they were to be undone, each with the reason.

    Pickles whatever the original exception was: the live exception stays behind, its facts
    (`context.error`) travel.
    """

    context: FailureContext | None
    reporter: Callable[[TriageError], Report] | None = None
    not_undone: tuple[str, ...] = ()
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

    def __str__(self) -> str:
        """The message in one line that steers no terminal, whatever it quotes; `args` has it as it is."""
        return escaped(super().__str__())

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
    error._triage_hint = {
        "failure_type": FailureType.EXTERNAL_FAULT.value,
        "cause": str(cause),
        "severity": severity.value,
        "retry_after_s": retry_after_s,
    }
    error._triage_not_attempted = True


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


class StoreKeyMissing(StoreError):
    """A run holds encrypted values, and the key they were encrypted with is not given."""


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


# The error for a value that cannot be used: one form of message.


def refuse(field: str, value: object, wanted: str, remedy: str = "") -> TypeError:
    """The error for a value of the wrong type: names the field, the type found and the remedy."""
    tail = f"; {remedy}" if remedy else ""
    return TypeError(f"{field} must be {wanted}, not {type(value).__name__} ({short(value)}){tail}")


def short(value: object, limit: int = 60) -> str:
    """A value in a message: the beginning of its repr."""
    try:
        text = escaped(repr(value))
    except Exception:
        return "no repr"
    return text if len(text) <= limit else text[: limit - 1] + "…"


# Checks of what users configure: one form of message for every value that cannot be used.


def misuse(field: str, value: object, wanted: str, remedy: str = "") -> UsageError:
    """The error for a wrong value: names the field, what was found, its type and the remedy."""
    return UsageError(str(refuse(field, value, wanted, remedy)))


def check_count(field: str, value: object, least: int, remedy: str = "") -> None:
    """Raise UsageError unless `value` is a whole number from `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise misuse(field, value, f"a whole number from {least}", remedy)


def check_number(
    field: str,
    value: object,
    unit: str,
    *,
    least: float = 0.0,
    above: bool = False,
    remedy: str = "",
) -> None:
    """Raise UsageError unless `value` is a finite number from `least`, or above it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        high_enough = value > least if above else value >= least
        if high_enough and value <= sys.float_info.max:
            return
    bound = f"above {least:g}" if above else f"from {least:g}"
    raise misuse(field, value, f"a finite number of {unit} {bound}".replace("  ", " "), remedy)


def check_word(field: str, value: object, words: tuple[str, ...]) -> None:
    """Raise UsageError unless `value` is one of `words`."""
    if not isinstance(value, str) or value not in words:
        guess = nearest(value, words) if isinstance(value, str) else ""
        raise misuse(field, value, "one of " + ", ".join(words), guess)


def nearest(word: str, names: Iterable[str]) -> str:
    """`did you mean 'x'?` for the closest of `names`, whatever its case; empty if none is close."""
    by_folded = {name.casefold(): name for name in names}
    close = get_close_matches(word.casefold(), by_folded, n=1)
    return f"did you mean {by_folded[close[0]]!r}?" if close else ""


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of the values of a run. Their fields may be given by name or in their order.

    A changed copy is made by `msgspec.structs.replace`, a dict of the fields by `msgspec.structs.asdict`.
    Models of pydantic may have fields of these types: they take a value, or its JSON object.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """How models of pydantic read and write a value: as its JSON object."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls._read,
            serialization=core_schema.plain_serializer_function_ser_schema(
                msgspec.to_builtins, when_used="json"
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, source: Any, handler: Any) -> dict[str, Any]:
        """An object, of which the fields are not told."""
        return {"type": "object", "title": cls.__name__}

    @classmethod
    def _read(cls, given: object) -> Self:
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ValueError(f"must be a {cls.__name__} or its JSON object")  # noqa: TRY004 - pydantic's way
        return msgspec.convert(dict(cast("Mapping[str, Any]", given)), cls)
