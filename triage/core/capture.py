"""Exceptions as data: `capture` reads an exception, `hint` and `not_attempted` annotate one.

Everything is read by duck typing (`foreign`): no client library is imported, nothing is fetched, and no
exception, however hostile, makes `capture` raise or hang.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from functools import lru_cache
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from .errors import SEE, Mark, Said, check_number, refuse
from .failures import BUSY, ErrorInfo
from .foreign import (
    MAX_TEXT,
    TooSlowError,
    args_of,
    attr,
    attributes_of,
    call,
    entry,
    frames_of,
    is_a,
    is_plain_class,
    mro_of,
    namespace_of,
    plain,
    runs_foreign_code,
    seconds,
    some,
    text_of,
    trusted,
    whole,
    within,
    words,
)
from .lookups import note_on_table
from .retry_after import from_body, from_details, from_headers, from_text, from_windows, header
from .taxonomy import (
    CATEGORY_RECOVERY,
    RECOVERY_SEVERITY,
    Category,
    Cause,
    FailureType,
    Level,
    Recovery,
    Severity,
)

__all__ = ["capture", "hint", "not_attempted", "said_in"]

MAX_RELATED = 24
"""Exceptions read through causes, contexts and groups, at most."""
MAX_CHAIN = 12
"""Depth of that tree, at most."""
_SLOW_S = 60.0
"""Seconds for which no other exception of a class that was too slow to read is read in full."""
_MOST_SLOW = 64
_HIDDEN = "hidden"
"""The relation of a context hidden by `raise … from …`: it counts as evidence but is not reported."""

E = TypeVar("E", bound=BaseException)

# The interpreter's own descriptors, because an exception may define attributes of these names.
_cause_of = BaseException.__dict__["__cause__"].__get__
_context_of = BaseException.__dict__["__context__"].__get__
_suppresses_context = BaseException.__dict__["__suppress_context__"].__get__
_members_of = BaseExceptionGroup.__dict__["exceptions"].__get__
_name_of = type.__dict__["__name__"].__get__
_qualname_of = type.__dict__["__qualname__"].__get__
_module_of = type.__dict__["__module__"].__get__

_slow_until: dict[int, float] = {}
"""For the id of a class whose instances were too slow to read: when to forget that."""


def capture(exc: BaseException, handled: BaseException | None = None) -> ErrorInfo:
    """Read a live exception with its causes, contexts and group members.

    handled: the exception already being handled when the code that raised `exc` started, which is not
    part of its context; None for no such exception. An exception that claims nothing was sent gets the
    `phase` "sent" if one behind it, or the client's own retries, can mean that a request was taken.

    Never raises. Reads at most `MAX_RELATED` exceptions, each once. If the exception's own code takes
    longer than half a second, only its class and arguments are read.
    """
    try:
        return _Capture("here", handled).read(exc)
    except _NotHereError:
        pass
    kind = type(exc)
    if _slow_until.get(id(kind), 0.0) <= time.monotonic():
        try:
            return within(_Capture("guarded", handled).read, exc)
        except TooSlowError:
            # For a class without code of its own, the slow part was a value that this instance holds.
            if not trusted(kind):
                if len(_slow_until) >= _MOST_SLOW:
                    _slow_until.clear()
                _slow_until[id(kind)] = time.monotonic() + _SLOW_S
        except Exception:  # a class can break any reader; read the bare form below
            pass
    return _Capture("bare", handled).read(exc)


class _NotHereError(Exception):
    """Reading this exception would run untrusted code."""


class _Capture:
    """One walk over a chain of exceptions.

    how: `"here"` raises _NotHereError before any foreign code runs; `"guarded"` runs it; `"bare"` skips
    whatever could run any.
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
        known = self.how == "guarded" or not runs_foreign_code(exc)
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
        if is_a(exc, BaseExceptionGroup):
            members = _members_of(exc)
            self.all_read = self.all_read and len(members) <= MAX_RELATED
            found += [
                (member, "group") for member in members[:MAX_RELATED] if is_a(member, BaseException)
            ]
        if context is not None and hidden:
            found.append((context, _HIDDEN))
        return found

    def _may_be_taken(self) -> bool:
        """Whether any exception of the chain can mean that a request was sent and accepted."""
        if not self.all_read:
            return True
        for exc, info in self.met:
            if _says_several_requests(exc) or _shows_several_requests(exc):
                return True
            # An exception that a client translated into its own is judged by the client's.
            frames = frames_of(exc)
            caught_by_a_client = bool(frames) and _package(frames[0]) in _CLIENTS
            translated = info.relation not in ("", "group") and caught_by_a_client
            if not info.not_attempted and not translated:
                return True
        return False

    def _info(
        self, exc: BaseException, relation: str, related: tuple[ErrorInfo, ...], *, known: bool
    ) -> ErrorInfo:
        mro, names = _class_names(type(exc))
        answer = _read_answer(exc, names) if known else _NO_ANSWER
        if known:
            message = text_of(exc)
        else:  # the first text argument, usually the message
            texts = (words(arg, MAX_TEXT) for arg in args_of(exc)[:4] if type(arg) is str)
            message = next(filter(None, texts), "")
        if not message.strip():
            message = names[0]  # KeyError('') or a broken __str__
        delay = _delay(exc, answer, message, self.now) if known else from_text(message)
        notes = attributes_of(exc).get("__notes__") if known else None
        read = (text_of(note, 500) for note in some(notes, 9))
        told = [text for text in read if not text.startswith(SEE)][:8]
        if known and (names_there_are := note_on_table(exc)) is not None:
            told.append(names_there_are)
        return ErrorInfo(
            type_name=names[0],
            module=mro[0].rpartition(".")[0],
            mro=mro,
            message=message,
            status_code=answer.status,
            code=answer.code,
            retry_after_s=_longest_of_members(related) if delay is None else delay,
            phase=_phase(exc, mro[0], names, answer, message, related, delay, self.now),
            body=answer.body,
            hint=_written_on(exc, known=known),
            notes=tuple(told),
            relation=relation,
            related=related,
        )


