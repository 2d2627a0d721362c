"""Draws what the demonstrations print, as SVG, from real runs: `python docs/make_pictures.py`."""

from __future__ import annotations

import io
import re
import sys
from functools import partial
from pathlib import Path

from rich import console as rich_console
from rich.console import Console

from examples.demo.__main__ import main as demo
from examples.plan.__main__ import main as plan

PICTURES = Path(__file__).with_name("pictures")
WIDTH = 80


def drawn(console: Console, title: str) -> str:
    """What was printed, as SVG that asks no host for a font."""
    form = re.sub(r"@font-face \{\{.*?\}\}", "", rich_console.CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title=title, code_format=form, unique_id="triage")


def main() -> int:
    """Draw both; 0 if both did what they are to do."""
    PICTURES.mkdir(exist_ok=True)
    failed = 0
    for name, run in (("demo", partial(demo, [])), ("demo-plan", plan)):
        console = Console(record=True, width=WIDTH, file=io.StringIO())
        failed |= run(console)
        svg = drawn(console, f"make {name}")
        (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())
