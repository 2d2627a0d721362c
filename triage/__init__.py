"""triage: know why an agent failed, recover, lose nothing, pay for nothing twice.

    from triage import Agent

    agent = Agent(my_async_function)
    result = await agent.run("do the task")

Names are imported when they are first used, so `import triage` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._agent import Agent, agent
    from ._capture import hint, not_attempted
    from ._env import Environment
    from ._loop import Restarted
    from ._recorder import Guidance
    from ._redactor import Redactor
    from ._reopen import Recovered
    from ._retry_layers import RetryLayer, retry_layers, single_retry_layer
    from ._run import Run, current_run
    from .actions import (
        Abort,
        Action,
        Escalate,
        RecoveryAction,
        Replan,
        Resume,
        Retry,
        Rollback,
        Suspend,
        approve,
        edit,
        happened,
        reject,
        rerun,
    )
    from .checks import Checks, Durability, Grounds
    from .classifiers import (
        ChainClassifier,
        Classifier,
        HybridClassifier,
        LLMClassifier,
        RulesClassifier,
        diagnose,
    )
    from .corrections import report_misclassification
    from .diagnosis import Diagnosis, Evidence
    from .errors import (
        AlreadyResumed,
        AttemptInterrupted,
        AttemptOver,
        CircuitOpen,
        DeadLetter,
        ResultLost,
        RetryBudgetSpent,
        RunBusy,
        RunOver,
        StaleWriter,
        StoreCorrupt,
        StoreError,
        StoreFull,
        StoreReadOnly,
        StoreTooNew,
        StoreUnavailable,
        TokenExpired,
        TriageAbortError,
        TriageError,
        TriageEscalationError,
        TriageFatalError,
        TriageSuspendedError,
        UnknownRun,
        UsageError,
    )
    from .events import Event
    from .failures import Attempt, ErrorInfo, FailureContext, Partial
    from .gates import CircuitBreaker, RateGate, RetryBudget
    from .limits import Limits
    from .observers import LoggingObserver, Observer
    from .policy import FailurePolicy
    from .prices import Price, Prices
    from .state import RunState, fold
    from .steps import Step, Trajectory, Usage
    from .stores import MemoryStore, Store
    from .taxonomy import Cause, Effect, FailureType, Level, Severity
    from .tools import current_call, tool

_HOMES = {
    "_capture": ("hint", "not_attempted"),
    "_env": ("Environment",),
    "_loop": ("Restarted",),
    "_reopen": ("Recovered",),
    "_recorder": ("Guidance",),
    "_redactor": ("Redactor",),
    "_retry_layers": ("RetryLayer", "retry_layers", "single_retry_layer"),
    "_run": ("Run", "current_run"),
    "actions": (
        "Abort", "Action", "Escalate", "RecoveryAction", "Replan", "Resume", "Retry", "Rollback",
        "Suspend", "approve", "edit",
        "happened", "reject", "rerun",
    ),
    "_agent": ("Agent", "agent"),
    "checks": ("Checks", "Durability", "Grounds"),
    "classifiers": (
        "ChainClassifier", "Classifier", "HybridClassifier", "LLMClassifier", "RulesClassifier",
        "diagnose",
    ),
    "corrections": ("report_misclassification",),
    "diagnosis": ("Diagnosis", "Evidence"),
    "errors": (
        "AlreadyResumed", "AttemptInterrupted", "AttemptOver", "CircuitOpen", "DeadLetter",
        "ResultLost", "RetryBudgetSpent", "RunBusy", "RunOver", "StaleWriter", "StoreCorrupt",
        "StoreError", "StoreFull", "StoreReadOnly", "StoreTooNew", "StoreUnavailable", "TokenExpired",
        "TriageAbortError", "TriageError", "TriageEscalationError", "TriageFatalError",
        "TriageSuspendedError", "UnknownRun", "UsageError",
    ),
    "events": ("Event",),
    "failures": ("Attempt", "ErrorInfo", "FailureContext", "Partial"),
    "gates": ("CircuitBreaker", "RateGate", "RetryBudget"),
    "limits": ("Limits",),
    "observers": ("LoggingObserver", "Observer"),
    "policy": ("FailurePolicy",),
    "prices": ("Price", "Prices"),
    "state": ("RunState", "fold"),
    "steps": ("Step", "Trajectory", "Usage"),
    "stores": ("MemoryStore", "Store"),
    "taxonomy": ("Cause", "Effect", "FailureType", "Level", "Severity"),
    "tools": ("current_call", "tool"),
}  # fmt: skip
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "Abort",
    "Action",
    "Agent",
    "AlreadyResumed",
    "Attempt",
    "AttemptInterrupted",
    "AttemptOver",
    "Cause",
    "ChainClassifier",
    "Checks",
    "CircuitBreaker",
    "CircuitOpen",
    "Classifier",
    "DeadLetter",
    "Diagnosis",
    "Durability",
    "Effect",
    "Environment",
    "ErrorInfo",
    "Escalate",
    "Event",
    "Evidence",
    "FailureContext",
    "FailurePolicy",
    "FailureType",
    "Grounds",
    "Guidance",
    "HybridClassifier",
    "LLMClassifier",
    "Level",
    "Limits",
    "LoggingObserver",
    "MemoryStore",
    "Observer",
    "Partial",
    "Price",
    "Prices",
    "RateGate",
    "Recovered",
    "RecoveryAction",
    "Redactor",
    "Replan",
    "Restarted",
    "ResultLost",
    "Resume",
    "Retry",
    "RetryBudget",
    "RetryBudgetSpent",
    "RetryLayer",
    "Rollback",
    "RulesClassifier",
    "Run",
    "RunBusy",
    "RunOver",
    "RunState",
    "Severity",
    "StaleWriter",
    "Step",
    "Store",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreTooNew",
    "StoreUnavailable",
    "Suspend",
    "TokenExpired",
    "Trajectory",
    "TriageAbortError",
    "TriageError",
    "TriageEscalationError",
    "TriageFatalError",
    "TriageSuspendedError",
    "UnknownRun",
    "Usage",
    "UsageError",
    "__version__",
    "agent",
    "approve",
    "current_call",
    "current_run",
    "diagnose",
    "edit",
    "fold",
    "happened",
    "hint",
    "not_attempted",
    "reject",
    "report_misclassification",
    "rerun",
    "retry_layers",
    "single_retry_layer",
    "tool",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'triage' has no attribute {name!r}")
    value = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
