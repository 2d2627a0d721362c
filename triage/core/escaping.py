"""Text from outside as people may see it: it steers no terminal, and begins no line of its own."""

from __future__ import annotations

import re

_STEERING = (
    # Controls (C0, DEL, C1), marks that turn the direction of writing, what takes no room, line and
    # paragraph separators, interlinear marks, tags, and halves of surrogate pairs.
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff"
)
_BUT_LINES = re.compile(f"[{_STEERING}]")
_ALL = re.compile(rf"[\t\n{_STEERING}]")
_SEQUENCES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[0-Z\\^-~])"
)
"""What a terminal takes as one command: CSI, OSC and the other strings, and escapes of one letter."""


def escaped(text: str, *, lines: bool = False) -> str:
    r"""Show what would steer a terminal as an escape: `\x1b[2J`, `\u202e`, `\ud800`.

    White space, line breaks included, becomes single spaces. lines: keep line feeds and tabs, in a text
    whose lines are its author's to make.

    >>> print(escaped("a\x1b[2J\nb"))
    a\x1b[2J b
    """
    if text.isprintable():
        return text
    if lines:
        return _BUT_LINES.sub(_escape, text.replace("\r\n", "\n"))
    return _ALL.sub(_escape, " ".join(text.split()))


def stripped(text: str) -> str:
    """Leave out all that would steer a terminal, whole sequences of it too, and keep the rest."""
    return text if text.isprintable() else _ALL.sub("", _SEQUENCES.sub("", text))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
