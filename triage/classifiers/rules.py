"""`RulesClassifier`: why an attempt failed, by tables of rules, without calling anything."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from triage._refuse import refuse
from triage.diagnosis import Diagnosis
from triage.failures import ErrorInfo
from triage.steps import Trajectory

from . import _outcomes
from ._answers import ANSWER_RULES
from ._judge import Judge, Verdict
from ._override import Override, Overrides
from ._own_rules import checked
from ._rule import Rule
from ._status import CODE_RULES, STATUS_RULES
from ._text import TEXT_RULES
from ._types import BUILT_IN_RULES, FAULT_NAMES
from ._types_agent import AGENT_NAMES
from ._wording import CLASSIFIER, Outcome, diagnosis_of
from .detectors import Finding, Watch
from .detectors._last_call import bad_answer
from .detectors._review import Seen, look, review

if TYPE_CHECKING:
    from triage.grounds import Grounds
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


@cache
def _default_judge() -> Judge:
    return Judge(RULES)


class _Judged(NamedTuple):
    """What the rules say of an error. fault: its diagnosis, where nothing else has a say in it."""

    verdict: Verdict | None
    fault: Diagnosis | None


_NOTHING = _Judged(None, None)
_NO_STEPS = Trajectory()
# The class of a tuple costs a call where it is called.
_new = tuple.__new__


class RulesClassifier:
    """Says why an attempt failed, from its error and its steps, by rules; no network, no model.

    In this order: what the exception says of itself (`triage.faults`, `triage.hint`); what the steps
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
    ) -> None:
        self._judge = _default_judge() if rules is None else Judge(checked(rules, RULES))
        self._overrides = Overrides(overrides) or None
        self._constraints = _limits("RulesClassifier.constraints", constraints)
        self._tools = _manifest(tools)
        self._subgoals = _strings("RulesClassifier.subgoals", subgoals)
        self._exempt = frozenset(_strings("RulesClassifier.exempt", exempt))
        self._grounds = _grounds(grounding)
        # A thousand agents on one sick service fail with equal errors: each is judged once.
        self._known: dict[Hashable, _Judged] = {}

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
        outcome = _outcomes.from_finding(found, (found,), None, trajectory.steps)
        tools = trajectory.tools or self._tools
        return diagnosis_of(outcome, trajectory, None, tools, self._overrides)

    def classify(self, trajectory: Trajectory, task: Any = None) -> Diagnosis:
        """The diagnosis of an attempt. Pure: the same attempt always gets the same one."""
        steps = trajectory.steps
        error = trajectory.error or _outcomes.last_error(steps)
        tools = trajectory.tools or self._tools
        seen = look(steps, tools, (*trajectory.constraints, *self._constraints), self._exempt)
        judged = _NOTHING if error is None else self._judged(error)
        if judged.fault is not None and not seen.firm:
            return judged.fault
        task = trajectory.task if task is None else task
        outcome = self._decide(trajectory, error, seen, judged.verdict, task)
        return diagnosis_of(outcome, trajectory, error, tools, self._overrides)

    def remembered(self, trajectory: Trajectory, task: Any = None) -> Diagnosis | None:  # noqa: ARG002 - as `classify`
        """What `classify` says of it, where that is known without running anything of the user's.

        Known is a fault of the other side that equals one judged before, with at most 16 steps and
        nothing in them that outranks it. None where `classify` has to be asked: for any other error,
        and wherever a constraint or an override of a run or a tool has a say.
        """
        error, steps = trajectory.error, trajectory.steps
        if error is None or len(steps) > _FEW:
            return None
        if trajectory.constraints or self._constraints:
            return None
        judged = self._known.get(_key(error))
        if judged is None or judged.fault is None:
            return None
        # Whether arguments fit a schema decides nothing beside such a fault: the names are enough.
        names = dict.fromkeys(trajectory.tools or self._tools)
        return None if look(steps, names, (), self._exempt).firm else judged.fault

    def _judged(self, error: ErrorInfo) -> _Judged:
        """What the rules say of an error, the same for equal ones. Several threads may come here."""
        known, key = self._known, _key(error)
        judged = known.get(key)
        if judged is None:
            verdict = self._judge.judge(error)
            judged = _new(_Judged, (verdict, self._fault(error, verdict)))
            if len(known) >= _MAX_KNOWN:
                known.clear()
            known[key] = judged
        return judged

    def _fault(self, error: ErrorInfo, verdict: Verdict | None) -> Diagnosis | None:
        """The diagnosis of a certain fault of the other side, which no step can change."""
        # Nothing unknown is certain.
        if verdict is None or not _outcomes.certain(verdict):
            return None
        if self._overrides is not None and self._overrides.by_run:
            return None
        if (error.hint or error.related) and error.decisive is not None:
            return None
        outcome = _outcomes.from_verdict(self._judge, verdict, _NO_STEPS, ())
        return diagnosis_of(outcome, _NO_STEPS, error, {}, self._overrides)

    def _decide(
        self,
        trajectory: Trajectory,
        error: ErrorInfo | None,
        seen: Seen,
        verdict: Verdict | None,
        task: Any,
    ) -> Outcome:
        steps = trajectory.steps
        certain = verdict is not None and verdict.known and _outcomes.certain(verdict)
        for found in seen.firm:
            if certain and not _outcomes.outranks(found, steps):
                continue
            return _outcomes.from_finding(found, seen.firm, verdict, steps)
        if error is not None and not certain:
            call = _outcomes.of_last_call(trajectory, error)
            if call is None and verdict is not None:
                call = bad_answer(steps, verdict.rule, verdict.path)
            if call is not None:
                return _outcomes.from_finding(call, seen.firm, verdict, steps)
        if verdict is not None and (verdict.known or verdict.rule.cause is not None):
            kinds = _outcomes.kinds(seen.firm, verdict, verdict.rule.failure_type)
            return _outcomes.from_verdict(self._judge, verdict, trajectory, kinds)
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
        tools = trajectory.tools or self._tools
        judge = self._judge.judge
        found = review(steps, seen, judge, self._subgoals, task, tools) if steps else []
        if self._grounds is not None:
            from ._ungrounded import ungrounded

            found += ungrounded(steps, task, tools, self._grounds)
        if found:
            return _outcomes.from_finding(found[0], found, verdict, steps)
        guesses = _outcomes.guesses(trajectory, verdict.info if verdict is not None else error)
        if verdict is not None:
            kinds = _outcomes.kinds((), verdict, verdict.rule.failure_type)
            kinds = tuple(dict.fromkeys((*kinds, *guesses)))
            return _outcomes.from_verdict(self._judge, verdict, trajectory, kinds)
        return _outcomes.unsure(trajectory, error, guesses, task)


_FEW = 16
"""Steps that may be looked at in the event loop."""
_MAX_KNOWN = 256


def _key(error: ErrorInfo) -> Hashable:
    """What no error has that differs from this one. Bodies in another order count as different."""
    try:
        hash(error)
    except TypeError:  # an answer's body and a hint are plain data that has no hash
        *said, body, hint, notes, relation, related = error
        return *said, notes, relation, repr((body, hint, related))
    return error


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
    from triage.grounds import Grounds

    if grounding is True:
        return Grounds()
    if not isinstance(grounding, Grounds):
        raise refuse("RulesClassifier.grounding", grounding, "True, False or a Grounds")
    return grounding


def _manifest(tools: object) -> dict[str, Any]:
    if tools is None:
        return {}
    if isinstance(tools, Mapping):
        return {str(name): schema for name, schema in tools.items()}
    return dict.fromkeys(_strings("tools", tools))
