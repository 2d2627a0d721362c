"""The same question asked again and again in ways that only the whole shows to be the same.

These cost more than what is looked at with each step, and are less sure than what a run that goes on
may be stopped for. So they are looked for once, when an attempt has failed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from triage.steps import ERROR, INPUT, METADATA, OUTPUT, SAID, TOOL, Row, Step

from ._loops import REPEATS, Loop, parsed
from ._near import near, words

_LONGEST = 2_000
_NUMBER = re.compile(r"\d+")
_FEWEST = 3
"""Words, from which on their order says nothing: "Porto Faro" and "Faro Porto" are two ways."""


def asked_anew(steps: Sequence[Step], exempt: Collection[str] = ()) -> Loop | None:
    """Calls at the very end that got one result and asked for one thing: in other words, at other times.

    Words between the calls are looked over. exempt: tools that may repeat themselves.
    """
    last = steps[-1].row if steps else None
    if last is None or last[TOOL] is None or last[TOOL] in exempt or last[OUTPUT] is None:
        return None
    asked = _given(last)
    start, repeats = len(steps) - 1, 1
    for at in range(len(steps) - 2, -1, -1):
        row = steps[at].row
        if row[TOOL] is None and row[SAID] and row[OUTPUT] is None:
            continue
        same = row[TOOL] == last[TOOL] and row[OUTPUT] == last[OUTPUT] and row[ERROR] == last[ERROR]
        if not same or _replayed(row) or not _asks_the_same(_given(row), asked):
            break
        start, repeats = at, repeats + 1
    return Loop(start, 1, repeats, "near") if repeats >= REPEATS else None


def _replayed(row: Row) -> bool:
    return bool(row[METADATA] and row[METADATA].get("replayed"))


def _given(row: Row) -> Any:
    given = row[INPUT]
    return parsed(given) if isinstance(given, str) and given[:1] == "{" else given


def _asks_the_same(one: Any, other: Any) -> bool:
    """Whether two arguments ask for the same: the same words in any order, the same but for marks.

    A mark tells one request from another and nothing else: an id of the request, the time at which it
    was made. Looser than `near`: for calls that have had the same result.
    """
    if near(one, other):
        return True
    if type(one) is not type(other):
        return False
    if type(one) is str:
        return _same_words(one, other)
    if type(one) is not dict or one.keys() != other.keys():
        return False
    return all(
        _asks_the_same(value, other[key]) or _is_mark(key, value, other[key])
        for key, value in one.items()
    )


def _same_words(one: str, other: str) -> bool:
    if max(len(one), len(other)) > _LONGEST or _NUMBER.findall(one) != _NUMBER.findall(other):
        return False
    found = words(one)
    return len(found) >= _FEWEST and sorted(found) == sorted(words(other))


_MARKS = frozenset({
    "requestid", "reqid", "traceid", "correlationid", "callid", "toolcallid", "idempotencykey", "nonce",
    "cachebuster",
})  # fmt: skip
_STAMPS = frozenset({
    "ts", "timestamp", "now", "currenttime", "requesttime", "requestedat", "sentat", "calledat",
})  # fmt: skip
_AT_ONCE = 600.0
"""Seconds within which the times of two calls are those of one question."""
_SINCE_1970 = 1e9
"""From here a number is a time in seconds, and from a thousand times that in milliseconds."""


def _is_mark(key: Any, one: Any, other: Any) -> bool:
    name = re.sub(r"[^a-z]", "", str(key).lower())
    if name in _MARKS:
        return True
    if name not in _STAMPS:
        return False
    first, second = _moment(one), _moment(other)
    return first is not None and second is not None and abs(first - second) <= _AT_ONCE


def _moment(value: Any) -> float | None:
    """Seconds since 1970 of a number or an ISO date with a time, None for anything else."""
    if isinstance(value, str):
        try:
            return (
                datetime.fromisoformat(value).timestamp()
                if ":" in value
                else _seconds(float(value))
            )
        except (ValueError, OverflowError, OSError):
            return None
    if type(value) is float or (type(value) is int and abs(value) < _FAR):
        return _seconds(float(value))
    return None


_FAR = 1 << 64


def _seconds(number: float) -> float | None:
    if not _SINCE_1970 <= number < _FAR:
        return None
    return number / 1000 if number >= 1000 * _SINCE_1970 else number
