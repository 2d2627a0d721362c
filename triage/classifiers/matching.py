"""Apply the rules to an exception and the exceptions behind it, given as `ErrorInfo`.

Facts come first: codes, the other side's answer, class names and the status. The words of the message are
read last, and may make the verdict of a general class name more exact.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from triage.classifiers.tables.messages import STATUS_IN_TEXT, STATUS_TOLD
from triage.classifiers.tables.rule import Rule, normal, unquoted, words_of
from triage.core.failures import ErrorInfo, fields_of, is_invalid_json, not_json
from triage.core.patterns import Pattern
from triage.core.quoting import quote, said_by
from triage.core.retry_after import from_body
from triage.core.taxonomy import Cause, FailureType, Severity, severity_of

_MAX_TEXT = 4_000
_SQLSTATE_LENGTH = 5
_CLASS_LENGTH = 2
_MAX_DEPTH = 24
_MAX_DETAILS = 8
_NOT_THERE = frozenset({429, 502, 503, 504})
_AGREED = 0.95
"""Confidence when a status agrees with the words, code or class beside it."""
_SHOWN_FIELDS = 3


class Verdict(NamedTuple):
    """A rule's verdict on an exception. path: the exceptions from the outermost to the deciding one."""

    rule: Rule
    text: str
    path: tuple[ErrorInfo, ...]

    @property
    def known(self) -> bool:
        """Whether the failure type is anything but unknown."""
        return self.rule.failure_type is not FailureType.UNKNOWN

    @property
    def info(self) -> ErrorInfo:
        """The exception that decided."""
        return self.path[-1]

    def under(self, info: ErrorInfo) -> Verdict:
        """The same verdict, reached through `info`."""
        return self._replace(path=(info, *self.path))


MIXED = Rule(
    "group.mixed",
    FailureType.UNKNOWN,
    None,
    "name",
    (),
    confidence=0.3,
    source="members of an exception group that differ in kind",
)
BAD_ANSWER = Rule(
    "http.success",
    FailureType.SCHEMA_MISMATCH,
    Cause.BAD_RESPONSE,
    "status",
    ("2xx",),
    Severity.RETRIABLE,
    confidence=0.6,
    source="an error over an answer whose status says success: its content was not as agreed",
)

NOT_JSON = Rule(
    "form.not_json",
    FailureType.SCHEMA_MISMATCH,
    Cause.MALFORMED_OUTPUT,
    "name",
    ("json invalid",),
    source="pydantic's error type json_invalid, of a whole text",
)


