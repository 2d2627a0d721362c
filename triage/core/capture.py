"""Exceptions as data: `capture` reads an exception, `hint` and `not_attempted` annotate one.

Reads by duck typing (`foreign`): imports no client library, fetches nothing, and neither raises nor hangs
on any exception, however hostile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, TypeVar, cast

from msgspec.structs import replace

from . import foreign, taxonomy
from .answers import NO_ANSWER, Answer, delay_of, header_delay, read_answer
from .asking import TooSlow, ask_here
from .errors import SEE, Hint, Mark, check_number, refuse
from .failures import BUSY, ErrorInfo
from .phases import caught_by_a_client, made_several_requests, phase_of
from .retry_after import from_text

__all__ = ["capture", "captured_text", "hint", "not_attempted", "said_in"]

MAX_RELATED = 24
"""Maximum number of exceptions read through causes, contexts and groups."""
MAX_CHAIN = 12
"""Maximum depth of that tree."""
READING_S = 0.5
"""Seconds that foreign code has to be read in."""
_SLOW_S = 60.0
"""Seconds for which exceptions of a class that was too slow to read are not read in full."""
_MOST_SLOW = 64
_HIDDEN = "hidden"
"""The relation of a context hidden by `raise … from …`: it counts as evidence but is not reported."""

E = TypeVar("E", bound=BaseException)

# The interpreter's own descriptors, because an exception may define attributes of these names.
_cause_of = BaseException.__dict__["__cause__"].__get__
_context_of = BaseException.__dict__["__context__"].__get__
_suppresses_context = BaseException.__dict__["__suppress_context__"].__get__
_members_of = BaseExceptionGroup.__dict__["exceptions"].__get__
_qualname_of = type.__dict__["__qualname__"].__get__
_module_of = type.__dict__["__module__"].__get__

_slow_until: dict[int, float] = {}
"""Monotonic time until which a class counts as too slow to read, by the id of the class."""


def capture(exc: BaseException, handled: BaseException | None = None) -> ErrorInfo:
    """Read a live exception with its causes, contexts and group members.

    handled: the exception already being handled when the code that raised `exc` started, which does not
    count as its context; None without one. A `phase` of "not_sent" becomes "sent" if a related exception,
    or the client's own retries, can mean that a request was accepted.

    Never raises. Reads at most `MAX_RELATED` exceptions, each once. If the exception's own code takes
    longer than half a second, reads only its class and arguments.
    """
    try:
        return _Capture("here", handled).read(exc)
    except _NotHereError:
        pass
    kind = type(exc)
    if _slow_until.get(id(kind), 0.0) <= time.monotonic():
        try:
            return ask_here(_Capture("guarded", handled).read, exc, seconds=READING_S)
        except TooSlow:
            # In a trusted class, the slow part was a value in this instance.
            if not foreign.trusted(kind):
                if len(_slow_until) >= _MOST_SLOW:
                    _slow_until.clear()
                _slow_until[id(kind)] = time.monotonic() + _SLOW_S
        except Exception:  # a class can break any reader
            pass
    return _Capture("bare", handled).read(exc)


class _NotHereError(Exception):
    """Reading this exception would run untrusted code."""


class _Capture:
    """One walk over a chain of exceptions.

    how: `"here"` raises _NotHereError before any foreign code runs; `"guarded"` runs foreign code;
    `"bare"` skips all reads that could run any.
    """

    def __init__(
        self, how: Literal["here", "guarded", "bare"], handled: BaseException | None
    ) -> None:
        self.how = how
        self.handled = handled
        self.left = MAX_RELATED
        self.now = time.time()
        self.seen: set[int] = set()
        self.met: list[tuple[BaseException, ErrorInfo]] = []
        self.all_read = True

    def read(self, exc: BaseException) -> ErrorInfo:
        info = self.take(exc, "", MAX_CHAIN)
        if info.not_attempted and not _is_not_attempted(exc) and self._may_be_taken():
            return replace(info, phase="sent")
        return info

    def take(self, exc: BaseException, relation: str, depth: int) -> ErrorInfo:
        known = self.how == "guarded" or not foreign.runs_foreign_code(exc)
        if not known and self.how == "here":
            raise _NotHereError
        self.seen.add(id(exc))
        related: list[ErrorInfo] = []
        # Causes go first, so that a wide group cannot use up the budget of a chain.
        for other, how in self._others(exc):
            if id(other) in self.seen:
                continue
            if depth == 0 or self.left == 0:
                self.all_read = False
                continue
            self.left -= 1
            found = self.take(other, how, depth - 1)
            if how != _HIDDEN:
                related.append(found)
        info = self._info(exc, relation, tuple(related), known=known)
        self.met.append((exc, info))
        return info

    def _others(self, exc: BaseException) -> list[tuple[BaseException, str]]:
        found: list[tuple[BaseException, str]] = []
        cause, context = _cause_of(exc), _context_of(exc)
        hidden = _suppresses_context(exc)
        if cause is not None:
            found.append((cause, "cause"))
        if context is cause or context is self.handled:
            context = None
        if context is not None and not hidden:
            found.append((context, "context"))
        if foreign.is_a(exc, BaseExceptionGroup):
            members = _members_of(exc)
            self.all_read = self.all_read and len(members) <= MAX_RELATED
            found += [
                (member, "group")
                for member in members[:MAX_RELATED]
                if foreign.is_a(member, BaseException)
            ]
        if context is not None and hidden:
            found.append((context, _HIDDEN))
        return found

    def _may_be_taken(self) -> bool:
        """Whether an exception of the chain can mean that a request was sent and accepted."""
        if not self.all_read:
            return True
        for exc, info in self.met:
            if made_several_requests(exc):
                return True
            # The client's own exception stands for the one it translated.
            translated = info.relation not in ("", "group") and caught_by_a_client(exc)
            if not info.not_attempted and not translated:
                return True
        return False

    def _info(
        self, exc: BaseException, relation: str, related: tuple[ErrorInfo, ...], *, known: bool
    ) -> ErrorInfo:
        mro, names = _class_names(type(exc))
        package = mro[0].partition(".")[0]
        answer = read_answer(exc, package, names) if known else NO_ANSWER
        if known:
            message = foreign.text_of(exc)
        else:  # the first text argument, usually the message
            texts = (
                foreign.words(arg, foreign.MAX_TEXT)
                for arg in foreign.args_of(exc)[:4]
                if type(arg) is str
            )
            message = next(filter(None, texts), "")
        if not message.strip():
            message = names[0]  # KeyError('') or a broken __str__
        delay = delay_of(exc, answer, message, self.now) if known else from_text(message)
        notes = foreign.attributes_of(exc).get("__notes__") if known else None
        read = (foreign.text_of(note, 500) for note in foreign.some(notes, 9))
        kept = [text for text in read if not text.startswith(SEE)][:8]
        if known and (names_there_are := foreign.note_on_table(exc)) is not None:
            kept.append(names_there_are)
        return ErrorInfo(
            type_name=names[0],
            module=mro[0].rpartition(".")[0],
            mro=mro,
            message=message,
            status_code=answer.stated if answer.status is None else answer.status,
            code=answer.code,
            retry_after_s=_longest_of_members(related) if delay is None else delay,
            phase=_phase(exc, package, names, answer, message, related, delay, self.now),
            body=answer.body,
            hint=_written_on(exc, known=known),
            notes=tuple(kept),
            relation=relation,
            related=related,
        )


def captured_text(message: str, type_name: str = "", mro: tuple[str, ...] = ()) -> ErrorInfo:
    """Read an error of which only the text was kept. type_name, mro: of its class, if known."""
    return ErrorInfo(type_name, mro=mro, message=message, retry_after_s=from_text(message))


def _class_names(kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return `module.QualName` and the plain names of a class and its bases, without `object`."""
    full: list[str] = []
    names: list[str] = []
    for cls in foreign.mro_of(kind)[:-1][:32]:
        name = foreign.words(foreign.name_of(cls)) or "Exception"
        qualname = foreign.words(_qualname_of(cls)) or name
        try:
            module = foreign.words(_module_of(cls))
        except AttributeError:  # deleted from the class
            module = None
        full.append(f"{module}.{qualname}" if module else qualname)
        names.append(name)
    return tuple(full), tuple(names)


