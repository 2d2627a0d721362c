"""What `validate` answers: issues, fixes, and both together as a `Validation`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from triage.diagnosis import Diagnosis, Evidence
from triage.taxonomy import Cause, FailureType, Severity

from ._plan import ExecutionPlan


class IssueCode(StrEnum):
    """What can be wrong with a plan."""

    MALFORMED = "malformed"
    UNKNOWN_FIELD = "unknown_field"
    EMPTY_PLAN = "empty_plan"
    TOO_MANY_STEPS = "too_many_steps"
    BLANK_CAPABILITY = "blank_capability"
    UNKNOWN_CAPABILITY = "unknown_capability"
    INACTIVE_CAPABILITY = "inactive_capability"
    BLANK_KEY = "blank_key"
    DUPLICATE_KEY = "duplicate_key"
    UNKNOWN_REFERENCE = "unknown_reference"
    FORWARD_REFERENCE = "forward_reference"
    SELF_REFERENCE = "self_reference"
    INPUT_TYPE = "input_type"
    OUTPUT_TYPE = "output_type"
    MISSING_REQUIREMENT = "missing_requirement"
    UNKNOWN_PARAMETER = "unknown_parameter"
    MISSING_PARAMETER = "missing_parameter"
    EARLY_RESPONSE = "early_response"
    PARAMETERS_NOT_JSON = "parameters_not_json"


class Issue(NamedTuple):
    """One thing that keeps a plan from being run.

    code: what. severity: RECLASSIFICATION where a capability outside the active ones would mend it,
    else REPLANNING. message: for whoever makes the next plan, with the place in it. step: its index,
    None for the plan. field: of the step. nearest: the name that was meant, None if none is close.
    """

    code: IssueCode
    severity: Severity
    message: str
    step: int | None = None
    field: str = ""
    nearest: str | None = None


class Fix(NamedTuple):
    """One thing that was changed so that the plan can be run.

    code: `appended_response`, `spelling` or `ignored_field`. message: what was changed, with the place.
    step: its index, None for the plan.
    """

    code: str
    message: str
    step: int | None = None


@dataclass(frozen=True)
class Validation:
    """What `validate` found.

    plan: the plan with its fixes, to be run if it is `ok`; None if not all of it could be read. issues:
    what is wrong. fixes: what was changed. outside: capabilities that exist and are not active, and
    would be needed. invented: names of capabilities that exist nowhere.
    """

    plan: ExecutionPlan | None
    issues: tuple[Issue, ...] = ()
    fixes: tuple[Fix, ...] = ()
    outside: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the plan can be run."""
        return not self.issues

    @property
    def severity(self) -> Severity | None:
        """Where the run goes next: RECLASSIFICATION if any issue asks for it, else REPLANNING.

        None if nothing is wrong.
        """
        if any(issue.severity is Severity.RECLASSIFICATION for issue in self.issues):
            return Severity.RECLASSIFICATION
        return Severity.REPLANNING if self.issues else None

    def diagnosis(self) -> Diagnosis:
        """The issues as the diagnosis of a planner that failed. Raises ValueError if there are none."""
        severity = self.severity
        if severity is None:
            raise ValueError("a plan without issues has not failed")
        from ._feedback import feedback

        names = self.outside or self.invented
        return Diagnosis(
            FailureType.WRONG_TOOL_CALLED if names else FailureType.SCHEMA_MISMATCH,
            cause=Cause.UNKNOWN_TOOL if names else Cause.INVALID_RESULT,
            severity=severity,
            evidence=tuple(
                Evidence(f"plan.{issue.code}", issue.message) for issue in self.issues[:20]
            ),
            user_message="The plan for this task could not be used.",
            technical_details="; ".join(issue.message for issue in self.issues)[:2_000],
            hint=feedback(self.issues),
            classifier="plan",
        )
