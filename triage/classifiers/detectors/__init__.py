"""What the steps of an attempt show: loops, unknown tools, failed results and more."""

from __future__ import annotations

from .finding import Finding
from .watch import Watch

__all__ = [
    "Finding",
    "Watch",
]
