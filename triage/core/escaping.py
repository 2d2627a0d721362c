"""Make text from outside safe to show, so that it cannot control a terminal or start a new line."""

from __future__ import annotations

import re

from .patterns import Pattern

_UNSEEN = (
    # Controls (C0, DEL, C1), bidirectional marks, zero-width characters, interlinear marks, tags, and
    # lone surrogates.
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff"
)
UNSEEN = Pattern(f"[{_UNSEEN}]")
"""A character, other than a line break, that is invisible or changes how others are shown."""
_STEERING = f"{_UNSEEN}\r\x85\u2028\u2029"
_BUT_LINES = Pattern(f"[{_STEERING}]")
_ALL = Pattern(rf"[\t\n{_STEERING}]")
_SEQUENCES = Pattern(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[0-Z\\^-~])"
)
"""One terminal command: CSI, OSC and the other strings, and single-letter escapes."""


def escaped(text: str, *, lines: bool = False) -> str:
    r"""Show characters that control a terminal as escapes: `\x1b[2J`, `\u202e`, `\ud800`.

    Runs of white space, line breaks included, become single spaces. lines: keep line feeds and tabs.

    >>> print(escaped("a\x1b[2J\nb"))
    a\x1b[2J b
    """
    if text.isprintable():
        return text
    if lines:
        return _BUT_LINES.sub(_escape, text.replace("\r\n", "\n"))
    return _ALL.sub(_escape, " ".join(text.split()))


def stripped(text: str) -> str:
    """Remove characters and sequences that control a terminal."""
    return text if text.isprintable() else _ALL.sub("", _SEQUENCES.sub("", text))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
