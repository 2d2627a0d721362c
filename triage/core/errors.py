"""Every exception of triage.

TriageError
├── UsageError                 the caller's mistake: names the field and the remedy
│   └── Deduplicated           a run of the same deduplication is queued or running
├── TriageEscalationError      the run gave up and handed over
├── TriageAbortError           the run was stopped for good
├── TriageFatalError           the failure allows no recovery
├── TriageSuspendedError       the run waits for a person; carries the token
├── AlreadyResumed             the token was used before
├── TokenExpired               the answer came too late
├── AttemptOver                a handle was used after its attempt had ended
├── CircuitOpen                a call was not made, because its service is failing for everybody
├── RetryBudgetSpent           a call was not retried, because too many calls are
├── ResultLost                 a call happened, but its result is gone
└── StoreError                 the store could not read or write
    ├── StaleWriter            another process now owns the run
    ├── RunBusy                another process holds a live lease on the run
    ├── RunOver                the run has finished: there is nothing to take over
    ├── DeadLetter             too many workers died while running this run
    ├── UnknownRun             the store has no such run
    ├── StoreUnavailable       locked, unreachable, not answering or refusing us: try later
    ├── StoreFull              no space is left
    ├── StoreReadOnly          the store cannot be written
    ├── StoreCorrupt           the contents are damaged, or this is no store of triage
    ├── StoreKeyMissing        the key to the encrypted values is missing
    └── StoreTooNew            a newer release wrote it

AttemptInterrupted             a BaseException that unwinds an attempt stopped from inside
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from .escaping import escaped
from .taxonomy import Cause, FailureType, Severity

if TYPE_CHECKING:
    from triage.reports.report import Report

    from .diagnosis import Diagnosis
    from .failures import FailureContext


SEE = "explained: "
"""Prefix of the note on each error, which a traceback shows below the message."""


class Mark(Enum):
    """Marks on exceptions; enum members, so decoded data cannot forge them."""

    NOT_ATTEMPTED = "not attempted"


class Hint(dict[str, Any]):
    """Fields that `hint` wrote onto an exception; a class of its own, so decoded data cannot forge it."""


class TriageError(Exception):
    """Base class of triage's errors. `context` is the `FailureContext` of the failure, None without one.

    reporter: makes the report of an error that ends a run; set where the error is raised. not_undone:
    effects that could not be undone or may have happened, each with the reason.

    Always pickles: without the live exception, of which `context.error` is kept, and without a `result`
    that does not pickle.
    """

    context: FailureContext | None
    reporter: Callable[[TriageError], Report] | None = None
    not_undone: tuple[str, ...] = ()
    _report: Report | None = None
    _severity: ClassVar[Severity] = Severity.CRITICAL
    _triage_hint: Hint
    _triage_not_attempted: Mark

    def __init__(self, message: str = "", context: FailureContext | None = None) -> None:
        super().__init__(message)
        self.context = context
        # A note with the text, since the documentation is not installed with the package.
        meaning = (_ours(type(self)).__doc__ or "").partition("\n\n")[0]
        self.add_note(f"{SEE}{' '.join(meaning.split())}")
        if context is not None:
            # Keeps an enclosing run from repeating the recovery.
            self._triage_hint = Hint(
                failure_type=context.failure_type.value,
                cause=context.diagnosis.cause,
                severity=self._severity.value,
                user_message=context.diagnosis.user_message or None,
            )

    def __str__(self) -> str:
        """The message on one line, with terminal controls escaped; `args` holds it unchanged."""
        return escaped(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        import pickle  # here, since it would add 2 ms to every import of triage

        kept = dict(self.__dict__)
        if "result" in kept:
            try:
                pickle.dumps(kept["result"])
            except Exception:
                del kept["result"]
        return (_rebuild, (type(self), self.args), kept)

    @property
    def help(self) -> str:
        """Section of the documentation that explains this error: `docs/errors.md#runbusy`."""
        return f"docs/errors.md#{_ours(type(self)).__name__.lower()}"

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the failure, None without a context."""
        return None if self.context is None else self.context.diagnosis

    @property
    def report(self) -> Report | None:
        """The report of the run that this error ended, None if it ended none.

        Made on first access. Never raises.
        """
        if self._report is None and self.reporter is not None:
            self._report = self.reporter(self)
        return self._report