class Judge:
    """The rules, indexed once in tables. `judge` has no side effects."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self._answers = self._some(lambda rule: rule.looks_at == "answer")
        self._texts = self._some(lambda rule: rule.looks_at == "text")
        self._own_texts = [rule for rule in self._texts if rule.failure_type not in _NOT_OF_OWN]
        self._statuses = self._table("status")
        self._codes = self._table("code")
        self._names = self._table("name")
        self._refining = {
            kind: [rule for rule in self._texts if _may_refine(rule, kind)] for kind in FailureType
        }
        self._beyond = {
            name: [rule for rule in self._texts if rule.name in words]
            for name, words in _BEYOND.items()
        }

    def _some(self, wanted: Callable[[Rule], bool]) -> list[Rule]:
        return [rule for rule in self._rules if wanted(rule)]

    def _table(self, looks_at: str) -> dict[str, Rule]:
        """Index rules by their keys; of two rules with the same key, keep the earlier."""
        rules = self._some(lambda rule: rule.looks_at == looks_at)
        return {key: rule for rule in reversed(rules) for key in rule.keys}

    def judge(self, info: ErrorInfo, depth: int = _MAX_DEPTH) -> Verdict | None:
        """Return the verdict on an exception and those it was raised from; None if no rule fires."""
        info = _with_answer(info)
        strong, weak = self._by_facts(info)
        if strong is not None:
            return self._met(info, strong, depth) or strong
        if weak is not None:
            return self._refined(info, weak, depth)
        wrapped = list(self._wrapped(info, depth))
        grouped = any(inner.relation == "group" for inner in info.related)
        inner = wrapped[0] if wrapped and not grouped else None
        if inner is not None and inner.known and inner.rule.looks_at != "text":
            # A status that a client names says more than that it could not read the answer.
            of_form = inner.rule.failure_type is FailureType.SCHEMA_MISMATCH
            if not of_form or info.is_a(*OWN) or status_in(info.message) is None:
                return inner
        own = self._by_words(info)
        if own is not None:
            return own
        if wrapped:
            return _agreed(info, wrapped) if grouped else wrapped[0]
        if not grouped and info.status_code is not None and 200 <= info.status_code < 300:
            return Verdict(BAD_ANSWER, f"status {info.status_code}", (info,))
        return None

    def weigh(self, verdict: Verdict) -> tuple[str, float]:
        """Return a verdict's evidence, with foreign words quoted, and its confidence."""
        rule, info, seen = verdict.rule, verdict.info, verdict.text
        confidence, status = rule.confidence, info.status_code
        if status is None and rule.looks_at == "text":
            # An error without an answer may state a status in its text.
            status = status_in(info.message)
        if status is not None and 100 <= status <= 599:  # the range of HTTP statuses
            other = self._status_rule(status)
            if (
                other is not None
                and other.failure_type is rule.failure_type
                and severity_of_rule(other) is severity_of_rule(rule)
            ):
                confidence = max(confidence, _AGREED)
            if rule.looks_at != "status":
                seen = f"status {status}, {seen}"
        said = ""
        if rule.looks_at == "status":
            speaking = self._some(
                lambda one: one.looks_at in ("answer", "text") and one.cause == rule.cause
            )
            found = _searched(info, speaking, _answer_text(info))
            said = found.text if found is not None else _message(info)
        elif verdict.text.startswith("class "):
            said = (
                _content(info)
                if rule.failure_type is FailureType.SCHEMA_MISMATCH
                else _message(info)
            )
        return f"{info.type_name}: {seen}" + (f", {said}" if said else ""), confidence

    # --- facts ---

    def _by_facts(self, info: ErrorInfo) -> tuple[Verdict | None, Verdict | None]:
        """Return a final verdict by code, answer, class or status, or a weak one that may be refined."""
        final = self._final(info)
        decided, weak = self._by_all_facts(info)
        if (
            decided is not None
            and final is not None
            and severity_of_rule(decided.rule) is Severity.RETRIABLE
        ):
            return final, None
        return decided, weak

    def _final(self, info: ErrorInfo) -> Verdict | None:
        """Return a verdict that nothing may soften: a refused key, or a bug by a built-in class."""
        if info.status_code == _UNAUTHORIZED:
            return self._by_status(info)
        if info.mro and info.mro[0].startswith("builtins."):
            named = self._by_class(info)
            if named is not None and severity_of_rule(named.rule) is Severity.CRITICAL:
                return named
        return None

    def _by_all_facts(self, info: ErrorInfo) -> tuple[Verdict | None, Verdict | None]:
        limited = self._statuses.get("429")
        if info.status_code == _TOO_LARGE and info.retry_after_s and limited is not None:
            # RFC 9110: too large, but only for now.
            return Verdict(limited, f"status {_TOO_LARGE} and a delay to wait", (info,)), None
        weak: list[Verdict] = []
        codes = _codes_of(info)
        for found in self._by_codes(info, codes):
            if not found.rule.weak:
                return found, None
            weak.append(found)
        if info.status_code is not None or info.body is not None or codes:
            answered = _searched(info, self._answers, _answer_text(info))
            if answered is not None:
                quota = (
                    answered.rule.cause == Cause.QUOTA_EXHAUSTED
                    and _MONEY.search(answered.text) is None
                )
                if quota and limited is not None and info.retry_after_s is not None:
                    # A quota with a delay is a rate limit: waiting helps.
                    answered = Verdict(limited, f"{answered.text}, and a delay to wait", (info,))
                return answered, None
        named = self._by_class(info)
        if named is not None and named.known and not named.rule.weak:
            # Some libraries also raise a `Refusal` or `Blocked` for a service that is down.
            refused = named.rule.failure_type is FailureType.CONSTRAINT_IGNORED
            if not (refused and info.status_code in _NOT_THERE):
                return named, None
        status = self._by_status(info)
        if status is not None:
            return _more_special(status, named, weak), None
        if named is None or named.known:
            # A code is explicit, but clients also wrap any answer in a class for malformed data.
            form = named is not None and named.rule.failure_type is FailureType.SCHEMA_MISMATCH
            stated = next(iter(weak), None)
            return None, (stated or named) if form else (named or stated)
        return named, None

    def _by_codes(self, info: ErrorInfo, codes: tuple[str, ...]) -> Iterator[Verdict]:
        for code in codes:
            sql = _is_sqlstate(code, info)
            # A key of two characters is a class of SQLSTATE, never a code of its own.
            rule = self._codes.get(code) if sql or len(code) > _CLASS_LENGTH else None
            if rule is None and sql:
                rule = self._codes.get(code[:_CLASS_LENGTH])
            if rule is None:
                rule = self._by_name(words_of(code), stated=True)
            general = code.partition(".")[0]  # "AuthFailure.SignatureFailure"
            if rule is None and general != code:
                rule = self._by_name(words_of(general), stated=True)
            if rule is not None:
                yield Verdict(rule, f"code {code}", (info,))

    def _by_class(self, info: ErrorInfo) -> Verdict | None:
        """Return the verdict on the first of an error's classes that has a rule, or None."""
        classes = info.mro or (info.type_name,)
        # A library's base class tells that a name is an error's: `InvalidPath(VaultError)`.
        base = next((entry for entry in classes[1:2] if not entry.startswith("builtins.")), "")
        for entry in classes:
            name = entry.rpartition(".")[2]
            stated = name.endswith(_STATES) or base.endswith(_STATES)
            rule = self._names.get(entry) or self._by_name(words_of(name), stated=stated)
            if rule is not None:
                return Verdict(rule, f"class {name}", (info,))
        return None

    def _by_name(self, words: tuple[str, ...], *, stated: bool) -> Rule | None:
        """Return the rule for a name, looking up the whole name, then its end, then its beginning.

        stated: whether the name is known to be an error's, so that its beginning says what is wrong.
        """
        table = self._names
        whole = table.get(f"={' '.join(words)}")
        if whole is not None:
            return whole
        for start in range(max(0, len(words) - 5), len(words)):
            rule = table.get(" ".join(words[start:]))
            if rule is not None:
                return rule
        last = words[-1] if words else ""
        if last in _NOTHING_MORE and len(words) > 1:
            return self._by_name(words[:-1], stated=stated)
        if not stated:
            return None
        for start in range(min(len(words) - 1, 5)):
            two = f"{words[start]} {words[start + 1]} *" if start + 2 < len(words) else ""
            rule = table.get(two) or table.get(f"{words[start]} *")
            if rule is not None:
                return rule
        return None

    def _status_rule(self, status: int) -> Rule | None:
        """Return the rule for a status; None for a success, a redirect or a status without a rule."""
        if status < 400:  # a success or a redirect
            return None
        return self._statuses.get(str(status)) or self._statuses.get(f"{status // 100}xx")

    def _by_status(self, info: ErrorInfo, status: int | None = None) -> Verdict | None:
        status = info.status_code if status is None else status
        rule = None if status is None else self._status_rule(status)
        return None if rule is None else Verdict(rule, f"status {status}", (info,))

    # --- words ---

    def _by_words(self, info: ErrorInfo) -> Verdict | None:
        own = info.is_a(*OWN)
        found = _searched(info, self._own_texts if own else self._texts)
        # An error page, or a status and its body, is the other side's, whatever class carries it.
        page = found is not None and found.rule.cause == Cause.BAD_RESPONSE
        answered = page or _WITH_BODY.search(info.message[:_MAX_TEXT]) is not None
        status = status_in(info.message) if answered or not own else None
        general = (
            found is None
            or found.rule.cause in (Cause.TIMEOUT, Cause.BAD_RESPONSE)
            or (own and found.rule.failure_type is FailureType.SCHEMA_MISMATCH)
        )
        if status is None or not general:
            return found
        return self._by_status(info, status) or found

    # --- what it wraps ---

    def _wrapped(self, info: ErrorInfo, depth: int) -> Iterator[Verdict]:
        """Yield verdicts on the exceptions that this one was raised from, and on a group's members."""
        if depth == 0:
            return
        noise = is_noise(info)
        for inner in _without_noise(info.related):
            if inner.relation == "context" and not (noise or _only_repeats(info, inner)):
                continue
            found = self.judge(inner, depth - 1)
            if found is not None:
                yield found.under(info)

    def _met(self, info: ErrorInfo, strong: Verdict, depth: int) -> Verdict | None:
        """Return the verdict behind a made-up status or a general class, if no server was reached."""
        made_up = strong.rule.looks_at == "status" and info.status_code == 500 and info.body is None
        # A class for what is not there says no more than the network did.
        general = strong.rule.name == "name.unavailable" and strong.text.startswith("class ")
        vague = made_up or (general and info.status_code is None)
        found = next(self._wrapped(info, depth), None) if vague else None
        return found if found is not None and found.rule.cause in _UNMET else None

    def _refined(self, info: ErrorInfo, weak: Verdict, depth: int) -> Verdict:
        """Refine the verdict of a general name by the message or by the exceptions behind it."""
        rule = weak.rule
        if rule.cause == Cause.INVALID_ARGUMENTS and is_invalid_json(info):
            return weak._replace(rule=NOT_JSON)
        said = _searched(info, self._refining[rule.failure_type])
        if said is None and info.status_code is None:
            # Some clients have one class for every refusal, or for every error of the server's.
            said = _searched(info, self._beyond.get(rule.name, []))
        if said is not None:
            return said
        if rule.cause == Cause.CONNECTION and info.status_code is None:
            stated = self._by_status(info, status_in(info.message) or 0)
            if stated is not None:
                return stated
        if depth == 0 or rule.cause not in _GENERAL:
            return weak
        for inner in info.related:
            found = self.judge(inner, depth - 1)
            if found is None or not found.known or found.rule.weak:
                continue
            of_form = rule.failure_type is FailureType.SCHEMA_MISMATCH
            if (
                found.rule.failure_type is rule.failure_type
                or found.info.status_code is not None
                or (of_form and found.rule.name in _OVER_FORM)
            ):
                return found.under(info)
        return weak


