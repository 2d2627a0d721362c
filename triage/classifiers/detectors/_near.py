"""Are two texts, or two sets of arguments, the same but for their wording?

Only what changes nothing is looked over: case, punctuation, articles, a plural, words put in. A word
put in place of another, a number or a name is another question: that is how lists are worked through.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_LONGEST = 2_000
_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"\d+")
_ARTICLES = frozenset({"a", "an", "the", "please", "of", "for", "in", "on"})
_STEM = 3
_WORDED = frozenset({str, dict})


def near(one: Any, other: Any) -> bool:
    """Whether two JSON values say the same in other words. Texts over 2,000 characters must be equal."""
    if type(one) is not type(other):
        return bool(one == other)
    if type(one) is str:
        return near_text(one, other)
    if type(one) is not dict:
        return bool(one == other)
    if len(one) != len(other):
        return False
    for key, value in one.items():
        if key not in other:
            return False
        there = other[key]
        # What is neither text nor a container is equal or it is not: most lists are worked through so.
        if value != there and (type(value) not in _WORDED or not near(value, there)):
            return False
    return True


def near_text(one: str, other: str) -> bool:
    """Whether one text has the words of the other in their order, with few put in."""
    if one == other:
        return True
    if len(one) > _LONGEST or len(other) > _LONGEST:
        return False
    # A number is no wording: most lists are worked through so, and to take words apart costs more.
    if _NUMBER.findall(one) != _NUMBER.findall(other):
        return False
    short, long = _words(one), _words(other)
    if not short or not long:
        return False
    if len(short) > len(long):
        short, long = long, short
        one, other = other, one
    extra = len(long) - len(short)
    if extra == 0:
        return short == long
    if 2 * extra > len(short):
        return False
    return _is_within(short, long, other)


def words(text: str) -> tuple[str, ...]:
    """The words of a text in small letters, without articles and the s of a plural."""
    return tuple(
        word[:-1] if word[-1] == "s" and len(word) > _STEM else word
        for word in _WORD.findall(text.lower())
        if word not in _ARTICLES
    )


# A step is compared with the few before it: each of their short texts is taken apart once.
_words = lru_cache(maxsize=64)(words)


def _is_within(short: Sequence[str], long: Sequence[str], text: str) -> bool:
    """Whether the longer one only puts plain words in; names and numbers are no wording."""
    at = 0
    added: list[str] = []
    for word in long:
        if at < len(short) and word == short[at]:
            at += 1
        else:
            added.append(word)
    if at < len(short):
        return False
    capital = {word.lower() for word in re.findall(r"(?<=\s)[A-Z]\w*", text)}
    return not any(any(c.isdigit() for c in word) or word in capital for word in added)
