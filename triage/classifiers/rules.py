"""`RulesClassifier`: why an attempt failed, by tables of rules, without calling anything.

`diagnose` asks it about one error, with no agent, no run and no store.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast, get_args

from triage.classifiers.detectors.answers import explained
from triage.classifiers.detectors.finding import FAILED_RESULT, UNKNOWN_TOOL, Finding
from triage.classifiers.detectors.post_mortem import likeliest
from triage.classifiers.detectors.results import NOT_KNOWN, failure_of, gave
from triage.classifiers.detectors.tool_calls import bad_answer, last_call
from triage.classifiers.detectors.watch import Seen, Watch, look, review
from triage.classifiers.tables.codes import CODE_RULES, STATUS_RULES
from triage.classifiers.tables.messages import ANSWER_RULES, MESSAGE_RULES
from triage.classifiers.tables.names import AGENT_NAMES, BUILT_IN_RULES, FAULT_NAMES
from triage.classifiers.tables.rule import LooksAt, Rule
from triage.core.capture import capture, captured_text
from triage.core.diagnosis import Diagnosis, Evidence
from triage.core.errors import nearest, refuse
from triage.core.failures import ErrorInfo
from triage.core.guards import guarded
from triage.core.json_values import plain
from triage.core.manifest import manifest_of
from triage.core.steps import Constraint, Step, Trajectory
from triage.core.taxonomy import FailureType, Severity

from .advice import CLASSIFIER, UNKNOWN, Outcome, diagnosis_of, index_of
from .base import Classifier, as_diagnosis, classifier_name
from .grounding import Grounds, ungrounded
from .matching import Judge, Verdict, severity_of_rule
from .overrides import Override, Overrides, members

RULES: tuple[Rule, ...] = (
    *CODE_RULES,
    *STATUS_RULES,
    *FAULT_NAMES,
    *AGENT_NAMES,
    *BUILT_IN_RULES,
    *ANSWER_RULES,
    *MESSAGE_RULES,
)
"""All built-in rules. Within each kind an earlier rule wins."""

_FEW = 16
"""Steps that may be looked at in the event loop."""
_LONG = 2_000
"""Characters of a message, from which on an error is not remembered."""
_MAX_KNOWN = 256
_MAX_EVIDENCE = 5
_NO_STEPS = Trajectory()
_SURE = 0.6
"""What is less sure than this decides only in a post-mortem, and names no step elsewhere."""


@cache
def _default_judge() -> Judge:
    return Judge(RULES)


_UNREAD = Diagnosis(
    FailureType.UNKNOWN,
    confidence=0.0,
    evidence=(Evidence("classifier:failed", "the attempt could not be read"),),
    classifier=CLASSIFIER,
)


class RulesClassifier:
    """Says why an attempt failed, from its error and its steps, by rules; no network, no model.

    In this order: what the exception says of itself (`triage.core.faults`, `triage.hint`); what the steps
    show beyond doubt (an exact loop at their end, a tool that does not exist, a forbidden string in an
    output); code, class and status of the error and of what it was raised from; its words, last. An
    earlier error from which the agent recovered never decides. What no rule knows is UNKNOWN, with
    `candidates`.

    rules: in place of the built-in ones (`RULES`); put own ones in front: `(mine, *RULES)`.
    constraints: strings no output may contain, beside those of the trajectory. tools: the manifest
    for trajectories that have none, name to JSON Schema or None, or only the names. overrides:
    severities and levels in place of the rules' own; for each of the two the first that fits decides.
    grounding: True, or a `Grounds`, looks for facts in the last answer that neither the task nor a
    tool's result holds, where nothing else decides; it reads all text of the attempt. False by default.
    failed: True for a post-mortem, of runs that are known to have failed: every finding counts,
    grounding included, and the likeliest type and step are named with their low confidence, where
    otherwise the answer is UNKNOWN. False by default.

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
        grounding: bool | Grounds = False,
        failed: bool = False,
    ) -> None:
        self._judge = _default_judge() if rules is None else Judge(_checked_rules(rules))
        self._overrides = Overrides(overrides)
        self._constraints = _limits("RulesClassifier.constraints", constraints)
        self._tools = dict(manifest_of(tools))
        self._subgoals = _strings("RulesClassifier.subgoals", subgoals)
        self._exempt = frozenset(_strings("RulesClassifier.exempt", exempt))
        if not isinstance(cast("object", failed), bool):
            raise refuse("RulesClassifier.failed", failed, "True or False")
        self._failed = failed
        self._grounds = _grounds(grounding) or (Grounds() if failed else None)
        # A thousand agents on one sick service fail with equal errors: what `remembered` tells.
        self._known: dict[str, Diagnosis] = {}

    def watch(
        self,
        tools: Mapping[str, Any] | None = None,
        constraints: Iterable[Constraint] = (),
        start: int = 0,
    ) -> Watch:
        """The detectors by which this classifier judges steps, for a run that goes on.

        tools, constraints: those of the run, beside the classifier's own. start: index of the first
        step it will be told of. The watch is told each step once, with `add`, which answers with what
        that step has newly made wrong.
        """
        return Watch(
            tools=tools or self._tools,
            constraints=(*constraints, *self._constraints),
            exempt=self._exempt,
            start=start,
        )

    def explain(self, found: Finding, trajectory: Trajectory) -> Diagnosis:
        """What its `watch` has found in an attempt that goes on, as the diagnosis it would be."""
        repeats = found.rule.failure_type is FailureType.LOOP_DETECTED
        answer = self._explained(trajectory, None, None) if repeats else None
        if answer is not None and answer.tool is not None:
            answer = None  # the model was told that it cannot make the call, and went on
        outcome = answer or _from_finding(found, (found,), None, trajectory.steps)
        tools = trajectory.tools or self._tools
        return diagnosis_of(outcome, trajectory, None, tools, self._overrides)

    @guarded(lambda _self, _trajectory, task=None: _UNREAD)
    def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:
        """The diagnosis of an attempt. Pure: the same attempt always gets the same one."""
        known = self.remembered(trajectory)
        if known is not None:
            return known
        steps = trajectory.steps
        error = trajectory.error or _last_error(steps)
        tools = trajectory.tools or self._tools
        constraints = (*trajectory.constraints, *self._constraints)
        seen = look(steps, tools, constraints, self._exempt, raised=error is not None)
        verdict = None if error is None else self._judge.judge(error)
        if (
            error is not None
            and verdict is not None
            and _certain(verdict)
            and not self._overrides.by_run
            and error.decisive is None
        ):
            # A fault of the other side, which only firm findings outrank.
            outcome = self._from_verdict(verdict, _NO_STEPS, ())
            fault = diagnosis_of(outcome, _NO_STEPS, error, {}, self._overrides)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            if len(error.message) <= _LONG:
                self._known[repr(error)] = fault
            if not seen.firm:
                return fault
        task = plain(trajectory.task if task is None else task)
        outcome = self._decide(trajectory, error, seen, verdict, task)
        return diagnosis_of(outcome, trajectory, error, tools, self._overrides)

    def remembered(self, trajectory: Trajectory, task: Any = None) -> Diagnosis | None:
        """What `classify` says of it, where that is known without running anything of the user's.

        Known is a fault of the other side that equals one judged before, with at most 16 steps and
        nothing in them that outranks it. None where `classify` has to be asked: for any other error,
        and wherever a constraint or an override of a run or a tool has a say.
        """
        error, steps = trajectory.error, trajectory.steps
        if error is None or len(error.message) > _LONG or len(steps) > _FEW:
            return None
        if trajectory.constraints or self._constraints:
            return None
        fault = self._known.get(repr(error))
        if fault is None:
            return None
        # Whether arguments fit a schema decides nothing beside such a fault: the names are enough.
        names = dict.fromkeys(trajectory.tools or self._tools)
        return None if look(steps, names, (), self._exempt, raised=True).firm else fault

    def _decide(
        self,
        trajectory: Trajectory,
        error: ErrorInfo | None,
        seen: Seen,
        verdict: Verdict | None,
        task: Any,
    ) -> Outcome:
        steps = trajectory.steps
        firm = self._beyond_doubt(trajectory, error, seen, verdict)
        if firm is not None:
            return firm
        if verdict is not None and (verdict.known or verdict.rule.cause is not None):
            others = _kinds(seen.firm, verdict, verdict.rule.failure_type)
            return self._from_verdict(verdict, trajectory, others)
        # No exception says enough: what do the steps show?
        tools = trajectory.tools or self._tools
        found = review(steps, seen, self._judge.judge, tools, task, self._subgoals) if steps else []
        sure = [one for one in found if one.rule.confidence >= _SURE]
        if self._grounds is not None and not sure:
            sure = ungrounded(steps, task, self._grounds)
        if not sure and self._failed:
            sure = [one for one in found if one.rule.confidence > NOT_KNOWN][:1]
            sure = sure or likeliest(steps)
        if sure:
            decisive = sure[0] if error is None else _not_waited_out(sure[0], steps)
            beside = dict.fromkeys(one for one in (*sure, *found) if one is not sure[0])
            return _from_finding(decisive, beside, verdict, steps)
        info = verdict.info if verdict is not None else error
        guesses = tuple(
            dict.fromkeys([*_kinds(found, None, FailureType.UNKNOWN), *_guesses(steps, info)])
        )
        if verdict is not None:
            kinds = _kinds((), verdict, verdict.rule.failure_type)
            others = tuple(dict.fromkeys((*kinds, *guesses)))
            return self._from_verdict(verdict, trajectory, others)
        nothing = "no rule fired" if error is None else f"no rule fired on {error.type_name}"
        return Outcome(rule=UNKNOWN, evidence=(Evidence("none", nothing),), candidates=guesses)

    def _beyond_doubt(
        self,
        trajectory: Trajectory,
        error: ErrorInfo | None,
        seen: Seen,
        verdict: Verdict | None,
    ) -> Outcome | None:
        """What the steps show beyond doubt."""
        steps = trajectory.steps
        certain = verdict is not None and _certain(verdict)
        answer = self._explained(trajectory, error, verdict)
        if answer is not None and answer.tool is None:
            return answer  # a cut or refused answer leads to any of what follows
        for firm in seen.firm:
            if error is None and firm.rule is UNKNOWN_TOOL and gave(steps[firm.step or 0]):
                continue  # the manifest is not complete
            if not certain or _outranks(firm, steps):
                return _from_finding(firm, seen.firm, verdict, steps)
        if answer is not None:
            return answer
        if error is not None and not certain:
            call = _of_last_call(steps, error)
            if call is None and verdict is not None:
                call = bad_answer(steps, verdict.rule, verdict.path)
            if call is not None:
                return _from_finding(call, seen.firm, verdict, steps)
        return None

    def _explained(
        self, trajectory: Trajectory, error: ErrorInfo | None, verdict: Verdict | None
    ) -> Outcome | None:
        """What the last answer says of the failure, where nothing that the error states says more."""
        if verdict is not None and (_certain(verdict) or _is_lasting(verdict)):
            return None
        if error is not None and error.decisive is not None:
            return None
        found = explained(trajectory.steps, error)
        blamed = None if found is None else self._judge.judge(found.error)
        if found is None or blamed is None:
            return None
        kind = blamed.rule.failure_type
        tool = trajectory.steps[found.step].tool_called
        if tool is not None and verdict is not None and verdict.rule.failure_type is kind:
            words = " ".join(one.message for one in verdict.path)
            if tool not in words or _names_a_field(words, found.error, tool):
                return None  # the error is of something else, or says it in more detail
        others = () if verdict is None else _kinds((), verdict, kind)
        outcome = self._from_verdict(blamed, _NO_STEPS, others)
        step = None if kind is FailureType.EXTERNAL_FAULT else found.step
        evidence = tuple(
            Evidence(one.rule, one.text, index_of(trajectory.steps, step))
            for one in outcome.evidence
        )
        return outcome._replace(step=step, tool=tool, evidence=evidence)

    def _from_verdict(
        self, verdict: Verdict, trajectory: Trajectory, others: tuple[FailureType, ...]
    ) -> Outcome:
        rule, steps = verdict.rule, trajectory.steps
        step = tool = None
        # No step is the cause of a fault of the other side's, nor of what is not known.
        if steps and rule.failure_type not in (FailureType.EXTERNAL_FAULT, FailureType.UNKNOWN):
            last = steps[-1]
            # A step that has a result has succeeded: the error came after it.
            if last.error is not None or (
                last.tool_called is not None and last.tool_output is None
            ):
                step, tool = len(steps) - 1, last.tool_called
        text, confidence = self._judge.weigh(verdict)
        if confidence < _SURE:
            step = None
        return Outcome(
            rule=rule._replace(confidence=confidence),
            evidence=(Evidence(rule.name, text, step),),
            step=step,
            tool=tool,
            path=verdict.path,
            candidates=others,
        )


