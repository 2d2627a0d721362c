"""The same question asked again and again in ways that only the whole shows to be the same.

These cost more than what is looked at with each step, and are less sure than what a run that goes on
may be stopped for. So they are looked for once, when an attempt has failed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from triage.state import is_reused
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
    start, repeats, needed = len(steps) - 1, 1, REPEATS
    for at in range(len(steps) - 2, -1, -1):
        row = steps[at].row
        if row[TOOL] is None and row[SAID] and row[OUTPUT] is None:
            continue
        same = row[TOOL] == last[TOOL] and row[ERROR] == last[ERROR]
        if not same or is_reused(row[METADATA]):
            break
        given = _given(row)
        exactly = _asks_the_same(given, asked)
        if not (exactly or _asks_more_or_less(given, asked)):
            break
        if not _same_result(row[OUTPUT], last[OUTPUT]):
            break
        needed = max(needed, REPEATS + (not exactly))
        start, repeats = at, repeats + 1
    return Loop(start, 1, repeats, "near") if repeats >= needed else None


def asks_on(steps: Sequence[Step]) -> Loop | None:
    """One question that was put again and again at the very end, whatever the other side answered.

    Not the courtesy with which every turn ends: only a question that asks for something of one's own.
    """
    words_only = steps[-_TURNS:]
    spoken = [(at, step) for at, step in enumerate(words_only, len(steps) - len(words_only))]
    if len(spoken) < 2 * REPEATS - 1 or any(_acts(step) for _, step in spoken[-2 * REPEATS + 1 :]):
        return None
    for last in (spoken[-1], spoken[-2]):
        asked = last[1].llm_output or ""
        if "?" not in asked or len(asked) < _QUESTION or _COURTESY.search(asked):
            continue
        own = [one for one in spoken if one[1].action == last[1].action]
        row = 0
        for _, step in reversed(own):
            if _acts(step) or not step.llm_output or not near(step.llm_output, asked):
                break
            row += 1
        answered = {step.llm_output for _, step in spoken if step.action != last[1].action}
        if row >= REPEATS and len(answered) > 1:
            return Loop(own[-row][0], 2, row, "near")
    return None


_TURNS = 24
_QUESTION = 20
_COURTESY = re.compile(
    r"\b(?:anything else|something else|any other|further (?:help|questions|assistance)|"
    r"help you (?:with )?today|"
    r"sonst noch|autre chose|algo más)\b",
    re.IGNORECASE,
)


def _acts(step: Step) -> bool:
    return step.tool_called is not None or step.tool_output is not None


# --- the same result -----------------------------------------------------------------------

_PASSING = re.compile(
    r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?|"
    r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"|(?:\bin |\btook |\belapsed:? ?|\bduration:? ?|\()\d{1,9}(?:\.\d{1,9})? ?(?:ms|s|secs?|seconds?|"
    r"m?in)\b"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b0x[0-9a-f]{4,16}\b"
    r"|\b(?:req|request|trace|run|call)[_-](?:id[ :=_-]{1,3})?[0-9a-z]{6,40}\b",
    re.IGNORECASE,
)
"""What differs from one answer to the next without saying anything: a time, how long it took, an id."""
_PASSING_KEYS = frozenset({
    "durationms", "duration", "durations", "elapsed", "elapsedms", "tookms", "took", "latencyms",
    "servertime",
    "date", "generatedat", "queriedat", "fetchedat",
})  # fmt: skip


def _same_result(one: Any, other: Any) -> bool:
    """Whether two results say the same, but for when they were given, how long it took, and their ids."""
    if one == other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is str:
        if max(len(one), len(other)) > _LONGEST:
            return False
        return _PASSING.sub("#", one) == _PASSING.sub("#", other)
    if type(one) is not dict or one.keys() != other.keys():
        return False
    return all(value == other[key] or _passes(key) for key, value in one.items())


def _passes(key: Any) -> bool:
    name = re.sub(r"[^a-z]", "", str(key).lower())
    return name in _MARKS or name in _STAMPS or name in _PASSING_KEYS


def _asks_more_or_less(one: Any, other: Any) -> bool:
    """Whether one question has all the words of the other, and not many more, in any order."""
    if type(one) is dict and type(other) is dict and one.keys() == other.keys():
        return all(
            one[key] == other[key] or _asks_more_or_less(one[key], other[key]) for key in one
        )
    if type(one) is not str or type(other) is not str or max(len(one), len(other)) > _LONGEST:
        return False
    if _NUMBER.findall(one) != _NUMBER.findall(other):
        return False
    short, long = sorted((set(words(one)), set(words(other))), key=len)
    return len(short) >= _FEWEST and short <= long and 3 * len(long) <= 4 * len(short) + 3


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