def _ours(kind: type) -> type:
    return next(base for base in kind.__mro__ if base.__module__.startswith("triage."))


def _rebuild(cls: type[TriageError], args: tuple[Any, ...]) -> TriageError:
    error = cls.__new__(cls)
    error.args = args
    return error


class UsageError(TriageError, TypeError, ValueError):
    """triage was used wrongly. Raised as early as possible, and never recovered from."""


class Deduplicated(UsageError):
    """A run with the same `deduplication` is queued or running; nothing was enqueued."""


class TriageEscalationError(TriageError):
    """A person must step in: the policy escalated, a limit was reached or no strategy applied.

    Raised from the exception that ended the last attempt.
    """


class TriageAbortError(TriageError):
    """A strategy stopped the run for good. Raised from the original exception."""


class TriageFatalError(TriageError):
    """The failure is FATAL: nothing was tried. Raised from the original exception."""

    _severity: ClassVar[Severity] = Severity.FATAL


class TriageSuspendedError(TriageError):
    """The run waits for an answer to `question`. `token` resumes it, once."""

    token: str
    question: str

    def __init__(
        self, message: str, context: FailureContext | None = None, *, token: str, question: str
    ) -> None:
        super().__init__(message, context)
        self.token = token
        self.question = question


class AlreadyResumed(TriageError):
    """The token was used before: a token answers one question, once."""


class TokenExpired(TriageError):
    """The answer came after the question expired. The run still waits; ask a new question."""


class AttemptOver(TriageError):
    """`record_step`, `update_state` or another handle was used after its attempt had ended.

    Nothing reached the journal. The usual reason is a task or thread the agent left running.
    """


class CircuitOpen(TriageError):
    """A `CircuitBreaker` refused a call, because the service fails for everybody. Nothing was sent.

    name: the breaker's, empty without one. retry_after_s: seconds until a probe is allowed.
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
        _declare(self, Cause.CIRCUIT_OPEN, Severity.RETRIABLE, retry_after_s)


class RetryBudgetSpent(TriageError):
    """A `RetryBudget` refused to repeat a call. Nothing was sent.

    key: names the empty bucket. retry_after_s: seconds until the bucket has a token, `inf` if time alone
    adds none.
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
        _declare(self, "retry_budget_spent", Severity.CRITICAL, None)


def _declare(
    error: TriageError, cause: str, severity: Severity, retry_after_s: float | None
) -> None:
    """State the diagnosis on a gate's error, so that no classifier has to infer it."""
    error._triage_hint = Hint(
        failure_type=FailureType.EXTERNAL_FAULT.value,
        cause=str(cause),
        severity=severity.value,
        retry_after_s=retry_after_s,
    )
    error._triage_not_attempted = Mark.NOT_ATTEMPTED


class ResultLost(TriageError):
    """A call with an effect completed, but its result cannot be read back, and it may not run again.

    tool: the tool's name. key: the call's key in the journal.
    """

    tool: str
    key: str

    def __init__(
        self, message: str, context: FailureContext | None = None, *, tool: str, key: str
    ) -> None:
        super().__init__(message, context)
        self.tool = tool
        self.key = key
        self._triage_hint = Hint(
            failure_type=FailureType.SCHEMA_MISMATCH.value,
            cause="result_lost",
            severity=Severity.CRITICAL.value,
            user_message=f"{tool} has done its work, but its result cannot be read back.",
        )


class StoreError(TriageError):
    """The store could not read or write."""


class StaleWriter(StoreError):
    """Another writer took this run over: this one must stop."""