OWN = ("ValueError", "LookupError", "TypeError", "ArithmeticError", "AssertionError")
"""Classes that code raises about its own data: whatever the message, no other side has failed."""
_NOT_OF_OWN = frozenset(
    {FailureType.EXTERNAL_FAULT, FailureType.LOOP_DETECTED, FailureType.WRONG_TOOL_CALLED}
)
_UNAUTHORIZED = 401
_TOO_LARGE = 413
_STATES = ("Error", "Exception")
_NOTHING_MORE = frozenset(
    "failed failure problem issue response result ai exceeded reached exhausted triggered detected".split()
)
"""Last words of a name that say only that something went wrong."""
_UNMET = frozenset({Cause.CONNECTION, Cause.DNS, Cause.TLS, Cause.TIMEOUT})
_GENERAL = frozenset(
    {Cause.CONNECTION, Cause.SERVER_ERROR, Cause.MALFORMED_OUTPUT, Cause.AUTH, Cause.TLS}
)
"""Causes with vague class names; the exceptions behind such an error say more."""
_BEYOND = {
    "name.bad_request": frozenset({"text.rate", "text.quota", "text.no_quota", "text.auth"}),
    "name.server_error": frozenset({"text.integrity", "text.query", "text.missing", "text.value"}),
}
"""Rules on words that say more than a class for every refusal, or for every error of a server's."""
_MONEY = Pattern(r"credit|balance|billing|payment|funds|prepaid|top up|recharge|arrears")
"""Words of a quota that is paid for: no waiting renews it."""
_OVER_FORM = frozenset(
    {
        "name.unknown_tool",
        "text.unknown_tool",
        "text.context",
        "text.step_budget",
        "text.missing",
        "text.session",
        "text.history",
    }
)
"""Rules on words that may replace a verdict about the form of data."""


