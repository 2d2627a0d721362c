"""What one result of a tool says of a failure: an error in words, as JSON, or as a page of a proxy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from triage.failures import ErrorInfo
from triage.steps import Step

MAX_READ = 4_000
"""Of a longer result the first 4,000 and the last 1,000 characters are read."""
_MAX_TAIL = 1_000
MAX_JSON = 20_000
_MAX_SAID = 1_000
_MAX_ERROR = 300
_MAX_CODE = 80


class Failure(NamedTuple):
    """text: what it says. status, code: the HTTP status and the provider's own code, where it has them."""

    text: str
    status: int | None = None
    code: str | None = None

    def info(self) -> ErrorInfo:
        """It as an error, with its class where the text names one."""
        return _error_info(self.text)._replace(status_code=self.status, code=self.code)


def text_of(output: Any) -> str | None:
    """The part of a result that is read; None where it has no text."""
    if isinstance(output, str):
        if len(output) <= MAX_READ:
            return output
        return f"{output[:MAX_READ]}\n{output[-_MAX_TAIL:]}"
    if isinstance(output, Mapping):
        inner = output.get("text", output.get("content"))
        if isinstance(inner, str):
            return text_of(inner)
        found = [value for value in list(output.values())[:20] if isinstance(value, str)]
        return text_of("\n".join(value[:MAX_READ] for value in found)) if found else None
    if isinstance(output, list) and output and isinstance(output[0], Mapping | str):
        return text_of(output[0])
    return None


def failure_of(step: Step, text: str | None = None) -> Failure | None:
    """What a step says of a failure, where its result is an error and nothing else; else None.

    text: of its result, as `text_of` gives it; None has it looked for.
    """
    if step.error:
        return Failure(step.error)
    output = step.tool_output
    if text is None:
        text = text_of(output)
    if isinstance(output, Mapping):
        said = _in_fields(output)
        if said is None and (output.get("isError") is True or output.get("is_error") is True):
            said = Failure((text or "error")[:_MAX_SAID])
        if said is not None:
            return said
    elif text and _leads().match(text):
        return Failure(text[:_MAX_SAID])
    if text is None or _RECORDS.search(step.tool_called or ""):
        return None
    # A list is how content comes in parts: the first text of it is what the model reads first.
    return _in_json(output if isinstance(output, str) else text) or _in_page(text)


_RECORDS = re.compile(r"(?i:(?:^|[\W_])(?:file|log|cat|grep|tail|head|diff|doc)s?(?:$|[\W_]))")
"""Tools that show what was written down: an object or a page there is what somebody kept."""


# --- fields --------------------------------------------------------------------------------

_ERROR_KEYS = ("error", "Error", "errorMessage", "error_message")
_MESSAGE_KEYS = ("message", "detail", "title", "reason", "description")
_STATUS_KEYS = ("status", "statusCode", "status_code", "http_status")
_WORTH_PARSING = re.compile(r'"(?i:error_?(?:message)?|(?:http_?)?status_?(?:code)?)"\s{0,4}:')


def _in_json(text: str) -> Failure | None:
    """The failure in a result that is an object as JSON text."""
    if text[:1] != "{" or len(text) > MAX_JSON or not _WORTH_PARSING.search(text[:MAX_READ]):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _in_fields(found) if isinstance(found, dict) else None


def _in_fields(result: Mapping[Any, Any]) -> Failure | None:
    said = next((value for key in _ERROR_KEYS if (value := result.get(key))), None)
    if said is None:
        status = _status(result, _STATUS_KEYS)
        if status is None:
            return None
        # A number alone may be the answer; with a message beside it, it is the answer's own status.
        words = _message(result) or _listed(result.get("errors"))
        return Failure(words[:_MAX_SAID], status) if words else None
    inner: Mapping[Any, Any] = said if isinstance(said, Mapping) else {}
    status = _status(inner, (*_STATUS_KEYS, "code")) or _status(result, (*_STATUS_KEYS, "code"))
    code = inner.get("code", inner.get("type")) if inner else result.get("code")
    if not isinstance(code, str):
        code = inner.get("status", result.get("status"))  # as gRPC's `RESOURCE_EXHAUSTED`
        code = code if isinstance(code, str) and code.isupper() else None
    words = str(inner.get("message", said))
    if not inner:
        more = _message(result)
        words = more if said is True and more else f"{words}: {more}" if more else words
    return Failure(
        words[:_MAX_SAID],
        status,
        code if code is None or len(code) <= _MAX_CODE else None,
    )


