"""Why an attempt failed, as a classifier sees it: `Diagnosis` and the `Evidence` behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

from ._refuse import refuse
from .steps import Usage
from .taxonomy import (
    DEFAULT_LEVEL,
    Cause,
    FailureType,
    Level,
    Recovery,
    Severity,
    severity_of,
)


class Evidence(NamedTuple):
    """One thing that speaks for a diagnosis.

    rule: the name of the rule or detector. text: what it saw, short and safe to print. step: index
    of the step in the attempt, None when it is the exception or the result.
    """

    rule: str
    text: str
    step: int | None = None


E = TypeVar("E", FailureType, Severity, Level, Recovery)

_BY_DEFAULT: Any = None
"""Filled in by `Diagnosis` itself, so that readers never meet None."""


@dataclass(frozen=True, init=False)
class Diagnosis:
    """Why an attempt failed.

    failure_type: one of ten. cause: the finer name. severity: what may be done next; None takes the
    default of the cause, else of the type. level: who must know; None takes the severity's default.
    confidence: from 0 to 1. evidence: what speaks for it, strongest first. critical_step: index of
    the earliest decisive step, None if no step decided. user_message: for an end user, no internals.
    technical_details: for an engineer. hint: what the next attempt should do otherwise. suggestions:
    for a person. retry_after_s: the delay the other side asked for, seconds, None if it asked for
    none. candidates: other types considered, likeliest first. classifier: who says so. usage: what
    the diagnosis itself consumed, None if no model was asked; a run counts it with its own. recovery:
    what would help, as the failing code says itself; None if it says nothing.

    Raises TypeError or ValueError for a field of the wrong type or value.
    """

    failure_type: FailureType
    cause: Cause | str | None = None
    severity: Severity = _BY_DEFAULT
    level: Level = _BY_DEFAULT
    confidence: float = 1.0
    evidence: tuple[Evidence, ...] = ()
    critical_step: int | None = None
    user_message: str = ""
    technical_details: str = ""
    hint: str | None = None
    suggestions: tuple[str, ...] = ()
    retry_after_s: float | None = None
    candidates: tuple[FailureType, ...] = ()
    classifier: str = ""
    usage: Usage | None = None
    recovery: Recovery | None = None

    def __init__(  # noqa: PLR0913, PLR0917 - the fields of a record; the class says them
        self,
        failure_type: FailureType,
        cause: Cause | str | None = None,
        severity: Severity = _BY_DEFAULT,
        level: Level = _BY_DEFAULT,
        confidence: float = 1.0,
        evidence: tuple[Evidence, ...] = (),
        critical_step: int | None = None,
        user_message: str = "",
        technical_details: str = "",
        hint: str | None = None,
        suggestions: tuple[str, ...] = (),
        retry_after_s: float | None = None,
        candidates: tuple[FailureType, ...] = (),
        classifier: str = "",
        usage: Usage | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        # What a frozen dataclass does by itself costs five times as much, and one is made with each
        # failure.
        fields = self.__dict__
        fields["failure_type"] = failure_type
        fields["cause"] = cause
        fields["severity"] = severity
        fields["level"] = level
        fields["confidence"] = confidence
        fields["evidence"] = evidence
        fields["critical_step"] = critical_step
        fields["user_message"] = user_message
        fields["technical_details"] = technical_details
        fields["hint"] = hint
        fields["suggestions"] = suggestions
        fields["retry_after_s"] = retry_after_s
        fields["candidates"] = candidates
        fields["classifier"] = classifier
        fields["usage"] = usage
        fields["recovery"] = recovery
        if not _is_right(fields):
            _settle(self, fields)

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return f"{self.failure_type}{cause}, {self.severity}, confidence {self.confidence:.2f}"

    def format_for_llm(self, max_chars: int = 1_500) -> str:
        """What the next attempt should know, as text for a prompt: most useful first.

        Without credentials; what was said by errors and tools is in quotation marks, as data. Equal
        diagnoses give equal texts. max_chars: at most so many characters, from 1; a longer text is
        cut and ends in "…". Raises TypeError or ValueError for another value.
        """
        from ._report import for_llm

        return for_llm(self, _limit("format_for_llm", max_chars))

    def format_for_person(self, max_chars: int = 4_000) -> str:
        """Everything the diagnosis says, one thing a line, for whoever has to act.

        Without credentials, and cut as `format_for_llm` cuts.
        """
        from ._report import for_person

        return for_person(self, _limit("format_for_person", max_chars))


def _limit(name: str, max_chars: object) -> int:
    if isinstance(max_chars, bool) or not isinstance(max_chars, int):
        raise refuse(f"{name}() max_chars", max_chars, "a whole number from 1")
    if max_chars < 1:
        raise ValueError(f"{name}() max_chars must be 1 or more, not {max_chars}")
    return max_chars


def _member(enum: type[E], name: str, value: object) -> E:
    try:
        return enum(cast("str", value))
    except ValueError:
        words = ", ".join(member.value for member in enum)
        raise ValueError(f"Diagnosis.{name} must be one of {words}, not {value!r}") from None


def _check_numbers(diagnosis: Diagnosis) -> None:
    confidence, delay = diagnosis.confidence, diagnosis.retry_after_s
    if isinstance(confidence, bool) or not isinstance(confidence, int | float):
        raise refuse("Diagnosis.confidence", confidence, "a number from 0 to 1")
    if not 0 <= confidence <= 1:
        raise ValueError(f"Diagnosis.confidence must be from 0 to 1, not {confidence}")
    if delay is not None:
        if isinstance(delay, bool) or not isinstance(delay, int | float):
            raise refuse("Diagnosis.retry_after_s", delay, "a number of seconds or None")
        if not 0 <= delay < float("inf"):
            raise ValueError(f"Diagnosis.retry_after_s must be finite and from 0, not {delay}")
    step = diagnosis.critical_step
    if step is not None and type(step) is not int:
        raise refuse("Diagnosis.critical_step", step, "a step's index or None")
    if step is not None and step < 0:
        raise ValueError(f"Diagnosis.critical_step must be 0 or more, not {step}")
    if diagnosis.usage is not None and not isinstance(diagnosis.usage, Usage):
        raise refuse("Diagnosis.usage", diagnosis.usage, "a Usage or None")


def _is_right(fields: dict[str, Any]) -> bool:
    """Whether every field has just the type it should have; False where it takes a closer look."""
    cause, hint, confidence = fields["cause"], fields["hint"], fields["confidence"]
    return (
        fields["failure_type"].__class__ is FailureType
        and fields["severity"].__class__ is Severity
        and fields["level"].__class__ is Level
        and (cause is None or cause.__class__ is Cause)
        and (hint is None or hint.__class__ is str)
        and fields["recovery"] is None
        and fields["retry_after_s"] is None
        and fields["critical_step"] is None
        and fields["usage"] is None
        and confidence.__class__ is float
        and 0.0 <= confidence <= 1.0
        and fields["user_message"].__class__ is str
        and fields["technical_details"].__class__ is str
        and fields["classifier"].__class__ is str
        and _holds(fields["suggestions"], str)
        and _holds(fields["candidates"], FailureType)
        and _holds(fields["evidence"], Evidence)
    )


def _holds(values: Any, kind: type) -> bool:
    """Whether this is a tuple of values of this type, and evidence has texts."""
    if values.__class__ is not tuple:
        return False
    for value in values:
        if value.__class__ is not kind or (kind is Evidence and not _has_texts(value)):
            return False
    return True


def _has_texts(one: Any) -> bool:
    return one[0].__class__ is str and one[1].__class__ is str and one[2] is None


def _settle(diagnosis: Diagnosis, fields: dict[str, Any]) -> None:
    """Words as members, None as what it stands for, and a refusal of what is neither."""
    kind = diagnosis.failure_type
    if kind.__class__ is not FailureType:
        kind = fields["failure_type"] = _member(FailureType, "failure_type", kind)
    severity = cast("Severity | None", diagnosis.severity)
    if severity.__class__ is not Severity:
        given = severity_of(kind, diagnosis.cause) if severity is None else severity
        severity = fields["severity"] = _member(Severity, "severity", given)
    if diagnosis.level.__class__ is not Level:
        level = cast("Level | None", diagnosis.level) or DEFAULT_LEVEL[diagnosis.severity]
        fields["level"] = _member(Level, "level", level)
    if diagnosis.recovery is not None and diagnosis.recovery.__class__ is not Recovery:
        fields["recovery"] = _member(Recovery, "recovery", diagnosis.recovery)
    _check_numbers(diagnosis)
    _check_texts(diagnosis, fields)


def _check_evidence(evidence: Evidence) -> None:
    for name, value in (("rule", evidence.rule), ("text", evidence.text)):
        if not isinstance(value, str):
            raise refuse(f"Evidence.{name}", value, "text")
    if evidence.step is not None and type(evidence.step) is not int:
        raise refuse("Evidence.step", evidence.step, "a step's index or None")


_TEXTS = ("user_message", "technical_details", "classifier")
_TUPLES = (("evidence", Evidence), ("suggestions", str), ("candidates", FailureType))


def _check_texts(diagnosis: Diagnosis, fields: dict[str, Any]) -> None:
    for name in _TEXTS:
        if not isinstance(fields.get(name, ""), str):
            raise refuse(f"Diagnosis.{name}", fields[name], "text")
    cause, hint = diagnosis.cause, diagnosis.hint
    if hint is not None and not isinstance(hint, str):
        raise refuse("Diagnosis.hint", hint, "text or None")
    if cause is not None and cause.__class__ is not Cause:
        if not isinstance(cause, str):
            raise refuse("Diagnosis.cause", cause, "a Cause, text or None")
        fields["cause"] = known_cause(cause)
    for name, kind in _TUPLES:
        values = fields[name]
        if values == ():
            continue
        if isinstance(values, str) or not isinstance(values, tuple | list):
            raise refuse(f"Diagnosis.{name}", values, f"a tuple of {kind.__name__}")
        for value in values:
            if not isinstance(value, kind):
                raise refuse(f"Diagnosis.{name} item", value, kind.__name__)
        fields[name] = tuple(values)
    for evidence in diagnosis.evidence:
        _check_evidence(evidence)


def of_right(fields: dict[str, Any]) -> Diagnosis:
    """A diagnosis of fields that are known to be right: all of them, in their order. It keeps the dict."""
    made = _new(Diagnosis)
    _set(made, "__dict__", fields)
    return made


_new, _set = object.__new__, object.__setattr__


def known_cause(text: str) -> Cause | str:
    """The `Cause` of this word, or the word itself where it is an application's own."""
    try:
        return Cause(text)
    except ValueError:
        return text