def _may_refine(rule: Rule, kind: FailureType) -> bool:
    """Return whether this rule on words may replace the verdict of a general name."""
    if kind is FailureType.SCHEMA_MISMATCH:
        return rule.name in _OVER_FORM
    if kind in (FailureType.EXTERNAL_FAULT, FailureType.HALLUCINATED_STATE):
        return rule.failure_type is kind and rule.cause != Cause.CONNECTION
    return False


def _more_special(status: Verdict, named: Verdict | None, weak: list[Verdict]) -> Verdict:
    """Return the status' verdict, or that of a name or code which is more exact."""
    status_code = status.info.status_code
    if status_code == 403 and status.info.retry_after_s is not None:  # forbidden, but only for now
        return status._replace(
            rule=status.rule._replace(name="http.forbidden_for_now", cause=Cause.RATE_LIMITED),
            text="status 403 and a delay to wait",
        )
    for other in (named, *weak):
        if other is None:
            continue
        limits = other.rule.cause == Cause.RATE_LIMITED and status_code in (403, 429)
        # Some services answer 400 to everything, so their code, or that a thing is missing, says more.
        coded = other is not named and other.rule.failure_type is not FailureType.SCHEMA_MISMATCH
        says_more = coded or other.rule.cause == Cause.MISSING_RESOURCE
        coarse = says_more and status.rule.cause == Cause.BAD_REQUEST
        if limits or coarse:
            return other
    return status


