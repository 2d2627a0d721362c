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
_find_words = re.compile(r"\w+").findall


class _Read:
    """A text as rules read it. words: those of all its parts; those of the bare ones are `bare_words`.

    Its parts are made when they are asked for: most texts have no word that a rule needs.
    """

    __slots__ = ("_bare", "_bare_words", "_text", "_whole", "words")

    def __init__(self, text: str) -> None:
        self._text = text
        self._whole: str | None = None
        self._bare: str | None = None
        self._bare_words: set[str] | None = None
        if len(text) <= 2 * _SENTENCES and text.isascii():
            # What `words_in` says of the whole, read in one go.
            self.words = set(text.encode().translate(_WORDS_OF).decode().split())
            return
        self.words = _words_of(self.whole) | _words_of(self.bare)

    @property
    def whole(self) -> str:
        """All of it that is read."""
        whole = self._whole
        if whole is None:
            whole = self._whole = normal(cut(self._text))
        return whole

    @property
    def bare(self) -> str:
        """It without its quoted names."""
        bare = self._bare
        if bare is None:
            bare = self._bare = unquoted(self.whole)
        return bare

    @property
    def bare_words(self) -> set[str]:
        """The words that rules find in it which read it without its quoted names."""
        words = self._bare_words
        if words is None:
            bare = self.bare
            words = self.words if bare is self.whole else _words_of(bare)
            self._bare_words = words
        return words

    def part(self, rule: Rule) -> str:
        """What this rule reads of it."""
        part = self.bare if rule.unquoted else self.whole
        if rule.confidence <= LOOSE and len(part) > 2 * _SENTENCES:
            part = _ends(part)
        return part


# One text is searched for several things, one after the other.
_read = lru_cache(maxsize=16)(_Read)


def words_in(text: str) -> set[str]:
    """The words of a text: its longest runs of letters, digits and `_`."""
    if not text.isascii():
        return set(_find_words(text))
    # The same, at a third of the cost.
    return set(text.encode().translate(_WORDS_ONLY).decode().split())


_WORDS_ONLY = bytes(code if chr(code).isalnum() or chr(code) == "_" else 32 for code in range(256))
_WORDS_OF = normal(bytes(range(128)).decode()).encode().translate(_WORDS_ONLY).ljust(256)
"""Small letters and digits of what is not read as rules read it yet, and spaces."""


def _words_of(part: str) -> set[str]:
    """The words of a part, and of its ends where these are all that some rules read."""
    words = words_in(part)
    if len(part) > 2 * _SENTENCES:
        # Where a text is cut, a part of a word is a word.
        words |= words_in(_ends(part))
    return words


def _ends(text: str) -> str:
    return f"{text[:_SENTENCES]} \u2026 {text[-_SENTENCES:]}"


_SEES_THE_EDGE = re.compile(r"(?<!\[)\^|\\[AB]|\(\?<[=!][^)]*(?:\\[WSD]|\[\^|\.|\()")
"""What in an expression may tell the beginning of a text from one after another character."""
_DENIED = re.compile(r"(?:\(\?<!(?:[^()\[\\]|\[[^\[\]\\]+\])+\))*(?![*+?{])")
"""What must not stand before an expression."""
_BEGINNING = re.compile(r"[0-9A-Za-z][0-9A-Za-z ]{2,}(?![*+?{])")
"""The letters with which all begins that an expression fits."""
_OWN_KIND = re.compile(r"\(\?[^:=!<]")
"""A group with flags, a name or a condition: what is around it is left as it is."""
_SIGNS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^()|\\\[]+", re.DOTALL)

_Find = Callable[[str], tuple[int, str] | None]
"""Finds an expression, bounded by words, in a text: where it begins, and what stands there."""