def _longest_of_members(related: tuple[ErrorInfo, ...]) -> float | None:
    """Return the longest delay of a group's members, since a retry needs all of them."""
    members = (info for info in related if info.relation == "group")
    found = (one for member in members for one in member.walk() if one.relation != "context")
    told = ((one.hint or {}).get("retry_after_s", one.retry_after_s) for one in found)
    return max((delay for delay in told if delay is not None), default=None)


# The diagnosis that an exception states, declared by its class or written by `hint`.


_HINT = "_triage_hint"
_NOT_ATTEMPTED = "_triage_not_attempted"
_MAX_SUGGESTIONS = 10


def hint(
    exc: E,
    *,
    failure_type: taxonomy.FailureType | str | None = None,
    cause: taxonomy.Cause | str | None = None,
    category: taxonomy.Category | str | None = None,
    recovery: taxonomy.Recovery | str | None = None,
    severity: taxonomy.Severity | str | None = None,
    level: taxonomy.Level | str | None = None,
    hint: str | None = None,
    retry_after_s: float | None = None,
    user_message: str | None = None,
) -> E:
    """Annotate an exception with your diagnosis, and return it: `raise triage.hint(exc, …)`.

    Works on any exception, including a library's and one that refuses attributes. A `failure_type`
    decides the diagnosis; each other field replaces that field of the diagnosis. failure_type: one of the
    ten, as member or value. cause: a finer name, which may be your own. category: the kind of thing that
    failed. recovery: the remedy; None follows from the category. severity: the route; None follows from
    the recovery. level: who must know. hint: for the next attempt. retry_after_s: seconds to wait, finite,
    from 0. user_message: text for an end user. A later call adds to earlier ones.

    Raises TypeError or ValueError naming a field with a wrong type or value.
    """
    if not isinstance(exc, BaseException):
        raise refuse("hint() exc", exc, "an exception")
    given: dict[str, Any] = {}
    members: tuple[tuple[str, type[StrEnum], str | None], ...] = (
        ("failure_type", taxonomy.FailureType, failure_type),
        ("category", taxonomy.Category, category),
        ("recovery", taxonomy.Recovery, recovery),
        ("severity", taxonomy.Severity, severity),
        ("level", taxonomy.Level, level),
    )
    for field, enum, word in members:
        if word is not None:
            known = [member.value for member in enum]
            if word not in known:
                raise ValueError(f"hint() {field} must be one of {', '.join(known)}, not {word!r}")
            given[field] = enum(word).value
    for field, text in (("cause", cause), ("hint", hint), ("user_message", user_message)):
        if text is not None:
            if not isinstance(text, str):
                raise refuse(f"hint() {field}", text, "text or None")
            given[field] = str(text)
    if retry_after_s is not None:
        check_number("hint() retry_after_s", retry_after_s, "seconds")
        given["retry_after_s"] = float(retry_after_s)
    # In the instance dict, to bypass any `__setattr__`.
    earlier = foreign.attributes_of(exc).get(_HINT)
    foreign.attributes_of(exc)[_HINT] = Hint(
        {**(earlier if foreign.is_a(earlier, Hint) else {}), **given}
    )
    return exc