def _agreed(info: ErrorInfo, wrapped: list[Verdict]) -> Verdict:
    """Return the most severe verdict of a group's members if they agree, or else an unknown one."""
    members = [one for one in _without_noise(info.related) if one.relation == "group"]
    kinds = {found.rule.failure_type for found in wrapped}
    if len(kinds) == 1 and len(wrapped) >= len(members):
        order = list(Severity)
        return max(wrapped, key=lambda found: order.index(severity_of_rule(found.rule)))
    said = ", ".join(sorted({found.rule.failure_type.value for found in wrapped}))
    return Verdict(MIXED, f"members of different kinds: {said}", (info,))


def severity_of_rule(rule: Rule) -> Severity:
    """Return the severity of a rule's diagnosis."""
    return rule.severity or severity_of(rule.failure_type, rule.cause)


def _only_repeats(info: ErrorInfo, inner: ErrorInfo) -> bool:
    """Return whether an error raised while handling another only passes that one on."""
    message = inner.message.strip()
    own = info.message.strip()
    # A shorter message may occur by chance.
    return own == info.type_name or (len(message) > 4 and message[:200] in own)


def _is_sqlstate(code: str, info: ErrorInfo) -> bool:
    """Return whether a code is a SQLSTATE; digits alone count only for a database error."""
    if len(code) != _SQLSTATE_LENGTH or not code.isalnum() or code != code.upper():
        return False
    if not code.isdigit() or info.is_a("DatabaseError", "PostgresError", "DBAPIError", "SQLError"):
        return True
    return isinstance(info.body, dict) and info.body.keys() >= {"code", "hint", "details"}


_TEARDOWN = frozenset({
    "GeneratorExit", "CancelledError", "Cancelled", "BrokenResourceError", "ClosedResourceError",
    "EndOfStream",
})  # fmt: skip
_RUNTIMES = frozenset({"builtins", "asyncio", "anyio", "trio"})
_TEARDOWN_TEXT = Pattern(
    r"cancel scope|^(?:async )?generator (?:ignored GeneratorExit|didn't stop)|"
    r"^a(?:close|throw|send)\(\): asynchronous generator is already running|^Event loop is closed"
)


