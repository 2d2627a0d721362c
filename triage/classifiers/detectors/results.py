"""What tools answered, where an answer is a failure that nobody raised.

Many frameworks give a tool's error to the model as its result, and the run goes on. So results are
read: an error that was never got over, JSON that breaks off, a demand to repeat the call, orders to
the agent. A result that came right later decides nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from triage.classifiers.patterns import Pattern
from triage.classifiers.tables.rule import Rule
from triage.core import ErrorInfo, FailureType, Step, said_by

from .finding import ASKED, BROKEN_RESULT, FAILED_RESULT, REDIRECT, UNKNOWN_TOOL, Finding

_MAX_READ = 4_000
"""Of a longer result the first 4,000 and the last 1,000 characters are read."""
_MAX_TAIL = 1_000
_MAX_JSON = 20_000
_MAX_SAID = 1_000
_MAX_ERROR = 300
_MAX_CODE = 80

Judged = Callable[[ErrorInfo], Any]
"""What the rules say of an exception: a verdict with a `rule`, or None."""


class Failure(NamedTuple):
    """What a result says of a failure. status, code: the HTTP status and the provider's own code."""

    text: str
    status: int | None = None
    code: str | None = None

    @property
    def error(self) -> ErrorInfo:
        """It as an error, with its class where the text names one."""
        text = self.text
        if "Traceback (most recent call last)" in text:
            text = text.rstrip().rpartition("\n")[2]
        text = text[:_MAX_ERROR]
        hit = _NAMED.match(text)
        name, said = ("Exception", text) if hit is None else (hit["name"], hit["said"])
        mro = () if hit is None else (f"builtins.{name}", name)
        return ErrorInfo(name, mro=mro, message=said, status_code=self.status, code=self.code)


class _Failed(NamedTuple):
    """A tool whose last result was no good. first: position of the first one since a good one."""

    first: int
    failure: Failure


class Results:
    """Is told each step once; `standing` says what was never got over."""

    def __init__(self) -> None:
        self._redirect: Finding | None = None
        self._asked: dict[str, Finding] = {}
        self._broken: dict[str, Finding] = {}
        self._failed: dict[str, _Failed] = {}
        self._last: str | None = None
        self._over = False

    def add(self, step: Step, at: int) -> None:
        """The next step, at this position."""
        tool, output = step.tool_called, step.tool_output
        self._over = False
        if output is None and step.error is None:
            return
        name, shown = tool or "", step.tool_called or "the step"
        text = text_of(output)
        failure = failure_of(step)
        if tool is not None:
            self._last = tool if failure else None
            # An error that was raised is judged as that.
            self._over = step.error is None
        read = text if text is not None else "" if failure is None else failure.text
        if self._redirect is None and (order := _order_in(read)):
            self._redirect = Finding(REDIRECT, f"the result says {said_by(order)}", at, tool)
        if _AGAIN.search(read.lower()):
            said = f"the result of {shown!r} asks for the same call: {said_by(read)}"
            known = self._asked.get(name, Finding(ASKED, said, at, tool, length=1))
            self._asked[name] = known._replace(repeats=known.repeats + 1)
        elif failure is not None:
            first = self._failed[name].first if name in self._failed else at
            self._failed[name] = _Failed(first, failure)
        elif isinstance(output, str) and is_broken_json(output):
            said = f"the result of {shown!r} is no valid JSON: {said_by(output)}"
            self._broken.setdefault(name, Finding(BROKEN_RESULT, said, at, tool))
        else:
            for kept in (self._asked, self._broken, self._failed):
                kept.pop(name, None)

    def standing(self, judge: Judged) -> list[Finding]:
        """What stands at the end, most decisive first."""
        found = [] if self._redirect is None else [self._redirect]
        for kept in (self._asked, self._broken):
            found += sorted(kept.values(), key=lambda one: one.step or 0)[:1]
        failed = self._never_got_over(judge)
        return found if failed is None else [*found, failed]

    def _never_got_over(self, judge: Judged) -> Finding | None:
        """The failure that the last call ended with, or that two tools never got over.

        Of the other side's unless the attempt ended with that very call: then nobody has made
        anything of its failure, whatever it is.
        """
        judged = [
            (failed, name, verdict.rule)
            for name, failed in self._failed.items()
            if (verdict := judge(failed.failure.error)) is not None and verdict.known
        ]
        outside = [one for one in judged if one[2].failure_type is FailureType.EXTERNAL_FAULT]
        last = [one for one in judged if one[1] == self._last]
        rule: Rule
        if last and last[0][2].failure_type is FailureType.WRONG_TOOL_CALLED:
            failed, name, _ = last[0]
            rule = UNKNOWN_TOOL._replace(confidence=0.8)
        else:
            if not outside or (len(outside) == 1 and outside[0][1] != self._last):
                outside = last if self._over else []
            if not outside:
                return None
            failed, name, rule = min(outside, key=lambda one: one[0].first)
            rule = rule._replace(name=FAILED_RESULT.name, confidence=FAILED_RESULT.confidence)
        said = f"the tool answered with an error: {said_by(failed.failure.text)}"
        return Finding(rule, said, failed.first, name or None)


