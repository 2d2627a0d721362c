"""How an attempt of a plan-first run ends, and what is done then: the router's word, as an action."""

from __future__ import annotations

from dataclasses import replace

from triage.actions import Action, Escalate, Replan, Retry, Suspend
from triage.classifiers import diagnose
from triage.diagnosis import Diagnosis, Evidence
from triage.failures import FailureContext
from triage.policy import FailurePolicy
from triage.taxonomy import DEFAULT_LEVEL, Cause, FailureType, Severity

from ._route import Decision
from ._state import PlanState, Target

ROUTED = "plan.route"
"""Evidence with the reason of the decision that ended an attempt."""
ASKED = "plan.approval"
"""Evidence with the question that ended an attempt."""
_LONGEST = 500

_SEVERITY = {
    Target.SELECTOR: Severity.RECLASSIFICATION,
    Target.PLANNER: Severity.REPLANNING,
    Target.REPORT: Severity.CRITICAL,
    Target.STOP: Severity.FATAL,
}


def routed(state: PlanState, decision: Decision) -> Diagnosis:
    """The last failure as what it leads to. What is tried again is RETRIABLE after the delay."""
    found = _failure(state)
    severity = _SEVERITY.get(decision.target, Severity.RETRIABLE)
    if decision.counter == "retries":
        severity = Severity.RETRIABLE
    level = found.level if found.severity is severity else DEFAULT_LEVEL[severity]
    return replace(
        found,
        severity=severity,
        level=level,
        critical_step=None,
        retry_after_s=decision.delay_s or None,
        evidence=(*found.evidence, Evidence(ROUTED, decision.reason[:_LONGEST])),
    )


def _failure(state: PlanState) -> Diagnosis:
    if state.failure is not None:
        return state.failure.diagnosis
    if state.rejection is not None:
        said = f": {state.rejection.reason}" if state.rejection.reason else ""
        return Diagnosis(
            FailureType.PLAN_INCOMPLETE,
            cause="rejected",
            user_message="What was planned was not approved.",
            technical_details=f"a person refused the plan{said}"[:_LONGEST],
            classifier="plan",
        )
    return Diagnosis(
        FailureType.PLAN_INCOMPLETE,
        cause=Cause.LIMIT,
        user_message="The work took more than it may.",
        technical_details="a limit of the plan was reached",
        classifier="plan",
    )


def of_asking(error: Exception) -> Diagnosis:
    """Why a planner, a selector or a judge has failed. What nobody knows, no other selection mends."""
    found = diagnose(error)
    if (
        found.severity is not Severity.RECLASSIFICATION
        or found.failure_type is not FailureType.UNKNOWN
    ):
        return found
    return replace(found, severity=Severity.CRITICAL, level=DEFAULT_LEVEL[Severity.CRITICAL])


def waiting(question: str) -> Diagnosis:
    """Why an attempt ends that waits for a person."""
    return Diagnosis(
        FailureType.PLAN_INCOMPLETE,
        cause="approval",
        severity=Severity.CRITICAL,
        evidence=(Evidence(ASKED, question),),
        user_message="The work waits until somebody approves what is planned.",
        technical_details=question,
        classifier="plan",
    )


def policy(expires_s: float | None) -> FailurePolicy:
    """What is done when an attempt has ended: as the router has said, or a person is asked.

    What the router has not seen (a limit of the run, a check of its result) is for a person.
    """

    def action(context: FailureContext) -> Action:
        diagnosis = context.diagnosis
        last = diagnosis.evidence[-1] if diagnosis.evidence else Evidence("", "")
        if last.rule == ASKED:
            return Suspend(last.text, expires_s=expires_s)
        if last.rule != ROUTED:
            return Escalate(str(diagnosis))
        match diagnosis.severity:
            case Severity.RETRIABLE:
                return Retry(delay=diagnosis.retry_after_s or 0.0)
            case Severity.REPLANNING | Severity.RECLASSIFICATION:
                return Replan(last.text)
            case _:
                return Escalate(last.text)

    return FailurePolicy(default=action)
