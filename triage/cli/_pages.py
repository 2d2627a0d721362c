"""Tables and pages: in colour where rich and a terminal are there, else as plain lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ._run import _console, _write
from ._runs import shown
from ._show import Line

_LONGEST = 500


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    styled: str,
    styles: Mapping[str, str],
) -> None:
    """Print rows under titles.

    styled: the title of the column in colour. styles: the colour of its texts, red for any other.
    """
    console = _console(error=False)
    if console is None or not console.is_terminal:
        widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
        for row in (titles, *rows):
            cells = zip(row, widths, strict=True)
            _write("  ".join(cell.ljust(width) for cell, width in cells).rstrip())
        return
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, overflow="fold")
    at = list(titles).index(styled)
    for row in rows:
        style = styles.get(row[at], "red")
        numbered = enumerate(row)
        made.add_row(*(Text(cell, style=style if which == at else "") for which, cell in numbered))
    console.print(made)


def print_lines(lines: Sequence[Line]) -> None:
    """Print a title, and below it what each label says."""
    title, *rest = lines
    console = _console(error=False)
    if console is None or not console.is_terminal:
        _write(shown(title.text))
        for line in rest:
            _write(f"{line.label:>11}  {shown(line.text, _LONGEST)}")
        return
    from rich.table import Table
    from rich.text import Text

    console.print(Text(shown(title.text), style=title.style))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", width=11)
    grid.add_column(overflow="fold")
    for line in rest:
        grid.add_row(Text(line.label, style=line.style), Text(shown(line.text, _LONGEST)))
    console.print(grid)