def _class_names(kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return `module.QualName` and the plain names of a class and its bases, without `object`."""
    full: list[str] = []
    names: list[str] = []
    for cls in mro_of(kind)[:-1][:32]:
        name = words(_name_of(cls)) or "Exception"
        qualname = words(_qualname_of(cls)) or name
        try:
            module = words(_module_of(cls))
        except AttributeError:  # it was deleted
            module = None
        full.append(f"{module}.{qualname}" if module else qualname)
        names.append(name)
    return tuple(full), tuple(names)


def _longest_of_members(related: tuple[ErrorInfo, ...]) -> float | None:
    """Return the longest wait that a member of a group asks for, because a retry needs all of them."""
    members = (info for info in related if info.relation == "group")
    found = (one for member in members for one in member.walk() if one.relation != "context")
    told = ((one.hint or {}).get("retry_after_s", one.retry_after_s) for one in found)
    return max((delay for delay in told if delay is not None), default=None)


# What an exception states about itself: declared by its class, or written by `hint`.


_HINT = "_triage_hint"
_NOT_ATTEMPTED = "_triage_not_attempted"
_MAX_SUGGESTIONS = 10


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
    """Annotate an exception with what you know about it, and return it: `raise triage.hint(exc, …)`.

    Works on any exception, including a library's and one that refuses attributes. A `failure_type`
    decides the diagnosis; each other field replaces that field of it. failure_type: one of the ten, as
    member or value. cause: a finer name, which may be your own. category: what kind of thing failed.
    recovery: what would help; None follows from the category. severity: what may be done next; None
    follows from the recovery. level: who must know. hint: what to tell the next attempt. retry_after_s:
    seconds to wait, finite, from 0. user_message: text for an end user. A later call adds to earlier ones.

    Raises TypeError or ValueError naming a field with a wrong type or value.
    """
    if not isinstance(exc, BaseException):
        raise refuse("hint() exc", exc, "an exception")
    given: dict[str, Any] = {}
    members: tuple[tuple[str, type[StrEnum], str | None], ...] = (
        ("failure_type", FailureType, failure_type),
        ("category", Category, category),
        ("recovery", Recovery, recovery),
        ("severity", Severity, severity),
        ("level", Level, level),
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
    # Into the instance dict, past any `__setattr__`.
    earlier = attributes_of(exc).get(_HINT)
    attributes_of(exc)[_HINT] = Said({**(earlier if is_a(earlier, Said) else {}), **given})
    return exc


def not_attempted(exc: E) -> E:
    """State that the call which raised this cannot have taken effect, and return the exception.

    Its `ErrorInfo.phase` becomes `"not_sent"`, so that even a call with an effect may be retried.
    """
    if not isinstance(exc, BaseException):
        raise refuse("not_attempted() exc", exc, "an exception")
    attributes_of(exc)[_NOT_ATTEMPTED] = Mark.NOT_ATTEMPTED
    return exc


def said_in(hint: Mapping[str, Any] | None) -> dict[str, Any]:
    """Read a captured or journalled hint, completed and without unknown fields or values."""
    return _completed(_read_words(hint))


def _written_on(exc: BaseException, *, known: bool) -> dict[str, Any] | None:
    """Return what the exception states about itself as plain fields, or None.

    Fields written by `hint` replace those the class declares, except in a refusal for safety. Values of
    the wrong kind are dropped. known: whether the exception's own code, such as a property, may run.
    """
    written = attributes_of(exc).get(_HINT)
    given = _read_words(written) if is_a(written, Said) else {}
    if _is_fault(type(exc)):
        own = _declared(exc, known=known)
        if own.get("category") == Category.SAFETY:
            given = {
                name: word
                for name, word in given.items()
                if name not in ("category", "recovery", "severity")
            }
        given = {**_without_outdated(own, given), **given}
    return _completed(given) if given else None


def _is_not_attempted(exc: BaseException) -> bool:
    """Whether `not_attempted` marked the exception, or its class declares it for all instances."""
    if attributes_of(exc).get(_NOT_ATTEMPTED) is Mark.NOT_ATTEMPTED:
        return True
    if not _is_fault(type(exc)):
        return False
    spaces = (attributes_of(exc), *map(namespace_of, mro_of(type(exc))))
    name = "not_attempted"
    return next((space[name] for space in spaces if name in space), None) is True


def _is_fault(kind: type) -> bool:
    return is_plain_class(kind) and _declares_a_fault(cast("Hashable", kind))


@lru_cache(maxsize=512)
def _declares_a_fault(kind: Hashable) -> bool:
    return any(namespace_of(cls).get("__triage_fault__") is True for cls in mro_of(kind))


def _declared(exc: BaseException, *, known: bool) -> dict[str, Any]:
    """Return the fields that a fault's classes declare, overridden by those of the instance."""
    own = dict(attributes_of(exc))
    declared: dict[str, Any] = {}
    for space in (*map(namespace_of, reversed(mro_of(type(exc)))), own):
        declared |= {name: space[name] for name in _READERS if name in space}
    for name, value in declared.items():
        if hasattr(type(value), "__get__"):  # a property
            own[name] = declared[name] = attr(exc, name) if known else None
    return _without_outdated(_read_words(declared), own)


_FOLLOWING = {
    "category": ("recovery", "severity", "level"),
    "recovery": ("severity", "level"),
    "severity": ("level",),
}
"""The fields that each field implies unless they are given."""


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
    if category == Category.SAFETY:
        given["recovery"] = Recovery.NEVER.value
    elif category is not None:
        given.setdefault("recovery", CATEGORY_RECOVERY[Category(category)].value)
    recovery = given.get("recovery")
    if recovery == Recovery.NEVER:
        given["severity"] = Severity.FATAL.value
    elif recovery is not None:
        given.setdefault("severity", RECOVERY_SEVERITY[Recovery(recovery)].value)
    return given


def _read_words(found: object) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if found is None:  # as on nearly every exception
        return given
    for name, read in _READERS.items():
        value = entry(found, name)
        word = None if value is None else read(value)
        if word not in (None, []):
            given[name] = word
    return given


def _member_of(enum: type[StrEnum]) -> Callable[[object], str | None]:
    known = frozenset(member.value for member in enum)

    def read(value: object) -> str | None:
        word = words(value)
        return word if word in known else None

    return read


def _long_text(value: object) -> str | None:
    return words(value, MAX_TEXT)


def _texts(value: object) -> list[str]:
    listed = [] if is_a(value, str) else some(value, _MAX_SUGGESTIONS)
    return [text for item in listed if (text := words(item)) is not None]


_READERS: dict[str, Callable[[object], Any]] = {
    "failure_type": _member_of(FailureType),
    "cause": words,
    "category": _member_of(Category),
    "recovery": _member_of(Recovery),
    "severity": _member_of(Severity),
    "level": _member_of(Level),
    "hint": _long_text,
    "retry_after_s": seconds,
    "user_message": _long_text,
    "technical_details": _long_text,
    "suggestions": _texts,
}
"""The fields that an exception may state, each with its reader."""


# The other side's answer, as far as the exception holds it: status, code, headers, body.


_STATUS_NAMES = (
    "status_code", "status", "http_status", "http_code", "statusCode", "response_code",
)  # fmt: skip
_RESPONSE_NAMES = ("response", "resp", "http_response", "reply")
_BODY_NAMES = ("body", "response_body", "json_body", "error_data", "data", "details", "content")
_MAX_BODY = 16_000
"""Characters of the longest body that is decoded; of a longer one, the beginning is kept."""
_HTTP_SIGNS = ("response", "headers", "hdrs", "grpc_status_code", "http_status", "body")


class _Answer(NamedTuple):
    """An answer. status: of HTTP or None. code: the provider's own. headers: as found."""

    status: int | None
    code: str | None
    headers: list[Any]
    body: Any


_NO_ANSWER = _Answer(status=None, code=None, headers=[], body=None)


def _read_answer(exc: BaseException, names: tuple[str, ...]) -> _Answer:
    """Read the answer that an exception holds. names: the plain names of its class and bases."""
    responses = (attr(exc, name) for name in _RESPONSE_NAMES)
    response = next((found for found in responses if found is not None), None)
    metadata = entry(response, "ResponseMetadata")
    headers = [attr(exc, name) for name in ("headers", "hdrs", "response_headers", "http_headers")]
    headers += [attr(response, "headers"), entry(metadata, "HTTPHeaders")]
    statuses = [attr(exc, name) for name in _STATUS_NAMES]
    # A bare `code` is a status only on an exception with other signs of HTTP.
    if any("HTTP" in name for name in names) or any(
        attr(exc, sign) is not None for sign in _HTTP_SIGNS
    ):
        statuses.append(attr(exc, "code"))
    statuses += [attr(response, name) for name in ("status_code", "status", "code")]
    statuses.append(entry(metadata, "HTTPStatusCode"))
    body = _body(exc, response, names)
    return _Answer(
        status=next(filter(None, map(_http_status, statuses)), None),
        code=_code(exc, body, names),
        headers=[found for found in headers if found is not None],
        body=body,
    )


def _http_status(value: object) -> int | None:
    number = whole(value)
    if number is None:
        text = words(value, 8)  # "404", but not "404 Not Found"
        if text is None or not text.isascii() or not text.isdigit():
            return None
        number = int(text)
    return number if 100 <= number <= 599 else None  # the range of HTTP statuses


def _body(exc: BaseException, response: object, names: tuple[str, ...]) -> Any:
    found = _validation(exc, names)
    if found is not None:
        return found
    for name in _BODY_NAMES:
        value = attr(exc, name)
        if value is not None and not callable(value):
            found = _decoded(value)
            if found not in (None, "", {}, []):
                return found
    if is_a(response, dict):
        return plain(response)
    if response is None:
        return _error_object(exc)
    # Only what is already in memory; nothing is fetched.
    for name in ("data", "_content", "_body", "content"):
        if name == "content" and attr(response, "_content") is False:
            break  # an unread stream, whose content would come from the network
        value = attr(response, name)
        if is_a(value, dict) or is_a(value, bytes) or is_a(value, str):
            found = _decoded(value)
            if found not in (None, "", {}):
                return found
    return None


def _error_object(exc: BaseException) -> Any:
    """Return the fields of an error object such as JSON-RPC's: code, message and data."""
    error = attr(exc, "error")
    if is_a(error, str) or is_a(error, dict):
        return _decoded(error)
    found = {name: plain(attr(error, name)) for name in ("code", "message", "data")}
    return found if found["message"] is not None else None


def _decoded(value: object) -> Any:
    if is_a(value, str) or is_a(value, bytes):
        text = text_of(value, _MAX_BODY + 1)
        if len(text) <= _MAX_BODY and text.lstrip()[:1] in ("{", "["):
            try:
                return plain(json.loads(text))
            except (ValueError, RecursionError):
                pass
        return text[:2_000]
    if is_a(value, dict) or is_a(value, list) or is_a(value, tuple):
        return plain(value)
    return None


def _validation(exc: BaseException, names: tuple[str, ...]) -> Any:
    """Return the failed fields of a validation error as `{"detail": [{loc, msg, type}]}`."""
    if not any("Validation" in name for name in names):
        return None
    errors = attr(exc, "errors")
    listed = call(exc, "errors") if callable(errors) else errors
    if is_a(listed, list):
        detail = [
            {name: plain(entry(item, name)) for name in ("loc", "msg", "type")}
            for item in some(listed, 20)
            if entry(item, "msg") is not None
        ]
        if detail:
            return {"detail": detail}
    path, validator = attr(exc, "absolute_path"), words(attr(exc, "validator"))
    if path is None or validator is None:
        return None
    item = {
        "loc": plain(some(path, 20)),
        "msg": text_of(attr(exc, "message"), 500),
        "type": validator,
    }
    expected = plain(attr(exc, "validator_value"))
    return {"detail": [item if expected is None else {**item, "expected": expected}]}


def _code(exc: BaseException, body: Any, names: tuple[str, ...]) -> str | None:
    for name in ("sqlstate", "pgcode", "sqlite_errorname"):
        code = words(attr(exc, name), 60)
        if code in _GENERAL_STATES:
            code = _driver_code(exc, names) or code
        if code is not None:
            return code
    for value in (call(exc, "code"), attr(exc, "grpc_status_code")):
        code = words(attr(value, "name"), 60)
        if code is not None and code.isupper():
            return code
    return _provider_code(exc, body) or _driver_code(exc, names) or _number_code(exc, names)


_GENERAL_STATES = ("HY000", "42000")
"""What MySQL's drivers give for what has no SQLSTATE of its own: their number says more."""


def _provider_code(exc: BaseException, body: Any) -> str | None:
    code = words(entry(entry(attr(exc, "response"), "Error"), "Code"))
    for source in (entry(body, "error"), body):
        code = code or words(entry(source, "codeName"))
    if code is not None:
        return code
    for name in ("code", "error_code"):
        code = words(attr(exc, name))
        if code is not None and not code.isdigit():
            return code
    error = attr(exc, "error")
    code = words(error, 60) if is_a(error, str) else words(attr(error, "code"))
    if code is not None and code.isascii() and " " not in code:
        return code
    return _body_code(body)


def _body_code(body: Any) -> str | None:
    error = entry(body, "error")
    for source in (error, body):
        for name in ("code", "type", "status"):
            code = words(entry(source, name), 100)
            if code is not None and not code.isdigit() and code != "error":
                return code
    code = words(error, 100)
    return None if code is None or " " in code else code


def _driver_code(exc: BaseException, names: tuple[str, ...]) -> str | None:
    """Return the code that database drivers put first in `args`: an SQLSTATE or MySQL's number."""
    if "DatabaseError" not in names and "MySQLError" not in names:
        return None
    first = next(iter(some(attr(exc, "args"), 1)), None)
    number = whole(first)
    if number is not None:
        return f"MYSQL_{number}" if "MySQLError" in names else None
    code = words(first, 6)
    return code if code is not None and len(code) == 5 and code.isalnum() else None


def _number_code(exc: BaseException, names: tuple[str, ...]) -> str | None:
    for name, prefix in (("smtp_code", "SMTP"), ("reply_code", "AMQP")):
        number = whole(attr(exc, name))
        if number is not None:
            return f"{prefix}_{number}"
    number = whole(attr(exc, "errno"))
    if number is not None and is_a(exc, OSError):
        if number < 0:
            return "EAI"
        if "SSLError" in names:
            return words(attr(exc, "reason"))
        return None if "gaierror" in names or "herror" in names else errno.errorcode.get(number)
    number = whole(attr(exc, "code"))
    if number is None:
        number = whole(attr(attr(exc, "error"), "code"))
    if number is not None and not is_a(exc, SystemExit):
        return str(number)
    return words(attr(exc, "type")) if attr(exc, "body") is not None else None


def _header_delay(answer: _Answer, now: float) -> float | None:
    """Return the seconds to wait that a header of the answer asks for."""
    delays = (from_headers(headers, now) for headers in answer.headers)
    return next((delay for delay in delays if delay is not None), None)


def _delay(exc: BaseException, answer: _Answer, message: str, now: float) -> float | None:
    """Return the seconds that the other side asked to wait, from its most reliable source."""
    for delay in (
        _header_delay(answer, now),
        from_details(exc),
        from_body(answer.body),
        seconds(attr(exc, "retry_after")),
    ):
        if delay is not None:
            return delay
    delay = from_text(message)
    if delay is not None:
        return delay
    windows = (from_windows(headers, answer.status, now) for headers in answer.headers)
    return next((delay for delay in windows if delay is not None), None)


# How far a request got, by the names of the clients' exception classes.


_NOT_SENT = frozenset(
    """
    gaierror herror NameResolutionError ClientConnectorDNSError ConnectionRefusedError
    ConnectError ConnectTimeout ConnectTimeoutError ConnectionTimeout.connect
    NewConnectionError ClientConnectorError ConnectionTimeoutError
    ClientProxyConnectionError ProxyError ProxyConnectionError EndpointConnectionError
    SSLCertVerificationError CertificateError ClientConnectorCertificateError
    ClientConnectorSSLError InsecureCertificateException BadHostKeyException PoolTimeout
    EmptyPoolError UnsupportedProtocol InvalidURL InvalidUrlClientError MissingSchema
    InvalidSchema LocationParseError LocalProtocolError CircuitBreakerError
    """.split()
)
"""Nothing left this machine, or the other side was never reached."""
_SENT = frozenset(
    """
    ReadTimeout ReadTimeoutError ReadError SocketTimeoutError WriteError WriteTimeout
    ConnectionResetError BrokenPipeError ConnectionAbortedError RemoteProtocolError
    RemoteDisconnected IncompleteRead IncompleteReadError BadStatusLine ProtocolError
    ServerDisconnectedError ServerTimeoutError ChunkedEncodingError ClientPayloadError
    ContentDecodingError DecodingError DecodeError ConnectionClosed ConnectionClosedError
    SMTPServerDisconnected ReadTimeoutException TooManyRedirects ConnectionClosedByBroker
    """.split()
)
"""At least part of the request was sent."""
_CODES_NOT_SENT = frozenset(
    """
    ECONNREFUSED ENETUNREACH EHOSTUNREACH EHOSTDOWN ENETDOWN EADDRNOTAVAIL EAI
    CERTIFICATE_VERIFY_FAILED WRONG_VERSION_NUMBER TLSV1_ALERT_PROTOCOL_VERSION
    SSLV3_ALERT_HANDSHAKE_FAILURE NO_PROTOCOLS_AVAILABLE UNSUPPORTED_PROTOCOL
    """.split()
)
_CODES_SENT = frozenset({"ECONNRESET", "EPIPE", "ECONNABORTED"})
_UNREACHED = ("failed to connect to all", "errors resolving")
_WRAPPERS = (
    "ConnectionError", "TransportError", "ConnectionFailure", "MaxRetryError", "SSLError", "URLError",
    "RetryError",
)  # fmt: skip
"""Endings of class names for any connection trouble, where the wrapped error says more."""


def _phase(
    exc: BaseException,
    full_name: str,
    names: tuple[str, ...],
    answer: _Answer,
    message: str,
    related: tuple[ErrorInfo, ...],
    delay: float | None,
    now: float,
) -> str | None:
    """Return how far the request got, or None if nothing tells."""
    if _is_not_attempted(exc):
        return "not_sent"
    if answer.status is not None:
        # A delay with "busy" is a refusal if a header states it. Words may come from anybody.
        asked_in_words = answer.status == BUSY and _header_delay(answer, now) is None
        return "sent" if asked_in_words and delay is not None else "answered"
    for name in names:
        if name in _NOT_SENT or name in _SENT:
            return "not_sent" if name in _NOT_SENT else "sent"
    if answer.code in _CODES_SENT:
        return "sent"
    # gRPC has one status for "never reached" and "lost on the way"; only the message tells them apart.
    package = full_name.partition(".")[0]
    theirs = package in _CLIENTS or "OSError" in names or "RpcError" in names
    unreached = answer.code == "UNAVAILABLE" and any(said in message for said in _UNREACHED)
    # On an exception that is not a client's, a code may be text that the application received.
    if (theirs and (unreached or answer.code in _CODES_NOT_SENT)) or _raised_connecting(exc):
        return "not_sent"
    # A general connection error stands for the one it wraps; a built-in is whose code raised it.
    general = any(
        name.endswith(_WRAPPERS) or name in ("OSError", "ClientError") for name in names[:4]
    )
    if general and (package in _CLIENTS or package == "builtins") and _raised_by_a_client(exc):
        phases = (info.phase for info in related)
        return next((phase for phase in phases if phase in ("not_sent", "sent")), None)
    return None


# How many requests a client made before it raised, and whose code raised or caught an exception.
# A client with retries raises its last error only. Earlier requests show in fields of its errors and in
# the traceback, where its functions recurse or loop.


_CLIENTS = frozenset(
    """
    http urllib socket ssl asyncio smtplib ftplib imaplib poplib xmlrpc anyio trio
    httpx httpcore httpx2 httpcore2 requests urllib3 aiohttp aiohappyeyeballs websockets grpc
    openai anthropic groq mistralai cohere together cerebras google pydantic_ai langchain_openai
    langchain_anthropic redis psycopg psycopg_pool asyncpg pymongo pymysql sqlalchemy elastic_transport
    kombu pika botocore aiobotocore azure stripe twilio slack_sdk tenacity
    """.split()
)
"""Client packages. An error that one of them catches and translates concerns the same request."""
_CONNECTING = frozenset({
    ("anyio._core._sockets", "connect_tcp"),
    ("asyncio.base_events", "create_connection"),
    ("socket", "create_connection"),
    ("trio._highlevel_open_tcp_stream", "open_tcp_stream"),
    ("psycopg.connection", "connect"),
    ("psycopg.connection_async", "connect"),
    ("redis.connection", "connect_check_health"),
    ("redis.asyncio.connection", "connect_check_health"),
})  # fmt: skip
"""Functions that only connect, so that whatever they raise comes before any request."""
_CALLING_THEMSELVES = frozenset({
    ("urllib3.connectionpool", "urlopen"),
    ("urllib3.poolmanager", "urlopen"),
    ("requests.sessions", "send"),
    ("urllib.request", "open"),
})  # fmt: skip
"""Functions that send one request and recurse for the next."""
_FOLLOWING_REDIRECTS = frozenset({
    ("httpx._client", "_send_handling_redirects"),
    ("httpx2._client", "_send_handling_redirects"),
    ("aiohttp.client", "_request"),
})  # fmt: skip
"""Functions that loop over requests and keep the redirects they followed in `history`."""
_RETRIES_OF_REDIS = (("redis.retry", "call_with_retry"), ("redis.asyncio.retry", "call_with_retry"))
"""The functions that retry both connecting and sending a command."""
_ALWAYS_AGAIN = (
    "backoff.", "retrying", "retry.api", "aiohttp_retry", "httpx_retries", "google.api_core.retry",
    "azure.core.pipeline.policies._retry", "botocore.endpoint", "stripe._http_client",
)  # fmt: skip
"""Modules that retry and do not tell how often."""


def _says_several_requests(exc: BaseException) -> bool:
    """Whether fields of an exception show that more than one request was made."""
    response = attr(exc, "response")
    for holder in (exc, response):
        if _is_filled_list(attr(holder, "history")):  # redirects that were followed
            return True
        again = header(attr(attr(holder, "request"), "headers"), "x-stainless-retry-count")
        if again not in (None, "0"):
            return True
    for answer in (response, attr(response, "raw")):  # urllib3, below requests
        if _is_filled_list(attr(attr(answer, "retries"), "history")):
            return True
    metadata = entry(response, "ResponseMetadata")  # botocore
    if (whole(entry(metadata, "RetryAttempts")) or 0) > 0:
        return True
    return (whole(attr(attr(exc, "last_attempt"), "attempt_number")) or 1) > 1  # tenacity


def _shows_several_requests(exc: BaseException) -> bool:
    """Whether the traceback shows that more than one request may have been made."""
    frames = frames_of(exc)
    met: set[tuple[str, str]] = set()
    for at, frame in enumerate(frames):
        place = _place(frame)
        if place[0].startswith(_ALWAYS_AGAIN) or (place in _CALLING_THEMSELVES and place in met):
            return True
        if place in _FOLLOWING_REDIRECTS and _is_filled_list(frame.f_locals.get("history")):
            return True
        if place in _RETRIES_OF_REDIS and not (
            at and _place(frames[at - 1])[0].endswith(".connection")
        ):
            return True
        met.add(place)
    tenacity = [frame for frame in frames if _package(frame) == "tenacity"]
    states = [
        value
        for frame in tenacity
        for value in frame.f_locals.values()
        if type(value).__name__ == "RetryCallState" and type(value).__module__ == "tenacity"
    ]
    if not states:
        return bool(tenacity)
    return any(whole(attr(state, "attempt_number")) != 1 for state in states)


def _is_filled_list(value: object) -> bool:
    return (is_a(value, list) or is_a(value, tuple)) and bool(some(value, 1))


def _raised_connecting(exc: BaseException) -> bool:
    """Whether the exception was raised by a function that only connects."""
    frames = frames_of(exc)
    return bool(frames) and _place(frames[-1]) in _CONNECTING


def _raised_by_a_client(exc: BaseException) -> bool:
    """Whether a client's own code raised the exception."""
    frames = frames_of(exc)
    return bool(frames) and _package(frames[-1]) in _CLIENTS


def _place(frame: FrameType) -> tuple[str, str]:
    return words(frame.f_globals.get("__name__")) or "", frame.f_code.co_name


def _package(frame: FrameType) -> str:
    return _place(frame)[0].partition(".")[0]
