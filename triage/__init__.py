"""triage: know why an agent failed, recover, lose nothing, pay for nothing twice.

    from triage import Agent

    agent = Agent(my_async_function)
    result = await agent.run("do the task")

Names are imported when they are first used, so `import triage` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import lazily as _lazily

if TYPE_CHECKING:
    from . import faults
    from ._agent import Agent, agent
    from ._capture import hint, not_attempted
    from ._env import Environment
    from ._guidance import Guidance
    from ._loop import Restarted
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
    )
    from .adapters._wrap import wrap
    from .answers import approve, edit, happened, reject, rerun
    from .checks import Checks, Durability
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
    from .grounds import Grounds
    from .guards import CallDenied, Guard, GuardedCall
    from .limits import Limits
    from .observers import LoggingObserver, Observer
    from .policy import FailurePolicy
    from .prices import Price, Prices
    from .reports import ErrorReporter, Report
    from .state import RunState, fold
    from .steps import Step, Trajectory, Usage
    from .stores import MemoryStore, Store
    from .taxonomy import Category, Cause, Effect, FailureType, Level, Recovery, Severity
    from .tools import current_call, tool
    from .watching import Watching

_HOMES = {
    "_capture": ("hint", "not_attempted"),
    "_env": ("Environment",),
    "_loop": ("Restarted",),
    "_reopen": ("Recovered",),
    "_guidance": ("Guidance",),
    "_redactor": ("Redactor",),
    "_retry_layers": ("RetryLayer", "retry_layers", "single_retry_layer"),
    "_run": ("Run", "current_run"),
    "actions": (
        "Abort", "Action", "Escalate", "RecoveryAction", "Replan", "Resume", "Retry", "Rollback",
        "Suspend",
    ),
    "answers": ("approve", "edit", "happened", "reject", "rerun"),
    "_agent": ("Agent", "agent"),
    "adapters._wrap": ("wrap",),
    "checks": ("Checks", "Durability"),
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
    "grounds": ("Grounds",),
    "guards": ("CallDenied", "Guard", "GuardedCall"),
    "limits": ("Limits",),
    "observers": ("LoggingObserver", "Observer"),
    "policy": ("FailurePolicy",),
    "prices": ("Price", "Prices"),
    "reports": ("ErrorReporter", "Report"),
    "state": ("RunState", "fold"),
    "steps": ("Step", "Trajectory", "Usage"),
    "stores": ("MemoryStore", "Store"),
    "taxonomy": (
        "Category", "Cause", "Effect", "FailureType", "Level", "Recovery", "Severity",
    ),
    "tools": ("current_call", "tool"),
    "watching": ("Watching",),
}  # fmt: skip

__version__ = "0.1.0"
__all__ = [
    "Abort",
    "Action",
    "Agent",
    "AlreadyResumed",
    "Attempt",
    "AttemptInterrupted",
    "AttemptOver",
    "CallDenied",
    "Category",
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
    "ErrorReporter",
    "Escalate",
    "Event",
    "Evidence",
    "FailureContext",
    "FailurePolicy",
    "FailureType",
    "Grounds",
    "Guard",
    "GuardedCall",
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
    "Recovery",
    "RecoveryAction",
    "Redactor",
    "Replan",
    "Report",
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
    "Watching",
    "__version__",
    "agent",
    "approve",
    "current_call",
    "current_run",
    "diagnose",
    "edit",
    "faults",
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
    "wrap",
]

__getattr__, __dir__ = _lazily(__name__, _HOMES, modules=("faults",))
