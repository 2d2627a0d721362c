"""`triage` in a terminal: run an agent function, manage its runs, diagnose recordings.

`Progress` shows a run as it happens, in programs of your own too.
"""

from __future__ import annotations

from .program import main
from .progress import Progress

__all__ = ["Progress", "main"]
