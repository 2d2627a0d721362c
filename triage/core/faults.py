"""Exceptions that state their kind of failure and its remedy.

A tool, a capability or an agent raises one of these, or a subclass of its own; the diagnosis then follows
from the class instead of the message.

Fault
├── InfrastructureFault        a dependency failed: try again later
│   ├── ConnectivityFault      a host could not be reached, or the connection was lost
│   ├── ExecutionTimeout       something took too long
│   ├── RateLimited            the other side accepts no more requests for now
│   ├── ModelCallFailed        a model could not be called, or did not answer
│   ├── RetrievalFailed        stored data could not be read
│   └── StorageFailed          data could not be stored
├── CodeFault                  generated code is wrong: generate it again, with the error
│   ├── CodeGenerationFailed   nothing usable was generated
│   ├── CodeSyntaxInvalid      the code does not parse
│   └── CodeRuntimeFailed      the code ran and failed
├── DataFault                  data is missing or wrong: replan
│   ├── MissingContext         an earlier result or other data is missing
│   ├── InvalidContextKey      a plan names data that no step produces
│   ├── PlanInvalid            a plan cannot be carried out as it stands
│   ├── ExtractionFailed       the data could not be extracted from its source
│   ├── InvalidFormat          the output does not have the agreed form: generate it again
│   └── ReclassificationRequired   other tools or capabilities are needed
├── WorkflowFault              the work cannot continue without a person
│   ├── MaxAttemptsExceeded    every allowed attempt failed
│   ├── AmbiguousInput         the request can be read in several ways
│   ├── IdentityMissing        the user is not known
│   └── EffectUnverified       an effect was attempted, and may have happened
├── ConfigurationFault         a setting is wrong and must be changed
│   └── RegistryFault          a tool, capability or provider is not registered
└── SafetyFault                the work must not be done: no retry, no replan
    └── PolicyRefused          a rule refused the work before anything was attempted
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack, cast

from . import taxonomy
from .constructors import unknown_name
from .errors import UsageError

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


E = TypeVar("E", bound=StrEnum)
_WORDS: dict[str, type[StrEnum]] = {
    "category": taxonomy.Category,
    "recovery": taxonomy.Recovery,
    "failure_type": taxonomy.FailureType,
    "severity": taxonomy.Severity,
    "level": taxonomy.Level,
}
_DERIVED: tuple[tuple[str, str, Mapping[Any, StrEnum]], ...] = (
    ("recovery", "severity", taxonomy.RECOVERY_SEVERITY),
    ("severity", "level", taxonomy.DEFAULT_LEVEL),
)
"""A field of an instance, the field derived from it unless given, and the mapping between them."""
_MOST_LISTED = 20
_LONGEST_LISTED = 200


class Fields(TypedDict, total=False):
    """The fields that an instance may override; see `Fault`."""

    user_message: str
    technical_details: str
    hint: str
    suggestions: tuple[str, ...]
    retry_after_s: float
    cause: taxonomy.Cause | str
    recovery: taxonomy.Recovery
    severity: taxonomy.Severity
    level: taxonomy.Level


class Fault(Exception):
    """Base class of all faults. A subclass sets attributes, an instance takes keywords.

    category: the kind of thing that failed. recovery: the remedy; by default that of the category.
    severity: the route; by default that of the recovery. level: who must know; by default that of the
    severity. failure_type, cause: as in a `Diagnosis`. user_message: for an end user, without internals.
    technical_details: for an engineer, and for the next generation. hint: for the next attempt, None for
    a sentence made from the message. suggestions: for a person. retry_after_s: seconds to wait, None if
    not known. not_attempted: nothing had an effect, so a tool that raises this may be called again.

    Any of them may be a property. Pickles with its attributes and with the faults it was raised from.
    An exception class that is not a Fault takes part if it sets `__triage_fault__ = True`.

    Raises UsageError where a subclass sets an attribute to an unknown word, and for an unknown keyword.
    Unusable values of keywords raise nothing.
    """

    __triage_fault__: ClassVar[bool] = True

    category: taxonomy.Category = taxonomy.Category.WORKFLOW
    recovery: taxonomy.Recovery = taxonomy.Recovery.ASK
    failure_type: taxonomy.FailureType = taxonomy.FailureType.UNKNOWN
    cause: taxonomy.Cause | str | None = None
    severity: taxonomy.Severity = taxonomy.Severity.CRITICAL
    level: taxonomy.Level = taxonomy.Level.HIGH
    user_message: str = ""
    technical_details: str = ""
    hint: str | None = None
    suggestions: tuple[str, ...] = ()
    retry_after_s: float | None = None
    not_attempted: bool = False

    def __init__(self, message: object = None, **fields: Unpack[Fields]) -> None:
        super().__init__(*(() if message is None else (message,)))
        for name, value in fields.items():
            if name not in Fields.__annotations__:
                raise unknown_name(type(self), name, value, Fields.__annotations__)
        given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        if type(self).category != taxonomy.Category.SAFETY:
            for name, follower, following in _DERIVED:
                if isinstance(given.get(name), str) and given[name] in following:
                    given.setdefault(follower, following[given[name]])
        self.__dict__.update(given)

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = cls.__dict__
        for name, words in _WORDS.items():
            if isinstance(own.get(name), str):
                setattr(cls, name, _member(f"{cls.__name__}.{name}", own[name], words))
            elif name in own and not hasattr(own[name], "__get__"):
                raise _not_among(f"{cls.__name__}.{name}", own[name], words)
        if (
            "category" in own
            and "recovery" not in own
            and isinstance(cls.category, taxonomy.Category)
        ):
            cls.recovery = taxonomy.CATEGORY_RECOVERY[cls.category]
        if "recovery" in own and "severity" not in own:
            cls.severity = taxonomy.RECOVERY_SEVERITY.get(cls.recovery, cls.severity)
        if "severity" in own and "level" not in own:
            cls.level = taxonomy.DEFAULT_LEVEL.get(cls.severity, cls.level)
        if cls.category is taxonomy.Category.SAFETY and cls.recovery is not taxonomy.Recovery.NEVER:
            raise UsageError(
                f"{cls.__name__}.recovery must be never, as its category is safety; take another "
                "category for what may be tried again"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling drops `__cause__`, and with it the fault this one was raised from.
        behind = next((cause for cause in _causes(self) if isinstance(cause, Fault)), None)
        return (_rebuilt, (type(self), self.args, behind), dict(self.__dict__))

    def should_retry_execution(self) -> bool:
        """Whether to run the same work again unchanged.

        As in the diagnosis, the most serious fault in the chain of causes decides.
        """
        return self._decisive_recovery() == taxonomy.Recovery.RETRY

    def should_retry_code_generation(self) -> bool:
        """Whether to generate again, with the error; decided as in `should_retry_execution`."""
        return self._decisive_recovery() == taxonomy.Recovery.REGENERATE

    def _decisive_recovery(self) -> taxonomy.Recovery:
        faults = [self, *(cause for cause in _causes(self) if isinstance(cause, Fault))]
        gravest = max(faults, key=lambda fault: _ORDER.get(fault.category, 0))
        return (
            taxonomy.Recovery.NEVER
            if gravest.category is taxonomy.Category.SAFETY
            else gravest.recovery
        )


_ORDER: dict[object, int] = {
    category: weight for weight, category in enumerate(taxonomy.Category, 1)
}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the chain of causes, nearest first."""
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


