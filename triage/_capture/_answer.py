"""What the other side answered, as far as the exception holds it: status, code, headers, body."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ._probe import attr, call, entry, is_a, plain, some, text_of, whole, words

_STATUS_NAMES = (
    "status_code",
    "status",
    "http_status",
    "http_code",
    "statusCode",
    "response_code",
    "code",
)
_RESPONSE_NAMES = ("response", "resp", "http_response", "reply")
_BODY_NAMES = ("body", "response_body", "json_body", "error_data", "data", "details", "content")
_MAX_BODY = 16_000
"""Bytes of an answer that are decoded; a longer one is kept as its beginning."""
_HTTP_SIGNS = ("response", "headers", "hdrs", "grpc_status_code", "http_status", "body")


DRIVERS = frozenset({"DatabaseError", "MySQLError"})
"""Classes of which the arguments are read, too."""
ASKED = frozenset({
    *_STATUS_NAMES, *_RESPONSE_NAMES, *_BODY_NAMES, *_HTTP_SIGNS, "response_headers", "http_headers",
    "errors", "absolute_path", "validator", "error", "sqlstate", "pgcode", "sqlite_errorname",
    "error_code", "smtp_code", "reply_code", "errno", "reason", "type", "retry_after",
    "trailing_metadata",
})  # fmt: skip
"""All attributes of an exception that are read for an answer, a code or a delay."""


class Answer(NamedTuple):
    """status: of HTTP, None where there was none. code: the provider's own. headers: as found."""

    status: int | None
    code: str | None
    headers: tuple[Any, ...]
    body: Any


NOTHING = Answer(None, None, (), None)
"""Of an exception that holds no answer."""


def read(exc: BaseException, names: tuple[str, ...]) -> Answer:
    """Everything an exception holds of an answer. names: the plain names of its class and bases."""
    response = next(
        (found for name in _RESPONSE_NAMES if (found := attr(exc, name)) is not None), None
    )
    body = _body(exc, response, names)
    status = _status(exc, response, names)
    return Answer(status, _code(exc, body, names), tuple(_headers(exc, response)), body)


def _status(exc: BaseException, response: object, names: tuple[str, ...]) -> int | None:
    for name in _STATUS_NAMES:
        value = attr(exc, name)
        if name != "code" or _speaks_http(exc, names):
            found = _http(value)
            if found is not None:
                return found
    if response is not None:
        for name in ("status_code", "status", "code"):
            found = _http(attr(response, name))
            if found is not None:
                return found
        found = _http(entry(entry(response, "ResponseMetadata"), "HTTPStatusCode"))
        if found is not None:
            return found
    return None


def _speaks_http(exc: BaseException, names: tuple[str, ...]) -> bool:
    """A bare `code` is a status only on an exception that has other marks of HTTP."""
    return any("HTTP" in name for name in names) or any(
        attr(exc, sign) is not None for sign in _HTTP_SIGNS
    )


def _http(value: object) -> int | None:
    number = whole(value)
    if number is None:
        text = words(value, 4)
        if text is None or not text.isascii() or not text.isdigit():
            return None
        number = int(text)
    return number if 100 <= number <= 599 else None  # noqa: PLR2004 - the range of HTTP statuses


def _headers(exc: BaseException, response: object) -> Iterator[Any]:
    for name in ("headers", "hdrs", "response_headers", "http_headers"):
        found = attr(exc, name)
        if found is not None:
            yield found
    if response is not None:
        found = attr(response, "headers")
        if found is not None:
            yield found
        found = entry(entry(response, "ResponseMetadata"), "HTTPHeaders")
        if found is not None:
            yield found


# --- the body ------------------------------------------------------------------------------


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
    return _from_response(response) if response is not None else _error_object(exc)


def _from_response(response: object) -> Any:
    """The answer's content, only where it is in memory already: nothing is fetched here."""
    for name in ("data", "_content", "_body", "content"):
        if name == "content" and attr(response, "_content") is False:
            break  # a streamed answer nobody has read: asking for it would read the network
        value = attr(response, name)
        if is_a(value, dict) or is_a(value, bytes) or is_a(value, str):
            found = _decoded(value)
            if found not in (None, "", {}):
                return found
    return None


