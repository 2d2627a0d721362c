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

from .answers import answer_in, asked_in
from .approval import Approval, ApprovalMode, Evaluator, subject_of, unsafe_effects
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
from .orchestrator import Orchestrator, report_in
from .plans import ExecutionPlan, Fix, Input, Issue, IssueCode, PlannedStep, plan_schema
from .routing import Decision, DoneStep, PlanLimits, PlanState, Target, fold_plan, route
from .validation import Validation, feedback, validate

__all__ = [
    "Approval",
    "ApprovalMode",
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
    "Orchestrator",
    "PlanLimits",
    "PlanRequest",
    "PlanState",
    "PlannedStep",
    "Planner",
    "Registry",
    "SelectionRequest",
    "Selector",
    "StepJudge",
    "StepOutcome",
    "Target",
    "Validation",
    "answer_in",
    "asked_in",
    "capability",
    "feedback",
    "fold_plan",
    "plan_schema",
    "report_in",
    "route",
    "subject_of",
    "unsafe_effects",
    "validate",
]

check_constructors(globals())
