"""Read the other side's answer from an exception: status, code, headers, body, delay."""

from __future__ import annotations

import errno
import json
from http.client import responses
from itertools import pairwise
from typing import Any, NamedTuple

from . import foreign
from .patterns import Pattern
from .retry_after import from_body, from_details, from_headers, from_text, from_windows

__all__ = ["NO_ANSWER", "Answer", "delay_of", "header_delay", "is_page", "read_answer"]

_STATUS_NAMES = (
    "status_code", "status", "http_status", "http_code", "statusCode", "response_code",
)  # fmt: skip
_RESPONSE_NAMES = ("response", "resp", "http_response", "reply")
_BODY_NAMES = (
    "body", "response_body", "json_body", "rpc_response", "error_data", "data", "details", "content",
    "_body",
)  # fmt: skip
_MAX_BODY = 16_000
"""Maximum characters of a body that is decoded; a longer one is cut."""
_MAX_PAGE = 200
"""Characters kept of a page of HTML where the client expected JSON."""
_HTTP_SIGNS = ("response", "headers", "hdrs", "grpc_status_code", "http_status", "body", "url")


class Answer(NamedTuple):
    """An answer. status: HTTP status or None. code: the provider's own. headers: as found.

    stated: a status in the body only, which may be that of another request.
    """

    status: int | None
    code: str | None
    headers: list[Any]
    body: Any
    stated: int | None = None


NO_ANSWER = Answer(status=None, code=None, headers=[], body=None)


def read_answer(exc: BaseException, package: str, names: tuple[str, ...]) -> Answer:
    """Read the answer in an exception.

    package: the top-level package of its class. names: the plain names of its class and bases.
    """
    answers = (foreign.attr(exc, name) for name in _RESPONSE_NAMES)
    response = next((found for found in answers if found is not None), None)
    metadata = foreign.entry(response, "ResponseMetadata")
    headers = [
        foreign.attr(exc, name) for name in ("headers", "hdrs", "response_headers", "http_headers")
    ]
    headers += [foreign.attr(response, "headers"), foreign.entry(metadata, "HTTPHeaders")]
    headers.append(foreign.call(exc, "trailing_metadata"))  # of gRPC
    statuses = [foreign.attr(exc, name) for name in _STATUS_NAMES]
    # A bare `code` is a status only on an exception with other signs of HTTP.
    if any("HTTP" in name for name in names) or any(
        foreign.attr(exc, sign) is not None for sign in _HTTP_SIGNS
    ):
        statuses.append(foreign.attr(exc, "code"))
    statuses += [foreign.attr(response, name) for name in ("status_code", "status", "code")]
    statuses.append(foreign.entry(metadata, "HTTPStatusCode"))
    statuses += _named_statuses(exc)
    held = _held(exc, package)
    body = _body(exc, response, held, names)
    return Answer(
        status=next(filter(None, map(_http_status, statuses)), None),
        code=_code(exc, package, body, held, names),
        headers=[found for found in headers if found is not None],
        body=body,
        stated=_stated_status(body),
    )


def _named_statuses(exc: BaseException) -> list[int]:
    """Return the statuses followed by their names in `args`, such as 403 before "Forbidden"."""
    args = foreign.args_of(exc)[:8]
    found = [(foreign.whole(value), foreign.words(name)) for value, name in pairwise(args)]
    return [
        status
        for status, name in found
        if status and name and name in (responses.get(status), *_OTHER_NAMES.get(status, ()))
    ]


def _stated_status(body: Any) -> int | None:
    """Return the error status in a body, such as one of RFC 9457."""
    sources = (body, foreign.entry(body, "error"))
    stated = (_http_status(foreign.entry(one, name)) for one in sources for name in _STATUS_NAMES)
    return next((status for status in stated if status is not None and status >= 400), None)


