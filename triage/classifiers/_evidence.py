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
    status = _status(info, rule)
    confidence = rule.confidence if status is None else _confidence(judge, rule, status)
    if rule.looks_at == "status":
        said = judge.words(info, rule.cause) or _message(info)
        tail = f"{seen}, {said}" if said else seen
        return Weighed(f"{info.type_name}: {tail}", confidence)
    if status is not None:
        seen = f"status {status}, {seen}"
    if not verdict.text.startswith("class "):
        return Weighed(f"{info.type_name}: {seen}", confidence)
    message = info.message
    if rule.failure_type is _SCHEMA:
        said = _content(info)
    elif message and len(message) <= MAX_CLEAN and message.strip() == message != info.type_name:
        clean = redact(message)
        text = f"{info.type_name}: {seen}, {shown(clean)}"
        # What is made of a tuple costs a third of a call with the fields.
        return tuple.__new__(Weighed, (text, confidence, clean))
    else:
        said = _message(info)
    return Weighed(
        f"{info.type_name}: {seen}, {said}" if said else f"{info.type_name}: {seen}", confidence
    )


def _confidence(judge: Judge, rule: Rule, status: int) -> float:
    """The rule's confidence, raised where the status agrees with what the rule saw."""
    other = judge.status_rule(status)
    if other is None or other.failure_type is not rule.failure_type:
        return rule.confidence
    if severity_of_rule(other) is not severity_of_rule(rule):
        return rule.confidence
    return max(rule.confidence, AGREED)


def _status(info: ErrorInfo, rule: Rule) -> int | None:
    """The status of the answer, or the one that an error without an answer writes out."""
    status = info.status_code
    if status is None and rule.looks_at == "text":
        status = status_in(info.message)
    return status if status is not None and 100 <= status <= 599 else None  # noqa: PLR2004 - the range of HTTP statuses


def _content(info: ErrorInfo) -> str:
    """The first fields that failed, for data without the agreed form; else the message."""
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
    message = info.message.strip()
    return said_by(message) if message and message != info.type_name else ""
