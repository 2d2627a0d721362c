"""Reports of failures, for people."""

from __future__ import annotations

from triage.core.constructors import check_constructors

from .analysis import Brief, ErrorReporter, LLMAnalyst, report_of
from .facts import AttemptFacts, CapabilityFacts, CounterFacts, Facts, StepFacts
from .report import Analysis, Report

__all__ = [
    "Analysis",
    "AttemptFacts",
    "Brief",
    "CapabilityFacts",
    "CounterFacts",
    "ErrorReporter",
    "Facts",
    "LLMAnalyst",
    "Report",
    "StepFacts",
    "report_of",
]

check_constructors(globals())