_OTHER_NAMES = {
    413: ("Request Entity Too Large", "Payload Too Large", "Content Too Large"),
    414: ("Request-URI Too Long", "URI Too Long"),
    416: ("Requested Range Not Satisfiable", "Range Not Satisfiable"),
    422: ("Unprocessable Entity", "Unprocessable Content"),
}
"""Names of statuses in RFC 2616, 7231 and 9110; `http.client` knows one of each."""


def _http_status(value: object) -> int | None:
    number = foreign.whole(value)
    if number is None:
        text = foreign.words(value, 8)  # "404", but not "404 Not Found"
        if text is None or not text.isascii() or not text.isdigit():
            return None
        number = int(text)
    return number if 100 <= number <= 599 else None  # the range of HTTP statuses


def _held(exc: BaseException, package: str) -> Any:
    """Return the mapping or error object that a client put first in `args`, or None."""
    first = next(iter(foreign.args_of(exc)), None)
    if package == "builtins":  # the argument is the application's own data
        return None
    return first if foreign.is_mapping(first) or foreign.attr(first, "code") is not None else None


def _body(exc: BaseException, response: object, held: Any, names: tuple[str, ...]) -> Any:
    found = _validation(exc, names) or _page(exc, names)
    if found is not None:
        return found
    if _is_postgres(exc):
        return {name: foreign.plain(foreign.attributes_of(exc)[name]) for name in _POSTGRES_FIELDS}
    for name in _BODY_NAMES:
        value = foreign.attr(exc, name)
        if value is not None and not callable(value):
            found = _decoded(value)
            if found not in (None, "", {}, []):
                return found
    if foreign.is_a(response, dict):
        return foreign.plain(response)
    if response is None:
        return _error_object(exc) or (foreign.plain(held) if foreign.is_mapping(held) else None)
    # Only what is already in memory; nothing is fetched.
    for name in ("data", "_content", "_body", "content"):
        if name == "content" and foreign.attr(response, "_content") is False:
            break  # an unread stream, whose content would come from the network
        value = foreign.attr(response, name)
        if foreign.is_a(value, dict) or foreign.is_a(value, bytes) or foreign.is_a(value, str):
            found = _decoded(value)
            if found not in (None, "", {}):
                return found
    return None


_POSTGRES_FIELDS = ("message", "code", "details", "hint")


def _is_postgres(exc: BaseException) -> bool:
    """Whether an exception has the fields of PostgREST's errors."""
    held: dict[str, Any] = foreign.attributes_of(exc)
    return held.keys() >= set(_POSTGRES_FIELDS)


def _error_object(exc: BaseException) -> Any:
    """Return the fields (code, message and data) of an error object such as JSON-RPC's."""
    error = foreign.attr(exc, "error")
    if foreign.is_a(error, str) or foreign.is_a(error, dict):
        return _decoded(error)
    found = {name: foreign.plain(foreign.attr(error, name)) for name in ("code", "message", "data")}
    return found if found["message"] is not None else None


def _decoded(value: object) -> Any:
    if foreign.is_a(value, str) or foreign.is_a(value, bytes):
        text = foreign.text_of(value, _MAX_BODY + 1)
        if len(text) <= _MAX_BODY and text.lstrip()[:1] in ("{", "["):
            try:
                return foreign.plain(json.loads(text))
            except (ValueError, RecursionError):
                pass
        return text[:2_000]
    if foreign.is_a(value, dict) or foreign.is_a(value, list) or foreign.is_a(value, tuple):
        return foreign.plain(value)
    return None


def _page(exc: BaseException, names: tuple[str, ...]) -> str | None:
    """Return the beginning of a page of HTML that a JSON parser refused."""
    refused = foreign.text_of(foreign.attr(exc, "doc"), 2_000) if "JSONDecodeError" in names else ""
    return refused.strip()[:_MAX_PAGE] if is_page(refused) else None


