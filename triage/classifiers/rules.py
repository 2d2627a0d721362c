"""`RulesClassifier`: why an attempt failed, by tables of rules, without calling anything."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from triage.diagnosis import Diagnosis, Evidence
from triage.failures import ErrorInfo
from triage.steps import Step, Trajectory, refuse
from triage.taxonomy import FailureType

from . import _evidence
from ._answers import ANSWER_RULES
from ._judge import Judge, Verdict
from ._override import Override, Overrides
from ._own_rules import checked
from ._rule import Rule
from ._status import CODE_RULES, STATUS_RULES
from ._text import TEXT_RULES
from ._types import BUILT_IN_RULES, FAULT_NAMES
from ._types_agent import AGENT_NAMES
from ._wording import CLASSIFIER, UNKNOWN, Outcome, _index, diagnosis_of
from .detectors import Finding, Watch
from .detectors._last_call import bad_answer, last_call
from .detectors._review import WHOLE, Seen, look, review

if TYPE_CHECKING:
    from triage.steps import Constraint

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


_MAX_EVIDENCE = 5


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
    for trajectories that have none, name to JSON Schema or None, or only the names. overrides:
    severities and levels in place of the rules' own; for each of the two the first that fits decides.

    Raises TypeError or ValueError for a wrong argument, and for a rule that can never fire.
    `classify` has no state: one object serves all runs and threads.
    """

    name = CLASSIFIER

    def __init__(
        self,
        rules: Iterable[Rule] | None = None,
        *,
        constraints: Iterable[Constraint] = (),
        tools: Mapping[str, Any] | Iterable[str] | None = None,
        subgoals: Iterable[str] = (),
        exempt: Iterable[str] = (),
        overrides: Iterable[Override] = (),
    ) -> None:
        self._judge = _default_judge() if rules is None else Judge(checked(rules, RULES))
        self._overrides = Overrides(overrides)
        self._constraints = _limits("RulesClassifier.constraints", constraints)
        self._tools = _manifest(tools)
        self._subgoals = _strings("RulesClassifier.subgoals", subgoals)
        self._exempt = frozenset(_strings("RulesClassifier.exempt", exempt))
        # A thousand agents on one sick service fail with equal errors: each is judged once.
        self._known_fault = lru_cache(maxsize=256)(self._fault)

    def watch(
        self, tools: Mapping[str, Any] | None = None, constraints: Iterable[Constraint] = ()
    ) -> Watch:
        """The detectors by which this classifier judges steps, for a run that goes on.

        tools, constraints: those of the run, beside the classifier's own. The watch is told each
        step once, with `add`, which answers with what that step has newly made wrong.
        """
        return Watch(
            tools=tools or self._tools,
            constraints=(*constraints, *self._constraints),
            exempt=self._exempt,
        )

    def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:
        """The diagnosis of an attempt. Pure: the same attempt always gets the same one."""
        steps = trajectory.steps
        error = trajectory.error or _last_error(steps)
        tools = trajectory.tools or self._tools
        seen = look(steps, tools, (*trajectory.constraints, *self._constraints), self._exempt)
        if error is not None and not seen.firm and not self._overrides.by_run:
            try:
                fault = self._known_fault(error)
            except TypeError:  # it holds an answer's body, which has no hash
                fault = None
            if fault is not None:
                return fault
        outcome = self._decide(trajectory, error, seen, trajectory.task if task is None else task)
        hint = next((info.hint for info in error.walk() if info.hint), None) if error else None
        return diagnosis_of(outcome, trajectory, error, tools, hint, self._overrides)

    def _fault(self, error: ErrorInfo) -> Diagnosis | None:
        """The diagnosis of a certain fault of the other side, which no step can change."""
        verdict = self._judge.judge(error)
        if verdict is None or not verdict.known or not _certain(verdict):
            return None
        if any(info.hint for info in error.walk()):
            return None
        nothing = Trajectory()
        outcome = _from_verdict(self._judge, verdict, nothing, ())
        return diagnosis_of(outcome, nothing, error, {}, None, self._overrides)

    def _decide(
        self, trajectory: Trajectory, error: ErrorInfo | None, seen: Seen, task: Any
    ) -> Outcome:
        verdict = self._judge.judge(error) if error is not None else None
        steps = trajectory.steps
        certain = verdict is not None and verdict.known and _certain(verdict)
        for found in seen.firm:
            if certain and not _outranks(found, steps):
                continue
            return _from_finding(found, seen.firm, verdict, steps)
        if error is not None and not certain:
            call = _last_call(trajectory, error)
            if call is None and verdict is not None:
                call = bad_answer(steps, verdict.rule, verdict.path)
            if call is not None:
                return _from_finding(call, seen.firm, verdict, steps)
        if verdict is not None and (verdict.known or verdict.rule.cause is not None):
            kinds = _kinds(seen.firm, verdict, verdict.rule.failure_type)
            return _from_verdict(self._judge, verdict, trajectory, kinds)
        return self._reviewed(trajectory, error, seen, verdict, task)

    def _reviewed(
        self,
        trajectory: Trajectory,
        error: ErrorInfo | None,
        seen: Seen,
        verdict: Verdict | None,
        task: Any,
    ) -> Outcome:
        """What the steps show where no exception says enough; at worst UNKNOWN, with a suspect."""
        steps = trajectory.steps
        found = review(steps, seen, self._judge.judge, self._subgoals) if steps else []
        if found:
            return _from_finding(found[0], found, verdict, steps)
        guesses = _guesses(trajectory, verdict.info if verdict is not None else error)
        if verdict is not None:
            kinds = _kinds((), verdict, verdict.rule.failure_type)
            kinds = tuple(dict.fromkeys((*kinds, *guesses)))
            return _from_verdict(self._judge, verdict, trajectory, kinds)
        return _unsure(trajectory, error, guesses, task)