def _member(field: str, value: str, words: type[E]) -> E:
    try:
        return words(value)
    except ValueError:
        raise _not_among(field, value, words) from None


def _not_among(field: str, value: object, words: type[StrEnum]) -> UsageError:
    known = ", ".join(member.value for member in words)
    return UsageError(f"{field} must be one of {known}, not {value!r} ({type(value).__name__})")


def bounded_texts(items: object) -> tuple[str, ...]:
    """Return the first values as texts, up to one that has no text. A single text is one value."""
    found: list[str] = []
    try:
        values: Any = (items,) if isinstance(items, str) else items
        for item in islice(values, _MOST_LISTED):
            found.append(str(item)[:_LONGEST_LISTED])  # noqa: PERF401 - keeps the texts before an error
    except Exception:  # a fault can be raised with any values
        pass
    return tuple(found)


def as_text(value: object) -> str:
    """Return a value as text, empty if it has none."""
    return "".join(bounded_texts((value,)))


def or_default(message: object, made: str) -> object:
    """Return the message, or else the default made from the fault's fields, or else None."""
    return (made or None) if message is None else message


def with_defaults(fields: Fields, **made: str) -> Fields:
    """Add defaults that are not empty to the keywords of a fault; given keywords win."""
    return cast("Fields", {**{name: text for name, text in made.items() if text}, **fields})