def _validation(exc: BaseException, names: tuple[str, ...]) -> Any:
    """Return the failed fields of a validation error as `{"detail": [{loc, msg, type}]}`."""
    if not any("Validation" in name for name in names):
        return None
    errors = foreign.attr(exc, "errors")
    listed = foreign.call(exc, "errors") if callable(errors) else errors
    if foreign.is_a(listed, list):
        detail = [
            {name: foreign.plain(foreign.entry(item, name)) for name in ("loc", "msg", "type")}
            for item in foreign.some(listed, 20)
            if foreign.entry(item, "msg") is not None
        ]
        if detail:
            return {"detail": detail}
    path, validator = (
        foreign.attr(exc, "absolute_path"),
        foreign.words(foreign.attr(exc, "validator")),
    )
    if path is None or validator is None:
        return None
    item = {
        "loc": foreign.plain(foreign.some(path, 20)),
        "msg": foreign.text_of(foreign.attr(exc, "message"), 500),
        "type": validator,
    }
    expected = foreign.plain(foreign.attr(exc, "validator_value"))
    return {"detail": [item if expected is None else {**item, "expected": expected}]}


def _code(
    exc: BaseException, package: str, body: Any, held: Any, names: tuple[str, ...]
) -> str | None:
    numbered = _driver_code(exc, package, names)
    if numbered is None and any(name.startswith("AMQP") for name in names):
        number = foreign.whole(foreign.attr(exc, "error_code"))
        numbered = None if number is None else f"AMQP_{number}"
    states = (
        foreign.attr(exc, "sqlstate"),
        foreign.attr(exc, "pgcode"),
        foreign.attr(exc, "sqlite_errorname"),
    )
    # "C" is the field's name in PostgreSQL's protocol, "code" in PostgREST.
    for value in (
        *states,
        foreign.entry(held, "C"),
        foreign.entry(body, "code") if _is_postgres(exc) else None,
    ):
        code = foreign.words(value, 60)
        if code is not None:
            return (numbered or code) if code in _GENERAL_STATES else code
    for value in (
        foreign.call(exc, "code"),
        foreign.attr(exc, "grpc_status_code"),
        foreign.attr(exc, "status"),
    ):
        code = foreign.words(foreign.attr(value, "name"), 60)
        if code is not None and code.isupper():
            return code
    for value in (
        foreign.attr(held, "full_code"),
        foreign.call(held, "name"),
    ):  # oracledb, confluent-kafka
        code = foreign.words(value, 60)
        if code is not None:
            return code
    return numbered or _provider_code(exc, body) or _number_code(exc, package, names)


_GENERAL_STATES = ("HY000", "42000", "08S01", "70100")
"""SQLSTATEs of MySQL's drivers for errors without one of their own; the number is more exact."""


def _provider_code(exc: BaseException, body: Any) -> str | None:
    code = foreign.words(
        foreign.entry(foreign.entry(foreign.attr(exc, "response"), "Error"), "Code")
    )
    for source in (foreign.entry(body, "error"), body):
        code = code or foreign.words(foreign.entry(source, "codeName"))
    if code is not None:
        return code
    for name in ("error_name", "code", "error_code", "status", "error_type"):
        code = foreign.words(foreign.attr(exc, name))
        if code is None or code.isdigit():
            continue
        # A plain word may be a status of the application's own, such as of a game.
        if name != "status" or not (code.islower() and code.isalpha()):
            return code
    error = foreign.attr(exc, "error")
    code = (
        foreign.words(error, 60)
        if foreign.is_a(error, str)
        else foreign.words(foreign.attr(error, "code"))
    )
    if code is not None and code.isascii() and " " not in code:
        return code
    return _body_code(body)


def _body_code(body: Any) -> str | None:
    if foreign.is_a(body, str):
        named = _XML_CODE.search(body)
        return None if named is None else named[1]
    error = foreign.entry(body, "error")
    for source in (error, body):
        for name in ("code", "error_code", "errorCode", "type", "error_type", "status"):
            code = foreign.words(foreign.entry(source, name), 100)
            if code is not None and not code.isdigit() and code != "error":
                return code
    code = foreign.words(error, 100)
    return None if code is None or " " in code else code


