"""Declare a record once: its columns make tables, and its own fields make JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from triage.core.quoting import one_line

from .output import console, json_line, note, paged, print_lines

T = TypeVar("T")

_NARROWEST = 6
_EVERY_S = 2.0


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table.

    text: returns a value's cell, written on one line of at most `most` characters; `-` stands for an empty
    one. cut: when the column loses width on a narrow screen: 1 for first, 2 for last, 0 for never. styles:
    the cell's colour by its text, red for any other; None for no colour.
    """

    title: str
    text: Callable[[T], object]
    most: int = 200
    cut: int = 0
    styles: Mapping[str, str] | None = None

    def cell(self, value: T) -> str:
        """Write the cell of a value."""
        found = self.text(value)
        return "-" if found in (None, "") else one_line(str(found), self.most)


@dataclass(frozen=True, kw_only=True)
class Record(Generic[T]):
    """A kind of value that commands list.

    columns: of its table. json: returns the value's JSON, by default its own fields (see `json_line`). key:
    changes when a watched list has to print the value again. nothing: the note on an empty list.
    """

    columns: tuple[Column[T], ...]
    json: Callable[[T], object] = lambda value: value
    key: Callable[[T], Hashable] = repr
    nothing: str

    def with_columns(self, *columns: Column[T]) -> Record[T]:
        """Return the record with more columns."""
        return replace(self, columns=(*self.columns, *columns))

    def table(self, values: Sequence[T]) -> list[Text]:
        """Lay values out under the titles, fitted to the screen; no lines for no values."""
        titles = [column.title for column in self.columns]
        rows = [[column.cell(value) for column in self.columns] for value in values]
        if not rows:
            return []
        widths = [max(map(cell_len, cells)) for cells in zip(titles, *rows, strict=True)]
        room = console().width - 2 * (len(widths) - 1)
        for order in (1, 2):
            flexible = [at for at, column in enumerate(self.columns) if column.cut == order]
            while flexible and sum(widths) > room:
                widest = max(flexible, key=lambda at: widths[at])
                if widths[widest] <= _NARROWEST:
                    break
                widths[widest] -= 1
        head = self._line(titles, widths)
        head.style = "bold"
        return [head, *(self._line(row, widths, styled=True) for row in rows)]

    def _line(self, cells: Sequence[str], widths: Sequence[int], *, styled: bool = False) -> Text:
        line = Text()
        for column, cell, width in zip(self.columns, cells, widths, strict=True):
            shown = cell
            if cell_len(cell) > width:
                shown = f"{set_cell_size(cell, width - 1).rstrip()}…"
            style = "" if not styled or column.styles is None else column.styles.get(cell, "red")
            line.append(shown, style)
            line.append(" " * (width - cell_len(shown) + 2))
        line.rstrip()
        return line

    def print(
        self,
        look: Callable[[], Sequence[T]],
        *,
        as_json: bool,
        limit: int | None = None,
        watch: bool = False,
    ) -> None:
        """Print values as a table, or as a line of JSON each.

        look: returns them, one more than `limit` if there are more. watch: look again every two seconds
        until interrupted: a terminal is drawn anew, other outputs get the lines that changed.
        """
        if not watch:
            self._print_once(look(), as_json=as_json, limit=limit)
            return
        out = console()
        seen: list[Hashable] = []
        with _noting_dropped_interrupts() as dropped:
            while not dropped:
                values = look()[:limit]
                lines = self._lines(values, as_json=as_json)
                if out.is_terminal:
                    out.clear()
                    print_lines(out, lines[: out.height - 1])
                else:
                    keys: list[Hashable] = [self.key(value) for value in values]
                    keys = ["titles"] * (len(lines) - len(keys)) + keys
                    pairs = zip(lines, keys, strict=True)
                    print_lines(out, [line for line, key in pairs if key not in seen])
                    seen = keys
                if not dropped:
                    time.sleep(_EVERY_S)
        raise KeyboardInterrupt

    def _print_once(self, values: Sequence[T], *, as_json: bool, limit: int | None) -> None:
        with paged() as out:
            print_lines(out, self._lines(values[:limit], as_json=as_json))
        if not values:
            note(self.nothing)
        elif limit is not None and len(values) > limit:
            note(f"these are the newest {limit}; --limit shows more")

    def _lines(self, values: Sequence[T], *, as_json: bool) -> list[Text]:
        return (
            [Text(json_line(self.json(value))) for value in values]
            if as_json
            else self.table(values)
        )


@contextmanager
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
