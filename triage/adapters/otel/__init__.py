"""OpenTelemetry: traces, log events and metrics of runs, live or from any journal.

    agent = Agent(book, observers=[Telemetry()])        # live; pip install triage-recovery[otel]

`triage export RUN --otlp FILE|URL` builds the same tree for a run in a store, without the extra.
"""

from __future__ import annotations

from triage.core.constructors import check_constructors

from .export import NotExported, check_target, export, export_run, read_tree, tree_of
from .names import VERSIONS, Names, names_of
from .spans import Link, LogData, Measure, SpanData, SpanRef
from .telemetry import Telemetry, wants_content
from .tree import MAPPED, RunTrace

__all__ = [
    "MAPPED",
    "VERSIONS",
    "Link",
    "LogData",
    "Measure",
    "Names",
    "NotExported",
    "RunTrace",
    "SpanData",
    "SpanRef",
    "Telemetry",
    "check_target",
    "export",
    "export_run",
    "names_of",
    "read_tree",
    "tree_of",
    "wants_content",
]

check_constructors(globals())
