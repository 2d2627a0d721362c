"""`RulesClassifier`: why an attempt failed, by tables of rules, without calling anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

from triage.diagnosis import Diagnosis, Evidence
from triage.failures import ErrorInfo
from triage.steps import Step, Trajectory, refuse
from triage.taxonomy import FailureType

from . import _detectors, _evidence
from ._answers import ANSWER_RULES
from ._judge import Judge, Verdict
from ._rule import Rule
from ._status import CODE_RULES, STATUS_RULES
from ._text import TEXT_RULES
from ._types import BUILT_IN_RULES, FAULT_NAMES
from ._types_agent import AGENT_NAMES
from ._wording import CLASSIFIER, UNKNOWN, Outcome, diagnosis_of

RULES: tuple[Rule, ...] = (
    *CODE_RULES,
    *STATUS_RULES,
    *FAULT_NAMES,
    *AGENT_NAMES,
    *BUILT_IN_RULES,
    *ANSWER_RULES,
    *TEXT_RULES,
)
"""All built-in rules. Within each kind an earlier rule wins."""


@cache
def _default_judge() -> Judge:
    return Judge(RULES)


class RulesClassifier:
    """Says why an attempt failed, from its error and its steps, by rules; no network, no model.

    In this order: a hint the exception carries (`triage.hint`); what the steps show beyond doubt
    (an exact loop at their end, a tool that does not exist, a forbidden string in an output); code,
    class and status of the error and of what it was raised from; its words, last. An earlier error
    from which the agent recovered never decides. What no rule knows is UNKNOWN, with `candidates`.

    rules: in place of the built-in ones (`RULES`); put own ones in front: `(mine, *RULES)`.
    constraints: strings no output may contain, beside those of the trajectory. tools: the manifest
    for trajectories that have none, name to JSON Schema or None, or only the names.

    Raises TypeError for an argument of the wrong type. `classify` has no state: one object serves
    all runs and threads.
    """

    name = CLASSIFIER

    def __init__(
        self,
        rules: Iterable[Rule] | None = None,
        *,
        constraints: Iterable[str] = (),
        tools: Mapping[str, Any] | Iterable[str] | None = None,
    ) -> None:
        self._judge = _default_judge() if rules is None else Judge(_rules(rules))
        self._constraints = _strings("RulesClassifier.constraints", constraints)
        self._tools = _manifest(tools)
        # A thousand agents on one sick service fail with equal errors: each is judged once.
        self._known_fault = lru_cache(maxsize=256)(self._fault)

    def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:  # noqa: ARG002 - the protocol's signature
        """The diagnosis of an attempt. Pure: the same attempt always gets the same one."""
        error = trajectory.error or _last_error(trajectory.steps)
        tools = trajectory.tools or self._tools
        findings = self._findings(trajectory, tools)
        if error is not None and not findings:
            try:
                fault = self._known_fault(error)
            except TypeError:  # it holds an answer's body, which has no hash
                fault = None
            if fault is not None:
                return fault
        outcome = self._decide(trajectory, error, findings)
        hint = next((info.hint for info in error.walk() if info.hint), None) if error else None
        return diagnosis_of(outcome, trajectory, error, tools, hint)

    def _fault(self, error: ErrorInfo) -> Diagnosis | None:
        """The diagnosis of a certain fault of the other side, which no step can change."""
        verdict = self._judge.judge(error)
        if verdict is None or not verdict.known or not _certain(verdict):
            return None
        if any(info.hint for info in error.walk()):
            return None
        nothing = Trajectory()
        return diagnosis_of(
            _from_verdict(self._judge, verdict, nothing, ()), nothing, error, {}, None
        )

    def _decide(
        self,
        trajectory: Trajectory,
        error: ErrorInfo | None,
        findings: list[_detectors.Finding],
    ) -> Outcome:
        verdict = self._judge.judge(error) if error is not None else None
        certain = verdict is not None and verdict.known and _certain(verdict)
        for found in findings:
            if certain and not _outranks(found, trajectory.steps):
                continue
            return _from_finding(found, _kinds(findings, verdict, found.rule.failure_type))
        if error is not None and not certain:
            call = _last_call(trajectory, error)
            if call is None and verdict is not None:
                call = _detectors.bad_answer(trajectory.steps, verdict.rule, verdict.path)
            if call is not None:
                return _from_finding(call, _kinds(findings, verdict, call.rule.failure_type))
        if verdict is None:
            nothing = "no rule fired" if error is None else f"no rule fired on {error.type_name}"
            return Outcome(
                UNKNOWN, (Evidence("none", nothing),), candidates=_guesses(trajectory, error)
            )
        kinds = _kinds(findings, verdict, verdict.rule.failure_type)
        if not verdict.known and verdict.rule.cause is None:
            kinds = tuple(dict.fromkeys((*kinds, *_guesses(trajectory, verdict.info))))
        return _from_verdict(self._judge, verdict, trajectory, kinds)

    def _findings(
        self, trajectory: Trajectory, tools: Mapping[str, Any]
    ) -> list[_detectors.Finding]:
        found = (
            _detectors.loop(trajectory),
            _detectors.unknown_tool(trajectory, tools),
            _detectors.forbidden(trajectory.steps, (*trajectory.constraints, *self._constraints)),
        )
        return [finding for finding in found if finding is not None]


def _certain(verdict: Verdict) -> bool:
    """True for what the other side answered or the network said: words alone are not that."""
    rule = verdict.rule
    return rule.failure_type is FailureType.EXTERNAL_FAULT and rule.looks_at != "text"


def _outranks(found: _detectors.Finding, steps: tuple[Step, ...]) -> bool:
    """Whether a finding stands against an error of the other side's.

    Three calls that failed alike are a retry against a fault, not a loop of the agent's.
    """
    if found.rule.failure_type is FailureType.CONSTRAINT_IGNORED or found.step is None:
        return False
    return steps[found.step].error is None


def _last_call(trajectory: Trajectory, error: ErrorInfo) -> _detectors.Finding | None:
    """What the error, or what it was raised from, says of the last step's tool."""
    for info in error.walk():
        if info.relation == "context":
            continue
        found = _detectors.last_call(trajectory.steps, info)
        if found is not None:
            return found
    return None


