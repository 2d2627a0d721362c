"""What the rules decided, put into words: an `Outcome` as a `Diagnosis`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from triage._capture import said_in
from triage.diagnosis import Diagnosis, Evidence, of_right
from triage.failures import ErrorInfo
from triage.redact import redact
from triage.steps import Step, Trajectory
from triage.taxonomy import (
    DEFAULT_LEVEL,
    Cause,
    FailureType,
    Level,
    Recovery,
    Severity,
    severity_of,
)

from . import _advice, _messages
from ._override import Case, Overrides
from ._rule import Rule
from ._shown import MAX_CLEAN, quote

CLASSIFIER = "rules"
_EXTERNAL = FailureType.EXTERNAL_FAULT
UNKNOWN = Rule(
    "none", FailureType.UNKNOWN, None, "text", (), confidence=0.2, source="no rule fired"
)
_NO_RULE = UNKNOWN.name


class Outcome(NamedTuple):
    """What was decided, before it is put into words.

    clean: the whole message of the error, without credentials, where it is known already.
    """

    rule: Rule
    evidence: tuple[Evidence, ...]
    step: int | None = None
    tool: str | None = None
    repeats: int = 0
    length: int = 0
    text: str = ""
    path: tuple[ErrorInfo, ...] = ()
    candidates: tuple[FailureType, ...] = ()
    clean: str | None = None


def diagnosis_of(
    outcome: Outcome,
    trajectory: Trajectory,
    error: ErrorInfo | None,
    tools: Mapping[str, Any],
    overrides: Overrides | None = None,
) -> Diagnosis:
    """The outcome as a diagnosis, in which what an exception says of itself comes first."""
    # Most errors say nothing of themselves, and none is behind them.
    hinted = None if error is None or not (error.hint or error.related) else error.decisive
    given: dict[str, Any] = {} if hinted is None else said_in(hinted.hint)
    # All at once: a field asked for by name costs as much as three fields do so.
    rule, evidence, step, _, _, _, _, path, candidates, clean = outcome
    if given:
        rule = _hinted(rule, given)
    if overrides is not None:
        rule = _overridden(rule, outcome, trajectory, overrides)
    name, kind, cause, _, _, severity, level, _, _, confidence, _, _, _ = rule
    if given.get("severity"):
        severity = Severity(given["severity"])
    delay: float | None = None
    if "retry_after_s" in given:
        delay = given["retry_after_s"]
    elif error is not None and kind is _EXTERNAL:
        delay = _delay(path or (error,))
    passes, usual = _usual(kind, cause, severity, level, delay)
    fields = usual.copy()
    fields["confidence"] = confidence
    fields["evidence"] = evidence
    if step is not None:
        fields["critical_step"] = _index(trajectory.steps, step)
    fields["technical_details"] = _details(error, name, given.get("technical_details"), clean)
    fields["candidates"] = candidates
    recovery = None if given.get("recovery") is None else Recovery(given["recovery"])
    told = given.get("hint")
    if not told:
        if recovery is not None and hinted is not None:
            told = _told(recovery, hinted)
        elif not passes:
            case = _case(outcome, rule, fields["severity"], delay, trajectory, error, tools)
            told = _advice.hint(case)
    fields["hint"] = told
    # What our own rules say needs no look; what an exception or somebody else's rule says does.
    if not given and (cause is None or cause.__class__ is Cause):
        return of_right(fields)
    if hinted is not None and given:
        who = "the exception" if hinted is error else hinted.type_name
        fields["evidence"] = _beside_hint(evidence, who, given)
    fields["recovery"] = recovery
    return Diagnosis(**_said_better(fields, given))


@lru_cache(maxsize=256, typed=True)  # a word is equal to the member that it names
def _usual(
    kind: FailureType,
    cause: Cause | str | None,
    severity: Severity | None,
    level: Level | None,
    delay: float | None,
) -> tuple[bool, dict[str, Any]]:
    """All fields of a diagnosis, in their order, as far as they are the same for all of a kind.

    Before them: whether it passes by itself. severity, level: None for the usual one.
    """
    severity = severity or severity_of(kind, cause)
    return _advice.passes(kind, severity), {
        "failure_type": kind,
        "cause": cause,
        "severity": severity,
        "level": level or DEFAULT_LEVEL[severity],
        "confidence": 1.0,
        "evidence": (),
        "critical_step": None,
        "user_message": _messages.user_message(kind, cause),
        "technical_details": "",
        "hint": None,
        "suggestions": _messages.suggestions(kind, cause, severity, delay),
        "retry_after_s": delay,
        "candidates": (),
        "classifier": CLASSIFIER,
        "usage": None,
        "recovery": None,
    }


def _said_better(fields: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with what an exception says of itself in place of what is usual."""
    for name in ("level", "user_message"):
        fields[name] = given.get(name) or fields[name]
    fields["suggestions"] = (*given.get("suggestions", ()), *fields["suggestions"])
    if "failure_type" in given:
        fields["candidates"] = ()
    return fields


def _case(
    outcome: Outcome,
    rule: Rule,
    severity: Severity,
    delay: float | None,
    trajectory: Trajectory,
    error: ErrorInfo | None,
    tools: Mapping[str, Any],
) -> _advice.Case:
    steps, at = trajectory.steps, outcome.step
    return _advice.Case(
        rule.failure_type,
        rule.cause,
        severity,
        outcome.path[-1] if outcome.path else error,
        None if at is None else steps[at],
        outcome.tool,
        tools,
        delay,
        outcome.repeats,
        () if at is None else steps[at : at + outcome.length],
        outcome.text,
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


def _told(recovery: Recovery, hinted: ErrorInfo) -> str | None:
    """What the next attempt is told; None where the same again is right, or nothing may be tried."""
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


def _delay(path: tuple[ErrorInfo, ...]) -> float | None:
    """The delay named by the last, the error that decided, or by one between it and the outermost."""
    for info in reversed(path):
        delay: float | None = info.retry_after_s
        if delay is not None:
            return delay
    if not path[-1].related:
        return None
    causes = (info for info in path[-1].walk() if info.relation in ("", "cause"))
    return next((info.retry_after_s for info in causes if info.retry_after_s is not None), None)


def _index(steps: tuple[Step, ...], position: int | None) -> int | None:
    if position is None:
        return None
    index = steps[position].index
    return position if index is None else index


def _details(error: ErrorInfo | None, rule: str, said: str | None, clean: str | None) -> str:
    """rule: its name. clean: as in `Outcome`."""
    if error is None:
        return "no exception was raised" if rule == _NO_RULE else f"rule {rule}"
    name, _, _, message, status, code, _, _, _, _, _, _, related = error
    if clean is None:
        clean = redact(message[:MAX_CLEAN])
    text = f"{name}: {clean}"
    if status is not None:
        text += f"; status {status}"
    if code:
        text += f"; code {code[:100]}"
    if said:
        text += f"; details {quote(said, 600)}"
    if related:
        chain = [info.type_name for info in error.walk()][1:6]
        text += f"; behind it {', '.join(chain)}"
    return text if rule == _NO_RULE else f"{text}; rule {rule}"
