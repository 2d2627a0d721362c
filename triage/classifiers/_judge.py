"""What an exception says, and those behind it: the rules applied to `ErrorInfo`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from triage.failures import ErrorInfo
from triage.taxonomy import Cause, FailureType, Severity, severity_of

from ._answer_words import answer_text, codes_of
from ._fields import is_invalid_json
from ._loose import LOOSE
from ._rule import Rule, words_of
from ._search import Words, status_in

_SQLSTATE_LENGTH = 5
_CLASS_LENGTH = 2
_MAX_DEPTH = 24
# A member of an enumeration costs a call wherever it is asked for by name, and so does the class of
# a tuple where it is called.
_UNKNOWN, _ARGUMENTS = FailureType.UNKNOWN, Cause.INVALID_ARGUMENTS
_SCHEMA = FailureType.SCHEMA_MISMATCH
_new = tuple.__new__


class Verdict(NamedTuple):
    """What a rule said of an exception. path: from the outermost exception to the deciding one."""

    rule: Rule
    text: str
    path: tuple[ErrorInfo, ...]

    @property
    def known(self) -> bool:
        """False when all that is known is that nothing is."""
        return self.rule.failure_type is not _UNKNOWN

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
    """The rules, indexed once; `judge` is pure."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._by: dict[str, dict[str, Rule]] = {"status": {}, "code": {}, "name": {}}
        answers = [rule for rule in rules if rule.looks_at == "answer"]
        texts = [rule for rule in rules if rule.looks_at == "text"]
        for rule in rules:
            if rule.looks_at in self._by:
                table = self._by[rule.looks_at]
                for key in rule.keys:
                    table.setdefault(key, rule)
        self._by_words = lru_cache(maxsize=1024)(self._named)
        self._of_classes = lru_cache(maxsize=1024)(self._classed)
        self._texts = {"answer": Words(answers), "text": Words(texts)}
        self._over = {
            kind: Words(rule for rule in texts if _may_refine(rule, kind)) for kind in FailureType
        }
        saying: dict[Cause | str | None, list[Rule]] = {}
        for rule in (*answers, *texts):
            saying.setdefault(rule.cause, []).append(rule)
        self._saying = {cause: Words(some) for cause, some in saying.items()}
        self._full = Words(rule for rule in texts if rule.name == "text.context")

    def judge(self, info: ErrorInfo, depth: int = _MAX_DEPTH) -> Verdict | None:
        """What an exception comes to, those it was raised from included; None if nothing speaks."""
        strong, weak = self._structure(info)
        if strong is not None:
            return strong
        if weak is not None:
            return self._refined(info, weak, depth)
        wrapped = list(self._wrapped(info, depth))
        grouped = any(inner.relation == "group" for inner in info.related)
        if wrapped and not grouped and wrapped[0].known and _structured(wrapped[0]):
            return wrapped[0]
        own = self._text(info)
        if own is not None:
            return own
        if grouped:
            return _agreed(info, wrapped)
        return wrapped[0] if wrapped else self._bad_answer(info)

    def status_rule(self, status: int) -> Rule | None:
        """The rule on a status, None for a success and where no rule is."""
        if status < 400:  # noqa: PLR2004 - below are successes and redirects
            return None
        table = self._by["status"]
        return table.get(str(status)) or table.get(f"{status // 100}xx")

    def words(self, info: ErrorInfo, cause: Cause | str | None) -> str | None:
        """The words of an error and its answer that speak for this cause, None without any."""
        words = self._saying.get(cause)
        found = None if words is None else self._search(info, words, answer_text(info))
        return None if found is None else found.text

    # --- what the exception itself says ---

    def _structure(self, info: ErrorInfo) -> tuple[Verdict | None, Verdict | None]:
        """The verdict by code, answer, class and status, and the weak one that more may refine."""
        weak: list[Verdict] = []
        # All at once: a field asked for by name costs as much as three fields do so.
        name, _, mro, _, status_code, code, _, _, body, _, _, _, _ = info
        codes = codes_of(info) if code or body is not None else ()
        if codes:
            for found in self._codes(info, codes):
                if not found.rule.weak:
                    return found, None
                weak.append(found)
        if status_code is not None or body is not None or codes:
            answered = self._search(info, self._texts["answer"], answer_text(info))
            if answered is not None and (answered.rule.looks_at, status_code) != ("answer", 200):
                return _waits(answered, self._by["status"]), None
        named: Verdict | None = None
        known = False
        classed = self._of_classes(mro or (name,))
        if classed is not None:
            rule, seen, known = classed
            named = _new(Verdict, (rule, seen, (info,)))
            if known and not rule.weak:
                return named, None
        status = None if status_code is None else self._status(info, status_code)
        if status is not None:
            return _more_special(status, named, weak), None
        if named is not None:
            return (None, named) if known else (self._spoken(info, named), None)
        return None, weak[0] if weak else None

    def _spoken(self, info: ErrorInfo, named: Verdict) -> Verdict:
        """A built-in class of a defect, unless an exit was given words of a full context window."""
        if named.rule.cause == Cause.CANCELLED and info.message != info.type_name:
            return self._search(info, self._full) or named
        return named

    def _codes(self, info: ErrorInfo, codes: tuple[str, ...]) -> Iterator[Verdict]:
        for code in codes:
            sql = _is_sqlstate(code, info)
            # Two characters are the key of a class of SQLSTATE, never a code of their own.
            rule = self._by["code"].get(code) if sql or len(code) > _CLASS_LENGTH else None
            if rule is None and sql:
                rule = self._by["code"].get(code[:_CLASS_LENGTH])
            if rule is None:
                rule = self._by_words(words_of(code), True)  # noqa: FBT003 - a cached method takes no names
            if rule is not None:
                yield Verdict(rule, f"code {code}", (info,))

    def _classed(self, mro: tuple[str, ...]) -> tuple[Rule, str, bool] | None:
        """The rule on the first of these classes that has one, what was seen, and whether that is known."""
        table = self._by["name"]
        # A library's own base class says what its names are: `InvalidPath(VaultError)`.
        base = next((entry for entry in mro[1:2] if not entry.startswith("builtins.")), "")
        for entry in mro:
            name = entry.rpartition(".")[2]
            stated = name.endswith(_STATES) or base.endswith(_STATES)
            rule = table.get(entry) or self._by_words(words_of(name), stated)
            if rule is not None:
                return rule, f"class {name}", rule.failure_type is not _UNKNOWN
        return None

    def _named(self, words: tuple[str, ...], stated: bool) -> Rule | None:  # noqa: FBT001 - as above
        """The rule on a name: of the whole, else of its end, else of what it begins to say.

        stated: the name is that of an error, so that its beginning says what is wrong.
        """
        table = self._by["name"]
        whole = table.get(f"={' '.join(words)}")
        if whole is not None:
            return whole
        for start in range(max(0, len(words) - 5), len(words)):
            rule = table.get(" ".join(words[start:]))
            if rule is not None:
                return rule
        last = words[-1] if words else ""
        if last in _NOTHING_MORE and len(words) > 1:
            return self._by_words(words[:-1], stated)
        if not stated or last in _ABOUT_SETTINGS:
            return None
        for start in range(min(len(words) - 1, 5)):
            two = f"{words[start]} {words[start + 1]} *" if start + 2 < len(words) else ""
            rule = table.get(two) or table.get(f"{words[start]} *")
            if rule is not None:
                return rule
        return None

    def _status(self, info: ErrorInfo, status: int) -> Verdict | None:
        rule = self.status_rule(status)
        return None if rule is None else Verdict(rule, f"status {status}", (info,))

    def _bad_answer(self, info: ErrorInfo) -> Verdict | None:
        if info.status_code is not None and 200 <= info.status_code < 300:  # noqa: PLR2004 - successes
            return Verdict(BAD_ANSWER, f"status {info.status_code}", (info,))
        return None

    # --- words ---

    def _text(self, info: ErrorInfo) -> Verdict | None:
        status = status_in(info.message)
        found = self._search(info, self._texts["text"]) or self._translated(info)
        general = (
            found is None or found.rule.confidence <= LOOSE or found.rule.cause == Cause.TIMEOUT
        )
        if status is None or not general:
            return found
        return self._status(info, status) or found

    def _search(self, info: ErrorInfo, rules: Words, text: str | None = None) -> Verdict | None:
        found = rules.first(info.message if text is None else text)
        if found is None:
            return None
        rule, said = found
        return Verdict(rule, f"the words {said[:80]!r}", (info,))

    def _translated(self, info: ErrorInfo) -> Verdict | None:
        """What words of another language say."""
        from ._glossary import in_english

        said = in_english(info.message)
        found = None if said is None else self._texts["text"].first(said.english)
        if found is None or said is None:
            return None
        return Verdict(found[0], f"the words {said.words[:80]!r}", (info,))

    # --- what it wraps ---

    def _wrapped(self, info: ErrorInfo, depth: int) -> Iterator[Verdict]:
        """Verdicts on what the exception was raised from, and on the members of a group."""
        if depth == 0:
            return
        for inner in info.related:
            if inner.relation == "context" and not _only_repeats(info, inner):
                continue
            found = self.judge(inner, depth - 1)
            if found is not None:
                yield found.under(info)

    def _refined(self, info: ErrorInfo, weak: Verdict, depth: int) -> Verdict:
        """A verdict of a general name, made exact by its words or by what it was raised from."""
        rule = weak.rule
        kind, cause = rule.failure_type, rule.cause
        if cause == _ARGUMENTS and is_invalid_json(info):
            return weak._replace(rule=NOT_JSON)
        said = self._search(info, self._over[kind])
        if said is not None:
            return said
        if depth and info.related and cause in _GENERAL:
            for inner in info.related:
                found = self.judge(inner, depth - 1)
                if found is None or not found.known or found.rule.weak:
                    continue
                if (
                    found.rule.failure_type is kind
                    or found.info.status_code is not None
                    or (kind is _SCHEMA and found.rule.name in _OVER_FORM)
                ):
                    return found.under(info)
        return weak