def _message(result: Mapping[Any, Any]) -> str | None:
    found = (result.get(key) for key in _MESSAGE_KEYS)
    return next((value for value in found if isinstance(value, str) and value), None)


def _listed(errors: Any) -> str | None:
    """The first of a list of errors, which beside a status is no list that was asked for."""
    first: Any = errors[0] if isinstance(errors, list) and errors else None
    return _message(first) or str(first) if isinstance(first, Mapping) else first and str(first)


_FIRST, _LAST = 400, 599


def _status(result: Mapping[Any, Any], keys: tuple[str, ...]) -> int | None:
    """The first status of an HTTP error under one of these keys."""
    for key in keys:
        value = result.get(key)
        if isinstance(value, str) and len(value) == len("503") and value.isdecimal():
            value = int(value)
        if type(value) is int and _FIRST <= value <= _LAST:
            return value
    return None


# --- pages ---------------------------------------------------------------------------------


def _in_page(text: str) -> Failure | None:
    """The failure in a page that a server or a proxy shows in place of an answer.

    Its title is a status or a status's name and nothing else; that of a page about one says more.
    """
    begins = text[:200].lstrip()[:14].lower() if "<" in text[:200] else ""
    if not begins.startswith(("<!doctype html", "<html")):
        return None
    title = _title().search(text[:MAX_READ])
    shown = _shown().fullmatch(" ".join(title["said"].split())) if title is not None else None
    if shown is None:
        return None
    status = shown["status"]
    return Failure(shown[0], int(status) if status else None)


@cache
def _title() -> re.Pattern[str]:
    return re.compile(
        r"<(?P<tag>title|h1)\b[^>\n]{0,100}>(?P<said>[^<]{1,160})</(?P=tag)>", re.IGNORECASE
    )


@cache
def _shown() -> re.Pattern[str]:
    ours = (
        r"(?:internal )?server error|bad gateway|service (?:temporarily )?unavailable|"
        r"gateway time-?out|too many requests"
    )
    others = (
        r"bad request|unauthorized|authorization required|forbidden|(?:page )?not found|"
        r"method not allowed|request time-?out|(?:the )?connection timed out|a timeout occurred|"
        r"(?:the )?(?:web server|origin) is (?:down|unreachable)|web server is returning an unknown error"
    )
    return re.compile(
        rf"(?:[\w.-]{{1,80}} \| )?(?:(?:http )?error:? |http(?: status)? )?"
        rf"(?:(?P<status>[45]\d\d)(?:[ :\u2013\u2014-]{{1,3}}(?:error|{ours}|{others}))?|{ours})[.!]?",
        re.IGNORECASE,
    )


# --- words ---------------------------------------------------------------------------------


@cache
def _leads() -> re.Pattern[str]:
    return re.compile(
        r"[\s\[<*(]{0,4}(?:"
        r"(?i:tool |api |request |execution )?(?i:errors?|failed|failure|exception)\b\s{0,2}"
        r"[:\-\]>\u2014*)]"
        r"|(?:[a-z_]\w{0,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Timeout)\b\s{0,2}[:(]"
        r"|Traceback \(most recent call last\)"
        r"|(?i:http(?:/[\d.]{1,3}| error| status(?: code)?)?)[ :]{1,3}[45]\d\d\b"
        r"|[45]\d\d (?:Too Many|Internal|Bad Gateway|Service Un|Gateway Time|Unauthor|Forbidden)"
        r"|(?i:rate limit (?:exceeded|reached)|service (?:temporarily )?unavailable|"
        r"(?:request|connection|operation) (?:timed out|refused|reset))"
        r")"
    )


_NAMED = re.compile(
    r"\s{0,4}(?:(?i:error)\s{0,2}[:\-]\s{0,2})?(?:[a-z_]\w{0,40}\.){0,6}"
    r"(?P<name>[A-Z]\w{0,60}(?:Error|Exception|Timeout))\s{0,2}: (?P<said>.*)",
    re.DOTALL,
)


def _error_info(text: str) -> ErrorInfo:
    """The error that a text tells of, with its class where it names one."""
    if "Traceback (most recent call last)" in text:
        text = text.rstrip().rpartition("\n")[2]
    text = text[:_MAX_ERROR]
    hit = _NAMED.match(text)
    if hit is None:
        return ErrorInfo("Exception", message=text)
    name = hit["name"]
    return ErrorInfo(name, mro=(f"builtins.{name}", name), message=hit["said"])
