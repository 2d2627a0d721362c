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
        if isinstance(inner, str | list):
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
    elif text and (lead := _leads().match(text) or _rare_lead(text)):
        status = lead["status"]
        return Failure(text[:_MAX_SAID], int(status) if status else None)
    if text is None or _RECORDS.search(step.tool_called or ""):
        return None
    # A list is how content comes in parts: the first text of it is what the model reads first.
    found = _in_json(output if isinstance(output, str) else text) or _in_page(text)
    if found is None and len(text) <= MAX_WALL and _is_wall(text):
        return Failure(text[:_MAX_SAID], _FORBIDDEN)
    return found


def bare_failure(step: Step) -> Failure | None:
    """What a result says that is so short that all of it may be a failure; whether it is, rules must know.

    A program says its name first, or what it could not do. Other results may be a sentence or two about
    a failure, unless the tool shows what was written, looks after something, or runs anything.
    """
    text = step.tool_output
    if not isinstance(text, str) or len(text) > _SHORT or text.count("\n") > _FEW_LINES:
        return None
    if " try " in text or "ry again" in text:
        text = _LATER.sub("", text)
    text = text.strip()
    if not text or text[0] in "{[<":
        return None
    tool = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", (step.tool_called or "")[:_MAX_CODE])
    if _SHOWS.search(tool) or _RECORDS.search(tool):
        return Failure(text) if _FINDS.search(tool) and _outage().match(text) else None
    return Failure(text) if _program().match(text) or not _RUNS.search(tool) else None


def tells_of(text: str) -> bool:
    """Whether a text tells of a failure that was, or may be, elsewhere."""
    return _TELLS_OF.search(text) is not None


_LATER = re.compile(
    r"(?:please )?(?:re)?try (?:again )?(?:later|in a (?:few|couple|moment|minute|while)\b[^.\n]{0,20})",
    re.IGNORECASE,
)
"""What is said of much: alone it is no failure."""
_TELLS_OF = re.compile(
    r"\b(?:how to|articles?|chapter|pages? \d|explain(?:s|ed)?|reports?|guide|tutorial|means|described|"
    r"documented|"
    r"corrected|resolved|fixed|history|yesterday|last (?:week|month|year)|exit ?code:? 0|succeeded)\b",
    re.IGNORECASE,
)
_SHORT = 400
_FEW_LINES = 5
_SHOWS = re.compile(
    r"(?i:(?:^|[\W_])(?:search|retriev\w*|lookup|wiki\w*|read|open|view|show|notes?|e?mails?|inbox|messages?|"
    r"tickets?|issues?|incidents?|docs?|knowledge|kb|faq|status|health|check|monitor\w*|ping|alerts?|"
    r"metrics|think|ask)(?:$|[\W_]))"
)
"""Tools whose answer may tell of a failure without being one."""
_FINDS = re.compile(r"(?i:(?:^|[\W_])(?:search|retriev\w*|lookup)(?:$|[\W_]))")
"""Tools of which an answer may be none: what they found stands elsewhere in its first words."""
_RUNS = re.compile(
    r"(?i:(?:^|[\W_])(?:bash|shell|sh|exec\w*|run|terminal|python|code|repl|ipython|command|cmd|script|"
    r"query|sql|eval\w*|interpreter|computer)(?:$|[\W_]))"
)


@cache
def _outage() -> re.Pattern[str]:
    return re.compile(
        r"(?:sorry,? |unfortunately,? )?(?:the |our |this )?(?:\w{1,20} ){0,2}(?:service|system|server|"
        r"host|api|backend|database|"
        r"gateway|engine|index)(?: is| are)?(?: currently| temporarily)? (?:unavailable|"
        r"not (?:responding|available|"
        r"reachable)|down|overloaded|offline|unreachable|timed out)\b|(?:failed|unable) to (?:connect|"
        r"reach)\b|"
        r"could not (?:connect|reach|be reached)\b",
        re.IGNORECASE,
    )


@cache
def _program() -> re.Pattern[str]:
    return re.compile(
        r"\s{0,3}(?:(?:[a-z][\w.+-]{0,30}|/[\w./+-]{1,60}): (?:line \d+: |\(\d+\) )?\S"
        r"|(?i:unable to|could not|couldn't|cannot|can't|failed to) \w)"
    )


_RECORDS = re.compile(r"(?i:(?:^|[\W_])(?:file|log|cat|grep|tail|head|diff|doc)s?(?:$|[\W_]))")
"""Tools that show what was written down: an object or a page there is what somebody kept."""