_STATES = ("Error", "Exception")
_NOTHING_MORE = frozenset({"failed", "failure", "problem", "issue", "response", "result", "ai"})
"""Last words of a name that say no more than that something went wrong."""
_ABOUT_SETTINGS = frozenset({"config", "configuration", "settings", "option", "options"})
"""Last words of names that are about a setting: `InvalidTimeoutConfig` is about no invalid data."""
_GENERAL = frozenset(
    {Cause.CONNECTION, Cause.SERVER_ERROR, Cause.MALFORMED_OUTPUT, Cause.AUTH, Cause.TLS}
)
"""Causes whose names say little; what such errors were raised from says more."""
_OVER_FORM = frozenset({"text.unknown_tool", "text.context", "text.step_budget", "text.missing"})
"""What words may say of an error whose class speaks of the form of data."""


def _may_refine(rule: Rule, kind: FailureType) -> bool:
    """Whether words may replace a verdict that a general name gave."""
    if rule.confidence <= LOOSE:
        return False
    if kind is FailureType.SCHEMA_MISMATCH:
        return rule.name in _OVER_FORM
    if kind in (FailureType.EXTERNAL_FAULT, FailureType.HALLUCINATED_STATE):
        return rule.failure_type is kind and rule.cause != Cause.CONNECTION
    return False


