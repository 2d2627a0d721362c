"""`RulesClassifier`: why an attempt failed, by tables of rules, without calling anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

from triage.diagnosis import Diagnosis, Evidence
from triage.failures import ErrorInfo
from triage.steps import Step, Trajectory, refuse
from triage.taxonomy import FailureType, Level, Severity

from . import _advice, _detectors, _messages
from ._answers import ANSWER_RULES
from ._judge import Judge, Verdict
from ._rule import Rule
from ._status import CODE_RULES, STATUS_RULES
from ._text import TEXT_RULES
from ._types import BUILT_IN_RULES, FAULT_NAMES
from ._types_agent import AGENT_NAMES

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

_UNKNOWN = Rule(
    "none", FailureType.UNKNOWN, None, "text", (), confidence=0.2, source="no rule fired"
)


@cache
def _default_judge() -> Judge:
    return Judge(RULES)


class _Outcome(NamedTuple):
    """What was decided, before it is put into words."""

    rule: Rule
    evidence: tuple[Evidence, ...]
    step: int | None = None
    tool: str | None = None
    repeats: int = 0
    length: int = 0
    text: str = ""
    path: tuple[ErrorInfo, ...] = ()
    candidates: tuple[FailureType, ...] = ()


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

    name = "rules"

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
        outcome = self._decide(trajectory, error, tools, findings)
        hint = next((info.hint for info in error.walk() if info.hint), None) if error else None
        return _diagnosis(outcome, trajectory, error, tools, hint)

    def _fault(self, error: ErrorInfo) -> Diagnosis | None:
        """The diagnosis of a certain fault of the other side, which no step can change."""
        verdict = self._judge.judge(error)
        if verdict is None or not verdict.known or not _certain(verdict):
            return None
        if any(info.hint for info in error.walk()):
            return None
        nothing = Trajectory()
        return _diagnosis(_from_verdict(verdict, nothing, ()), nothing, error, {}, None)

    def _decide(
        self,
        trajectory: Trajectory,
        error: ErrorInfo | None,
        tools: Mapping[str, Any],
        findings: list[_detectors.Finding],
    ) -> _Outcome:
        verdict = self._judge.judge(error) if error is not None else None
        certain = verdict is not None and verdict.known and _certain(verdict)
        for found in findings:
            if certain and not _outranks(found, trajectory.steps):
                continue
            return _from_finding(found, _kinds(findings, verdict, found.rule.failure_type))
        if error is not None and not certain:
            call = _last_call(trajectory, error)
            if call is not None:
                return _from_finding(call, _kinds(findings, verdict, call.rule.failure_type))
        if verdict is None:
            nothing = "no rule fired" if error is None else f"no rule fired on {error.type_name}"
            return _Outcome(
                _UNKNOWN, (Evidence("none", nothing),), candidates=_guesses(trajectory, error)
            )
        kinds = _kinds(findings, verdict, verdict.rule.failure_type)
        if not verdict.known and verdict.rule.cause is None:
            kinds = tuple(dict.fromkeys((*kinds, *_guesses(trajectory, verdict.info))))
        return _from_verdict(verdict, trajectory, kinds)

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


def _from_finding(found: _detectors.Finding, others: tuple[FailureType, ...]) -> _Outcome:
    evidence = (Evidence(found.rule.name, found.text, found.step),)
    return _Outcome(
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
    verdict: Verdict, trajectory: Trajectory, others: tuple[FailureType, ...]
) -> _Outcome:
    step = tool = None
    if trajectory.steps and verdict.rule.failure_type not in (
        FailureType.EXTERNAL_FAULT,
        FailureType.UNKNOWN,
    ):
        last = trajectory.steps[-1]
        # A step that has a result has succeeded: the error came after it.
        if last.error is not None or (last.tool_called is not None and last.tool_output is None):
            step, tool = len(trajectory.steps) - 1, last.tool_called
    evidence = Evidence(verdict.rule.name, f"{verdict.info.type_name}: {verdict.text}", step)
    return _Outcome(
        verdict.rule, (evidence,), step, tool, text="", path=verdict.path, candidates=others
    )


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


# --- into words ----------------------------------------------------------------------------


def _diagnosis(
    outcome: _Outcome,
    trajectory: Trajectory,
    error: ErrorInfo | None,
    tools: Mapping[str, Any],
    hint: Mapping[str, Any] | None,
) -> Diagnosis:
    given = dict(hint or {})
    rule = _hinted(outcome.rule, given)
    delay = given.get("retry_after_s", _delay(outcome, error, rule))
    steps = trajectory.steps
    step = steps[outcome.step] if outcome.step is not None else None
    info = outcome.path[-1] if outcome.path else error
    cycle = steps[outcome.step : outcome.step + outcome.length] if outcome.step is not None else ()
    case = _advice.Case(
        rule.failure_type,
        rule.cause,
        info,
        step,
        outcome.tool,
        tools,
        delay,
        outcome.repeats,
        cycle,
        outcome.text,
    )
    evidence = outcome.evidence
    if given:
        evidence = (
            Evidence("hint", f"the exception carries {', '.join(sorted(given))}"),
            *evidence,
        )
    return Diagnosis(
        failure_type=rule.failure_type,
        cause=rule.cause,
        severity=_severity(given.get("severity") or rule.severity),
        level=_level(rule.level),
        confidence=rule.confidence,
        evidence=evidence,
        critical_step=_index(steps, outcome.step),
        user_message=given.get("user_message")
        or _messages.user_message(rule.failure_type, rule.cause),
        technical_details=_details(error, rule),
        hint=given.get("hint") or _advice.hint(case),
        suggestions=_messages.suggestions(rule.cause),
        retry_after_s=delay,
        candidates=outcome.candidates if "failure_type" not in given else (),
        classifier=RulesClassifier.name,
    )


def _hinted(rule: Rule, given: Mapping[str, Any]) -> Rule:
    """The rule, with the type and cause an exception carries in place of its own."""
    kind = given.get("failure_type")
    if kind is not None:
        same = rule.failure_type == kind
        cause = given.get("cause") or (rule.cause if same else None)
        return Rule(
            "hint",
            FailureType(kind),
            cause,
            "code",
            (),
            rule.severity if same else None,
            confidence=1.0,
        )
    if given.get("cause") is not None:
        return rule._replace(cause=given["cause"], severity=None)
    return rule


def _severity(value: object) -> Severity:
    # None is taken as the default of cause and type; the field's own type does not say so.
    return value if value is None else Severity(value)  # type: ignore[return-value,arg-type]


def _level(value: Level | None) -> Level:
    return value  # type: ignore[return-value] # None is taken as the severity's default


def _delay(outcome: _Outcome, error: ErrorInfo | None, rule: Rule) -> float | None:
    """The delay named by the error that decided, or by one between it and the outermost."""
    if error is None or rule.failure_type is not FailureType.EXTERNAL_FAULT:
        return None
    path = outcome.path or (error,)
    found = next(
        (info.retry_after_s for info in reversed(path) if info.retry_after_s is not None), None
    )
    if found is None:
        causes = (info for info in path[-1].walk() if info.relation in ("", "cause"))
        found = next(
            (info.retry_after_s for info in causes if info.retry_after_s is not None), None
        )
    return found


def _index(steps: tuple[Step, ...], position: int | None) -> int | None:
    if position is None:
        return None
    index = steps[position].index
    return position if index is None else index


def _details(error: ErrorInfo | None, rule: Rule) -> str:
    if error is None:
        return f"rule {rule.name}"
    parts = [f"{error.type_name}: {error.message[:600]}"]
    if error.status_code is not None:
        parts.append(f"status {error.status_code}")
    if error.code:
        parts.append(f"code {error.code[:100]}")
    chain = [info.type_name for info in error.walk()][1:6]
    if chain:
        parts.append(f"behind it {', '.join(chain)}")
    parts.append(f"rule {rule.name}")
    return "; ".join(parts)


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