def is_noise(info: ErrorInfo) -> bool:
    """Return whether an error only tells that tasks and streams were torn down after another failure."""
    if info.is_a("BaseExceptionGroup"):
        members = [inner for inner in info.related if inner.relation == "group"]
        return bool(members) and all(map(is_noise, members))
    kind = (info.mro or (info.type_name,))[0]
    if kind == "builtins.RuntimeError":
        return _TEARDOWN_TEXT.search(info.message) is not None
    return kind.partition(".")[0] in _RUNTIMES and kind.rpartition(".")[2] in _TEARDOWN


def _without_noise(related: tuple[ErrorInfo, ...]) -> list[ErrorInfo]:
    """Return the related errors; of a group's members, those that are no noise if there are any."""
    telling = [one for one in related if one.relation == "group" and not is_noise(one)]
    return [one for one in related if one.relation != "group" or not telling or one in telling]


# --- words of a text -------------------------------------------------------------------------


def _searched(info: ErrorInfo, rules: Sequence[Rule], text: str | None = None) -> Verdict | None:
    """Return the verdict of the first rule whose words are in the text, by default the message."""
    whole = normal(_cut(info.message if text is None else text))
    bare = unquoted(whole)
    for rule in rules:
        part = bare if rule.unquoted else whole
        hits = [hit for pattern in _patterns(rule.keys) if (hit := pattern.search(part))]
        if hits:
            said = min(hits, key=re.Match.start)[0]
            return Verdict(rule, f"the words {said[:80]!r}", (info,))
    return None


@cache
def _patterns(keys: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Compile a rule's keys to match whole words, in one regex unless a key has groups of its own."""
    if any(re.search(r"(?<!\\)\((?!\?)|\(\?P", key) for key in keys):
        return tuple(re.compile(rf"(?<!\w)(?:{key})(?!\w)", re.DOTALL) for key in keys)
    return (re.compile(rf"(?<!\w)(?:{'|'.join(keys)})(?!\w)", re.DOTALL),)


_WITH_BODY = Pattern(r"\bstatus(?: code)?[ :=]{1,3}[45]\d\d[ :,;-]{1,3}\{\s?[\"']")
_STATUSES = [Pattern(rf"(?<!\w){pattern}") for pattern in STATUS_IN_TEXT]
_LEADING = [
    Pattern(rf"(?:(?:client|server) error ['\"]?)?(?:{pattern})")
    for pattern in STATUS_IN_TEXT
    if pattern != STATUS_TOLD
]


def status_in(message: str) -> int | None:
    """Return the HTTP status in a message if the words make clear that it is one, or else None."""
    text = normal(_cut(message))
    if re.search(r"[45]\d\d(?!\d)", text) is None:
        return None
    hits = (pattern.search(text) for pattern in _STATUSES)
    return next((int(hit[1]) for hit in hits if hit is not None), None)


def leading_status(message: str) -> int | None:
    """Return the HTTP status that a message begins with, as clients write it, or None."""
    text = normal(_cut(message))
    hits = (pattern.match(text) for pattern in _LEADING)
    return next((int(hit[1]) for hit in hits if hit is not None), None)


def _cut(text: str) -> str:
    """Cut a long text to its beginning and end, so that work on it is bounded."""
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1000]} {text[-1000:]}"


# --- the answer in an error ------------------------------------------------------------------

_CODES = (
    "code", "error_code", "type", "error_type", "status", "codeName", "errorCode", "error", "reason",
)  # fmt: skip
_SAYING = ("message", "detail", "error", "reason", "errmsg", "title", "description", "msg")
_HOLDING = ("error", "errors", "status", "detail", "details", "extensions")


