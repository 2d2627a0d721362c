"""The planner: a real model where there is a key for one, else one that errs as models do."""

from __future__ import annotations

import os
from typing import Any

from triage.plan import ExecutionPlan, Input, LLMPlanner, PlannedStep, PlanRequest

SQL = (
    "SELECT region, SUM(units) AS sold FROM sales WHERE day LIKE '2025-10-%' GROUP BY region "
    "ORDER BY region"
)
_SOLD = PlannedStep("sold", "query", "Units sold by region in October", parameters={"sql": SQL})
_TARGETS = PlannedStep(
    "targets", "load", "The targets by region", parameters={"name": "targets.csv"}
)
_COLUMNS = {"key": "region", "actual": "sold", "wanted": "target"}
_GAPS = PlannedStep(
    "gaps",
    "compare",
    "Which regions missed their target",
    success_criteria="every region is in both tables",
    parameters=_COLUMNS,
    inputs=(Input("TABLE", "sold"), Input("TABLE", "targets")),
)
_RECEIPT = PlannedStep(
    "receipt",
    "publish",
    "Publish what was found",
    parameters={"title": "October targets"},
    inputs=(Input("FINDING", "gaps"),),
)
_ANSWER = PlannedStep(
    "answer",
    "respond",
    "Tell the user",
    inputs=(Input("FINDING", "gaps"), Input("RECEIPT", "receipt")),
)
INVENTED = ExecutionPlan((PlannedStep("trend", "forecast", "Foresee October"),))
TORN = ExecutionPlan((_SOLD, _GAPS, _RECEIPT, _ANSWER))
GOOD = ExecutionPlan((_SOLD, _TARGETS, _GAPS, _RECEIPT, _ANSWER))


def scripted(request: PlanRequest) -> ExecutionPlan:
    """A plan, by what it is told alone: it invents first, then forgets a step, and then is right."""
    if "forecast" in request.feedback:
        return TORN
    return GOOD if "targets" in request.feedback else INVENTED


def planner() -> Any:
    """The one to use: a model, if OPENAI_API_KEY is set."""
    if os.environ.get("OPENAI_API_KEY"):
        return LLMPlanner("openai", os.environ.get("OPENAI_MODEL") or "gpt-4o-mini")
    return scripted