# Infrastructure -----------------------------------------------------------------------------------


class InfrastructureFault(Fault):
    """A dependency of the work failed; the work itself may be right."""

    category = taxonomy.Category.INFRASTRUCTURE
    failure_type = taxonomy.FailureType.EXTERNAL_FAULT
    user_message = "Something this needs is not available right now. Please try again in a while."


class ConnectivityFault(InfrastructureFault):
    """A host could not be reached, or the connection was lost. host, port: None if not known."""

    cause: taxonomy.Cause | str | None = taxonomy.Cause.CONNECTION
    user_message = "A service could not be reached. Please try again in a while."

    def __init__(
        self,
        message: object = None,
        *,
        host: str | None = None,
        port: int | None = None,
        **fields: Unpack[Fields],
    ) -> None:
        where = ":".join(bounded_texts(item for item in (host, port) if item is not None))
        super().__init__(or_default(message, where and f"cannot reach {where}"), **fields)
        self.host = host
        self.port = port


class ExecutionTimeout(InfrastructureFault):
    """Something took too long. seconds: the time it had, None if not known."""

    cause: taxonomy.Cause | str | None = taxonomy.Cause.TIMEOUT
    user_message = "Something took too long. Please try again."

    def __init__(
        self, message: object = None, *, seconds: float | None = None, **fields: Unpack[Fields]
    ) -> None:
        made = "" if seconds is None else f"not done within {as_text(seconds)} s"
        super().__init__(or_default(message, made), **fields)
        self.seconds = seconds


class RateLimited(InfrastructureFault):
    """The other side accepts no more requests for `retry_after_s` seconds, None if not known."""

    cause: taxonomy.Cause | str | None = taxonomy.Cause.RATE_LIMITED
    user_message = "A service gets too many requests right now. Please try again in a while."
    not_attempted = True


class ModelCallFailed(InfrastructureFault):
    """A model could not be called, or did not answer."""

    cause: taxonomy.Cause | str | None = taxonomy.Cause.UNAVAILABLE
    user_message = "A model the task needs did not answer. Please try again in a while."


class RetrievalFailed(InfrastructureFault):
    """Stored data could not be read."""

    cause: taxonomy.Cause | str | None = taxonomy.Cause.UNAVAILABLE


class StorageFailed(InfrastructureFault):
    """Data could not be stored."""

    cause: taxonomy.Cause | str | None = taxonomy.Cause.UNAVAILABLE


# Generated code -----------------------------------------------------------------------------------


class CodeFault(Fault):
    """Generated code is wrong. attempt: its number, from 1; None if not known.

    details: further texts for the next attempt, such as a checker's findings, the errors of earlier
    attempts, a traceback. The first 20 are kept.
    """

    category = taxonomy.Category.CODE
    failure_type = taxonomy.FailureType.SCHEMA_MISMATCH
    cause: taxonomy.Cause | str | None = "generated_code"
    user_message = "What the assistant wrote to do this did not work."

    def __init__(
        self,
        message: object = None,
        *,
        attempt: int | None = None,
        details: Iterable[str] = (),
        **fields: Unpack[Fields],
    ) -> None:
        self.details = bounded_texts(details)
        super().__init__(
            message, **with_defaults(fields, technical_details="; ".join(self.details))
        )
        self.attempt = attempt