def not_attempted(exc: E) -> E:
    """State that the failed call cannot have taken effect, and return the exception.

    Its `ErrorInfo.phase` becomes `"not_sent"`, so that even a call with an effect may be retried.
    """
    if not isinstance(exc, BaseException):
        raise refuse("not_attempted() exc", exc, "an exception")
    foreign.attributes_of(exc)[_NOT_ATTEMPTED] = Mark.NOT_ATTEMPTED
    return exc


def said_in(hint: Mapping[str, Any] | None) -> dict[str, Any]:
    """Read a captured or journalled hint, completed and without unknown fields or values."""
    return _completed(_read_words(hint))


def _written_on(exc: BaseException, *, known: bool) -> dict[str, Any] | None:
    """Return the diagnosis that the exception states as plain fields, or None.

    Fields written by `hint` replace those the class declares, except in a refusal for safety. Values of
    the wrong kind are dropped. known: whether the exception's own code, such as a property, may run.
    """
    written = foreign.attributes_of(exc).get(_HINT)
    given = _read_words(written) if foreign.is_a(written, Hint) else {}
    if _is_fault(type(exc)):
        own = _declared(exc, known=known)
        if own.get("category") == taxonomy.Category.SAFETY:
            given = {
                name: word
                for name, word in given.items()
                if name not in ("category", "recovery", "severity")
            }
        given = {**_without_outdated(own, given), **given}
    return _completed(given) if given else None


def _is_not_attempted(exc: BaseException) -> bool:
    """Whether `not_attempted` marked the exception, or its class declares it for all instances."""
    if foreign.attributes_of(exc).get(_NOT_ATTEMPTED) is Mark.NOT_ATTEMPTED:
        return True
    if not _is_fault(type(exc)):
        return False
    spaces = (foreign.attributes_of(exc), *map(foreign.namespace_of, foreign.mro_of(type(exc))))
    name = "not_attempted"
    return next((space[name] for space in spaces if name in space), None) is True