# --- an error as a result --------------------------------------------------------------------


def text_of(output: Any) -> str | None:
    """The part of a result that is read; None where it has no text."""
    if isinstance(output, str):
        if len(output) <= _MAX_READ:
            return output
        return f"{output[:_MAX_READ]}\n{output[-_MAX_TAIL:]}"
    if isinstance(output, Mapping):
        inner = output.get("text", output.get("content"))
        if isinstance(inner, str | list):
            return text_of(inner)
        found = [value for value in list(output.values())[:20] if isinstance(value, str)]
        return text_of("\n".join(value[:_MAX_READ] for value in found)) if found else None
    if isinstance(output, list) and output and isinstance(output[0], Mapping | str):
        return text_of(output[0])
    return None


def failure_of(step: Step) -> Failure | None:
    """The failure that a step tells of, where its result is an error and nothing else; else None."""
    if step.error:
        return Failure(step.error)
    output = step.tool_output
    text = text_of(output)
    if isinstance(output, Mapping):
        said = _in_fields(output)
        if said is None and (output.get("isError") is True or output.get("is_error") is True):
            said = Failure((text or "error")[:_MAX_SAID])
        if said is not None:
            return said
    elif text and _LEADS.match(text):
        return Failure(text[:_MAX_SAID])
    if text is None or _RECORDS.search(step.tool_called or ""):
        return None
    # A list is how content comes in parts: the first text of it is what the model reads first.
    return _in_json(output if isinstance(output, str) else text) or _in_page(text)


