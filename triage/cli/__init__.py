"""`triage` in a terminal: run an agent function, see to its runs, diagnose what was recorded, score a
classifier.

`Progress` shows a run as it happens and is of use in programs of one's own, too.
"""

from __future__ import annotations

from .program import main
from .progress import Progress

__all__ = ["Progress", "main"]
