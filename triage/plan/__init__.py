"""Plan first, then act: capabilities, plans that are checked before they run, and where a run goes next.

    registry = Registry([find, respond])
    found = validate(plan, registry, task="Where is the beam?")
    decision = route(fold_plan(journal), PlanLimits(replans=2))
    answer = await Orchestrator(registry, planner).run("Where is the beam?")

Capabilities, plans, routing and approvals are values and pure functions; `Orchestrator` runs them on the
engine of `Agent`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triage._lazy import lazily as _lazily

if TYPE_CHECKING:
    from ._approval import (
        ApprovalAnswer,
        ApprovalMode,
        ApprovalRequest,
        Evaluator,
        Need,
        ask,
        matches,
        mismatch,
        needs_approval,
        subject_of,
        unsafe_effects,
    )
    from ._approving import Approval, answer_in, asked_in
    from ._capability import Capability, ClassifyError, capability
    from ._criteria import StepJudge, StepOutcome
    from ._feedback import feedback
    from ._issues import Fix, Issue, IssueCode, Validation
    from ._judging import JudgeEach, Judgement
    from ._limits import PlanLimits
    from ._llm import LLMJudge, LLMPlanner, LLMResponder, LLMStepJudge
    from ._orchestrator import Orchestrator
    from ._plan import ExecutionPlan, Input, PlannedStep
    from ._progress import Progress
    from ._read import plan_schema
    from ._registry import Registry
    from ._requests import Planner, PlanRequest, SelectionRequest, Selector
    from ._route import Decision, route
    from ._state import DoneStep, PlanState, Target, fold_plan
    from ._validate import validate

_HOMES = {
    "_approval": (
        "ApprovalAnswer", "ApprovalMode", "ApprovalRequest", "Evaluator", "Need", "ask", "matches",
        "mismatch", "needs_approval", "subject_of", "unsafe_effects",
    ),
    "_approving": ("Approval", "answer_in", "asked_in"),
    "_capability": ("Capability", "ClassifyError", "capability"),
    "_criteria": ("StepJudge", "StepOutcome"),
    "_feedback": ("feedback",),
    "_issues": ("Fix", "Issue", "IssueCode", "Validation"),
    "_limits": ("PlanLimits",),
    "_judging": ("JudgeEach", "Judgement"),
    "_llm": ("LLMJudge", "LLMPlanner", "LLMResponder", "LLMStepJudge"),
    "_orchestrator": ("Orchestrator",),
    "_plan": ("ExecutionPlan", "Input", "PlannedStep"),
    "_progress": ("Progress",),
    "_read": ("plan_schema",),
    "_registry": ("Registry",),
    "_requests": ("PlanRequest", "Planner", "SelectionRequest", "Selector"),
    "_route": ("Decision", "route"),
    "_state": ("DoneStep", "PlanState", "Target", "fold_plan"),
    "_validate": ("validate",),
}  # fmt: skip

__all__ = [
    "Approval",
    "ApprovalAnswer",
    "ApprovalMode",
    "ApprovalRequest",
    "Capability",
    "ClassifyError",
    "Decision",
    "DoneStep",
    "Evaluator",
    "ExecutionPlan",
    "Fix",
    "Input",
    "Issue",
    "IssueCode",
    "JudgeEach",
    "Judgement",
    "LLMJudge",
    "LLMPlanner",
    "LLMResponder",
    "LLMStepJudge",
    "Need",
    "Orchestrator",
    "PlanLimits",
    "PlanRequest",
    "PlanState",
    "PlannedStep",
    "Planner",
    "Progress",
    "Registry",
    "SelectionRequest",
    "Selector",
    "StepJudge",
    "StepOutcome",
    "Target",
    "Validation",
    "answer_in",
    "ask",
    "asked_in",
    "capability",
    "feedback",
    "fold_plan",
    "matches",
    "mismatch",
    "needs_approval",
    "plan_schema",
    "route",
    "subject_of",
    "unsafe_effects",
    "validate",
]

__getattr__, __dir__ = _lazily(__name__, _HOMES)