class RunBusy(StoreError):
    """Another process holds a live lease on the run. wait_s: seconds until it ends if not renewed."""

    wait_s: float

    def __init__(
        self, message: str, context: FailureContext | None = None, *, wait_s: float
    ) -> None:
        super().__init__(message, context)
        self.wait_s = wait_s


class RunOver(StoreError):
    """The run has finished: its result or error is in its journal."""


class DeadLetter(StoreError):
    """The run was taken over too often without finishing; it seems to kill its workers."""


class UnknownRun(StoreError, LookupError):
    """The store has no run with this id."""


class StoreUnavailable(StoreError):
    """The store is locked, unreachable or refuses us. Trying again later may help."""


class StoreFull(StoreError):
    """The store has no space left. It can still be read; no part of the append was kept."""


class StoreReadOnly(StoreError):
    """The store can be read but not written."""


class StoreCorrupt(StoreError):
    """The contents are damaged, or this is no store of triage. Nothing was changed."""


class StoreKeyMissing(StoreError):
    """A run holds encrypted values, and their key was not given."""


class StoreTooNew(StoreError):
    """A newer release of triage wrote this. Nothing was changed."""


class AttemptInterrupted(BaseException):
    """Unwinds an attempt that was stopped from inside, by a limit or a finding.

    A BaseException, so that `except Exception` in an agent cannot swallow it. It never reaches the
    caller of `Agent.run`, but becomes a diagnosed failure.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis)
        self.diagnosis = diagnosis


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, at any depth, each once; any other error yields itself."""
    todo, seen = [error], {id(error)}
    while todo:
        found = todo.pop()
        if not isinstance(found, BaseExceptionGroup):
            yield found
            continue
        members = [inner for inner in reversed(found.exceptions) if id(inner) not in seen]
        seen.update(map(id, members))
        todo += members


# Checks of users' values, with messages in one form.


def refuse(field: str, value: object, wanted: str, remedy: str = "") -> TypeError:
    """Make the TypeError for a wrong value: it names the field, what was found and the remedy."""
    tail = f"; {remedy}" if remedy else ""
    return TypeError(f"{field} must be {wanted}, not {type(value).__name__} ({short(value)}){tail}")


def short(value: object, limit: int = 60) -> str:
    """Shorten a value for a message: the beginning of its repr."""
    try:
        text = escaped(repr(value))
    except Exception:
        return "no repr"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def misuse(field: str, value: object, wanted: str, remedy: str = "") -> UsageError:
    """Make the UsageError for a wrong value, worded as by `refuse`."""
    return UsageError(str(refuse(field, value, wanted, remedy)))


def check_takes(field: str, function: Callable[..., Any], wanted: str, argument: str) -> None:
    """Raise UsageError unless a function can be called with one argument, such as "the context".

    A function without a readable signature, such as some builtins, is trusted.
    """
    try:
        accepted = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        accepted.bind(None)
    except TypeError as error:
        remedy = f"it must take one argument, {argument} ({error})"
        raise misuse(field, function, wanted, remedy) from None


def check_count(field: str, value: object, least: int, remedy: str = "") -> None:
    """Raise UsageError unless `value` is a whole number of at least `least`."""
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
    """Raise UsageError unless `value` is a finite number from `least`, or above it if `above`."""
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
    """Write `did you mean 'x'?` for the closest of `names`, ignoring case; empty if none is close."""
    close = closest(word, names)
    return "" if close is None else f"did you mean {close!r}?"


_LONGEST_COMPARED = 100


def closest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name most similar to `word`, ignoring case.

    None if none reaches the similarity `cutoff` (1 is equal). Names of more than 100 characters are left
    out, and of a longer word its beginning is compared. Of names that differ only in case, the first is
    meant.
    """
    from difflib import get_close_matches  # for mistakes only

    by_folded: dict[str, str] = {}
    for name in names:
        if len(name) <= _LONGEST_COMPARED:
            by_folded.setdefault(name.casefold(), name)
    near = get_close_matches(word.casefold()[:_LONGEST_COMPARED], by_folded, 1, cutoff)
    return by_folded[near[0]] if near else None