def _unsure(
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


def _certain(verdict: Verdict) -> bool:
    """True for what the other side answered or the network said: words alone are not that."""
    rule = verdict.rule
    return rule.failure_type is FailureType.EXTERNAL_FAULT and rule.looks_at != "text"


def _outranks(found: Finding, steps: tuple[Step, ...]) -> bool:
    """Whether a finding stands against an error of the other side's.

    Three calls that failed alike are a retry against a fault, not a loop of the agent's.
    """
    if found.rule.failure_type is FailureType.CONSTRAINT_IGNORED or found.step is None:
        return False
    return steps[found.step].error is None


def _last_call(trajectory: Trajectory, error: ErrorInfo) -> Finding | None:
    """What the error, or what it was raised from, says of the last step's tool."""
    for info in error.walk():
        if info.relation == "context":
            continue
        found = last_call(trajectory.steps, info)
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


def _from_finding(
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
        candidates=_kinds(beside, verdict, found.rule.failure_type),
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


def _strings(field: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise refuse(field, values, "an iterable of strings")
    found = tuple(values)
    for value in found:
        if not isinstance(value, str):
            raise refuse(f"{field} item", value, "text")
    return found


def _limits(field: str, values: object) -> tuple[Constraint, ...]:
    """The constraints, checked; an empty text forbids nothing."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise refuse(field, values, "an iterable of texts, compiled patterns or functions")
    found = tuple(values)
    for value in found:
        if not isinstance(value, str | re.Pattern) and not callable(value):
            raise refuse(f"{field} item", value, "text, a compiled pattern or a function")
    return tuple(value for value in found if value != "")


def _manifest(tools: object) -> dict[str, Any]:
    if tools is None:
        return {}
    if isinstance(tools, Mapping):
        return {str(name): schema for name, schema in tools.items()}
    return dict.fromkeys(_strings("tools", tools))
