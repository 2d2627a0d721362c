"""Writes which agents are saved from what, in `your-own-loop.md`: `python docs/generate_saved.py`.

Every agent is played with every failure, which takes half a minute. A test compares.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import anyio


def main() -> None:
    """Write the page."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    anyio.run(import_module("adapters.undeclared_agents").main)


if __name__ == "__main__":
    main()
