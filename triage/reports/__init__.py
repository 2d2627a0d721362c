"""What is told when a run has failed: `ErrorReporter` makes a `Report` of the `Facts`.

    report = error.report                       # of any error that ended a run
    report = await ErrorReporter(LLMAnalyst()).generate(error)
    print(report.to_markdown())

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triage._lazy import lazily as _lazily

if TYPE_CHECKING:
    from ._facts import AttemptFacts, CapabilityFacts, CounterFacts, Facts, StepFacts
    from ._llm_analyst import LLMAnalyst
    from ._report import Analysis, Report
    from ._reporter import Brief, ErrorReporter

_HOMES = {
    "_facts": ("AttemptFacts", "CapabilityFacts", "CounterFacts", "Facts", "StepFacts"),
    "_llm_analyst": ("LLMAnalyst",),
    "_report": ("Analysis", "Report"),
    "_reporter": ("Brief", "ErrorReporter"),
}

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


def report_of(subject: object) -> Report:
    """The facts of a failure as a report, without analysis: `ErrorReporter().facts(subject)`.

    Never raises but for KeyboardInterrupt and cancellation.
    """
    from ._reporter import ErrorReporter

    return ErrorReporter().facts(subject)


__getattr__, __dir__ = _lazily(__name__, _HOMES)
