"""Render values of a run as HTML for notebooks, in the colours of the surrounding page."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import short
from .escaping import escaped
from .redaction import redact

MAX_ROWS = 40
"""Maximum rows of a table; a longer one shows its first and last rows."""
_READ = 4_000
_SHOWN = 300
_LINE = "border:0;border-top:1px solid rgba(127,127,127,.4);padding:2px 8px;text-align:left"
_TABLE = "border-collapse:collapse;background:none;color:inherit"


def table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Render a title and named values as an HTML table, each redacted, escaped and cut.

    Rows with a value of None or "" are left out. A callable value is called if its row is shown.
    """
    known = [(name, value) for name, value in rows if value is not None and value != ""]
    if (left_out := len(known) - MAX_ROWS) > 0:
        half = MAX_ROWS // 2
        known[half:-half] = [("…", f"{left_out} more")]
    body = "".join(
        f'<tr style="background:none"><th style="{_LINE}">{_escape(name)}</th>'
        f'<td style="{_LINE}">{_escape(_text(value))}</td></tr>'
        for name, value in known
    )
    head = (
        f'<caption style="text-align:left;color:inherit"><b>{_escape(_text(title))}</b></caption>'
    )
    return f'<table style="{_TABLE}">{head}{body}</table>'


def lines(text: str) -> str:
    """Render a text of several lines as HTML, redacted and escaped."""
    shown = _escape(escaped(redact(text), lines=True))
    return f'<pre style="white-space:pre-wrap;background:none;color:inherit">{shown}</pre>'


def _escape(text: str) -> str:
    # Imported here: it loads two thousand names of characters, and few programs write HTML.
    from html import escape

    return escape(text)


def _text(value: object) -> str:
    value = value() if callable(value) else value
    text = escaped(value[:_READ]) if isinstance(value, str) else short(value, _READ)
    text = redact(text)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