def _waits(found: Verdict, statuses: dict[str, Rule]) -> Verdict:
    """A quota for which the other side names a delay is a rate: waiting helps."""
    limited = statuses.get("429")
    info = found.info
    if (
        found.rule.cause == Cause.QUOTA_EXHAUSTED
        and info.retry_after_s is not None
        and limited is not None
    ):
        return Verdict(limited, f"{found.text}, and a delay to wait", (info,))
    return found


def _more_special(status: Verdict, named: Verdict | None, weak: list[Verdict]) -> Verdict:
    """The status' verdict, or that of a name or code of the same kind that says it more exactly."""
    status_code = status.info.status_code
    if status_code == 403 and status.info.retry_after_s is not None:  # noqa: PLR2004 - forbidden, but only for now
        return status._replace(
            rule=status.rule._replace(name="http.forbidden_for_now", cause=Cause.RATE_LIMITED),
            text="status 403 and a delay to wait",
        )
    for other in (named, *weak):
        if other is None:
            continue
        limits = other.rule.cause == Cause.RATE_LIMITED and status_code in (403, 429)
        # Some services answer 400 to everything; their code, not their status, says what it was.
        coded = other is not named and other.rule.failure_type is not FailureType.SCHEMA_MISMATCH
        coarse = coded and status.rule.cause == Cause.BAD_REQUEST
        # A status that a client made up for data it refused itself: no answer came with it.
        own = other.rule.failure_type is FailureType.SCHEMA_MISMATCH and _made_up(status)
        same = other.rule.cause == Cause.MISSING_RESOURCE and (
            other.rule.failure_type is status.rule.failure_type
            or status.rule.cause == Cause.BAD_REQUEST
        )
        if limits or same or coarse or own:
            return other
    return status


def _made_up(status: Verdict) -> bool:
    info = status.info
    return info.status_code == 500 and info.body is None  # noqa: PLR2004 - the status of any defect


def _agreed(info: ErrorInfo, wrapped: list[Verdict]) -> Verdict | None:
    """A group's verdict: that of its members where they agree, unknown where they differ."""
    members = [inner for inner in info.related if inner.relation == "group"]
    if not wrapped:
        return None
    kinds = {found.rule.failure_type for found in wrapped}
    if len(kinds) == 1 and len(wrapped) >= len(members):
        order = list(Severity)
        return max(wrapped, key=lambda found: order.index(severity_of_rule(found.rule)))
    said = ", ".join(sorted({found.rule.failure_type.value for found in wrapped}))
    return Verdict(MIXED, f"members of different kinds: {said}", (info,))


def severity_of_rule(rule: Rule) -> Severity:
    """The severity a rule's diagnosis has."""
    return rule.severity or severity_of(rule.failure_type, rule.cause)


def _structured(verdict: Verdict) -> bool:
    return verdict.rule.looks_at in ("status", "code", "name", "answer")


def _only_repeats(info: ErrorInfo, inner: ErrorInfo) -> bool:
    """True if an error raised while another was handled only passes that one on."""
    message = inner.message.strip()
    own = info.message.strip()
    return own == info.type_name or (len(message) > 4 and message[:200] in own)  # noqa: PLR2004 - shorter is chance


def _is_sqlstate(code: str, info: ErrorInfo) -> bool:
    """Five capitals and digits; digits alone only on a database's error, since others count too."""
    if len(code) != _SQLSTATE_LENGTH or not code.isalnum() or code != code.upper():
        return False
    return not code.isdigit() or info.is_a(
        "DatabaseError", "PostgresError", "DBAPIError", "SQLError"
    )
