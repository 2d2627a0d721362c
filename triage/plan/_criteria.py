"""Are the success criteria of a step met? What a step's judge is asked, and what its no leads to."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from triage._options import misuse
from triage._tool import Tool
from triage.diagnosis import Diagnosis, Evidence
from triage.taxonomy import Effect, FailureType

from ._plan import PlannedStep
from ._requests import Later
from ._words import quoted, shortened

NAME = "criteria"
"""The name of the recorded calls by which a judge is asked."""
_MAX_WHY = 500


class StepOutcome(NamedTuple):
    """What the judge of a step is given.

    task: as given to the run. step: as planned, with its `success_criteria`. result: what its capability
    gave.
    """

    task: Any
    step: PlannedStep
    result: Any


StepJudge: TypeAlias = Callable[
    [StepOutcome], bool | tuple[bool, str] | Awaitable[bool | tuple[bool, str]]
]
"""Says whether the criteria of a step are met: True, False, or one of them with a reason. Sync ones run
in a thread."""


def judging(field: str, judge: Any) -> Tool:
    """A judge as a recorded call, known by the call that it judges and by the criteria.

    Raises UsageError for none.
    """
    if isinstance(judge, type) or not callable(judge):
        raise misuse(field, judge, "a function of the StepOutcome, async or not")
    function: Callable[[StepOutcome], Any] = judge
    called = getattr(judge, "__call__", None)  # noqa: B004 - an object whose call is async
    if any(map(inspect.iscoroutinefunction, (judge, called))):

        async def asked(call: str, criteria: str, outcome: StepOutcome) -> list[Any]:  # noqa: ARG001 - its key
            return _verdict(await function(outcome))

        return Tool(asked, effect=Effect.READ, name=NAME, ignore=("outcome",))

    def asked_in_a_thread(call: str, criteria: str, outcome: StepOutcome) -> Any:  # noqa: ARG001 - as above
        answer = function(outcome)
        return Later(answer, _verdict) if inspect.isawaitable(answer) else _verdict(answer)

    return Tool(asked_in_a_thread, effect=Effect.READ, name=NAME, ignore=("outcome",))


def _verdict(answer: object) -> list[Any]:
    """The answer in a form that another process can read from the journal; TypeError for none."""
    met, why = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")  # noqa: PLR2004
    if not isinstance(met, bool) or not isinstance(why, str):
        raise TypeError(
            f"the judge of a step answered {type(answer).__name__}, not True or False, alone or with a "
            "reason"
        )
    return [met, why]


def unmet(step: PlannedStep, why: str) -> Diagnosis:
    """Why a step has failed whose result is not what was wanted."""
    said = f": {shortened(why, _MAX_WHY)}" if why.strip() else ""
    text = f"{quoted(step.success_criteria, _MAX_WHY)} is not met by {quoted(step.context_key)}"
    return Diagnosis(
        FailureType.PLAN_INCOMPLETE,
        evidence=(Evidence("plan.criteria", f"{text}{said}"),),
        user_message="A step did not achieve what it was to achieve.",
        technical_details=f"{text}{said}",
        hint=f"{text}{said}",
        classifier="plan",
    )
