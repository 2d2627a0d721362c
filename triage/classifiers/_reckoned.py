"""Figures an answer reckons itself: is the sum it shows right, and could it be one at all?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from ._values import NUMBER, numbers_of

_MAX_DEPTH = 16
_MAX_SUM = 300
_BARE = 3
_SIGNS = str.maketrans("\u00d7÷·x", "*/**")
_SUM = "0123456789+-*/\u00d7÷·x().,$€£¥ \t"

_LABEL = re.compile(
    r"(?:\btotal\w{0,3}|\bsum\w{0,3}|\bsubtotal|\b(?:al)?together|\bin all|\bcombined|"
    r"\boverall|\baverage\w?|\bmean|"
    r"\bcomes? to|\bamounts? to|\badds? up|\bcalculat\w{1,4}|\bequal\w?|\bnet\b|=)[^.\n]{0,50}$"
)
_COMPARED = re.compile(
    r"(?:\bdifference|\bremain\w{0,5}|\bleft\b|\bbalance|\bsav\w{2,4}|\bcheaper|\bmore\b|\bless\b|"
    r"\badditional|\bextra|\brefund\w{0,3})[^.\n]{0,50}$"
)


class Shown(NamedTuple):
    """A sum that is written out. at: where its result ends. right: whether it is right."""

    at: int
    right: bool


@cache
def _result() -> re.Pattern[str]:
    return re.compile(rf"=\s?[$€£¥]?\s?({NUMBER})")


def sums_in(text: str) -> Iterator[Shown]:
    """The sums an answer writes out with their result: `3 * 120 + 430 = 790`."""
    for match in _result().finditer(text):
        before = text[max(0, match.start() - _MAX_SUM) : match.start()]
        value = _value(before[len(before.rstrip(_SUM)) :])
        results = numbers_of(match[1])
        if value is None or not results:
            continue
        right = any(abs(value - n.value) <= n.step * 1.01 + abs(value) * 1e-9 for n in results)
        yield Shown(match.start(1) + len(match[1].rstrip(",.'\u2019_\u00a0\u202f")), right)


def is_labelled(before: str, text: str, *, bare: bool) -> bool:
    """Whether the words before a number call it a sum, an average or the like.

    bare: a number that is all of the text is taken for one, too: it answers what was asked.
    """
    return _LABEL.search(before) is not None or (bare and len(text.split()) <= _BARE)


def is_compared(before: str) -> bool:
    """Whether the words before a number speak of two others: a difference, a rest, a price."""
    return _COMPARED.search(before) is not None


def _value(text: str) -> float | None:
    """The value of a sum, None if it is none: fewer than two numbers, or not written as one."""
    text = re.sub(r"[$€£¥\s]", "", text).translate(_SIGNS)
    tokens = re.findall(rf"{NUMBER}|[-+*/()]", text)
    if "".join(tokens) != text or sum(token[0].isdigit() for token in tokens) < 2:  # noqa: PLR2004
        return None
    try:
        parser = _Sum(tokens)
        value = parser.sum(0)
    except (ValueError, IndexError, ZeroDivisionError, OverflowError):
        return None
    return value if parser.at == len(tokens) else None


class _Sum:
    """Reads tokens as arithmetic. Raises ValueError or IndexError where they are not."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def _is(self, *tokens: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at] in tokens

    def _next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def sum(self, depth: int) -> float:
        """Terms, added up."""
        value = self._product(depth)
        while self._is("+", "-"):
            value += self._product(depth) if self._next() == "+" else -self._product(depth)
        return value

    def _product(self, depth: int) -> float:
        value = self._one(depth)
        while self._is("*", "/"):
            value = value * self._one(depth) if self._next() == "*" else value / self._one(depth)
        return value

    def _one(self, depth: int) -> float:
        if depth > _MAX_DEPTH:
            raise ValueError(depth)
        word = self._next()
        if word == "-":
            return -self._one(depth + 1)
        if word == "(":
            value = self.sum(depth + 1)
            if self._next() != ")":
                raise ValueError(word)
            return value
        return numbers_of(word)[0].value