def _codes_of(info: ErrorInfo) -> tuple[str, ...]:
    """Return the codes of an error, of its answer's body and of its message, most exact first."""
    found = [_closing(info)] if _WEBSOCKET.search(info.type_name) else []
    found += [info.code] if info.code else []
    found += [code for code in _texts_in(info.body, _CODES, 2) if " " not in code]
    if not info.is_a(*OWN):
        message = info.message[:_MAX_TEXT]
        found += [hit["code"] for written in _WRITTEN if (hit := written.search(message))]
        reply = _REPLY.match(message) if info.type_name.startswith("SMTP") else None
        found += [f"SMTP_{reply['code']}"] if reply else []
    return tuple(dict.fromkeys(code for code in found if code))


_WEBSOCKET = Pattern(r"WebSocket|ConnectionClosed|WSClose|WSServer")
_CLOSED_WITH = Pattern(r"\b(?:received|code|with|sent) ?[:=]? ?(?P<code>1\d{3}|4\d{3})\b")


def _closing(info: ErrorInfo) -> str:
    """Return the code with which a WebSocket was closed, or an empty text if none is given."""
    hit = _CLOSED_WITH.search(info.message[:_MAX_TEXT])
    code = info.code if info.code is not None and info.code.isdigit() else hit and hit["code"]
    return f"WS_{code}" if code else ""


_WRITTEN = (
    Pattern(
        r"(?:['\"](?:error_?)?(?:[Cc]ode|reason)['\"]\s?:\s?|\bcode: )['\"]?"
        r"(?P<code>[A-Z][A-Za-z_]{4,40}|[a-z]{2,20}(?:_[a-z]{2,20}){1,5})\b"
    ),
    Pattern(
        r"['\"](?:error_?)?[Tt]ype['\"]\s?:\s?['\"]"
        r"(?P<code>[A-Z_]{5,40}|[A-Za-z_]{4,40}(?:_error|Error|Exception))['\"]"
    ),
    Pattern(r"\((?P<code>[A-Z]{2,20}(?:_[A-Z]{2,20}){1,6})\)"),
    Pattern(r"\[(?P<code>[A-Z]{4,20}(?:-[A-Z]{2,20}){0,3}|[A-Z]{2,20}-[A-Z]{2,20})\] "),
    Pattern(r"(?<![\w-])(?P<code>-32[0-7]\d\d)\b"),
    Pattern(r"\b(?P<code>(?:ORA|DPY)-\d{4,5})\b"),
    Pattern(r"\bStatusCode\.(?P<code>[A-Z_]{5,30})\b"),
    Pattern(r"\((?P<code>[A-Z]\w{3,60})\) when calling the"),
    Pattern(r"[a-z]Error\('(?P<code>[a-z]{2,20}(?:_[a-z]{2,20}){1,6})'"),
)
"""Codes that a message writes out: GraphQL's and S3's, those in parentheses, IMAP's, JSON-RPC's,
Oracle's, gRPC's, those of AWS, and those in the representation of an error."""
_REPLY = Pattern(r"\D{0,40}\((?P<code>[45]\d\d),")
"""How a refused recipient is written."""


class Stated(NamedTuple):
    """The answer that a text holds. status: of the HTTP error, None if it is not given."""

    status: int | None
    body: dict[str, Any]


def answer_in(text: str) -> Stated | None:
    """Return the error body that a text holds, as JSON or as Python writes it, with its status."""
    text = text[:_MAX_BODY]
    start = text.find("{")
    body = None if start < 0 else _object(text, start)
    if body is None or not _is_error_body(body):
        return None
    error = body.get("error")
    inner = error if isinstance(error, dict) else body
    numbers = (_status_of(one.get(key)) for one in (inner, body) for key in _STATUS_KEYS)
    before = text[:start]
    written = _BEFORE.search(before)
    status = next(filter(None, numbers), None) or (
        int(written["status"]) if written else status_in(before)
    )
    metadata = inner.get("metadata")
    nested = [inner.get("message"), error, metadata.get("raw") if isinstance(metadata, dict) else 0]
    for value in nested:
        # A gateway passes on the answer of the service behind it.
        found = answer_in(value) if isinstance(value, str) and "{" in value else None
        if found is not None:
            return found if found.status else found._replace(status=status)
    return Stated(status, body)


