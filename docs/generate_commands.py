"""Writes `commands.md` from the program: `python docs/generate_commands.py`; `--check` only compares.

Each command is there with what its `--help` prints at 80 columns.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

from cyclopts import App
from rich.console import Console

from triage.cli.app import app

PAGE = Path(__file__).with_name("commands.md")
WIDTH = 80
INTRODUCTION = """\
# Commands

What `--help` prints of each command, written by `python docs/generate_commands.py`.
[Command line](command-line.md) says what they have in common.
"""


def commands(under: App, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of all commands, in the order of the help."""
    for name in under:
        if not name.startswith("-"):
            found = under[name]
            below = list(commands(found, (*names, name)))
            yield from below or [(*names, name)]


def help_of(names: tuple[str, ...]) -> str:
    """What `--help` prints of a command."""
    printed = io.StringIO()
    console = Console(file=printed, width=WIDTH, color_system=None, force_terminal=False)
    app.help_print(list(names), console=console)
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def page() -> str:
    """The whole page, as it should be in the repository."""
    parts = (
        f"## triage {' '.join(names)}\n\n```text\n{help_of(names)}\n```\n"
        for names in commands(app)
    )
    return "\n".join([INTRODUCTION, *parts])


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it is what would be written: 0 if so, else 1."""
    wanted = page()
    if arguments == ["--check"]:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted
        if not same:
            sys.stderr.write(
                "docs/commands.md is not up to date: run python docs/generate_commands.py\n"
            )
        return 0 if same else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
