"""Start the command line, or say which package it needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. argv: the arguments, None takes the process' own."""
    try:
        from .app import run_command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("cyclopts", "rich"):
            raise
        print(
            f"triage: the command line needs {error.name}; install it: "
            'pip install "triage-recovery[cli]"',
            file=sys.stderr,
        )
        return 2
    return run_command(sys.argv[1:] if argv is None else list(argv))
