"""triage: know why an agent failed, recover, lose nothing, pay for nothing twice.

    from triage import Agent

    agent = Agent(my_async_function)
    result = await agent.run("do the task")

What most programs need is here; the rest is in the rooms: `triage.core`, `triage.strategies`,
`triage.classifiers`, `triage.stores`, `triage.reports`, `triage.engine`, `triage.plan`,
`triage.incidents`, `triage.adapters` and `triage.testing`. Names are imported when they are first used, so
`import triage` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapters import wrap
    from .classifiers import RulesClassifier, diagnose
    from .core import (
        Abort,
        Diagnosis,
        Effect,
        ErrorInfo,
        Escalate,
        FailureContext,
        FailureType,
        Replan,
        Resume,
        Retry,
        Rollback,
        Severity,
        Step,
        Suspend,
        Trajectory,
        TriageAbortError,
        TriageError,
        TriageEscalationError,
        TriageSuspendedError,
        Usage,
        UsageError,
        approve,
        edit,
        happened,
        hint,
        not_attempted,
        reject,
        rerun,
    )
    from .engine import (
        Agent,
        Checks,
        Durability,
        Guidance,
        Restarted,
        Run,
        agent,
        current_call,
        current_run,
        model,
        tool,
    )
    from .strategies import FailurePolicy, Limits

__version__ = "0.2.0"
__all__ = [
    "Abort",
    "Agent",
    "Checks",
    "Diagnosis",
    "Durability",
    "Effect",
    "ErrorInfo",
    "Escalate",
    "FailureContext",
    "FailurePolicy",
    "FailureType",
    "Guidance",
    "Limits",
    "Replan",
    "Restarted",
    "Resume",
    "Retry",
    "Rollback",
    "RulesClassifier",
    "Run",
    "Severity",
    "Step",
    "Suspend",
    "Trajectory",
    "TriageAbortError",
    "TriageError",
    "TriageEscalationError",
    "TriageSuspendedError",
    "Usage",
    "UsageError",
    "__version__",
    "agent",
    "approve",
    "current_call",
    "current_run",
    "diagnose",
    "edit",
    "happened",
    "hint",
    "model",
    "not_attempted",
    "reject",
    "rerun",
    "tool",
    "wrap",
]

_ROOMS = {
    "adapters": ("wrap",),
    "classifiers": ("RulesClassifier", "diagnose"),
    "core": (
        "Abort", "Diagnosis", "Effect", "ErrorInfo", "Escalate", "FailureContext",
        "FailureType", "Replan", "Resume", "Retry", "Rollback", "Severity", "Step", "Suspend",
        "Trajectory", "TriageAbortError", "TriageError", "TriageEscalationError",
        "TriageSuspendedError", "Usage", "UsageError", "approve", "edit", "happened", "hint",
        "not_attempted", "reject", "rerun",
    ),
    "engine": (
        "Agent", "Checks", "Durability", "Guidance", "Restarted", "Run", "agent",
        "current_call", "current_run", "model", "tool",
    ),
    "reports": (),
    "stores": (),
    "strategies": ("FailurePolicy", "Limits"),
    "plan": (),
    "incidents": (),
    "testing": (),
    "cli": (),
}  # fmt: skip
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}
_MOVED = {
    "adapters.recordings": ("traces",),
    "classifiers": (
        "ChainClassifier", "Classifier", "Grounds", "HybridClassifier", "LLMClassifier",
        "grounds",
    ),
    "core": (
        "Action", "AlreadyResumed", "Attempt", "AttemptInterrupted", "AttemptOver", "Category",
        "Cause", "CircuitOpen", "DeadLetter", "Environment", "Event", "Evidence", "Level",
        "LoggingObserver", "Observer", "Partial", "Recovery", "RecoveryAction", "Redactor",
        "ResultLost", "RetryBudgetSpent", "RunBusy", "RunOver", "RunState", "StaleWriter",
        "StoreCorrupt", "StoreError", "StoreFull", "StoreReadOnly", "StoreTooNew",
        "StoreUnavailable", "TokenExpired", "TriageFatalError", "UnknownRun", "actions",
        "answers", "diagnosis", "errors", "events", "failures", "faults", "fold", "observers",
        "redact", "state", "steps", "taxonomy",
    ),
    "engine": (
        "CallDenied", "Guard", "GuardedCall", "Recovered", "Watching", "checks", "guards", "tools",
        "watching",
    ),
    "reports": ("ErrorReporter", "Report"),
    "stores": ("MemoryStore", "Store"),
    "strategies": (
        "CircuitBreaker", "Price", "Prices", "RateGate", "RetryBudget", "RetryLayer", "gates",
        "limits", "policy", "prices", "retry_layers", "single_retry_layer",
    ),
}  # fmt: skip
"""Modules and names that version 0.1.0 had here, by the room they are in now."""
_NOW = {name: room for room, names in _MOVED.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"triage.{name}")
    if name in _NOW:
        raise ImportError(f"triage.{name} has moved: import it from triage.{_NOW[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'triage' has no attribute {name!r}")
    value = getattr(import_module(f"triage.{_HOMES[name]}"), name)
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


class _MovedModules:
    """Says where a module of version 0.1.0 is now, when it is imported by its old name."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        """Find nothing; raise for a module that has moved."""
        package, _, module = name.partition(".")
        if package == "triage" and module in _NOW:
            raise ModuleNotFoundError(
                f"{name} has moved: import from triage.{_NOW[module]}", name=name
            )


sys.meta_path.append(_MovedModules)
