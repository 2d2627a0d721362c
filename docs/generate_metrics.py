"""Writes the metrics in `telemetry.md`: `python docs/generate_metrics.py`; `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from triage.adapters.otel.names import INSTRUMENTS

PAGE = Path(__file__).with_name("telemetry.md")
BEGIN, END = "<!-- metrics -->\n", "<!-- end of metrics -->"


def table() -> str:
    """The metrics, each with what it counts by."""
    rows = [
        f"| `{one.name}` | {', '.join(one.by)} | {one.help.rstrip('.')} |" for one in INSTRUMENTS
    ]
    return "\n".join(("| metric | by | counts |", "|---|---|---|", *rows, ""))


def page(text: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main() -> int:
    """Write the page, or compare it."""
    text = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return int(page(text) != text)
    PAGE.write_text(page(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
