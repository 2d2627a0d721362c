"""Runs one measurement of one package in this interpreter and prints its values as JSON.

    python bench/peers/run.py triage_agent clean

The checkout is put at the end of the search path: what is installed in the interpreter's own
environment comes first, so that each package is measured as its users get it. Nothing is imported
here that a package might import, since that too is measured.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module


def main() -> None:
    """Measure what the arguments name; a package that has no such thing prints `null`."""
    peer, name = sys.argv[1:3]
    root = __file__
    for _ in range(3):
        root = os.path.dirname(root)  # noqa: PTH120 - pathlib is not to be loaded yet
    sys.path.append(root)
    measure = import_module("bench.peers.measure")
    values = measure.measure(import_module(f"bench.peers.{peer}"), name)

    import json

    print(json.dumps(values))


if __name__ == "__main__":
    main()
