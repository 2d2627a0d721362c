"""What a command prints: tables and pages for people, JSON for programs, notes on standard error."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pydoc
import re
import sys
import time
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.pager import Pager
from rich.table import Table
from rich.text import Text

from triage.core.errors import UsageError
from triage.core.json_values import refuse_constant
from triage.core.quoting import one_line
from triage.core.redaction import redact

from .progress import Line

_LENGTH = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(s|m|min|h|d|w)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_NARROWEST = 6
_EVERY_S = 2.0
_LONGEST = 500


def write(text: str) -> None:
    """Print a text on standard output, whatever its encoding."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def note(text: str) -> None:
    """Say something in a line on standard error."""
    print(f"triage: {one_line(text, 2000)}", file=sys.stderr)


def console(*, error: bool = False) -> Console:
    """A console on standard output, or on standard error. What is printed is data, never markup."""
    return Console(stderr=error, highlight=False, markup=False, emoji=False)


class _WhenLong(Pager):
    """Asks the pager of the environment only for what does not fit on the screen."""

    def __init__(self, height: int) -> None:
        self._height = height

    def show(self, content: str) -> None:
        if content.count("\n") < self._height:
            sys.stdout.write(content)
            return
        os.environ.setdefault("LESS", "-R")
        pydoc.pager(content)


@contextlib.contextmanager
def paged() -> Generator[Console]:
    """Give a console on standard output, which on a terminal shows what is long by a pager."""
    out = console()
    with contextlib.ExitStack() as stack:
        if out.is_terminal and sys.stdout.isatty():
            stack.enter_context(out.pager(_WhenLong(out.height), styles=True))
        yield out


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    styled: str = "",
    styles: Mapping[str, str] | None = None,
    cut: Sequence[str] = (),
    last_cut: Sequence[str] = (),
    right: bool = False,
) -> list[Text]:
    """Lay rows out under titles, as lines.

    The columns in `cut` lose what the screen has no room for, the widest first; where that is not
    enough, those in `last_cut` do. styled: the title of the column in colour. styles: the colour of its
    texts, red for any other. right: align all columns but the first to the right.
    """
    cells = [list(titles), *map(list, rows)]
    width = console().width
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for columns in (cut, last_cut):
        flexible = [at for at, title in enumerate(titles) if title in columns]
        while flexible and sum(widths) + 2 * (len(widths) - 1) > width:
            widest = max(flexible, key=lambda at: widths[at])
            if widths[widest] <= _NARROWEST:
                break
            widths[widest] -= 1
    lines: list[Text] = []
    for number, row in enumerate(cells):
        line = Text(style="bold" if number == 0 else "")
        for at, (cell, space) in enumerate(zip(row, widths, strict=True)):
            if cell_len(cell) > space:
                cell = f"{set_cell_size(cell, space - 1).rstrip()}…"  # noqa: PLW2901
            style = (styles or {}).get(row[at], "red") if number and titles[at] == styled else ""
            padding = " " * (space - cell_len(cell))
            line.append("  " if at else "")
            line.append(padding if right and at else "")
            line.append(cell, style)
            line.append("" if right and at else padding)
        line.rstrip()
        lines.append(line)
    return lines


def print_text(out: Console, text: str) -> None:
    """Print a line, however long."""
    if out.is_terminal:
        out.print(text, soft_wrap=True)
    else:
        write(text)


def print_lines(out: Console, lines: Sequence[Text]) -> None:
    """Print lines as they are: styled on a terminal, else plain."""
    for line in lines:
        if out.is_terminal:
            out.print(line, no_wrap=True, overflow="ignore", crop=False)
        else:
            write(line.plain)


class Listing(NamedTuple):
    """Lines of a list. keys: for each line what is another when it has changed. remark: for notes."""

    lines: list[Text]
    keys: list[Hashable]
    remark: str = ""


def print_listing(look: Callable[[], Listing], *, watch: bool) -> None:
    """Print a list. watch: look again every two seconds, until interrupted.

    A list that is watched is drawn anew on a terminal; elsewhere the lines that changed are printed.
    """
    if not watch:
        listing = look()
        with paged() as out:
            print_lines(out, listing.lines)
        if listing.remark:
            note(listing.remark)
        return
    out = console()
    seen: list[Hashable] = []
    with _noting_dropped_interrupts() as dropped:
        while not dropped:
            listing = look()
            if out.is_terminal:
                out.clear()
                print_lines(out, listing.lines[: out.height - 1])
            else:
                pairs = zip(listing.lines, listing.keys, strict=True)
                print_lines(out, [line for line, key in pairs if key not in seen])
                seen = listing.keys
            if not dropped:
                time.sleep(_EVERY_S)
    raise KeyboardInterrupt


@contextlib.contextmanager
def _noting_dropped_interrupts() -> Generator[list[str]]:
    """Note interrupts that Python drops, as it does with all that is raised while it collects garbage."""
    dropped: list[str] = []

    def unraisable(what: sys.UnraisableHookArgs) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            dropped.append(repr(what.object))
        else:
            before(what)

    before, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        yield dropped
    finally:
        sys.unraisablehook = before


def print_page(out: Console, lines: Sequence[Line]) -> None:
    """Print a title, and below it what each label says."""
    title, *rest = lines
    if not out.is_terminal:
        write(one_line(title.text))
        for line in rest:
            write(f"{line.label:>11}  {one_line(line.text, _LONGEST)}".rstrip())
        return
    out.print(Text(one_line(title.text), style=title.style))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", width=11)
    grid.add_column(overflow="fold")
    for line in rest:
        grid.add_row(Text(line.label, style=line.style), Text(one_line(line.text, _LONGEST)))
    out.print(grid)


# JSON ---------------------------------------------------------------------------------------------


def json_line(value: Any) -> str:
    """A value in one line of JSON, ASCII only, its texts redacted; null for a number that JSON has not.

    A named tuple or struct is an object with all its fields.
    """
    return json.dumps(redact(_json(value)), allow_nan=False)


def fields_of(record: Any) -> dict[str, Any]:
    """Return all fields of a named tuple or struct by name."""
    names = record.__struct_fields__ if isinstance(record, Struct) else record._fields
    return {name: getattr(record, name) for name in names}


def _json(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {str(name): _json(item) for name, item in value.items()}
        case Struct():
            tag = value.__struct_config__
            kind = {} if tag.tag_field is None else {tag.tag_field: tag.tag}
            return _json(kind | fields_of(value))
        case tuple() if hasattr(value, "_fields"):
            return _json(fields_of(value))
        case list() | tuple():
            return [_json(item) for item in value]
        case _:
            return value


def json_given(option: str, text: str) -> Any:
    """Read the value of an option that is JSON. Raises UsageError for what is none."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} must be JSON, text in double quotes: {error}") from None


# Times --------------------------------------------------------------------------------------------


def now() -> float:
    """Seconds since the epoch on this machine's clock, by which ages are told."""
    return time.time()


def seconds_of(option: str, text: str) -> float:
    """Seconds of a text such as `30d`. Raises UsageError for anything else."""
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {text!r} must be a number and a unit: 90s, 30m, 12h, 30d, 4w")
    return float(found[1]) * _SECONDS[found[2]]
