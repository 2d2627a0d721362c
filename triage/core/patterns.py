"""`Pattern`: a regular expression that is compiled on first use.

Most programs never use most of the rules, detectors and shapes of secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property


class Pattern:
    """A regular expression with some methods of `re.Pattern`."""

    def __init__(self, expression: str, flags: int = 0) -> None:
        self._expression = expression
        self._flags = flags

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self._expression, self._flags)

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self._compiled.search(text, start)

    def match(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self._compiled.match(text, start)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self._compiled.fullmatch(text)

    def findall(self, text: str) -> list[str]:
        return self._compiled.findall(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self._compiled.finditer(text)

    def sub(self, new: str | Callable[[re.Match[str]], str], text: str) -> str:
        return self._compiled.sub(new, text)

    def split(self, text: str) -> list[str]:
        return self._compiled.split(text)
