"""Looking for the words of rules in a text, and for a status that is written out in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

from ._answer_words import cut
from ._loose import LOOSE
from ._rule import Rule, normal, pattern_of, unquoted
from ._text import STATUS_IN_TEXT


class Words:
    """A rule on words, with its expression, which is compiled when it is first needed."""

    __slots__ = ("loose", "rule", "search", "unquoted")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.unquoted = rule.unquoted
        self.loose = rule.confidence <= LOOSE
        self.search: Callable[[str], re.Match[str] | None] = self._first

    def _first(self, text: str) -> re.Match[str] | None:
        self.search = pattern_of(self.rule.keys).search
        return self.search(text)


_SENTENCES = 500
"""Of a longer text, so much of its beginning and end is read for what is said in anybody's words."""


def _ends(text: str) -> str:
    return f"{text[:_SENTENCES]} \u2026 {text[-_SENTENCES:]}"


_MARKS = frozenset("'\"`\u201c")


def first(rules: Iterable[Words], text: str) -> tuple[Rule, str] | None:
    """The first rule whose words stand in a text, and these words."""
    whole = normal(cut(text))
    # Without a quotation mark there is nothing to take out.
    bare = unquoted(whole) if _MARKS.intersection(whole) else whole
    for one in rules:
        part = bare if one.unquoted else whole
        hit = one.search(_ends(part) if one.loose and len(part) > 2 * _SENTENCES else part)
        if hit is not None:
            return one.rule, hit.group()
    return None


@cache
def _status_patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(rf"(?<!\w){pattern}") for pattern in STATUS_IN_TEXT)


@cache
def _three_digits() -> re.Pattern[str]:
    return re.compile(r"[45]\d\d(?!\d)")


def status_in(message: str) -> int | None:
    """The HTTP status a message writes out, where its words leave no doubt that it is one."""
    text = normal(cut(message))
    if _three_digits().search(text) is None:
        return None
    for pattern in _status_patterns():
        hit = pattern.search(text)
        if hit is not None:
            return int(hit.group(1))
    return None