# --- what decides ----------------------------------------------------------------------------


def _certain(verdict: Verdict) -> bool:
    """True for what the other side answered or the network said: words alone are not that."""
    rule = verdict.rule
    return rule.failure_type is FailureType.EXTERNAL_FAULT and rule.looks_at != "text"


def _is_lasting(verdict: Verdict) -> bool:
    """True for a bug or a setting, which no answer of a model has led to."""
    return severity_of_rule(verdict.rule) in (Severity.CRITICAL, Severity.FATAL)


def _outranks(found: Finding, steps: tuple[Step, ...]) -> bool:
    """Whether a finding stands against an error of the other side's.

    Three calls that failed alike, whether they raised or answered with an error, are a retry against a
    fault, not a loop of the agent's.
    """
    if found.rule.failure_type is FailureType.CONSTRAINT_IGNORED or found.step is None:
        return False
    step = steps[found.step]
    repeats = found.rule.failure_type is FailureType.LOOP_DETECTED
    return step.error is None and not (repeats and failure_of(step) is not None)


def _not_waited_out(found: Finding, steps: tuple[Step, ...]) -> Finding:
    """The finding without its promise that the failure passes, where the words of an output alone make it.

    Anybody may have written them, and what was raised says nothing of it. What a provider answered in
    place of its model's words is its own.
    """
    if found.rule.name != FAILED_RESULT.name or found.step is None:
        return found
    step = steps[found.step]
    if step.error is not None or (step.tool_called is None and step.llm_output is None):
        return found
    if found.rule.severity not in (None, Severity.RETRIABLE):
        return found
    rule = found.rule._replace(severity=Severity.REPLANNING)
    return found._replace(rule=rule, retry_after_s=None)


