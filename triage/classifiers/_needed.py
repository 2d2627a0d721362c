"""Which words a text must have for an expression to fit it: read from the expression itself.

What an expression can fit is written as skeletons: its own letters, `" "` for any character that is no
part of a word, and `GAP` for anything at all, nothing included. Where that would be too many, a part is
reduced to words of which it needs one, or to a gap. A skeleton says the same as the expression or less,
so that a text without any of the words that are found is surely not fitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

GAP = "\0"
_MOST = 150
"""Skeletons that are made of one part of an expression."""
_MOST_OF_A_CLASS = 4
"""Characters of a class that are told apart."""

Rarity = Callable[[str], int]
"""How often a word stands in rules: the less, the better it tells them apart."""
_Skeletons = frozenset[str]
_NOTHING: _Skeletons = frozenset({""})
_SPACE: _Skeletons = frozenset({" "})
_ANYTHING: _Skeletons = frozenset({GAP})


class Need(NamedTuple):
    """A text that is fitted has one word of each of these sets; the first set has the rarest words."""

    first: frozenset[str]
    others: tuple[frozenset[str], ...]


def needed(expression: str, rarity: Rarity) -> Need | None:
    """The words a text needs that the expression fits between bounds of words.

    None where no such words can be told. expression: one that compiles.
    """
    alternatives = [
        _words_of((_SPACE, *items, _SPACE), rarity) for items in _read(expression, rarity)
    ]
    if not all(alternatives):
        return None
    if len(alternatives) == 1:
        first, *others = alternatives[0]
        return Need(first, tuple(others))
    # What one alternative needs beside, another does not.
    return Need(frozenset().union(*(sets[0] for sets in alternatives)), ())


# --- reading -------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"(?P<escape>\\.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<look>\(\?<?[=!])|(?P<open>\((?:\?:)?(?!\?))"
    r"|(?P<close>\))|(?P<bar>\|)|(?P<dot>\.)|(?P<edge>[$^])|(?P<space> )"
    r"|(?P<chars>[^\\\[\](){}|*+?.^$ ]+(?![*+?{]))|(?P<char>[^\\\[\](){}|*+?.^$ ])",
    re.DOTALL,
)
_REPEAT = re.compile(r"(?P<optional>\?)|(?P<any>\*)|\+|\{(?P<least>\d*)(?P<comma>,?)\d*\}")

_Alternatives = list[list[_Skeletons]]


def _read(expression: str, rarity: Rarity) -> _Alternatives:
    """The alternatives of an expression, each as what follows each other in it."""
    whole: _Alternatives = [[]]
    open_: list[tuple[_Alternatives, bool]] = [(whole, False)]
    at = 0
    while at < len(expression):
        token = _TOKEN.match(expression, at)
        if token is None:  # a construct of which nothing is known here
            return [[_ANYTHING]]
        at = token.end()
        kind = token.lastgroup
        if kind in ("open", "look"):
            open_.append(([[]], kind == "look"))
            continue
        if kind == "bar":
            open_[-1][0].append([])
            continue
        if kind == "close":
            inner, looks = open_.pop()
            found = _NOTHING if looks else _group(inner, rarity)
        else:
            found = _of_token(token)
        repeat = _REPEAT.match(expression, at)
        if repeat is not None:
            # Lazy or possessive, it fits no more than it would else.
            at = repeat.end() + (expression[repeat.end() : repeat.end() + 1] in ("?", "+"))
            found = _repeated(found, repeat)
        open_[-1][0][-1].append(found)
    return whole


def _group(alternatives: _Alternatives, rarity: Rarity) -> _Skeletons:
    found: set[str] = set()
    for items in alternatives:
        found |= _joined(items) or _lessened(items, rarity)
    return frozenset(found)


def _joined(items: Sequence[_Skeletons]) -> _Skeletons:
    """What one after the other fits; empty where that would be too many."""
    if prod(map(len, items)) > _MOST:
        return frozenset()
    return frozenset(map("".join, product(*items)))


def _lessened(items: Sequence[_Skeletons], rarity: Rarity) -> _Skeletons:
    sets = _words_of(items, rarity)
    return frozenset(f"{GAP} {word} {GAP}" for word in sets[0]) if sets else _ANYTHING


def _repeated(found: _Skeletons, repeat: re.Match[str]) -> _Skeletons:
    if repeat["optional"]:
        return found | _NOTHING
    if repeat["any"] or repeat["least"] in ("", "0"):
        return _NOTHING | found if found == _SPACE else _several(found)
    once = repeat["least"] == "1" and not repeat["comma"]
    return found if once or found == _SPACE else frozenset(one + GAP for one in found)


def _several(found: _Skeletons) -> _Skeletons:
    """Nothing, or one after the other: of these is known whether they end or begin with a space."""
    if all(one[-1:] == " " for one in found):
        return frozenset({"", f"{GAP} "})
    if all(one[:1] == " " for one in found):
        return frozenset({"", f" {GAP}"})
    return _ANYTHING


def _of_token(token: re.Match[str]) -> _Skeletons:
    text = token[0]
    match token.lastgroup:
        case "chars" | "char":
            return frozenset({"".join(map(_plain, text))})
        case "space":
            return _SPACE
        case "edge":
            return _NOTHING
        case "escape":
            return _of_escape(text[1])
        case "set":
            return _of_class(text)
        case _:
            return _ANYTHING


def _of_escape(letter: str) -> _Skeletons:
    if letter in "bBAZ":
        return _NOTHING
    if letter in "sW" or not (letter.isalnum() or letter == "_"):
        return _SPACE
    return _ANYTHING


def _plain(char: str) -> str:
    return char if char.isalnum() or char == "_" else " "


_ESCAPED = re.compile(r"\\([^\w\s\\])")
"""A sign that stands for itself."""


@lru_cache(maxsize=256)
def _of_class(text: str) -> _Skeletons:
    inner = _ESCAPED.sub(r"\1", text[1:-1])
    if inner[:1] == "^" or "\\" in inner or "-" in inner[1:-1]:
        return _ANYTHING
    found = frozenset(map(_plain, inner))
    return found if len(found) <= _MOST_OF_A_CLASS else _ANYTHING


# --- choosing ------------------------------------------------------------------------------


def _words_of(items: Sequence[_Skeletons], rarity: Rarity) -> list[frozenset[str]]:
    """Words of which one stands whole in all that follows each other so: sets, that of the rarest first."""
    found: set[frozenset[str]] = set()
    for stretch in _stretches(items):
        words = frozenset(_rarest(skeleton, rarity) for skeleton in _joined(stretch))
        if words and all(words):
            found.add(words)
    return sorted(found, key=lambda words: (sum(map(rarity, words)), sorted(words)))


def _stretches(items: Sequence[_Skeletons]) -> Iterator[Sequence[_Skeletons]]:
    """What follows each other between two places where a space surely stands, with these spaces."""
    size = len(items)
    before, after = [False] * (size + 1), [False] * (size + 1)
    for at, item in enumerate(items):
        if item == _SPACE:
            before[at + 1] = after[at] = True
        else:
            before[at + 1] = all(one[-1:] == " " or (not one and before[at]) for one in item)
    for at in range(size - 1, -1, -1):
        if not after[at]:
            after[at] = all(one[:1] == " " or (not one and after[at + 1]) for one in items[at])
    start = 0
    for at in range(1, size + 1):
        if before[at] or after[at] or at == size:
            inner = items[start:at]
            # Where all of it may be missing, no word of it is needed.
            if any("" not in item and item != _SPACE for item in inner):
                yield (*(_SPACE,) * before[start], *inner, *(_SPACE,) * after[at])
            start = at


_WHOLE = re.compile(rf"(?<= )[^ {GAP}]+(?= )")


def _rarest(skeleton: str, rarity: Rarity) -> str:
    """The word that stands whole in a skeleton and is rarest in rules, empty where none does."""
    words: list[str] = _WHOLE.findall(skeleton)
    if len(words) < 2:  # noqa: PLR2004 - nothing to choose from
        return words[0] if words else ""
    return min(words, key=lambda word: (rarity(word), -len(word), word))
