"""Looking for the words of rules in a text, and for a status that is written out in it.

A rule is searched for only in a text that has a word which the rule cannot do without: of some hundred
expressions a text then meets a few. What is found is the same as if each had been searched for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import NamedTuple

from ._answer_words import cut
from ._loose import LOOSE
from ._needed import needed
from ._rule import Rule, bounded, normal, unquoted
from ._text import STATUS_IN_TEXT

_SENTENCES = 500
"""Of a longer text, so much of its beginning and end is read for what is said in anybody's words."""
_new = tuple.__new__  # the class of a tuple costs a call where it is called
_find_words = re.compile(r"\w+").findall


class _Read(NamedTuple):
    """A text as rules read it. bare: without its quoted names. words: those of all its parts."""

    whole: str
    bare: str
    words: set[str]

    def part(self, rule: Rule) -> str:
        """What this rule reads of it."""
        part = self.bare if rule.unquoted else self.whole
        return _ends(part) if rule.confidence <= LOOSE and len(part) > 2 * _SENTENCES else part


@lru_cache(maxsize=16)
def _read(text: str) -> _Read:
    """One text is searched for several things, one after the other."""
    whole = normal(cut(text))
    # Without a quotation mark there is nothing to take out.
    quotes = "'" in whole or '"' in whole or "`" in whole or "\u201c" in whole
    bare = unquoted(whole) if quotes else whole
    found = words_in(whole)
    if len(whole) > 2 * _SENTENCES:
        # Where a text is cut, a part of a word is a word.
        found |= words_in(_ends(whole)) | words_in(_ends(bare))
    return _new(_Read, (whole, bare, found))


def words_in(text: str) -> set[str]:
    """The words of a text: its longest runs of letters, digits and `_`."""
    if not text.isascii():
        return set(_find_words(text))
    # The same, at a third of the cost.
    return set(text.encode().translate(_WORDS_ONLY).decode().split())


_WORDS_ONLY = bytes(code if chr(code).isalnum() or chr(code) == "_" else 32 for code in range(256))


def _ends(text: str) -> str:
    return f"{text[:_SENTENCES]} \u2026 {text[-_SENTENCES:]}"


class _Key:
    """One expression of a rule, which is compiled when it is first searched for.

    place: where it stands among all. others: a text it fits has a word of each of these sets, too.
    """

    __slots__ = ("_expression", "others", "place", "rule", "search")

    def __init__(
        self, rule: Rule, expression: str, place: int, others: tuple[frozenset[str], ...]
    ) -> None:
        self.rule = rule
        self.place = place
        self.others = others
        self._expression = expression
        self.search: Callable[[str], re.Match[str] | None] = self._first

    def _first(self, text: str) -> re.Match[str] | None:
        self.search = bounded(self._expression).search
        return self.search(text)


class _Index(NamedTuple):
    """by_word: the keys that need a word, or one of several. always: those of which none is known."""

    by_word: dict[str, list[_Key]]
    always: list[_Key]


class Words:
    """Rules on words, in their order. Several threads may search at once."""

    __slots__ = ("_index", "rules")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._index: _Index | None = None

    def first(self, text: str) -> tuple[Rule, str] | None:
        """The first rule whose words stand in a text, and these words."""
        index = self._index
        if index is None:
            index = self._index = _index_of(self.rules)
        read = _read(text)
        by_word = index.by_word
        words = read.words
        meant = {
            key.place: key
            for word in by_word.keys() & words
            for key in by_word[word]
            if not any(map(words.isdisjoint, key.others))
        }
        if not meant and not index.always:
            return None
        meant.update((key.place, key) for key in index.always)
        return _first_of([meant[place] for place in sorted(meant)], read)


def _first_of(keys: list[_Key], read: _Read) -> tuple[Rule, str] | None:
    """The first rule of which a key fits; of its keys the one that fits first in the text."""
    rule: Rule | None = None
    best: re.Match[str] | None = None
    part = ""
    for key in keys:
        if key.rule is not rule:
            if best is not None:
                break
            rule = key.rule
            part = read.part(rule)
        hit = key.search(part)
        if hit is not None and (best is None or hit.start() < best.start()):
            best = hit
    return None if best is None or rule is None else (rule, best.group())


def _often(word: str) -> int:
    """What makes a word a bad sign: that other texts are full of it."""
    return _EVERYWHERE if len(word) < _SHORT or word in _EVERYDAY else 0


_EVERYWHERE = 100
_SHORT = 4
_EVERYDAY = frozenset({
    "after", "another", "because", "been", "before", "being", "does", "doesn", "each", "error", "errors",
    "every", "failed", "following", "found", "from", "given", "have", "into", "last", "line", "more",
    "must", "only", "other", "please", "should", "some", "such", "than", "that", "their", "them", "then",
    "there", "these", "they", "this", "those", "time", "when", "where", "which", "while", "will", "with",
    "within", "without", "would", "your",
})  # fmt: skip


def _index_of(rules: Iterable[Rule]) -> _Index:
    by_word: dict[str, list[_Key]] = {}
    always: list[_Key] = []
    keys = [(rule, expression) for rule in rules for expression in rule.keys]
    counted = Counter(word for _, expression in keys for word in _find_words(expression))
    for place, (rule, expression) in enumerate(keys):
        need = needed(expression, lambda word: counted[word] + _often(word))
        if need is None:
            always.append(_Key(rule, expression, place, ()))
            continue
        key = _Key(rule, expression, place, need.others)
        for word in need.first:
            by_word.setdefault(word, []).append(key)
    return _Index(by_word, always)


@cache
def _status_patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(rf"(?<!\w){pattern}") for pattern in STATUS_IN_TEXT)


@cache
def _three_digits() -> re.Pattern[str]:
    return re.compile(r"[45]\d\d(?!\d)")


def status_in(message: str) -> int | None:
    """The HTTP status a message writes out, where its words leave no doubt that it is one."""
    text = _read(message).whole
    if _three_digits().search(text) is None:
        return None
    for pattern in _status_patterns():
        hit = pattern.search(text)
        if hit is not None:
            return int(hit.group(1))
    return None
