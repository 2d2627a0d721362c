"""Exceptions that say what kind of failure they are, and what would help.

A tool, a capability or an agent raises one of these, or a class of its own made from one, and the
diagnosis is what it says: no text has to be guessed at.

Fault
├── InfrastructureFault        what the work stands on failed: the same again, after a while
│   ├── ConnectivityFault      a host was not reached, or was lost
│   ├── ExecutionTimeout       something took longer than it may
│   ├── RateLimited            the other side takes no more for now
│   ├── ModelCallFailed        a model could not be asked, or did not answer
│   ├── RetrievalFailed        something could not be read that is kept elsewhere
│   └── StorageFailed          something could not be kept
├── CodeFault                  what was generated is wrong: generate it anew, told what was wrong
│   ├── CodeGenerationFailed   nothing usable was generated
│   ├── CodeSyntaxInvalid      it cannot be read by its language
│   └── CodeRuntimeFailed      it ran and failed
├── DataFault                  what was needed is not there or not what it must be: another plan
│   ├── MissingContext         an earlier result, or another piece of data, is not there
│   ├── InvalidContextKey      a plan names data that nobody makes
│   ├── PlanInvalid            a plan cannot be carried out as it stands
│   ├── ExtractionFailed       what was wanted could not be taken out of a content
│   ├── InvalidFormat          what was generated has not the agreed form: generate it anew
│   └── ReclassificationRequired   other tools or capabilities are needed
├── WorkflowFault              it cannot go on without a person
│   ├── MaxAttemptsExceeded    everything was tried as often as it may be
│   ├── AmbiguousInput         what is wanted can be read in several ways
│   ├── IdentityMissing        nobody knows for whom this is done
│   └── EffectUnverified       it was attempted, and nobody knows whether it has happened
├── ConfigurationFault         something is set up wrongly: a setting must be changed
│   └── RegistryFault          something that must be registered is not
└── SafetyFault                it must not be done: never again, and no way around it
    └── PolicyRefused          a rule refused it before anything was attempted
"""

from __future__ import annotations

from collections.abc import (
    Iterable,
    Iterator,
)
from enum import StrEnum
from itertools import islice
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack, cast

from .errors import UsageError
from .taxonomy import (
    CATEGORY_RECOVERY,
    DEFAULT_LEVEL,
    RECOVERY_SEVERITY,
    Category,
    Cause,
    FailureType,
    Level,
    Recovery,
    Severity,
)

__all__ = [
    "AmbiguousInput",
    "CodeFault",
    "CodeGenerationFailed",
    "CodeRuntimeFailed",
    "CodeSyntaxInvalid",
    "ConfigurationFault",
    "ConnectivityFault",
    "DataFault",
    "EffectUnverified",
    "ExecutionTimeout",
    "ExtractionFailed",
    "Fault",
    "IdentityMissing",
    "InfrastructureFault",
    "InvalidContextKey",
    "InvalidFormat",
    "MaxAttemptsExceeded",
    "MissingContext",
    "ModelCallFailed",
    "PlanInvalid",
    "PolicyRefused",
    "RateLimited",
    "ReclassificationRequired",
    "RegistryFault",
    "RetrievalFailed",
    "SafetyFault",
    "StorageFailed",
    "WorkflowFault",
]


# What every fault is: `Fault`, and what its classes share. The catalogue is `triage.core.faults`.


E = TypeVar("E", bound=StrEnum)
_WORDS: dict[str, type[StrEnum]] = {
    "category": Category,
    "recovery": Recovery,
    "failure_type": FailureType,
    "severity": Severity,
    "level": Level,
}
_MOST_LISTED = 20
_LONGEST_LISTED = 200


class Said(TypedDict, total=False):
    """What one fault may say in place of its class; see `Fault`."""

    user_message: str
    technical_details: str
    hint: str
    suggestions: tuple[str, ...]
    retry_after_s: float
    cause: Cause | str
    recovery: Recovery
    severity: Severity
    level: Level


