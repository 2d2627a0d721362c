"""Does a quote stand in a text? Escapes, typography and a shortened middle do not count as differences."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from functools import cached_property

LEAST_QUOTE = 4
"""Letters, digits and signs below which a quote proves nothing."""
_LEAST_PIECE = 3
_LEAST_PIECES = 12
"""As `LEAST_QUOTE` for a shortened quote: for each piece, and for all of them together."""
_MAX_QUOTE = 4_000
_MAX_LEVELS = 3

_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|["\\/bfnrt])')
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?$")
_ELLIPSIS = re.compile(r"[\[(<]?\.{3,}[\])>]?")
_ENDS = re.compile(rf"^{_ELLIPSIS.pattern}|{_ELLIPSIS.pattern}$")
# Marks of quotation and the backslashes before them, blanks, and what cannot be seen.
_IGNORED = re.compile(
    "[\\s\\\\\"'`\u00b4\u2018-\u201f\u2032\u2033\u2039\u203a\u00ab\u00bb\u00ad\u200b-\u200f\u2060\ufeff]+"
)
_DASHES = {ord(dash): "-" for dash in "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"}


class Source:
    """A text from which quotes are taken."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _levels(self) -> tuple[str, ...]:
        return tuple(_normal(level) for level in _levels(self._text))

    def has(self, quote: str) -> bool:
        """Whether the quote stands here, in whole or shortened by an ellipsis.

        Compared without case, blanks and quotation marks. Either side may be escaped as JSON, also
        more than once; dashes and quotation marks may be straight or typographic.
        """
        for level in _levels(_CUT_ESCAPE.sub("", quote[:_MAX_QUOTE])):
            wanted = _normal(level)
            pieces = [piece for piece in _ELLIPSIS.split(wanted) if piece]
            for exact in (wanted, _ENDS.sub("", wanted)):
                if len(exact) >= LEAST_QUOTE and any(exact in text for text in self._levels):
                    return True
            if (
                len(pieces) > 1
                and min(map(len, pieces)) >= _LEAST_PIECE
                and sum(map(len, pieces)) >= _LEAST_PIECES
                and any(_in_order(pieces, text) for text in self._levels)
            ):
                return True
        return False


def _in_order(pieces: list[str], text: str) -> bool:
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def _levels(text: str) -> Iterator[str]:
    """A text as it is, then with its JSON escapes undone, once and again while there are any."""
    yield text
    for _ in range(_MAX_LEVELS - 1):
        undone = _ESCAPE.sub(_unescaped, text)
        if undone == text:
            return
        yield undone
        text = undone


def _unescaped(found: re.Match[str]) -> str:
    value = json.loads(f'"{found[0]}"')
    # Half of a surrogate pair cannot be compared with what was sent in its place.
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _normal(text: str) -> str:
    # Twice: normalising makes blanks and marks of some characters, and takes others apart.
    folded = unicodedata.normalize("NFKC", _IGNORED.sub("", text)).translate(_DASHES).casefold()
    return _IGNORED.sub("", folded)
