"""What an exception says of itself: as its class declares it, and as `hint` wrote it there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar, cast

from triage._refuse import refuse
from triage.taxonomy import (
    CATEGORY_RECOVERY,
    RECOVERY_SEVERITY,
    Category,
    Cause,
    FailureType,
    Level,
    Recovery,
    Severity,
)

from ._probe import MAX_TEXT, attr, entry, is_a, seconds, some, words
from ._trust import _mro, _namespace, attributes_of, plain_class

_HINT = "_triage_hint"
_NOT_ATTEMPTED = "_triage_not_attempted"
_FAULT = "__triage_fault__"
_ATTEMPTED = "not_attempted"
_MAX_SUGGESTIONS = 10

E = TypeVar("E", bound=BaseException)


def written(exc: BaseException, *, known: bool = True) -> dict[str, Any] | None:
    """What the exception says of itself, as plain fields; None if it says nothing.

    What `hint` wrote replaces what the class declares, but for a refusal. Values of the wrong kind are
    left out. known: whether code of the exception's own may run, such as a property's.
    """
    given = _of_mapping(attributes_of(exc).get(_HINT))
    if _is_fault(exc):
        own = _declared(exc, known=known)
        if own.get("category") == Category.SAFETY:
            given = {name: given[name] for name in given if name not in _OF_A_REFUSAL}
        given = {**_outdated(own, given), **given}
    return _completed(given) if given else None


def said_in(hint: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a hint says, as it was captured or read from a journal; what is no word of ours is left out."""
    return _completed(_of_mapping(hint))


def is_not_attempted(exc: BaseException) -> bool:
    """Whether `not_attempted` marked the exception, or its class says so of all of its kind."""
    if attributes_of(exc).get(_NOT_ATTEMPTED) is True:
        return True
    if not _is_fault(exc):
        return False
    spaces = (attributes_of(exc), *(_namespace(cls) for cls in _mro(type(exc))))
    return next((space[_ATTEMPTED] for space in spaces if _ATTEMPTED in space), None) is True


# --- what the class declares ------------------------------------------------------------------


def _is_fault(exc: BaseException) -> bool:
    kind = type(exc)
    return plain_class(kind) and _declares(cast("Hashable", kind))


@lru_cache(maxsize=512)
def _declares(kind: Hashable) -> bool:
    return any(_namespace(cls).get(_FAULT) is True for cls in _mro(kind))


def _declared(exc: BaseException, *, known: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    closer = dict(attributes_of(exc))
    static: dict[str, Any] = {}
    for space in (*(_namespace(cls) for cls in reversed(_mro(type(exc)))), closer):
        static |= {name: space[name] for name in _FIELDS if name in space}
    for name, value in static.items():
        read = _FIELDS[name]
        if hasattr(type(value), "__get__"):  # a property: it works the value out
            closer[name] = attr(exc, name) if known else None
            value = closer[name]  # noqa: PLW2901 - what the property said
        said = None if value is None else read(value)
        if said not in (None, []):
            found[name] = said
    return _outdated(found, closer)


def _outdated(own: dict[str, Any], closer: Mapping[str, Any]) -> dict[str, Any]:
    """What is declared, without what follows from a word that is said anew closer to the failure."""
    for name, following in _FOLLOW.items():
        if closer.get(name) is not None:
            own = {key: own[key] for key in own if key not in following or key in closer}
    return own


_FOLLOW = {
    "category": ("recovery", "severity", "level"),
    "recovery": ("severity", "level"),
    "severity": ("level",),
}
_OF_A_REFUSAL = frozenset({"category", "recovery", "severity"})


def _completed(given: dict[str, Any]) -> dict[str, Any]:
    """With the recovery of its category, and the severity of its recovery, where nothing is said."""
    category = given.get("category")
    if category is not None:
        if category == Category.SAFETY:
            given["recovery"] = Recovery.NEVER.value
        elif "recovery" not in given:
            given["recovery"] = CATEGORY_RECOVERY[Category(category)].value
    recovery = given.get("recovery")
    if recovery == Recovery.NEVER:
        given["severity"] = Severity.FATAL.value
    elif recovery is not None and "severity" not in given:
        given["severity"] = RECOVERY_SEVERITY[Recovery(recovery)].value
    return given


# --- reading ------------------------------------------------------------------------------------


def _of_mapping(found: object) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if found is None:  # as on nearly every exception
        return given
    for name, read in _FIELDS.items():
        value = entry(found, name)
        value = None if value is None else read(value)
        if value not in (None, []):
            given[name] = value
    return given


def _word_of(enum: type[StrEnum]) -> Callable[[object], str | None]:
    known = frozenset(member.value for member in enum)

    def read(value: object) -> str | None:
        word = words(value)
        return word if word in known else None

    return read


def _text_of(value: object) -> str | None:
    return words(value, MAX_TEXT)


def _texts_of(value: object) -> list[str]:
    items = [] if is_a(value, str) else some(value, _MAX_SUGGESTIONS)
    return [text for item in items if (text := words(item)) is not None]


_FIELDS: dict[str, Callable[[object], Any]] = {
    "failure_type": _word_of(FailureType),
    "cause": words,
    "category": _word_of(Category),
    "recovery": _word_of(Recovery),
    "severity": _word_of(Severity),
    "level": _word_of(Level),
    "hint": _text_of,
    "retry_after_s": seconds,
    "user_message": _text_of,
    "technical_details": _text_of,
    "suggestions": _texts_of,
}
"""What an exception may say of itself, and how each is read."""


# --- writing ------------------------------------------------------------------------------------


def hint(
    exc: E,
    *,
    failure_type: FailureType | str | None = None,
    cause: Cause | str | None = None,
    category: Category | str | None = None,
    recovery: Recovery | str | None = None,
    severity: Severity | str | None = None,
    level: Level | str | None = None,
    hint: str | None = None,
    retry_after_s: float | None = None,
    user_message: str | None = None,
) -> E:
    """Write onto an exception what is known of it, and return it: `raise triage.hint(exc, …)`.

    It works on any exception, also one of a library. A given `failure_type` decides the diagnosis;
    the other fields replace the diagnosis' own. failure_type: one of ten, as member or value.
    cause: a finer name, an own one too. category: what kind of thing failed. recovery: what would
    help; None: what helps against the category. severity: what may be done next; None: what the
    recovery says. level: who must know. hint: what the next attempt is told. retry_after_s: seconds to
    wait, finite, from 0. user_message: for an end user. A later call adds to an earlier one, and an
    exception that refuses attributes takes these.

    Raises TypeError or ValueError naming the field if a value is of the wrong type or value.
    """
    if not isinstance(exc, BaseException):
        raise refuse("hint() exc", exc, "an exception")
    given: dict[str, Any] = {
        "failure_type": _member(FailureType, "failure_type", failure_type),
        "cause": _text("cause", cause),
        "category": _member(Category, "category", category),
        "recovery": _member(Recovery, "recovery", recovery),
        "severity": _member(Severity, "severity", severity),
        "level": _member(Level, "level", level),
        "hint": _text("hint", hint),
        "retry_after_s": _wait(retry_after_s),
        "user_message": _text("user_message", user_message),
    }
    held = attributes_of(exc).get(_HINT)
    fields = dict(held) if isinstance(held, dict) else {}
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


def _member(enum: type[StrEnum], field: str, value: object) -> str | None:
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