class Fault(Exception):
    """Base of all. A class of your own sets the attributes, one fault its keywords.

    category: what kind of thing failed. recovery: what would help; where a class says only its
    category, that category's. severity: what may be done next; follows from the recovery. level: who
    must know; follows from the severity. failure_type, cause: as in a `Diagnosis`. user_message: for an
    end user, no internals. technical_details: for an engineer, and what a REGENERATE is told. hint: what
    the next attempt is told, None for a sentence made from the message. suggestions: for a person.
    retry_after_s: seconds to wait, None for no word on it. not_attempted: nothing was done that could
    have an effect, so a tool that raises this may be called again.

    A property may stand for any of them. Pickles with its attributes and with the faults it was raised
    from. An exception class that is no Fault takes part if it sets `__triage_fault__ = True`.

    Raises UsageError where a class sets one of the words to something that is none of them; raising a
    fault never fails for what it is given.
    """

    __triage_fault__: ClassVar[bool] = True

    category: Category = Category.WORKFLOW
    recovery: Recovery = Recovery.ASK
    failure_type: FailureType = FailureType.UNKNOWN
    cause: Cause | str | None = None
    severity: Severity = Severity.CRITICAL
    level: Level = Level.HIGH
    user_message: str = ""
    technical_details: str = ""
    hint: str | None = None
    suggestions: tuple[str, ...] = ()
    retry_after_s: float | None = None
    not_attempted: bool = False

    def __init__(self, message: object = None, **said: Unpack[Said]) -> None:
        super().__init__(*(() if message is None else (message,)))
        for name in said:
            if name not in Said.__annotations__:
                known = ", ".join(Said.__annotations__)
                raise UsageError(f"{type(self).__name__} takes no {name!r}; it takes {known}")
        self.__dict__.update({name: value for name, value in said.items() if value is not None})

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = cls.__dict__
        for name, words in _WORDS.items():
            if isinstance(own.get(name), str):
                setattr(cls, name, _word(f"{cls.__name__}.{name}", own[name], words))
            elif name in own and not hasattr(own[name], "__get__"):
                raise _wrong(f"{cls.__name__}.{name}", own[name], words)
        if "category" in own and "recovery" not in own and isinstance(cls.category, Category):
            cls.recovery = CATEGORY_RECOVERY[cls.category]
        if "recovery" in own and "severity" not in own:
            cls.severity = RECOVERY_SEVERITY.get(cls.recovery, cls.severity)
        if "severity" in own and "level" not in own:
            cls.level = DEFAULT_LEVEL.get(cls.severity, cls.level)
        if cls.category is Category.SAFETY and cls.recovery is not Recovery.NEVER:
            raise UsageError(
                f"{cls.__name__}.recovery must be never, as its category is safety; take another "
                "category for what may be tried again"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # The chain is lost with pickling, and with it what a fault behind this one says.
        behind = next((cause for cause in _causes(self) if isinstance(cause, Fault)), None)
        return (_rebuilt, (type(self), self.args, behind), dict(self.__dict__))

    def should_retry_execution(self) -> bool:
        """True if the same may be run again as it is: nothing in it was wrong.

        As for the diagnosis, the gravest fault counts of this one and those it was raised from.
        """
        return self._helps() == Recovery.RETRY

    def should_retry_code_generation(self) -> bool:
        """True if it may be regenerated, told what was wrong. Counts as `should_retry_execution`."""
        return self._helps() == Recovery.REGENERATE

    def _helps(self) -> Recovery:
        faults = [self, *(cause for cause in _causes(self) if isinstance(cause, Fault))]
        gravest = max(faults, key=lambda fault: _ORDER.get(fault.category, 0))
        return Recovery.NEVER if gravest.category is Category.SAFETY else gravest.recovery


_ORDER: dict[object, int] = {category: weight for weight, category in enumerate(Category, 1)}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What an error was raised from, nearest first."""
    seen = {id(error)}
    inner = error.__cause__
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        yield inner
        inner = inner.__cause__


def _rebuilt(cls: type[Fault], args: tuple[Any, ...], cause: Fault | None) -> Fault:
    fault = cls.__new__(cls)
    fault.args = args
    if cause is not None:
        fault.__cause__ = cause
    return fault


def _word(field: str, value: str, words: type[E]) -> E:
    try:
        return words(value)
    except ValueError:
        raise _wrong(field, value, words) from None


def _wrong(field: str, value: object, words: type[StrEnum]) -> UsageError:
    known = ", ".join(member.value for member in words)
    return UsageError(f"{field} must be one of {known}, not {value!r} ({type(value).__name__})")


def few(items: object) -> tuple[str, ...]:
    """The first values as texts, up to one that cannot be shown. A text counts as one value."""
    found: list[str] = []
    try:
        values: Any = (items,) if isinstance(items, str) else items
        for item in islice(values, _MOST_LISTED):
            found.append(str(item)[:_LONGEST_LISTED])  # noqa: PERF401 - those before one that cannot be shown are kept
    except Exception:  # a fault can always be raised, whatever it is given
        pass
    return tuple(found)


def one(value: object) -> str:
    """A value as a text, empty where it cannot be shown."""
    return "".join(few((value,)))


def said_or(message: object, made: str) -> object:
    """The message that was given, else the one made of a fault's fields, else None."""
    return (made or None) if message is None else message


def told(said: Said, **made: str) -> Said:
    """The words of one fault, with the non-empty fields of the instance filled in."""
    return cast("Said", {**{name: text for name, text in made.items() if text}, **said})


# What the work stands on --------------------------------------------------------------------------


class InfrastructureFault(Fault):
    """What the work stands on failed; the work itself may be right."""

    category = Category.INFRASTRUCTURE
    failure_type = FailureType.EXTERNAL_FAULT
    user_message = "Something this needs is not available right now. Please try again in a while."


class ConnectivityFault(InfrastructureFault):
    """A host was not reached, or the connection to it was lost. host, port: None where not known."""

    cause: Cause | str | None = Cause.CONNECTION
    user_message = "A service could not be reached. Please try again in a while."

    def __init__(
        self,
        message: object = None,
        *,
        host: str | None = None,
        port: int | None = None,
        **said: Unpack[Said],
    ) -> None:
        where = ":".join(few(item for item in (host, port) if item is not None))
        super().__init__(said_or(message, where and f"cannot reach {where}"), **said)
        self.host = host
        self.port = port


class ExecutionTimeout(InfrastructureFault):
    """Something took longer than it may. seconds: how long it had, None where not known."""

    cause: Cause | str | None = Cause.TIMEOUT
    user_message = "Something took too long. Please try again."

    def __init__(
        self, message: object = None, *, seconds: float | None = None, **said: Unpack[Said]
    ) -> None:
        made = "" if seconds is None else f"not done within {one(seconds)} s"
        super().__init__(said_or(message, made), **said)
        self.seconds = seconds


class RateLimited(InfrastructureFault):
    """The other side takes no more for now. Say for how long in `retry_after_s`, where it does."""

    cause: Cause | str | None = Cause.RATE_LIMITED
    user_message = "A service gets too many requests right now. Please try again in a while."
    not_attempted = True


class ModelCallFailed(InfrastructureFault):
    """A model could not be asked, or did not answer."""

    cause: Cause | str | None = Cause.UNAVAILABLE
    user_message = "A model the task needs did not answer. Please try again in a while."


class RetrievalFailed(InfrastructureFault):
    """Something that is kept elsewhere could not be read."""

    cause: Cause | str | None = Cause.UNAVAILABLE


class StorageFailed(InfrastructureFault):
    """Something could not be kept."""

    cause: Cause | str | None = Cause.UNAVAILABLE


# What was generated -------------------------------------------------------------------------------


class CodeFault(Fault):
    """What was generated is wrong. attempt: which try it was, from 1; None where not known.

    details: what the next try is told beside the message: what the checker found, how the earlier
    tries ended, a traceback; texts, of which the first 20 are kept.
    """

    category = Category.CODE
    failure_type = FailureType.SCHEMA_MISMATCH
    cause: Cause | str | None = "generated_code"
    user_message = "What the assistant wrote to do this did not work."

    def __init__(
        self,
        message: object = None,
        *,
        attempt: int | None = None,
        details: Iterable[str] = (),
        **said: Unpack[Said],
    ) -> None:
        self.details = few(details)
        super().__init__(message, **told(said, technical_details="; ".join(self.details)))
        self.attempt = attempt


class CodeGenerationFailed(CodeFault):
    """Nothing usable was generated."""

    cause: Cause | str | None = Cause.MALFORMED_OUTPUT


class CodeSyntaxInvalid(CodeFault):
    """It cannot be read by its language, and so was not run."""

    cause: Cause | str | None = Cause.MALFORMED_OUTPUT
    not_attempted = True


class CodeRuntimeFailed(CodeFault):
    """It ran and failed."""


# Data ---------------------------------------------------------------------------------------------


class DataFault(Fault):
    """What was needed is not there, or is not what it must be."""

    category = Category.DATA
    failure_type = FailureType.HALLUCINATED_STATE
    user_message = "Data that this needs is not there."


class MissingContext(DataFault):
    """An earlier result, or another piece of data, is not there. keys: what is missing."""

    cause: Cause | str | None = "missing_context"
    suggestions: tuple[str, ...] = ("Check which step makes this data, and that it comes before.",)

    def __init__(
        self, message: object = None, *, keys: Iterable[str] = (), **said: Unpack[Said]
    ) -> None:
        self.keys = few(keys)
        made = f"not there: {', '.join(self.keys)}" if self.keys else ""
        super().__init__(said_or(message, made), **said)


class InvalidContextKey(DataFault):
    """A plan names data that nobody makes. key: the name. available: the names there are."""

    cause: Cause | str | None = "invalid_context_key"

    def __init__(
        self,
        message: object = None,
        *,
        key: str = "",
        available: Iterable[str] = (),
        **said: Unpack[Said],
    ) -> None:
        self.key = key
        self.available = few(available)
        made = f"no step makes the data {one(key)}"
        there = f"{made.capitalize()}. There is: {', '.join(self.available)}."
        hint = there if self.available else ""
        super().__init__(said_or(message, made), **told(said, hint=hint))


class PlanInvalid(DataFault):
    """A plan cannot be carried out as it stands. issues: what is wrong with it, each in words."""

    failure_type = FailureType.PLAN_INCOMPLETE
    cause: Cause | str | None = "invalid_plan"
    user_message = "The plan for this could not be carried out."
    not_attempted = True

    def __init__(
        self, message: object = None, *, issues: Iterable[str] = (), **said: Unpack[Said]
    ) -> None:
        self.issues = few(issues)
        listed = "; ".join(self.issues)
        super().__init__(said_or(message, listed), **told(said, technical_details=listed))


class ExtractionFailed(DataFault):
    """What was wanted could not be taken out of a content."""

    cause: Cause | str | None = "extraction_failed"


class InvalidFormat(DataFault):
    """What was generated has not the agreed form; generated anew, it may have."""

    failure_type = FailureType.SCHEMA_MISMATCH
    cause: Cause | str | None = Cause.INVALID_ARGUMENTS
    recovery = Recovery.REGENERATE
    severity = Severity.RETRIABLE
    user_message = "Some data did not have the expected form."


class ReclassificationRequired(DataFault):
    """Other tools or capabilities are needed than those that were chosen."""

    failure_type = FailureType.WRONG_TOOL_CALLED
    cause: Cause | str | None = "wrong_capabilities"
    recovery = Recovery.RECLASSIFY
    user_message = "The assistant chose the wrong means for this."


# People -------------------------------------------------------------------------------------------


class WorkflowFault(Fault):
    """The work cannot go on without a person. stage: where it stopped, empty where not known."""

    category = Category.WORKFLOW
    user_message = "This cannot go on without help."

    def __init__(self, message: object = None, *, stage: str = "", **said: Unpack[Said]) -> None:
        made = f"stopped at {one(stage)}" if one(stage) else ""
        super().__init__(said_or(message, made), **said)
        self.stage = stage


class MaxAttemptsExceeded(WorkflowFault):
    """All tries that are allowed have failed.

    operation: what was tried. max_attempts: how often. error_chain: how the tries ended, oldest first.
    """

    cause: Cause | str | None = Cause.LIMIT
    user_message = "This was tried several times and did not work."

    def __init__(
        self,
        message: object = None,
        *,
        operation: str = "it",
        max_attempts: int | None = None,
        error_chain: Iterable[str] = (),
        **said: Unpack[Said],
    ) -> None:
        self.operation = operation
        self.max_attempts = max_attempts
        self.error_chain = few(error_chain)
        times = "as often as it may" if max_attempts is None else f"{one(max_attempts)} times"
        chain = "; ".join(self.error_chain)
        super().__init__(
            said_or(message, f"{one(operation)} failed {times}"),
            **told(said, technical_details=chain),
        )


class AmbiguousInput(WorkflowFault):
    """What is wanted can be read in several ways: a person says it more exactly."""

    failure_type = FailureType.PLAN_INCOMPLETE
    cause: Cause | str | None = "ambiguous_input"
    user_message = "What is wanted can be read in several ways. Please say it more exactly."
    not_attempted = True


class IdentityMissing(WorkflowFault):
    """It is not known for whom this is done."""

    cause: Cause | str | None = "identity_missing"
    user_message = "It is not known for whom this is to be done. Please sign in."
    not_attempted = True


class EffectUnverified(WorkflowFault):
    """Something was attempted and may have happened; it must not be repeated blindly."""

    failure_type = FailureType.EXTERNAL_FAULT
    cause: Cause | str | None = Cause.IN_DOUBT
    user_message = "It is not certain whether this has happened. Please check before trying again."


# Settings -----------------------------------------------------------------------------------------


class ConfigurationFault(Fault):
    """Something is set up wrongly; a setting must be changed. setting: its name, where known."""

    category = Category.CONFIGURATION
    failure_type = FailureType.EXTERNAL_FAULT
    cause: Cause | str | None = Cause.MISSING_CONFIG
    user_message = "Something is not set up rightly. The operator has to look at it."

    def __init__(self, message: object = None, *, setting: str = "", **said: Unpack[Said]) -> None:
        made = f"check {one(setting)}" if one(setting) else ""
        super().__init__(said_or(message, made), **said)
        self.setting = setting


class RegistryFault(ConfigurationFault):
    """Something that must be registered is not: a capability, a tool, a provider."""

    cause: Cause | str | None = "not_registered"


# Refusals -----------------------------------------------------------------------------------------


class SafetyFault(Fault):
    """It must not be done. Its recovery is NEVER, whatever else is said: no retry and no way around."""

    category = Category.SAFETY
    failure_type = FailureType.CONSTRAINT_IGNORED
    cause: Cause | str | None = Cause.GUARDRAIL
    user_message = "This was refused, as it is not allowed."


class PolicyRefused(SafetyFault):
    """A rule refused it before anything was attempted. rule: its name or public code, where known."""

    not_attempted = True

    def __init__(self, message: object = None, *, rule: str = "", **said: Unpack[Said]) -> None:
        made = f"refused by {one(rule)}" if one(rule) else ""
        super().__init__(said_or(message, made), **said)
        self.rule = rule