def _is_fault(kind: type) -> bool:
    return foreign.is_plain_class(kind) and _declares_a_fault(cast("Hashable", kind))


@lru_cache(maxsize=512)
def _declares_a_fault(kind: Hashable) -> bool:
    return any(
        foreign.namespace_of(cls).get("__triage_fault__") is True for cls in foreign.mro_of(kind)
    )


def _declared(exc: BaseException, *, known: bool) -> dict[str, Any]:
    """Return the fields that a fault's classes declare, overridden by those of the instance."""
    own = dict(foreign.attributes_of(exc))
    declared: dict[str, Any] = {}
    for space in (*map(foreign.namespace_of, reversed(foreign.mro_of(type(exc)))), own):
        declared |= {name: space[name] for name in _READERS if name in space}
    for name, value in declared.items():
        if hasattr(type(value), "__get__"):  # a property
            own[name] = declared[name] = foreign.attr(exc, name) if known else None
    return _without_outdated(_read_words(declared), own)


_FOLLOWING = {
    "category": ("recovery", "severity", "level"),
    "recovery": ("severity", "level"),
    "severity": ("level",),
}
"""The fields that follow from each field unless given."""


def _without_outdated(declared: dict[str, Any], closer: Mapping[str, Any]) -> dict[str, Any]:
    """Drop declared fields that derive from a field overridden closer to the failure."""
    for name, following in _FOLLOWING.items():
        if closer.get(name) is not None:
            declared = {
                key: value
                for key, value in declared.items()
                if key not in following or key in closer
            }
    return declared


def _completed(given: dict[str, Any]) -> dict[str, Any]:
    """Fill in a missing recovery from the category, and a missing severity from the recovery."""
    category = given.get("category")
    if category == taxonomy.Category.SAFETY:
        given["recovery"] = taxonomy.Recovery.NEVER.value
    elif category is not None:
        given.setdefault("recovery", taxonomy.CATEGORY_RECOVERY[taxonomy.Category(category)].value)
    recovery = given.get("recovery")
    if recovery == taxonomy.Recovery.NEVER:
        given["severity"] = taxonomy.Severity.FATAL.value
    elif recovery is not None:
        given.setdefault("severity", taxonomy.RECOVERY_SEVERITY[taxonomy.Recovery(recovery)].value)
    return given


def _read_words(found: object) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if found is None:  # as on nearly every exception
        return given
    for name, read in _READERS.items():
        value = foreign.entry(found, name)
        word = None if value is None else read(value)
        if word not in (None, []):
            given[name] = word
    return given


def _member_of(enum: type[StrEnum]) -> Callable[[object], str | None]:
    known = frozenset(member.value for member in enum)

    def read(value: object) -> str | None:
        word = foreign.words(value)
        return word if word in known else None

    return read


def _long_text(value: object) -> str | None:
    return foreign.words(value, foreign.MAX_TEXT)


def _texts(value: object) -> list[str]:
    listed = [] if foreign.is_a(value, str) else foreign.some(value, _MAX_SUGGESTIONS)
    return [text for item in listed if (text := foreign.words(item)) is not None]


_READERS: dict[str, Callable[[object], Any]] = {
    "failure_type": _member_of(taxonomy.FailureType),
    "cause": foreign.words,
    "category": _member_of(taxonomy.Category),
    "recovery": _member_of(taxonomy.Recovery),
    "severity": _member_of(taxonomy.Severity),
    "level": _member_of(taxonomy.Level),
    "hint": _long_text,
    "retry_after_s": foreign.seconds,
    "user_message": _long_text,
    "technical_details": _long_text,
    "suggestions": _texts,
}
"""The readers of the fields that an exception may state."""


def _phase(
    exc: BaseException,
    package: str,
    names: tuple[str, ...],
    answer: Answer,
    message: str,
    related: tuple[ErrorInfo, ...],
    delay: float | None,
    now: float,
) -> str | None:
    """Return the phase of the request, or None without evidence."""
    if _is_not_attempted(exc):
        return "not_sent"
    if answer.status is not None:
        # A delay with "busy" means a refusal only if a header states it: anybody may have written words.
        asked_in_words = answer.status == BUSY and header_delay(answer, now) is None
        return "sent" if asked_in_words and delay is not None else "answered"
    if answer.stated is not None:
        return "sent"
    return phase_of(exc, package, names, answer.code, message, related)
