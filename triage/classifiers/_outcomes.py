"""What was decided, as an `Outcome`: of a finding, of a verdict, or of neither."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from triage.diagnosis import Evidence
from triage.failures import ErrorInfo
from triage.steps import Step, Trajectory
from triage.taxonomy import FailureType

from . import _evidence
from ._judge import Judge, Verdict
from ._types import BUILT_IN_RULES
from ._wording import UNKNOWN, Outcome, _index
from .detectors import Finding
from .detectors._last_call import last_call
from .detectors._review import WHOLE

_MAX_EVIDENCE = 5
# A member of an enumeration costs a call wherever it is asked for by name, and so does the class of
# a tuple where it is called.
_EXTERNAL = FailureType.EXTERNAL_FAULT
_NO_STEPS = (_EXTERNAL, FailureType.UNKNOWN)
"""Types of which no step is the cause."""
_new = tuple.__new__


def unsure(
    trajectory: Trajectory, error: ErrorInfo | None, guesses: tuple[FailureType, ...], task: Any
) -> Outcome:
    """UNKNOWN, with what may be, and with the step to look at where none failed by itself."""
    steps = trajectory.steps
    nothing = "no rule fired" if error is None else f"no rule fired on {error.type_name}"
    evidence = [Evidence("none", nothing)]
    if not steps or len(steps) > WHOLE or steps[-1].error is not None:
        return Outcome(UNKNOWN, tuple(evidence), candidates=guesses)
    from .detectors._drift import FAR, drift_of
    from .detectors._suspect import suspect

    suspected = suspect(steps, task)
    if suspected is not None:
        weighed = f"weighs most: {suspected.text}"
        evidence.append(Evidence("steps.suspect", weighed, _index(steps, suspected.step)))
    drifted = drift_of(steps, task)
    if drifted is not None and drifted >= FAR:
        text = f"{drifted:.0%} of the words in the last calls stand nowhere before"
        evidence.append(Evidence("steps.drift", text))
        guesses = tuple(dict.fromkeys((FailureType.GOAL_DRIFT, *guesses)))
    step = None if suspected is None else suspected.step
    return Outcome(UNKNOWN, tuple(evidence), step, candidates=guesses)


def certain(verdict: Verdict) -> bool:
    """True for what the other side answered or the network said: words alone are not that."""
    rule = verdict[0]
    return rule.failure_type is _EXTERNAL and rule.looks_at != "text"


def outranks(found: Finding, steps: tuple[Step, ...]) -> bool:
    """Whether a finding stands against an error of the other side's.

    Three calls that failed alike are a retry against a fault, not a loop of the agent's.
    """
    if found.rule.failure_type is FailureType.CONSTRAINT_IGNORED or found.step is None:
        return False
    return steps[found.step].error is None


def of_last_call(trajectory: Trajectory, error: ErrorInfo) -> Finding | None:
    """What the error, or what it was raised from, says of the last step's tool."""
    for info in error.walk():
        if info.relation == "context":
            continue
        found = last_call(trajectory.steps, info)
        if found is not None:
            return found
    return None


def last_error(steps: tuple[Step, ...]) -> ErrorInfo | None:
    """The error of the last step, for trajectories that carry none of their own."""
    if not steps or not steps[-1].error:
        return None
    kind = steps[-1].exception_type or "Exception"
    return ErrorInfo(
        kind, mro=(f"builtins.{kind}" if kind in _BUILT_IN else kind,), message=steps[-1].error
    )


_BUILT_IN = frozenset(
    key.removeprefix("builtins.")
    for rule in BUILT_IN_RULES
    for key in rule.keys
    if key.startswith("builtins.")
)


def from_finding(
    found: Finding, others: Iterable[Finding], verdict: Verdict | None, steps: tuple[Step, ...]
) -> Outcome:
    """A finding that decides. others: what was found beside it, which stays as evidence."""
    beside = [other for other in others if other is not found]
    evidence = tuple(
        Evidence(one.rule.name, one.text, _index(steps, one.step))
        for one in (found, *beside[:_MAX_EVIDENCE])
    )
    return Outcome(
        found.rule,
        evidence,
        found.step,
        found.tool,
        found.repeats,
        found.length,
        found.text,
        candidates=kinds(beside, verdict, found.rule.failure_type),
    )


def from_verdict(
    judge: Judge, verdict: Verdict, trajectory: Trajectory, others: tuple[FailureType, ...]
) -> Outcome:
    rule, _, path = verdict
    steps = trajectory.steps
    step = tool = None
    if steps and rule.failure_type not in _NO_STEPS:
        last = steps[-1]
        # A step that has a result has succeeded: the error came after it.
        if last.error is not None or (last.tool_called is not None and last.tool_output is None):
            step, tool = len(steps) - 1, last.tool_called
    text, confidence, clean = _evidence.weigh(judge, verdict)
    evidence = _new(Evidence, (rule.name, text, step))
    if confidence != rule.confidence:
        rule = rule._replace(confidence=confidence)
    if len(path) > 1:
        clean = None
    return _new(Outcome, (rule, (evidence,), step, tool, 0, 0, "", path, others, clean))


def kinds(
    findings: Iterable[Finding], verdict: Verdict | None, chosen: FailureType
) -> tuple[FailureType, ...]:
    """The other types that were considered, strongest first."""
    kinds = [found.rule.failure_type for found in findings]
    if verdict is not None:
        kinds.append(verdict.rule.failure_type)
    return tuple(
        kind
        for kind in dict.fromkeys(kinds)
        if kind is not chosen and kind is not FailureType.UNKNOWN
    )


def guesses(trajectory: Trajectory, error: ErrorInfo | None) -> tuple[FailureType, ...]:
    """What an unknown failure may be, likeliest first: a direction for a costlier classifier."""
    if error is None:
        return (FailureType.PLAN_INCOMPLETE, FailureType.GOAL_DRIFT) if trajectory.steps else ()
    if error.is_a("ValueError", "TypeError"):
        return (FailureType.SCHEMA_MISMATCH, FailureType.HALLUCINATED_STATE)
    if error.is_a("LookupError"):
        return (FailureType.HALLUCINATED_STATE, FailureType.SCHEMA_MISMATCH)
    if error.is_a("OSError"):
        return (FailureType.EXTERNAL_FAULT, FailureType.HALLUCINATED_STATE)
    return (FailureType.EXTERNAL_FAULT, FailureType.SCHEMA_MISMATCH)
