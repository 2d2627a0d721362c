"""What speaks for a verdict on an exception, and how much: its status, its words, its class."""

from __future__ import annotations

from typing import NamedTuple

from triage.failures import ErrorInfo
from triage.redact import redact
from triage.taxonomy import FailureType

from ._fields import fields_of, not_json
from ._judge import Judge, Verdict, severity_of_rule
from ._rule import Rule
from ._search import status_in
from ._shown import MAX_CLEAN, quote, said_by, shown

_SCHEMA = FailureType.SCHEMA_MISMATCH
AGREED = 0.95
"""Confidence where a status and the words, code or class beside it say the same."""
_SHOWN_FIELDS = 3
_new = tuple.__new__


class Weighed(NamedTuple):
    """What speaks for a verdict. text: what was seen, quoted where others wrote it. clean: the whole
    message of the error that decided, without credentials, where it was made for the text; else None.
    """

    text: str
    confidence: float
    clean: str | None = None


def weigh(judge: Judge, verdict: Verdict) -> Weighed:
    """What was seen, in short, and how sure it makes."""
    rule, seen, path = verdict
    info = path[-1]
    looks_at, name, confidence = rule.looks_at, info.type_name, rule.confidence
    status = info.status_code
    if status is None and looks_at == "text":
        # An error without an answer may write one out.
        status = status_in(info.message)
    if status is not None and not 100 <= status <= 599:  # noqa: PLR2004 - the range of HTTP statuses
        status = None
    if status is not None:
        confidence = _confidence(judge, rule, status)
    said, clean = "", None
    if looks_at == "status":
        said = judge.words(info, rule.cause) or ""
        if not said:
            said, clean = _message(info)
    else:
        if status is not None:
            seen = f"status {status}, {seen}"
        if verdict[1].startswith("class "):
            said, clean = _content(info) if rule.failure_type is _SCHEMA else _message(info)
    text = f"{name}: {seen}, {said}" if said else f"{name}: {seen}"
    # What is made of a tuple costs a third of a call with the fields.
    return _new(Weighed, (text, confidence, clean))


def _confidence(judge: Judge, rule: Rule, status: int) -> float:
    """The rule's confidence, raised where the status agrees with what the rule saw."""
    other = judge.status_rule(status)
    if other is None or other.failure_type is not rule.failure_type:
        return rule.confidence
    if severity_of_rule(other) is not severity_of_rule(rule):
        return rule.confidence
    return max(rule.confidence, AGREED)


def _content(info: ErrorInfo) -> tuple[str, str | None]:
    """The first fields that failed, for data without the agreed form; else as `_message`."""
    parser = not_json(info)
    if parser is not None:
        return said_by(parser), None
    fields = fields_of(info)
    if not fields:
        return _message(info)
    shown = "; ".join(
        f"{quote(field.name or 'the value', 60)}: {said_by(field.problem)}"
        for field in fields[:_SHOWN_FIELDS]
    )
    more = len(fields) - _SHOWN_FIELDS
    return (f"{shown} and {more} more" if more > 0 else shown), None


def _message(info: ErrorInfo) -> tuple[str, str | None]:
    """The message, quoted, and all of it without credentials, where that was made for the quotation."""
    message = info.message
    said = message.strip()
    if not said or said == info.type_name:
        return "", None
    if said != message or len(said) > MAX_CLEAN:
        return said_by(said), None
    clean = redact(said)
    return shown(clean), clean
