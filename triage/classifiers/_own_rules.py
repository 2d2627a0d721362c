"""Rules that somebody else wrote, checked where they are handed in."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from triage._refuse import refuse
from triage.taxonomy import FailureType, Level, Severity

from ._rule import LooksAt, Rule

E = TypeVar("E", FailureType, Severity, Level)
_KINDS: tuple[str, ...] = get_args(LooksAt)


def checked(rules: object, built_in: Collection[Rule]) -> tuple[Rule, ...]:
    """The rules, with values as members; the built-in ones among them are not looked at again.

    Raises TypeError or ValueError naming the rule, its field and what would be right.
    """
    if isinstance(rules, Rule) or not isinstance(rules, Iterable):
        raise refuse("RulesClassifier.rules", rules, "an iterable of Rule")
    known = {id(rule) for rule in built_in}
    return tuple(rule if id(rule) in known else _checked(rule) for rule in rules)


def _checked(rule: object) -> Rule:
    if not isinstance(rule, Rule):
        raise refuse("RulesClassifier.rules item", rule, "a Rule")
    name: object = rule.name
    if not isinstance(name, str) or not name:
        raise refuse("Rule.name", name, "text that is not empty")
    field = f"Rule {rule.name!r}"
    if rule.looks_at not in _KINDS:
        close = get_close_matches(str(rule.looks_at), _KINDS, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"{field} looks_at must be one of {', '.join(_KINDS)}, not {rule.looks_at!r}{meant}"
        )
    for key in _keys(rule, field):
        _CHECKS.get(rule.looks_at, _no_check)(field, key)
    confidence: Any = rule.confidence
    if isinstance(confidence, bool) or not isinstance(confidence, int | float):
        raise refuse(f"{field} confidence", confidence, "a number from 0 to 1")
    if not 0 <= confidence <= 1:
        raise ValueError(f"{field} confidence must be from 0 to 1, not {confidence}")
    if rule.cause is not None and not isinstance(rule.cause, str):
        raise refuse(f"{field} cause", rule.cause, "text or None")
    return rule._replace(
        failure_type=_member(FailureType, f"{field} failure_type", rule.failure_type),
        severity=None
        if rule.severity is None
        else _member(Severity, f"{field} severity", rule.severity),
        level=None if rule.level is None else _member(Level, f"{field} level", rule.level),
        keys=tuple(rule.keys),
    )


def _keys(rule: Rule, field: str) -> tuple[str, ...]:
    keys: object = rule.keys
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise refuse(f"{field} keys", keys, "a tuple of texts, such as ('sold out',)")
    found = tuple(keys)
    if not found:
        raise ValueError(f"{field} keys must not be empty: without one it can never fire")
    for key in found:
        if not isinstance(key, str) or not key:
            raise refuse(f"{field} keys item", key, "text that is not empty")
    return found


def _expression(field: str, key: str) -> None:
    try:
        re.compile(key)
    except re.error as error:
        raise ValueError(f"{field} keys: {key!r} is not a regular expression: {error}") from None
    # What is escaped, in a class or the name of a group is no text that has to be met.
    plain = re.sub(r"\\.|\[[^\]]*\]|\(\?P[<=]\w*[>)]", "", key)
    wrong = next((char for char in plain if char.isupper() or char in "_-"), None)
    if wrong is not None:
        better = "a lower-case letter" if wrong.isupper() else "a space"
        raise ValueError(
            f"{field} keys: {key!r} can never fit, since texts are read in lower case with _ and - "
            f"as spaces; write {better} in place of {wrong!r}"
        )


def _status(field: str, key: str) -> None:
    if re.fullmatch(r"[1-5](?:\d\d|xx)", key) is None:
        raise ValueError(
            f"{field} keys: {key!r} is no HTTP status; write three digits ('429') or a class ('5xx')"
        )


def _words(field: str, key: str) -> None:
    if "." not in key and key != key.lower():
        raise ValueError(
            f"{field} keys: {key!r} can never fit, since names are read as words in lower case; write "
            "'rate limit' for RateLimitError, or a full class name with its module"
        )


def _no_check(_: str, __: str) -> None:
    """Codes are compared as they are."""


_CHECKS = {"text": _expression, "answer": _expression, "status": _status, "name": _words}


def _member(enum: type[E], field: str, value: Any) -> E:
    try:
        return enum(value)
    except ValueError:
        known = ", ".join(member.value for member in enum)
        raise ValueError(f"{field} must be one of {known}, not {value!r}") from None