def _of_last_call(steps: tuple[Step, ...], error: ErrorInfo) -> Finding | None:
    """What the error, or what it was raised from, says of the last step's tool."""
    for info in error.walk():
        if info.relation == "context":
            continue
        found = last_call(steps, info)
        if found is not None:
            return found
    return None


_QUOTED = re.compile(r"'([^']+)'")


def _names_a_field(words: str, refusal: ErrorInfo, tool: str) -> bool:
    """Whether an error names one of the fields for which a call of this tool is refused."""
    return any(name in words for name in set(_QUOTED.findall(refusal.message)) - {tool})


def _last_error(steps: tuple[Step, ...]) -> ErrorInfo | None:
    """The error of the last step, for trajectories that carry none of their own."""
    if not steps or not steps[-1].error:
        return None
    kind = steps[-1].exception_type or "Exception"
    mro = (f"builtins.{kind}" if kind in _BUILT_IN else kind,)
    return captured_text(steps[-1].error, kind, mro)


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
        Evidence(one.rule.name, one.text, index_of(steps, one.step))
        for one in (found, *beside[:_MAX_EVIDENCE])
    )
    return Outcome(
        rule=found.rule,
        evidence=evidence,
        step=found.step,
        tool=found.tool,
        repeats=found.repeats,
        length=found.length,
        text=found.text,
        candidates=_kinds(beside, verdict, found.rule.failure_type),
        retry_after_s=found.retry_after_s,
    )