_XML_CODE = Pattern(r"<Error>(?:\s*<Type>\w{1,20}</Type>)?\s*<Code>([\w.-]{1,100})</Code>")
"""The code in an XML body of object stores and the query APIs of AWS."""


def is_page(text: str) -> bool:
    """Whether a text begins as a page of HTML."""
    return text[:200].lstrip()[:14].lower().startswith(("<!doctype html", "<html"))


_NUMBERED = {
    "pymysql": "MYSQL", "MySQLdb": "MYSQL", "mysql": "MYSQL", "asyncmy": "MYSQL",
    "pycurl": "CURL", "curl_cffi": "CURL", "clickhouse_driver": "CLICKHOUSE",
    "facebook_business": "GRAPH",
}  # fmt: skip
"""Packages whose errors carry a number of the server or library, with its prefix in rules."""


def _driver_code(exc: BaseException, package: str, names: tuple[str, ...]) -> str | None:
    """Return the client's own number, or the SQLSTATE that database drivers put first in `args`."""
    first = next(iter(foreign.args_of(exc)), None)
    prefix = "MYSQL" if "MySQLError" in names else _NUMBERED.get(package)
    if prefix is not None:
        named = (foreign.attr(exc, name) for name in ("errno", "code", "_api_error_code"))
        numbers = (foreign.whole(value) for value in (*named, first))
        number = next(filter(None, numbers), None)
        return None if number is None else f"{prefix}_{number}"
    code = foreign.words(first, 6) if "DatabaseError" in names else None
    return code if code is not None and len(code) == 5 and code.isalnum() else None


def _number_code(exc: BaseException, package: str, names: tuple[str, ...]) -> str | None:
    replies = foreign.attr(exc, "received_codes") or (
        foreign.args_of(exc) if package == "ftplib" else ()
    )
    reply = foreign.words(next(iter(foreign.some(replies, 1)), None), 3)
    if reply is not None and reply.isdigit():
        return f"FTP_{reply}"
    for name, prefix in (("smtp_code", "SMTP"), ("reply_code", "AMQP")):
        number = foreign.whole(foreign.attr(exc, name))
        if number is not None:
            return f"{prefix}_{number}"
    number = foreign.whole(foreign.attr(exc, "errno"))
    if number is not None and foreign.is_a(exc, OSError):
        if number < 0:
            return "EAI"
        if "SSLError" in names:
            return foreign.words(foreign.attr(exc, "reason"))
        return None if "gaierror" in names or "herror" in names else errno.errorcode.get(number)
    number = foreign.whole(foreign.attr(exc, "code"))
    if number is None:
        number = foreign.whole(foreign.attr(foreign.attr(exc, "error"), "code"))
    if number is not None and not foreign.is_a(exc, SystemExit):
        return str(number)
    return (
        foreign.words(foreign.attr(exc, "type")) if foreign.attr(exc, "body") is not None else None
    )


_DELAY_NAMES = (
    "retry_after", "retry_after_s", "retry_after_seconds", "retry_delay", "backoff", "period_remaining",
)  # fmt: skip


def header_delay(answer: Answer, now: float) -> float | None:
    """Return the delay in seconds that a header of the answer asks for."""
    delays = (from_headers(headers, now) for headers in answer.headers)
    return next((delay for delay in delays if delay is not None), None)


def delay_of(exc: BaseException, answer: Answer, message: str, now: float) -> float | None:
    """Return the delay in seconds that the other side asked for, from the most reliable source."""
    for delay in (
        header_delay(answer, now),
        from_details(exc),
        from_body(answer.body),
        # Zero is the default of some classes.
        *(foreign.seconds(foreign.attr(exc, name)) or None for name in _DELAY_NAMES),
    ):
        if delay is not None:
            return delay
    delay = from_text(message)
    if delay is not None:
        return delay
    windows = (from_windows(headers, answer.status, now) for headers in answer.headers)
    return next((delay for delay in windows if delay is not None), None)