class CodeGenerationFailed(CodeFault):
    """Nothing usable was generated."""

    cause: taxonomy.Cause | str | None = taxonomy.Cause.MALFORMED_OUTPUT


class CodeSyntaxInvalid(CodeFault):
    """The code does not parse, so it was not run."""

    cause: taxonomy.Cause | str | None = taxonomy.Cause.MALFORMED_OUTPUT
    not_attempted = True


class CodeRuntimeFailed(CodeFault):
    """The code ran and failed."""


# Data ---------------------------------------------------------------------------------------------


class DataFault(Fault):
    """Data is missing or wrong."""

    category = taxonomy.Category.DATA
    failure_type = taxonomy.FailureType.HALLUCINATED_STATE
    user_message = "Data that this needs is not there."


class MissingContext(DataFault):
    """An earlier result or other data is missing. keys: names of the missing data."""

    cause: taxonomy.Cause | str | None = "missing_context"
    suggestions: tuple[str, ...] = ("Check which step makes this data, and that it comes before.",)

    def __init__(
        self, message: object = None, *, keys: Iterable[str] = (), **fields: Unpack[Fields]
    ) -> None:
        self.keys = bounded_texts(keys)
        made = f"not there: {', '.join(self.keys)}" if self.keys else ""
        super().__init__(or_default(message, made), **fields)


class InvalidContextKey(DataFault):
    """A plan names data that no step produces. key: the name. available: the names that exist."""

    cause: taxonomy.Cause | str | None = "invalid_context_key"

    def __init__(
        self,
        message: object = None,
        *,
        key: str = "",
        available: Iterable[str] = (),
        **fields: Unpack[Fields],
    ) -> None:
        self.key = key
        self.available = bounded_texts(available)
        made = f"no step makes the data {as_text(key)}"
        there = f"{made.capitalize()}. There is: {', '.join(self.available)}."
        hint = there if self.available else ""
        super().__init__(or_default(message, made), **with_defaults(fields, hint=hint))


class PlanInvalid(DataFault):
    """A plan cannot be carried out as it stands. issues: its faults, a sentence each."""

    failure_type = taxonomy.FailureType.PLAN_INCOMPLETE
    cause: taxonomy.Cause | str | None = "invalid_plan"
    user_message = "The plan for this could not be carried out."
    not_attempted = True

    def __init__(
        self, message: object = None, *, issues: Iterable[str] = (), **fields: Unpack[Fields]
    ) -> None:
        self.issues = bounded_texts(issues)
        listed = "; ".join(self.issues)
        super().__init__(
            or_default(message, listed), **with_defaults(fields, technical_details=listed)
        )


class ExtractionFailed(DataFault):
    """The data could not be extracted from its source."""

    cause: taxonomy.Cause | str | None = "extraction_failed"


class InvalidFormat(DataFault):
    """The output does not have the agreed form; generating it again may help."""

    failure_type = taxonomy.FailureType.SCHEMA_MISMATCH
    cause: taxonomy.Cause | str | None = taxonomy.Cause.INVALID_ARGUMENTS
    recovery = taxonomy.Recovery.REGENERATE
    severity = taxonomy.Severity.RETRIABLE
    user_message = "Some data did not have the expected form."


class ReclassificationRequired(DataFault):
    """The chosen tools or capabilities are the wrong ones."""

    failure_type = taxonomy.FailureType.WRONG_TOOL_CALLED
    cause: taxonomy.Cause | str | None = "wrong_capabilities"
    recovery = taxonomy.Recovery.RECLASSIFY
    user_message = "The assistant chose the wrong means for this."


# People -------------------------------------------------------------------------------------------


