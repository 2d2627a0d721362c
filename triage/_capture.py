"""From a live exception to plain data, and what an application may write onto one.

Everything is read by duck typing; no client library is imported, nothing is fetched, and no exception,
however hostile, makes `capture` raise or keeps it busy: texts, containers and chains are cut.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TypeVar

from . import _answer, _phase, _retry_after
from ._probe import attr, is_a, some, text_of, words
from .failures import ErrorInfo
from .steps import refuse
from .taxonomy import Cause, FailureType, Severity

MAX_RELATED = 24
"""Exceptions followed through causes, contexts and groups."""
MAX_CHAIN = 12
"""How deep they may hang from each other."""

_HINT = "_triage_hint"
_NOT_ATTEMPTED = "_triage_not_attempted"
_HINT_FIELDS = ("failure_type", "cause", "severity", "hint", "retry_after_s", "user_message")

E = TypeVar("E", bound=BaseException)


def capture(exc: BaseException) -> ErrorInfo:
    """What is known of a live exception, with its causes, contexts and group members.

    Never raises. At most `MAX_RELATED` exceptions are followed, each once.
    """
    return _Capture().take(exc, "", MAX_CHAIN)


class _Capture:
    """One walk over a chain: what was seen, and the time all dates are measured from."""

    __slots__ = ("left", "now", "seen")

    def __init__(self) -> None:
        self.left = MAX_RELATED
        self.now = time.time()
        self.seen: set[int] = set()

    def take(self, exc: BaseException, relation: str, depth: int) -> ErrorInfo:
        self.seen.add(id(exc))
        # Depth first for causes, so that a wide group cannot use up what a chain needs.
        related = tuple(
            self.take(other, how, depth - 1) for other, how in self._others(exc) if self._admit(other, depth)
        )
        return _info(exc, relation, related, self.now)

    def _admit(self, exc: BaseException, depth: int) -> bool:
        if depth == 0 or self.left == 0 or id(exc) in self.seen:
            return False
        self.left -= 1
        return True

    @staticmethod
    def _others(exc: BaseException) -> list[tuple[BaseException, str]]:
        found: list[tuple[BaseException, str]] = []
        cause = attr(exc, "__cause__")
        if is_a(cause, BaseException):
            found.append((cause, "cause"))
        elif attr(exc, "__suppress_context__") is not True:
            context = attr(exc, "__context__")
            if is_a(context, BaseException):
                found.append((context, "context"))
        if is_a(exc, BaseExceptionGroup):
            members = some(attr(exc, "exceptions"), MAX_RELATED)
            found += [(member, "group") for member in members if is_a(member, BaseException)]
        return found


def _info(exc: BaseException, relation: str, related: tuple[ErrorInfo, ...], now: float) -> ErrorInfo:
    mro, names = _classes(exc)
    message = _message(exc, names)
    answer = _answer.read(exc, names)
    delay = _delay(exc, answer, message, now)
    phase = _phase.of(names, answer.code, message, answered=answer.status is not None)
    if attr(exc, _NOT_ATTEMPTED) is True:
        phase = "not_sent"
    if phase is None and _phase.wraps(names):
        phase = next((info.phase for info in related if info.phase in ("not_sent", "sent")), None)
    return ErrorInfo(
        type_name=names[0],
        module=mro[0].rpartition(".")[0] if "." in mro[0] else "",
        mro=mro,
        message=message,
        status_code=answer.status,
        code=answer.code,
        retry_after_s=delay,
        phase=phase,
        body=answer.body,
        hint=_hint_of(exc),
        notes=tuple(text_of(note, 500) for note in some(attr(exc, "__notes__"), 8)),
        relation=relation,
        related=related,
    )


def _classes(exc: BaseException) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`module.QualName` and the plain names of the class and its bases, `object` left out."""
    full: list[str] = []
    names: list[str] = []
    for cls in type.mro(type(exc))[:-1][:32]:
        name = words(attr(cls, "__name__"), 200) or "Exception"
        module, qualname = words(attr(cls, "__module__"), 200), words(attr(cls, "__qualname__"), 200)
        full.append(f"{module}.{qualname or name}" if module else qualname or name)
        names.append(name)
    return tuple(full), tuple(names)


def _message(exc: BaseException, names: tuple[str, ...]) -> str:
    message = text_of(exc)
    if not message.strip():
        # KeyError('') and a broken __str__ alike: the class is all that can be said.
        return names[0]
    return message


def _delay(exc: BaseException, answer: _answer.Answer, message: str, now: float) -> float | None:
    for headers in answer.headers:
        delay = _retry_after.from_headers(headers, now)
        if delay is not None:
            return delay
    delay = _retry_after.from_details(exc)
    if delay is None:
        delay = _retry_after.from_body(answer.body)
    if delay is None:
        delay = _retry_after.seconds(attr(exc, "retry_after"))
    return _retry_after.from_text(message) if delay is None else delay


def _hint_of(exc: BaseException) -> dict[str, Any] | None:
    found = attr(exc, _HINT)
    if not is_a(found, Mapping):
        return None
    fields = {name: found.get(name) for name in _HINT_FIELDS if found.get(name) is not None}
    return fields or None


def hint(  # noqa: PLR0913 - the fields of a hint, all by keyword
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
    the other fields replace the diagnosis' own. failure_type: one of ten, as member or value. cause: a
    finer name, an own one too. severity: what may be done next. hint: what the next attempt is told.
    retry_after_s: seconds to wait, finite, from 0. user_message: for an end user. A later call adds to
    an earlier one. An exception that refuses every attribute is returned as it is.

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
    fields = dict(_hint_of(exc) or {})
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
    for setter in (setattr, object.__setattr__):
        try:
            setter(exc, name, value)
        except Exception:  # noqa: BLE001, S112 - slots or a __setattr__ that refuses: the next way, or none
            continue
        return


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