def _kinds(
    findings: Iterable[Finding], verdict: Verdict | None, chosen: FailureType
) -> tuple[FailureType, ...]:
    """The other types that were considered, strongest first."""
    found = [one.rule.failure_type for one in findings]
    if verdict is not None:
        found.append(verdict.rule.failure_type)
    return tuple(
        kind
        for kind in dict.fromkeys(found)
        if kind is not chosen and kind is not FailureType.UNKNOWN
    )


def _guesses(steps: tuple[Step, ...], error: ErrorInfo | None) -> tuple[FailureType, ...]:
    """What an unknown failure may be, likeliest first: a direction for a costlier classifier."""
    if error is None:
        return (FailureType.PLAN_INCOMPLETE, FailureType.GOAL_DRIFT) if steps else ()
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


def _grounds(grounding: object) -> Grounds | None:
    """`grounding` as a `Grounds`, None for False."""
    if grounding is False:
        return None
    if grounding is True:
        return Grounds()
    if not isinstance(grounding, Grounds):
        raise refuse("RulesClassifier.grounding", grounding, "True, False or a Grounds")
    return grounding


def diagnose(
    error: BaseException | ErrorInfo | str | None,
    steps: Iterable[Step] = (),
    *,
    task: Any = "",
    tools: Mapping[str, Any] | Iterable[Any] | None = None,
    classifier: Classifier | None = None,
    failed: bool = False,
) -> Diagnosis:
    """Why `error` was raised, or, without one, what is wrong with `steps`.

    error: any exception, what `capture` made of one, or its text. steps: what was done before it, oldest
    first. task: as it would be given to a run. tools: those that exist, in any form that
    `Checks(tools=…)` takes. classifier: a synchronous one, `RulesClassifier()` by default; what it
    raises is not caught. failed: True says that this run has failed, so that the likeliest type is
    named with a low confidence where the answer is otherwise UNKNOWN; for the default classifier only.

    Raises TypeError for an argument of the wrong type, and for a classifier that is asynchronous or
    answers with anything but a `Diagnosis` or `FailureType`.
    """
    if isinstance(error, BaseException):
        error = capture(error)
    elif isinstance(error, str):
        error = captured_text(error)
    elif error is not None and not isinstance(error, ErrorInfo):
        raise refuse("diagnose() error", error, "an exception, an ErrorInfo, text or None")
    taken = tuple(steps)
    for step in taken:
        if not isinstance(step, Step):
            raise refuse("diagnose() steps item", step, "a Step")
    if failed and classifier is not None:
        raise TypeError(
            "diagnose() failed is for the default classifier; pass RulesClassifier(failed=True) instead"
        )
    chosen = RulesClassifier(failed=failed) if classifier is None else classifier
    trajectory = Trajectory(taken, error=error, task=task, tools=dict(manifest_of(tools)))
    answer = chosen.classify(trajectory, task)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(
            f"diagnose() was given the asynchronous classifier {type(chosen).__name__}; "
            "pass a synchronous one, or give this one to an Agent"
        )
    return as_diagnosis(answer, classifier_name(chosen))