_RECORDS = Pattern(r"(?i:(?:^|[\W_])(?:file|log|cat|grep|tail|head|diff|doc)s?(?:$|[\W_]))")
"""Tools that show what was written down: an object or a page there is what somebody kept."""
_LEADS = Pattern(
    r"[\s\[<*(\u2502\u2577]{0,6}(?:"
    r"(?i:tool |api |request |execution )?(?i:errors?|failed|failure|exception)\b\s{0,2}"
    r"[:\-\]>\u2014*)]"
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
"""How programs begin what is nothing but an error."""
_NAMED = Pattern(
    r"\s{0,4}(?:(?i:error)\s{0,2}[:\-]\s{0,2})?(?:[a-z_]\w{0,40}\.){0,6}"
    r"(?P<name>[A-Z]\w{0,60}(?:Error|Exception|Timeout))\s{0,2}: (?P<said>.*)",
    re.DOTALL,
)


_ERROR_KEYS = ("error", "Error", "errorMessage", "error_message")
_MESSAGE_KEYS = ("message", "detail", "title", "reason", "description")
_STATUS_KEYS = ("status", "statusCode", "status_code", "http_status")
_OUTCOMES = ("ok", "success", "succeeded")
_NO_SUCCESS = frozenset({"error", "failed", "failure", "fail"})
_FEW_FIELDS = 4
_WORTH_PARSING = Pattern(
    r'"(?i:error_?(?:message)?|(?:http_?)?status_?(?:code)?|code?|ok|success|succeeded|is_?error)"\s{0,4}:'
)


def _in_json(text: str) -> Failure | None:
    """The failure in a result that is an object as JSON text."""
    if text[:1] != "{" or len(text) > _MAX_JSON or not _WORTH_PARSING.search(text[:_MAX_READ]):
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
        words[:_MAX_SAID], status, code if code is None or len(code) <= _MAX_CODE else None
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


def _in_page(text: str) -> Failure | None:
    """The failure in a page that a server or a proxy shows in place of an answer.

    Its title is a status or a status's name and nothing else; that of a page about one says more.
    """
    begins = text[:200].lstrip()[:14].lower() if "<" in text[:200] else ""
    if not begins.startswith(("<!doctype html", "<html")):
        return None
    title = _TITLE.search(text[:_MAX_READ])
    shown = _SHOWN.fullmatch(" ".join(title["said"].split())) if title is not None else None
    if shown is None:
        return None
    status = shown["status"]
    return Failure(shown[0], int(status) if status else None)


_TITLE = Pattern(
    r"<(?P<tag>title|h1)\b[^>\n]{0,100}>(?P<said>[^<]{1,160})</(?P=tag)>", re.IGNORECASE
)
_SERVER = (
    r"(?:internal )?server error|bad gateway|service (?:temporarily )?unavailable|"
    r"gateway time-?out|too many requests"
)
_ANY = (
    r"bad request|unauthorized|authorization required|forbidden|(?:page )?not found|"
    r"method not allowed|request time-?out|(?:the )?connection timed out|a timeout occurred|"
    r"(?:the )?(?:web server|origin) is (?:down|unreachable)|web server is returning an unknown error"
)
_SHOWN = Pattern(
    rf"(?:[\w.-]{{1,80}} \| )?(?:(?:http )?error:? |http(?: status)? )?"
    rf"(?:(?P<status>[45]\d\d)(?:[ :\u2013\u2014-]{{1,3}}(?:error|{_SERVER}|{_ANY}))?|{_SERVER})[.!]?",
    re.IGNORECASE,
)


# --- what else a result may be ---------------------------------------------------------------

_VERB = (
    r"(?:re-?try|re-?peat|re-?run|re-?send|re-?submit|re-?issue|re-?do|try|call|run|send|submit|"
    r"issue|make|invoke|execute|perform|use|ask)"
)
_CALL = (
    r"(?:calls?|query|queries|requests?|arguments?|parameters?|inputs?|commands?|tool|"
    r"function|operation|search|lookup|step|action)"
)
_SAME = r"(?:(?:exact(?:ly)?|very) (?:the )?same|(?:the )?same exact|identical|the same)"
_AGAIN = Pattern(
    rf"\b{_VERB}\b[^.\n]{{0,30}}\b{_SAME}\b[^.\n]{{0,20}}\b{_CALL}\b"
    rf"|\b{_VERB}\b[^.\n]{{0,20}}\b(?:again|once more)\b[^.\n]{{0,20}}\bwith (?:the )?"
    rf"(?:exact )?(?:same|identical)\b"
)
"""A demand for exactly the call that was answered, once more."""


def _order_in(text: str) -> str | None:
    """What a result says to the agent in place of its user, to send it elsewhere; None if nothing."""
    low = text.lower()
    hit = _ORDERS.search(low)
    if hit is not None and not _MENTIONS.search(low[: hit.start()][-40:]):
        return text[hit.start() : hit.start() + 300]
    hints = list(_HINTS.finditer(low))
    if len({hint.lastgroup for hint in hints}) < 2:  # one alone may be anybody's words
        return None
    return text[hints[0].start() : hints[0].start() + 300]


_MENTIONS = Pattern(
    r"\b(?:such as|like|e\.g\.,?|for example,?|phrases?|words|texts?|sentences?|saying|says?|said|"
    r"called|asks?"
    r"|strings?|commands?):? ?['\"\u201c\u2018`]\Z"
)
"""What stands before an order that is only told of."""


_ORDERS = Pattern(
    r"[\[<({*#]{1,3}\s?(?:system|admin(?:istrator)?|developer|supervisor|orchestrator)[ _-]{1,2}"
    r"(?:update|notice|message|note|override|alert|prompt|instructions?|directive|command|order)"
    r"\s?[\]>)}:*#]"
    r"|\b(?:ignore|disregard|forget|override) (?:\w{1,12} ){0,3}(?:previous|prior|above|earlier|"
    r"preceding|original) (?:\w{1,12} ){0,2}(?:instructions?|prompts?|directions?|guidelines|goals?|"
    r"objectives?|orders?)\b"
)
_HINTS = Pattern(
    r"(?P<role>(?:^|\n|[\[<({*#]{1,3})\s?(?:system|developer)\s?[\]>)}:*#])"
    r"|(?P<changed>\b(?:goal|objective|task|mission|assignment|topic) has (?:now )?(?:been )?"
    r"(?:changed|updated|replaced|superseded)\b)"
    r"|(?P<now>\bfrom now on\b)"
    r"|(?P<stop>\b(?:stop|abandon|drop|cease|pause)\b[^.\n]{0,20}\b(?:current|previous|original|present)"
    r" (?:task|topic|work|goal|objective|research|search)\b)"
    r"|(?P<new>\byour new (?:task|goal|objective|instructions?|assignment|mission) (?:is|are)\b)"
    r"|(?P<instead>\b(?:investigate|research|focus on|work on|search for|look (?:for|into)|write)\b"
    r"[^.\n]{0,80}\binstead\b)"
    r"|(?P<you>\byou (?:must|should|will|are to) now\b)"
)
"""Of which two different ones together are an order."""

_CUT_MARKS = Pattern(
    r"\u2026|\.\.\.|truncat|omitted|trimmed|elided|<cut|\[cut|more (?:items|rows|char)"
)
_ROUND = 50
_JSON = Pattern(
    r'\{\s*"(?:[^"\\\n]|\\.){1,200}"\s*:\s*(?:["\[{\d-]|true|false|null)'
    r'|\[\s*(?:\{\s*"|\[\s*[\[{"\d]|"[^"\n]*"\s*,)'
)
"""How JSON begins."""


def is_broken_json(text: str) -> bool:
    """Whether a text begins as JSON and is none, by the tool's doing.

    Not judged are texts over 20,000 characters, texts that were visibly shortened, and those that
    break off at a round length: there whoever wrote the record down has cut it.
    """
    if text[:1] not in ("{", "[") or len(text) > _MAX_JSON or not _JSON.match(text):
        return False
    try:
        json.loads(text)
    except RecursionError:
        return False
    except json.JSONDecodeError as problem:
        at = problem.pos
        if _CUT_MARKS.search(text[max(0, at - 60) : at + 60].lower()) or _CUT_MARKS.search(
            text[-60:].lower()
        ):
            return False
        ended = at >= len(text.rstrip()) - 1 or problem.msg.startswith("Unterminated")
        if ended and len(text) % _ROUND == 0:
            return False
        return "Extra data" not in problem.msg
    return False
