"""What is told when a run has failed: `ErrorReporter` makes a `Report` of the `Facts`.

    report = error.report                       # of any error that ended a run
    report = await ErrorReporter(LLMAnalyst()).generate(error)
    print(report.to_markdown())

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'triage.reports' has no attribute {name!r}")
    value = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
