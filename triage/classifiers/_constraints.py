"""Texts, patterns and functions that say what no output may be."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from triage.checks import objection
from triage.redact import redact
from triage.steps import Constraint

MAX_SEARCHED = 100_000
"""A pattern or a function is given the first so many characters of an output. Texts are looked for
in all of it."""
_MAX_SHOWN = 80
_MAX_REASON = 300

_logger = logging.getLogger("triage")


class Broken(NamedTuple):
    """A constraint that an output breaks.

    text: what is wrong with the output, as `contains 'x'`. wish: what it must be instead, for a
    hint. Both are one line, quoted and cut, with nothing of the output that a constraint did not say.
    """

    text: str
    wish: str


class Checked(NamedTuple):
    """What the constraints say of one output.

    broken: the first that is broken, None if none is. failed: what functions raised instead of
    answering; those break nothing.
    """

    broken: Broken | None
    failed: tuple[str, ...]


def check(constraints: Iterable[Constraint], output: Any) -> Checked:
    """Ask each constraint about an output, in their order, up to the first that is broken.

    output: any JSON value. Texts and patterns are looked for in its texts, keys and numbers, one a
    line; a function is given the output itself if that is text, and its JSON text otherwise.
    Never raises: what a function raises is logged.
    """
    seen = _Output(output)
    failed: list[str] = []
    for constraint in constraints:
        if isinstance(constraint, str):
            broken = _contained(constraint, seen)
        elif isinstance(constraint, re.Pattern):
            broken = _matched(constraint, seen)
        else:
            try:
                broken = _refused(constraint, seen)
            except Exception as error:
                name = _name(constraint)
                _logger.exception("the constraint %s failed", name)
                failed.append(f"{name} raised {type(error).__name__} instead of answering")
                continue
        if broken is not None:
            return Checked(broken, tuple(failed))
    return Checked(None, tuple(failed))


class _Output:
    """An output in the forms constraints look at, each made when it is first asked for."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._lines: str | None = value if isinstance(value, str) else None
        self._folded: str | None = None

    @property
    def lines(self) -> str:
        if self._lines is None:
            self._lines = "\n".join(_leaves(self._value))
        return self._lines

    @property
    def folded(self) -> str:
        if self._folded is None:
            self._folded = fold(self.lines)
        return self._folded

    @property
    def text(self) -> str:
        if isinstance(self._value, str):
            return self._value
        return json.dumps(self._value, ensure_ascii=False, default=str)


def _leaves(value: Any) -> list[str]:
    """Every text and number in a JSON value, keys included, in order."""
    found: list[str] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, Mapping):
            for key, inner in reversed(list(item.items())):
                stack += (inner, str(key))
        elif isinstance(item, list | tuple):
            stack += reversed(item)
        elif item is not None:
            found.append(str(item))
    return found


def _contained(constraint: str, seen: _Output) -> Broken | None:
    if not constraint or fold(constraint) not in seen.folded:
        return None
    shown = _quoted(constraint)
    return Broken(f"contains {shown}", f"not contain {shown}")


def _matched(pattern: re.Pattern[Any], seen: _Output) -> Broken | None:
    if isinstance(pattern.pattern, bytes) or not pattern.search(seen.lines[:MAX_SEARCHED]):
        return None
    shown = _quoted(pattern.pattern)
    return Broken(f"matches {shown}", f"not match {shown}")


def _refused(constraint: Any, seen: _Output) -> Broken | None:
    reason = objection(constraint, constraint(seen.text[:MAX_SEARCHED]))
    if reason is None:
        return None
    shown = _quoted(reason, _MAX_REASON)
    return Broken(f"is refused by {_name(constraint)}: {shown}", f"satisfy {shown}")


def fold(text: str) -> str:
    """`text` for comparing without regard to case, or to how an accent is written."""
    if text.isascii():
        return text.lower()
    from unicodedata import normalize

    return normalize("NFC", text.casefold())


def _name(constraint: Any) -> str:
    return str(getattr(constraint, "__name__", None) or type(constraint).__name__)[:_MAX_SHOWN]


def _quoted(text: str, limit: int = _MAX_SHOWN) -> str:
    line = " ".join(redact(text[: 4 * limit]).split())
    return repr(line if len(line) <= limit else f"{line[: limit - 1]}…")