def _error_object(exc: BaseException) -> Any:
    """The fields of an error object some protocols carry: JSON-RPC's code, message and data."""
    error = attr(exc, "error")
    if is_a(error, str) or is_a(error, dict):
        return _decoded(error)
    found = {
        name: plain(attr(error, name)) for name in ("code", "message", "data") if error is not None
    }
    return found if found.get("message") is not None else None


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
    """The failed fields of a validation error, in one form: `{"detail": [{loc, msg, type}]}`."""
    if not any("Validation" in name for name in names):
        return None
    listed = call(exc, "errors") if callable(attr(exc, "errors")) else attr(exc, "errors")
    if is_a(listed, list):
        detail = [
            {
                "loc": plain(entry(item, "loc")),
                "msg": plain(entry(item, "msg")),
                "type": plain(entry(item, "type")),
            }
            for item in some(listed, 20)
            if entry(item, "msg") is not None
        ]
        if detail:
            return {"detail": detail}
    path, validator = attr(exc, "absolute_path"), words(attr(exc, "validator"))
    if path is not None and validator is not None:
        item = {
            "loc": plain(some(path, 20)),
            "msg": text_of(attr(exc, "message"), 500),
            "type": validator,
        }
        expected = plain(attr(exc, "validator_value"))
        return {"detail": [item if expected is None else {**item, "expected": expected}]}
    return None


# --- codes ---------------------------------------------------------------------------------


def _code(exc: BaseException, body: Any, names: tuple[str, ...]) -> str | None:
    for reader in _CODE_READERS:
        code = reader(exc, body)
        if code is not None:
            return code
    return _driver_code(exc, names) or _number_code(exc, names)


def _sql_code(exc: BaseException, _: Any) -> str | None:
    for name in ("sqlstate", "pgcode", "sqlite_errorname"):
        code = words(attr(exc, name), 60)
        if code is not None:
            return code
    return None


def _driver_code(exc: BaseException, names: tuple[str, ...]) -> str | None:
    """What drivers of databases put first among the arguments: an SQLSTATE, or MySQL's number."""
    if DRIVERS.isdisjoint(names):
        return None
    first = next(iter(some(attr(exc, "args"), 1)), None)
    number = whole(first)
    if number is not None:
        return f"MYSQL_{number}" if "MySQLError" in names else None
    code = words(first, 6)
    return code if code is not None and len(code) == 5 and code.isalnum() else None  # noqa: PLR2004 - the length of an SQLSTATE


def _grpc_code(exc: BaseException, _: Any) -> str | None:
    for value in (call(exc, "code"), attr(exc, "grpc_status_code")):
        name = words(attr(value, "name"), 60)
        if name is not None and name.isupper():
            return name
    return None


def _provider_code(exc: BaseException, body: Any) -> str | None:
    response = attr(exc, "response")
    code = words(entry(entry(response, "Error"), "Code"))
    if code is not None:
        return code
    for source in (entry(body, "error"), body):
        name = words(entry(source, "codeName"))
        if name is not None:
            return name
    for name in ("code", "error_code"):
        code = words(attr(exc, name))
        if code is not None and not code.isdigit():
            return code
    error = attr(exc, "error")
    found = words(error, 60) if is_a(error, str) else words(attr(error, "code"))
    if found is not None and found.isascii() and " " not in found:
        return found
    return _body_code(body)


def _body_code(body: Any) -> str | None:
    error = entry(body, "error")
    for source in (error, body):
        for name in ("code", "type", "status"):
            code = words(entry(source, name), 100)
            if code is not None and not code.isdigit() and code != "error":
                return code
    return words(error, 100) if is_a(error, str) and " " not in str(error) else None


def _number_code(exc: BaseException, names: tuple[str, ...]) -> str | None:
    for name, prefix in (("smtp_code", "SMTP"), ("reply_code", "AMQP")):
        number = whole(attr(exc, name))
        if number is not None:
            return f"{prefix}_{number}"
    number = whole(attr(exc, "errno"))
    if number is not None and is_a(exc, OSError):
        return _errno_name(exc, number, names)
    number = whole(attr(exc, "code"))
    if number is None:
        number = whole(attr(attr(exc, "error"), "code"))
    if number is not None and not is_a(exc, SystemExit):
        return str(number)
    return words(attr(exc, "type")) if attr(exc, "body") is not None else None


def _errno_name(exc: BaseException, number: int, names: tuple[str, ...]) -> str | None:
    if number < 0 or "gaierror" in names or "herror" in names:
        return "EAI" if number < 0 else None
    if "SSLError" in names:
        return words(attr(exc, "reason"))
    return errno.errorcode.get(number)


_CODE_READERS: tuple[Callable[[BaseException, Any], str | None], ...] = (
    _sql_code,
    _grpc_code,
    _provider_code,
)