_MAX_BODY = 16_000
_STATUS_KEYS = ("status_code", "status", "statusCode", "http_status", "code")
_KEYS = Pattern(r"\{\s*['\"]\w{1,40}['\"]\s*:")
_BEFORE = Pattern(r"(?<![\w.])(?P<status>[45]\d\d)(?: [A-Z_]{2,40}\.?)?[\s:,;-]{0,4}$")
_NO_LITERAL = re.compile(r"\\[^'\"abfnrtvxNuU0-7\n]|\d(?:and|else|for|if|in|is|or|not)\b")
"""What Python's parser warns about: no `repr` has it."""


def _object(text: str, start: int) -> dict[str, Any] | None:
    if _KEYS.match(text, start) is None:
        return None
    found: Any = None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        literal = text[start : text.rfind("}") + 1]
        if _NO_LITERAL.search(literal.replace("\\\\", "")) is None:
            try:
                found = ast.literal_eval(literal)
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                return None
    return found if isinstance(found, dict) and all(isinstance(key, str) for key in found) else None


def _is_error_body(body: dict[str, Any]) -> bool:
    if body.get("error"):
        return True
    if any(_status_of(body.get(key)) for key in _STATUS_KEYS[:-1]):
        return True
    said = any(isinstance(body.get(key), str) for key in ("message", "detail", "msg"))
    return said and any(body.get(key) for key in (*_STATUS_KEYS, "type"))


def _status_of(value: Any) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isdecimal():
        value = int(value)
    return value if type(value) is int and 400 <= value <= 599 else None


def _with_answer(info: ErrorInfo) -> ErrorInfo:
    """Return the error with the answer that its message holds, if it has none of its own.

    Only for a verdict: words in a message say nothing about how far the request got.
    """
    if info.status_code is not None or info.body is not None or "{" not in info.message:
        return info
    found = None if info.is_a(*OWN) else answer_in(info.message)
    if found is None:
        return info
    delay = info.retry_after_s
    delay = from_body(found.body) if delay is None else delay
    return replace(info, status_code=found.status, body=found.body, retry_after_s=delay)


def _answer_text(info: ErrorInfo) -> str:
    """Return the message and the texts in the body."""
    message = info.message[:_MAX_TEXT]
    if isinstance(info.body, str):
        return f"{message}\n{info.body}"
    return "\n".join([message, *dict.fromkeys(_texts_in(info.body, _SAYING, 3))])


def _texts_in(body: Any, names: tuple[str, ...], depth: int) -> list[str]:
    """Return the texts under these names in an answer and, down to `depth`, in what it holds."""
    if isinstance(body, list | tuple):
        # A field that failed validation has a type of its own: `missing` is no code of the answer.
        items = [
            item for item in body[:_MAX_DETAILS] if isinstance(item, dict) and "loc" not in item
        ]
        return [text for item in items for text in _texts_in(item, names, depth)]
    if not isinstance(body, dict):
        return []
    values = [body.get(each) for name in names for each in (name, name[:1].upper() + name[1:])]
    found = [value[:_MAX_TEXT] for value in values if isinstance(value, str) and value]
    for inner in map(body.get, _HOLDING) if depth else ():
        found += _texts_in(inner, names, depth - 1)
    return found


# --- how an error is shown -------------------------------------------------------------------


def _content(info: ErrorInfo) -> str:
    """Describe the first fields that failed validation, or else return the quoted message."""
    parser = not_json(info)
    if parser is not None:
        return said_by(parser)
    fields = fields_of(info)
    if not fields:
        return _message(info)
    shown = "; ".join(
        f"{quote(field.name or 'the value', 60)}: {said_by(field.problem)}"
        for field in fields[:_SHOWN_FIELDS]
    )
    more = len(fields) - _SHOWN_FIELDS
    return f"{shown} and {more} more" if more > 0 else shown


def _message(info: ErrorInfo) -> str:
    """Return the quoted message; empty if it is only the class name."""
    said = info.message.strip()
    return "" if not said or said == info.type_name else said_by(said)
