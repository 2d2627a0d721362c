"""Why an attempt failed, as a classifier sees it: `Diagnosis` and the `Evidence` behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from .steps import refuse
from .taxonomy import DEFAULT_LEVEL, Cause, FailureType, Level, Severity, severity_of


class Evidence(NamedTuple):
    """One thing that speaks for a diagnosis.

    rule: the name of the rule or detector. text: what it saw, short and safe to print. step: index
    of the step in the attempt, None when it is the exception or the result.
    """

    rule: str
    text: str
    step: int | None = None


_BY_DEFAULT: Any = None
"""Filled in by `Diagnosis` itself, so that readers never meet None."""


@dataclass(frozen=True)
class Diagnosis:
    """Why an attempt failed.

    failure_type: one of ten. cause: the finer name. severity: what may be done next; None takes the
    default of the cause, else of the type. level: who must know; None takes the severity's default.
    confidence: from 0 to 1. evidence: what speaks for it, strongest first. critical_step: index of
    the earliest decisive step, None if no step decided. user_message: for an end user, no internals.
    technical_details: for an engineer. hint: what the next attempt should do otherwise. suggestions:
    for a person. retry_after_s: the delay the other side asked for, seconds, None if it asked for
    none. candidates: other types considered, likeliest first. classifier: who says so.

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

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "failure_type", _member(FailureType, "failure_type", self.failure_type))
        severity = cast("Severity | None", self.severity)
        if severity is None:
            severity = severity_of(self.failure_type, self.cause)
        set_(self, "severity", _member(Severity, "severity", severity))
        level = cast("Level | None", self.level)
        set_(self, "level", _member(Level, "level", level or DEFAULT_LEVEL[self.severity]))
        _check_numbers(self)
        _check_texts(self)

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return f"{self.failure_type}{cause}, {self.severity}, confidence {self.confidence:.2f}"


def _member(enum: type[FailureType | Severity | Level], name: str, value: object) -> object:
    try:
        return enum(value)  # type: ignore[arg-type] # the enum itself says whether it knows the value
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


def _check_texts(diagnosis: Diagnosis) -> None:
    for name in ("user_message", "technical_details", "classifier"):
        if not isinstance(getattr(diagnosis, name), str):
            raise refuse(f"Diagnosis.{name}", getattr(diagnosis, name), "text")
    for name in ("cause", "hint"):
        value = getattr(diagnosis, name)
        if value is not None and not isinstance(value, str):
            raise refuse(f"Diagnosis.{name}", value, "text or None")
    set_ = object.__setattr__
    if isinstance(diagnosis.cause, str):
        set_(diagnosis, "cause", known_cause(diagnosis.cause))
    for name, kind in (("evidence", Evidence), ("suggestions", str), ("candidates", FailureType)):
        values = getattr(diagnosis, name)
        if isinstance(values, str) or not isinstance(values, tuple | list):
            raise refuse(f"Diagnosis.{name}", values, f"a tuple of {kind.__name__}")
        for value in values:
            if not isinstance(value, kind):
                raise refuse(f"Diagnosis.{name} item", value, kind.__name__)
        set_(diagnosis, name, tuple(values))


def known_cause(text: str) -> Cause | str:
    """The `Cause` of this word, or the word itself where it is an application's own."""
    try:
        return Cause(text)
    except ValueError:
        return text
