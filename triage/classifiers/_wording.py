"""What the rules decided, put into words: an `Outcome` as a `Diagnosis`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from triage._capture import said_in
from triage.diagnosis import Diagnosis, Evidence
from triage.failures import ErrorInfo
from triage.redact import redact
from triage.steps import Step, Trajectory
from triage.taxonomy import FailureType, Level, Recovery, Severity

from . import _advice, _messages
from ._judge import severity_of_rule
from ._override import Case, Overrides
from ._rule import Rule
from ._shown import quote

CLASSIFIER = "rules"
UNKNOWN = Rule(
    "none", FailureType.UNKNOWN, None, "text", (), confidence=0.2, source="no rule fired"
)


class Outcome(NamedTuple):
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


def diagnosis_of(
    outcome: Outcome,
    trajectory: Trajectory,
    error: ErrorInfo | None,
    tools: Mapping[str, Any],
    overrides: Overrides | None = None,
) -> Diagnosis:
    """The outcome as a diagnosis, in which what an exception says of itself comes first."""
    hinted = None if error is None else error.decisive
    given = said_in(None if hinted is None else hinted.hint)
    rule = _hinted(outcome.rule, given)
    if overrides:
        rule = _overridden(rule, outcome, trajectory, overrides)
    severity = Severity(given.get("severity") or severity_of_rule(rule))
    delay = given.get("retry_after_s", _delay(outcome, error, rule))
    steps = trajectory.steps
    step = steps[outcome.step] if outcome.step is not None else None
    recovery = None if given.get("recovery") is None else Recovery(given["recovery"])
    info = outcome.path[-1] if outcome.path else error
    cycle = steps[outcome.step : outcome.step + outcome.length] if outcome.step is not None else ()
    case = _advice.Case(
        rule.failure_type,
        rule.cause,
        severity,
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
    if hinted is not None and given:
        who = "the exception" if hinted is error else hinted.type_name
        evidence = _beside_hint(evidence, who, given)
    return Diagnosis(
        failure_type=rule.failure_type,
        cause=rule.cause,
        severity=severity,
        level=given.get("level") or _level(rule.level),
        confidence=rule.confidence,
        evidence=evidence,
        critical_step=_index(steps, outcome.step),
        user_message=given.get("user_message")
        or _messages.user_message(rule.failure_type, rule.cause),
        technical_details=_details(error, rule, given.get("technical_details")),
        hint=given.get("hint") or _told(recovery, hinted, case),
        suggestions=(
            *given.get("suggestions", ()),
            *_messages.suggestions(rule.failure_type, rule.cause, severity, delay),
        ),
        retry_after_s=delay,
        candidates=outcome.candidates if "failure_type" not in given else (),
        classifier=CLASSIFIER,
        recovery=recovery,
    )


def _beside_hint(
    evidence: tuple[Evidence, ...], who: str, given: Mapping[str, Any]
) -> tuple[Evidence, ...]:
    """The evidence with what an exception says of itself first."""
    told = _of_itself(given) if given.get("recovery") is not None else ", ".join(sorted(given))
    # That no rule knows it matters to nobody where it says so much itself.
    beside = (one for one in evidence if "failure_type" not in given or one.rule != UNKNOWN.name)
    return (Evidence("hint", f"{who} carries {told}"), *beside)


_IN_WORDS = {
    Recovery.REGENERATE: "What was generated did not work: {}. Generate it anew without that mistake.",
    Recovery.REPLAN: "The way taken cannot lead there: {}. Make another plan.",
    Recovery.RECLASSIFY: "The means that were chosen do not fit: {}. Choose others.",
}
_MAX_SAID = 1_500


def _told(recovery: Recovery | None, hinted: ErrorInfo | None, case: _advice.Case) -> str | None:
    """What the next attempt is told; None where the same again is right, or nothing may be tried."""
    if recovery is None or hinted is None:
        return _advice.hint(case)
    words = _IN_WORDS.get(recovery)
    if words is None:
        return None
    details = (hinted.hint or {}).get("technical_details")
    said = hinted.message if not details else f"{hinted.message} ({details})"
    return words.format(quote(said, _MAX_SAID))


def _of_itself(given: Mapping[str, Any]) -> str:
    """What an exception says of itself, in three words."""
    category = given.get("category")
    return f"the recovery {given['recovery']}" + (
        f" and the category {category}" if category else ""
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


def _overridden(rule: Rule, outcome: Outcome, trajectory: Trajectory, overrides: Overrides) -> Rule:
    """The rule with the severity and the level that an override has for this case."""
    tool = outcome.tool
    if tool is None and trajectory.steps:
        tool = trajectory.steps[-1].tool_called
    cause = None if rule.cause is None else str(rule.cause)
    severity, level = overrides.of(
        Case(outcome.rule.name, rule.failure_type, cause, tool, trajectory)
    )
    return rule._replace(severity=severity or rule.severity, level=level or rule.level)


def _level(value: Level | None) -> Level:
    return value  # type: ignore[return-value] # None is taken as the severity's default


def _delay(outcome: Outcome, error: ErrorInfo | None, rule: Rule) -> float | None:
    """The delay named by the error that decided, or by one between it and the outermost."""
    if error is None or rule.failure_type is not FailureType.EXTERNAL_FAULT:
        return None
    path = outcome.path or (error,)
    found = next(
        (info.retry_after_s for info in reversed(path) if info.retry_after_s is not None), None
    )
    if found is None and path[-1].related:
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


def _details(error: ErrorInfo | None, rule: Rule, said: str | None) -> str:
    if error is None:
        return "no exception was raised" if rule.name == UNKNOWN.name else f"rule {rule.name}"
    parts = [f"{error.type_name}: {redact(error.message[:600])}"]
    if error.status_code is not None:
        parts.append(f"status {error.status_code}")
    if error.code:
        parts.append(f"code {error.code[:100]}")
    if said:
        parts.append(f"details {quote(said, 600)}")
    chain = [info.type_name for info in error.walk()][1:6]
    if chain:
        parts.append(f"behind it {', '.join(chain)}")
    if rule.name != UNKNOWN.name:
        parts.append(f"rule {rule.name}")
    return "; ".join(parts)
