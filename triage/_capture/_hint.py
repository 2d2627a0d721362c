"""What an application may write onto an exception: `hint` and `not_attempted`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from triage.steps import refuse
from triage.taxonomy import Cause, FailureType, Severity

from ._probe import entry
from ._trust import attributes_of

_HINT = "_triage_hint"
_NOT_ATTEMPTED = "_triage_not_attempted"
_FIELDS = ("failure_type", "cause", "severity", "hint", "retry_after_s", "user_message")

E = TypeVar("E", bound=BaseException)


def written(exc: BaseException) -> dict[str, Any] | None:
    """The fields `hint` wrote onto the exception, None without any."""
    found = attributes_of(exc).get(_HINT)
    if not isinstance(found, Mapping):
        return None
    fields = {name: value for name in _FIELDS if (value := entry(found, name)) is not None}
    return fields or None


def is_not_attempted(exc: BaseException) -> bool:
    """Whether `not_attempted` marked the exception."""
    return attributes_of(exc).get(_NOT_ATTEMPTED) is True


def hint(
    exc: E,
    *,
    failure_type: FailureType | str | None = None,
    cause: Cause | str | None = None,
    severity: Severity | str | None = None,
    hint: str | None = None,
    retry_after_s: float | None = None,
    user_message: str | None = None,
) -> E:
    """Write onto an exception what is known of it, and return it: `raise triage.hint(exc, …)`.

    It works on any exception, also one of a library. A given `failure_type` decides the diagnosis;
    the other fields replace the diagnosis' own. failure_type: one of ten, as member or value.
    cause: a finer name, an own one too. severity: what may be done next. hint: what the next
    attempt is told. retry_after_s: seconds to wait, finite, from 0. user_message: for an end user.
    A later call adds to an earlier one, and an exception that refuses attributes takes these.

    Raises TypeError or ValueError naming the field if a value is of the wrong type or value.
    """
    if not isinstance(exc, BaseException):
        raise refuse("hint() exc", exc, "an exception")
    given: dict[str, Any] = {
        "failure_type": _member(FailureType, "failure_type", failure_type),
        "cause": _text("cause", cause),
        "severity": _member(Severity, "severity", severity),
        "hint": _text("hint", hint),
        "retry_after_s": _wait(retry_after_s),
        "user_message": _text("user_message", user_message),
    }
    fields = dict(written(exc) or {})
    fields.update({name: value for name, value in given.items() if value is not None})
    _attach(exc, _HINT, fields)
    return exc


def not_attempted(exc: E) -> E:
    """Say that the call which raised this cannot have taken effect, and return the exception.

    Its `ErrorInfo.phase` becomes `"not_sent"`, so that a call with an effect may be made again.
    """
    if not isinstance(exc, BaseException):
        raise refuse("not_attempted() exc", exc, "an exception")
    _attach(exc, _NOT_ATTEMPTED, value=True)
    return exc


def _attach(exc: BaseException, name: str, value: object) -> None:
    # Past any `__setattr__`: an exception always has a place for attributes.
    attributes_of(exc)[name] = value


def _member(enum: type[FailureType | Severity], field: str, value: object) -> str | None:
    if value is None:
        return None
    try:
        return enum(value).value  # type: ignore[arg-type] # the enum itself says whether it knows the value
    except ValueError:
        known = ", ".join(member.value for member in enum)
        raise ValueError(f"hint() {field} must be one of {known}, not {value!r}") from None


def _text(field: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise refuse(f"hint() {field}", value, "text or None")
    return str(value)


def _wait(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse("hint() retry_after_s", value, "a number of seconds or None")
    if not 0 <= value < float("inf"):
        raise ValueError(f"hint() retry_after_s must be finite and from 0, not {value}")
    return float(value)
