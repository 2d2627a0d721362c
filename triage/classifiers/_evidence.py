"""What speaks for a verdict on an exception, and how much: its status, its words, its class."""

from __future__ import annotations

from triage.failures import ErrorInfo
from triage.taxonomy import FailureType

from ._fields import fields_of, not_json
from ._judge import Judge, Verdict, severity_of_rule
from ._rule import Rule
from ._search import status_in
from ._shown import quote, said_by

AGREED = 0.95
"""Confidence where a status and the words, code or class beside it say the same."""
_SHOWN_FIELDS = 3


def text_of(judge: Judge, verdict: Verdict) -> str:
    """What was seen: short, quoted where others wrote it."""
    info, rule = verdict.info, verdict.rule
    seen = [verdict.text]
    if rule.looks_at == "status":
        words = judge.words(info, rule.cause)
        said = words or _message(info)
        seen += [said] if said else []
    else:
        status = _status(verdict)
        if status is not None:
            seen.insert(0, f"status {status}")
        said = _content(info, rule) if verdict.text.startswith("class ") else ""
        seen += [said] if said else []
    return f"{info.type_name}: {', '.join(seen)}"


def confidence_of(judge: Judge, verdict: Verdict) -> float:
    """The rule's confidence, raised where the status agrees with what the rule saw."""
    rule = verdict.rule
    status = _status(verdict)
    other = None if status is None else judge.status_rule(status)
    if other is None or other.failure_type is not rule.failure_type:
        return rule.confidence
    if severity_of_rule(other) is not severity_of_rule(rule):
        return rule.confidence
    return max(rule.confidence, AGREED)


def _status(verdict: Verdict) -> int | None:
    """The status of the answer, or the one that an error without an answer writes out."""
    info = verdict.info
    status = info.status_code
    if status is None and verdict.rule.looks_at == "text":
        status = status_in(info.message)
    return status if status is not None and 100 <= status <= 599 else None  # noqa: PLR2004 - the range of HTTP statuses


def _content(info: ErrorInfo, rule: Rule) -> str:
    """The first fields that failed, for data without the agreed form; else the message."""
    if rule.failure_type is not FailureType.SCHEMA_MISMATCH:
        return _message(info)
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