# --- fields --------------------------------------------------------------------------------

_ERROR_KEYS = ("error", "Error", "errorMessage", "error_message")
_MESSAGE_KEYS = ("message", "detail", "title", "reason", "description")
_STATUS_KEYS = ("status", "statusCode", "status_code", "http_status")
_OUTCOMES = ("ok", "success", "succeeded")
_NO_SUCCESS = frozenset({"error", "failed", "failure", "fail"})
_FEW_FIELDS = 4
_WORTH_PARSING = re.compile(
    r'"(?i:error_?(?:message)?|(?:http_?)?status_?(?:code)?|code?|ok|success|succeeded|is_?error)"\s{0,4}:'
)


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
        if status is None and len(result) <= _FEW_FIELDS and "message" in result:
            status = _status(
                result, ("code", "cod")
            )  # of a thing that has more fields it is the thing's
        if status is None and not _no_success(result):
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


def _no_success(result: Mapping[Any, Any]) -> bool:
    return any(result.get(key) is False for key in _OUTCOMES) or (
        str(result.get("status")).lower() in _NO_SUCCESS
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


MAX_WALL = 1_000
"""A longer page has something beside the question whether a person looks at it."""
_FORBIDDEN = 403


def _is_wall(text: str) -> bool:
    low = text.lower()
    # A word is found sooner than a pattern.
    if not (
        "browser" in low
        or "cookies" in low
        or "verify" in low
        or "unusual traffic" in low
        or "captcha" in low
        or "security check" in low
    ):
        return False
    return _wall().search(low) is not None


@cache
def _wall() -> re.Pattern[str]:
    """What is shown to a program in place of a page."""
    return re.compile(
        r"\bchecking (?:your browser|if the site connection is secure)\b|"
        r"\benable javascript and cookies to continue\b"
        r"|\bverify(?:ing)? (?:that )?you(?: are|'re) (?:a |not a )?(?:human|robot)\b|"
        r"\bunusual traffic from your\b"
        r"|\b(?:complete|solve) the (?:captcha|security check)\b",
    )


# --- words ---------------------------------------------------------------------------------


def _rare_lead(text: str) -> re.Match[str] | None:
    """What begins an error as a few programs write it. A word is found sooner than a pattern."""
    if (
        "not a valid tool" in text
        or "validation error" in text
        or ("ERR" in text and ("net::ERR_" in text or "NS_ERROR_" in text))
        or "rejected]" in text
        or "No replacement" in text
    ):
        return _rare_leads().match(text)
    return None


@cache
def _rare_leads() -> re.Pattern[str]:
    return re.compile(
        r"\s{0,4}(?:[\w.-]{1,60} is not a valid tool\b|\d{1,4} validation errors? for \w"
        r"|! \[(?:remote )?rejected\] |No replacement was performed"
        r"|(?:[a-z]\w{0,20}\.\w{1,30}: )?(?:net::ERR_|NS_ERROR_)\w)(?P<status>(?!))?"
    )


@cache
def _leads() -> re.Pattern[str]:
    return re.compile(
        r"[\s\[<*(\u2502\u2577]{0,6}(?:"
        r"(?i:tool |api |request |execution )?(?i:errors?|failed|failure|exception)\b\s{0,2}"
        r"[:\-\]>\u2014*)]"
        r"|(?i:fehler|erreur|errore?|erro|fel|fout|b\u0142\u0105d|\u043e\u0448\u0438\u0431\u043a\u0430)"
        r"\b(?: (?P<status>[45]\d\d))?\s{0,2}[:\-]"
        r"|(?:\u9519\u8bef|\u932f\u8aa4|\u51fa\u9519|\u30a8\u30e9\u30fc|\uc624\ub958|\u5931\u8d25|\u5931\u6557)"
        r"\s{0,2}[:\uff1a]"
        r"|(?:fatal|error|npm ERR!|E|panic)(?:: | code )\S"
        r"|(?i:unknown (?:tool|function|action) ?(?:name ?)?[:'\"`])"
        r"|(?i:tool|function) ['\"`]?[\w.-]{1,60}['\"`]? (?:is |was |does )?not (?:found|exist|available)\b"
        r"|(?i:blocked|denied|rejected|forbidden) by \w"
        r"|An error occurred \(\w{1,60}\) when calling"
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