# --- rules of somebody else's ----------------------------------------------------------------

_KINDS: tuple[str, ...] = get_args(LooksAt)


def _checked_rules(rules: object) -> tuple[Rule, ...]:
    """The rules, with values as members; the built-in ones among them are not looked at again.

    Raises TypeError or ValueError naming the rule, its field and what would be right.
    """
    if isinstance(rules, Rule) or not isinstance(rules, Iterable):
        raise refuse("RulesClassifier.rules", rules, "an iterable of Rule")
    known = {id(rule) for rule in RULES}
    return tuple(rule if id(rule) in known else _checked(rule) for rule in rules)


def _checked(rule: object) -> Rule:
    if not isinstance(rule, Rule):
        raise refuse("RulesClassifier.rules item", rule, "a Rule")
    name: object = rule.name
    if not isinstance(name, str) or not name:
        raise refuse("Rule.name", name, "text that is not empty")
    field = f"Rule {rule.name!r}"
    if rule.looks_at not in _KINDS:
        meant = nearest(str(rule.looks_at), _KINDS)
        raise ValueError(
            f"{field} looks_at must be one of {', '.join(_KINDS)}, not {rule.looks_at!r}"
            f"{meant and f'; {meant}'}"
        )
    for key in _keys(rule, field):
        if rule.looks_at in _CHECKS:
            _CHECKS[rule.looks_at](field, key)
    confidence: Any = rule.confidence
    if isinstance(confidence, bool) or not isinstance(confidence, int | float):
        raise refuse(f"{field} confidence", confidence, "a number from 0 to 1")
    if not 0 <= confidence <= 1:
        raise ValueError(f"{field} confidence must be from 0 to 1, not {confidence}")
    if rule.cause is not None and not isinstance(rule.cause, str):
        raise refuse(f"{field} cause", rule.cause, "text or None")
    return rule._replace(**members(rule, f"{field} "), keys=tuple(rule.keys))


def _keys(rule: Rule, field: str) -> tuple[str, ...]:
    keys: object = rule.keys
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise refuse(f"{field} keys", keys, "a tuple of texts, such as ('sold out',)")
    found = tuple(keys)
    if not found:
        raise ValueError(f"{field} keys must not be empty: without one it can never fire")
    for key in found:
        if not isinstance(key, str) or not key:
            raise refuse(f"{field} keys item", key, "text that is not empty")
    return found


def _expression(field: str, key: str) -> None:
    try:
        re.compile(key)
    except re.error as error:
        raise ValueError(f"{field} keys: {key!r} is not a regular expression: {error}") from None
    # What is escaped, in a class or the name of a group is no text that has to be met.
    plain = re.sub(r"\\.|\[[^\]]*\]|\(\?P[<=]\w*[>)]", "", key)
    wrong = next((char for char in plain if char.isupper() or char in "_-"), None)
    if wrong is not None:
        better = "a lower-case letter" if wrong.isupper() else "a space"
        raise ValueError(
            f"{field} keys: {key!r} can never fit, since texts are read in lower case with _ and - "
            f"as spaces; write {better} in place of {wrong!r}"
        )


def _status(field: str, key: str) -> None:
    if re.fullmatch(r"[1-5](?:\d\d|xx)", key) is None:
        raise ValueError(
            f"{field} keys: {key!r} is no HTTP status; write three digits ('429') or a class ('5xx')"
        )


def _words(field: str, key: str) -> None:
    if "." not in key and key != key.lower():
        raise ValueError(
            f"{field} keys: {key!r} can never fit, since names are read as words in lower case; write "
            "'rate limit' for RateLimitError, or a full class name with its module"
        )


_CHECKS = {"text": _expression, "answer": _expression, "status": _status, "name": _words}
