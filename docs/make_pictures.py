"""Draws what the demonstration prints, as SVG, from a real run: `python docs/make_pictures.py`."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich import console as rich_console
from rich.console import Console

from examples.demo.__main__ import main as demo

PICTURES = Path(__file__).with_name("pictures")
WIDTH = 80


def drawn(console: Console, title: str) -> str:
    """What was printed, as SVG that asks no host for a font."""
    form = re.sub(r"@font-face \{\{.*?\}\}", "", rich_console.CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title=title, code_format=form, unique_id="triage")


def main() -> int:
    """Draw it; 0 if the demonstration did what it is to do."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    failed = demo([], console)
    PICTURES.mkdir(exist_ok=True)
    svg = drawn(console, "make demo")
    (PICTURES / "demo.svg").write_text(svg, encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())
