"""OpenTelemetry: traces, log events and metrics of runs, live or from any journal.

    agent = Agent(book, observers=[Telemetry()])        # live; pip install triage-recovery[otel]

`triage export RUN --otlp FILE|URL` builds the same tree for a run in a store, without the extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .exporting import NotExported, export, export_run, read_tree
from .names import VERSIONS
from .spans import Link, LogData, SpanData
from .tree import tree_of

if TYPE_CHECKING:
    from .telemetry import Telemetry

__all__ = [
    "VERSIONS",
    "Link",
    "LogData",
    "NotExported",
    "SpanData",
    "Telemetry",
    "export",
    "export_run",
    "read_tree",
    "tree_of",
]


def __getattr__(name: str) -> Any:
    """Import `Telemetry` when it is asked for, as it needs an extra."""
    if name != "Telemetry":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .telemetry import Telemetry

    return Telemetry
