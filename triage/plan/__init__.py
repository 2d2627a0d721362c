"""Plan first, then act: capabilities, plans that are checked before they run, and where a run goes next.

    registry = Registry([find, respond])
    found = validate(plan, registry, task="Where is the beam?")
    decision = route(fold_plan(journal), PlanLimits(replans=2))
    answer = await Orchestrator(registry, planner).run("Where is the beam?")

Capabilities, plans, routing and approvals are values and pure functions; `Orchestrator` runs them on the
engine of `Agent`.
"""

from __future__ import annotations

from triage.core.constructors import check_constructors

from .answers import Approval, answer_in, asked_in, request_in, unsafe_effects
from .approval import (
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
)
from .capabilities import (
    Capability,
    ClassifyError,
    Planner,
    PlanRequest,
    Registry,
    SelectionRequest,
    Selector,
    capability,
)
from .execution import StepJudge, StepOutcome
from .llm import JudgeEach, Judgement, LLMJudge, LLMPlanner, LLMResponder, LLMStepJudge
from .orchestrator import Orchestrator, Progress, report_in
from .plans import ExecutionPlan, Input, PlannedStep, plan_schema
from .routing import Decision, DoneStep, PlanLimits, PlanState, Target, fold_plan, route
from .validation import Fix, Issue, IssueCode, Validation, feedback, validate

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
    "report_in",
    "request_in",
    "route",
    "subject_of",
    "unsafe_effects",
    "validate",
]

check_constructors(globals())
