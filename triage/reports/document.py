"""A document for people, written as CommonMark or as plain lines.

A `Quote` holds words of tools, models and errors: code in Markdown, in quotation marks in plain text. A
`Prose` holds sentences of another author, with Markdown escaped. A `str` holds our own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from triage.core.constructors import Struct
from triage.core.escaping import UNSEEN
from triage.core.foreign import text_of
from triage.core.patterns import Pattern


class Quote(Struct, frozen=True):
    """Words of a tool, a model or an error."""

    text: str


class Prose(Struct, frozen=True):
    """Sentences for people by another author."""

    text: str


Bit: TypeAlias = "str | Quote | Prose"
Item: TypeAlias = tuple[Bit, ...]


class Section(Struct, frozen=True):
    """A section with its title.

    lines: each with its label. quote: an opinion of another author. items: of a list. depth: from 1.
    """

    title: str
    lines: tuple[tuple[str, Bit], ...] = ()
    quote: Prose | None = None
    items: tuple[Item, ...] = ()
    depth: int = 2


def markdown(sections: Iterable[Section]) -> str:
    """Write a document as CommonMark."""
    shown = _writer(_as_code, _escaped)
    parts: list[str] = []
    for section in sections:
        lines = [f"**{label}:** {shown(bit)}" for label, bit in section.lines]
        parts += (
            f"{'#' * section.depth} {section.title}",
            "\\\n".join(lines),
            "" if section.quote is None else f"> {shown(section.quote)}",
            "\n".join(f"- {shown(*item)}" for item in section.items),
        )
    return "\n\n".join(filter(None, parts)) + "\n"


def text(sections: Iterable[Section]) -> str:
    """Write a document as plain lines."""
    shown = _writer(_quoted, _one_line)
    parts: list[str] = []
    for section in sections:
        indent = "  " * (section.depth - 2)
        underline = "=" * len(section.title)
        parts += (section.title, underline) if section.depth == 1 else ("", indent + section.title)
        parts += (f"{label}: {shown(bit)}" for label, bit in section.lines)
        parts += () if section.quote is None else (f"  | {shown(section.quote)}",)
        parts += (f"  - {shown(*item)}" for item in section.items)
    return "\n".join(parts) + "\n"


def _writer(quote: Callable[[str], str], prose: Callable[[str], str]) -> Callable[..., str]:
    def write(*bits: Bit) -> str:
        writers: dict[type, Callable[[str], str]] = {Quote: quote, Prose: prose}
        return "".join(
            bit if isinstance(bit, str) else writers[type(bit)](bit.text) for bit in bits
        )

    return write


def _one_line(text: str) -> str:
    return " ".join(UNSEEN.sub("", text_of(text)).split())


def _quoted(text: str) -> str:
    return '"' + _one_line(text).replace('"', "'") + '"'


def _as_code(text: str) -> str:
    """Write a text as a code span that the text cannot close."""
    line = _one_line(text)
    if not line:
        return '""'
    fence = "`" * (max(map(len, re.findall(r"`+", line)), default=0) + 1)
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{pad}{line}{pad}{fence}"


_MEANINGFUL = Pattern(
    r"[\\`*_{}\[\]<>#|~&@$^]|(?<=:)/(?=/)|(?<=www)\.|^[-+=]|"
    r"(?:(?<=^\d)|(?<=^\d\d)|(?<=^\d{3})|(?<=^\d{4}))[.)]",
    re.IGNORECASE,
)


def _escaped(text: str) -> str:
    """Escape all Markdown."""
    return _MEANINGFUL.sub(r"\\\g<0>", _one_line(text))