def _last_error(steps: tuple[Step, ...]) -> ErrorInfo | None:
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


def _from_finding(found: _detectors.Finding, others: tuple[FailureType, ...]) -> Outcome:
    evidence = (Evidence(found.rule.name, found.text, found.step),)
    return Outcome(
        found.rule,
        evidence,
        found.step,
        found.tool,
        found.repeats,
        found.length,
        found.text,
        candidates=others,
    )


def _from_verdict(
    judge: Judge, verdict: Verdict, trajectory: Trajectory, others: tuple[FailureType, ...]
) -> Outcome:
    step = tool = None
    if trajectory.steps and verdict.rule.failure_type not in (
        FailureType.EXTERNAL_FAULT,
        FailureType.UNKNOWN,
    ):
        last = trajectory.steps[-1]
        # A step that has a result has succeeded: the error came after it.
        if last.error is not None or (last.tool_called is not None and last.tool_output is None):
            step, tool = len(trajectory.steps) - 1, last.tool_called
    evidence = Evidence(verdict.rule.name, _evidence.text_of(judge, verdict), step)
    rule = verdict.rule._replace(confidence=_evidence.confidence_of(judge, verdict))
    return Outcome(rule, (evidence,), step, tool, text="", path=verdict.path, candidates=others)


def _kinds(
    findings: list[_detectors.Finding], verdict: Verdict | None, chosen: FailureType
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


def _guesses(trajectory: Trajectory, error: ErrorInfo | None) -> tuple[FailureType, ...]:
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


# --- arguments -----------------------------------------------------------------------------


def _rules(rules: object) -> tuple[Rule, ...]:
    if isinstance(rules, Rule) or not isinstance(rules, Iterable):
        raise refuse("RulesClassifier.rules", rules, "an iterable of Rule")
    found = tuple(rules)
    for rule in found:
        if not isinstance(rule, Rule):
            raise refuse("RulesClassifier.rules item", rule, "a Rule")
    return found


def _strings(field: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise refuse(field, values, "an iterable of strings")
    found = tuple(values)
    for value in found:
        if not isinstance(value, str):
            raise refuse(f"{field} item", value, "text")
    return found


def _manifest(tools: object) -> dict[str, Any]:
    if tools is None:
        return {}
    if isinstance(tools, Mapping):
        return {str(name): schema for name, schema in tools.items()}
    return dict.fromkeys(_strings("tools", tools))