def _finder(expression: str) -> _Find:
    if not _is_one(expression):
        return _with_class(expression, "")
    hit = _DENIED.match(expression)
    denied = hit[0] if hit else ""
    said = expression[len(denied) :]
    beginning = _BEGINNING.match(said)
    return _with_letters(expression, beginning[0]) if beginning else _with_class(said, denied)


def _with_letters(expression: str, first: str) -> _Find:
    """Finds what begins with these letters: where they do not stand, no expression is asked."""
    match = bounded(expression).match

    def find(text: str) -> tuple[int, str] | None:
        at = text.find(first)
        while at >= 0:
            hit = match(text, at)
            if hit is not None:
                return at, hit[0]
            at = text.find(first, at + 1)
        return None

    return find


def _with_class(said: str, denied: str) -> _Find:
    """Finds what is said where nothing stands before it that denies it.

    A pattern that begins with a class of characters passes over all others at the speed of C; one that
    begins with assertions tries them at each. Letters that are not ASCII are left to an assertion.
    """
    in_front = 0 if _SEES_THE_EDGE.search(said) else 1
    pattern = (
        re.compile(rf"[^0-9A-Za-z_](?<!\w)(?:{said})(?!\w)", re.DOTALL)
        if in_front
        else bounded(said)
    )
    search = pattern.search
    allows = re.compile(denied).match if denied else None

    def find(text: str) -> tuple[int, str] | None:
        # With a character in front, so that the first word has one, too: it begins at the same place.
        read = f"\0{text}" if in_front else text
        hit = search(read)
        while hit is not None:
            at = hit.start()
            if allows is None or allows(text, at) is not None:
                return at, hit[0][in_front:]
            hit = search(read, at + 1)
        return None

    return find


def _is_one(expression: str) -> bool:
    """Whether what an expression begins with begins all that it may fit."""
    if _OWN_KIND.search(expression):
        return False
    depth = 0
    for sign in _SIGNS.sub("", expression):
        if sign == "|" and not depth:
            return False
        depth += (sign == "(") - (sign == ")")
    return True


class _Key:
    """One expression of a rule, which is compiled when it is first searched for.

    place: where it stands among all. others: a text it fits has a word of each of these sets, too.
    """

    __slots__ = ("_expression", "find", "others", "place", "rule", "unquoted")

    def __init__(
        self, rule: Rule, expression: str, place: int, others: tuple[frozenset[str], ...]
    ) -> None:
        self.rule = rule
        self.unquoted = rule.unquoted
        self.place = place
        self.others = others
        self._expression = expression
        self.find: _Find = self._first

    def has_all(self, word: str, words: set[str]) -> bool:
        """Whether this one of its words is among these, and what else it needs."""
        return word in words and not any(map(words.isdisjoint, self.others))

    def _first(self, part: str) -> tuple[int, str] | None:
        self.find = _finder(self._expression)
        return self.find(part)


class _Index(NamedTuple):
    """by_word: the keys that need a word, or one of several. always: those of which none is known."""

    by_word: dict[str, list[_Key]]
    words: frozenset[str]
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
        by_word, known, always = index
        read = _read(text)
        words = read.words
        meant = {key.place: key for key in always} if always else {}
        for word in words & known:
            for key in by_word[word]:
                for other in key.others:
                    if words.isdisjoint(other):
                        break
                else:
                    if not key.unquoted or key.has_all(word, read.bare_words):
                        meant[key.place] = key
        if not meant:
            return None
        return _first_of([meant[place] for place in sorted(meant)], read)


def _first_of(keys: list[_Key], read: _Read) -> tuple[Rule, str] | None:
    """The first rule of which a key fits; of its keys the one that fits first in the text."""
    rule: Rule | None = None
    best: tuple[int, str] | None = None
    part = ""
    for key in keys:
        if key.rule is not rule:
            if best is not None:
                break
            rule = key.rule
            part = read.part(rule)
        found = key.find(part)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return None if rule is None or best is None else (rule, best[1])


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
    return _Index(by_word, frozenset(by_word), always)


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