class WorkflowFault(Fault):
    """The work cannot continue without a person. stage: where it stopped, empty if not known."""

    category = taxonomy.Category.WORKFLOW
    user_message = "This cannot go on without help."

    def __init__(
        self, message: object = None, *, stage: str = "", **fields: Unpack[Fields]
    ) -> None:
        made = f"stopped at {as_text(stage)}" if as_text(stage) else ""
        super().__init__(or_default(message, made), **fields)
        self.stage = stage


class MaxAttemptsExceeded(WorkflowFault):
    """Every allowed attempt failed.

    operation: what was tried. max_attempts: number of attempts. error_chain: their errors, oldest first.
    """

    cause: taxonomy.Cause | str | None = taxonomy.Cause.LIMIT
    user_message = "This was tried several times and did not work."

    def __init__(
        self,
        message: object = None,
        *,
        operation: str = "it",
        max_attempts: int | None = None,
        error_chain: Iterable[str] = (),
        **fields: Unpack[Fields],
    ) -> None:
        self.operation = operation
        self.max_attempts = max_attempts
        self.error_chain = bounded_texts(error_chain)
        times = "as often as it may" if max_attempts is None else f"{as_text(max_attempts)} times"
        chain = "; ".join(self.error_chain)
        super().__init__(
            or_default(message, f"{as_text(operation)} failed {times}"),
            **with_defaults(fields, technical_details=chain),
        )


class AmbiguousInput(WorkflowFault):
    """The request can be read in several ways: a person must clarify it."""

    failure_type = taxonomy.FailureType.PLAN_INCOMPLETE
    cause: taxonomy.Cause | str | None = "ambiguous_input"
    user_message = "What is wanted can be read in several ways. Please say it more exactly."
    not_attempted = True


class IdentityMissing(WorkflowFault):
    """The user is not known."""

    cause: taxonomy.Cause | str | None = "identity_missing"
    user_message = "It is not known for whom this is to be done. Please sign in."
    not_attempted = True


class EffectUnverified(WorkflowFault):
    """An effect was attempted and may have happened; it must not be repeated blindly."""

    failure_type = taxonomy.FailureType.EXTERNAL_FAULT
    cause: taxonomy.Cause | str | None = taxonomy.Cause.IN_DOUBT
    user_message = "It is not certain whether this has happened. Please check before trying again."


# Settings -----------------------------------------------------------------------------------------


class ConfigurationFault(Fault):
    """A setting is wrong. setting: its name, empty if not known."""

    category = taxonomy.Category.CONFIGURATION
    failure_type = taxonomy.FailureType.EXTERNAL_FAULT
    cause: taxonomy.Cause | str | None = taxonomy.Cause.MISSING_CONFIG
    user_message = "Something is not set up rightly. The operator has to look at it."

    def __init__(
        self, message: object = None, *, setting: str = "", **fields: Unpack[Fields]
    ) -> None:
        made = f"check {as_text(setting)}" if as_text(setting) else ""
        super().__init__(or_default(message, made), **fields)
        self.setting = setting


class RegistryFault(ConfigurationFault):
    """A capability, tool or provider is not registered."""

    cause: taxonomy.Cause | str | None = "not_registered"


# Refusals -----------------------------------------------------------------------------------------


class SafetyFault(Fault):
    """The work must not be done. The recovery is always NEVER: no retry, no replan."""

    category = taxonomy.Category.SAFETY
    failure_type = taxonomy.FailureType.CONSTRAINT_IGNORED
    cause: taxonomy.Cause | str | None = taxonomy.Cause.GUARDRAIL
    user_message = "This was refused, as it is not allowed."


class PolicyRefused(SafetyFault):
    """A rule refused the work before anything was attempted. rule: its name or public code, if known."""

    not_attempted = True

    def __init__(self, message: object = None, *, rule: str = "", **fields: Unpack[Fields]) -> None:
        made = f"refused by {as_text(rule)}" if as_text(rule) else ""
        super().__init__(or_default(message, made), **fields)
        self.rule = rule
