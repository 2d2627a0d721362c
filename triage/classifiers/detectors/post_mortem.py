"""What to say of a run that is known to have failed and in which no detector saw why.

The types are those that labelled runs of the same shape had most often, and the confidence is their
share. The step is the first one that failed, or that states facts from nowhere; of a run that ended with
an answer, none is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triage.core.patterns import Pattern
from triage.core.steps import Step
from triage.core.taxonomy import FailureType

from .finding import POST_MORTEM, Finding
from .results import text_in

_FACT = Pattern(r"\b\d[\d,.]{0,40}|\*\*[^*\n]{3,60}\*\*|\b[A-Z][a-z]+ [A-Z][a-z]+\b")
"""A number, what is set in bold, and a name of two words."""
_LONG_RUN = 9
_MOST_TURNS = 6
_CLOSING = 60
"""Characters of a last turn that only ends the run."""
_MAX_TEXT = 4_000
ENDED = 0.4
"""How sure a guess is that has only the kind of the last step to go by. Four of ten failed runs that show
nothing and ended with an answer had one that was not true."""


def likeliest(steps: Sequence[Step], task: Any) -> Finding:
    """The likeliest type of a failed run that shows nothing."""
    answered = any(step.tool_output is not None for step in steps if step.tool_called)
    failed = any(step.error for step in steps)
    last = steps[-1]
    kind, why, at, confidence = FailureType.PLAN_INCOMPLETE, "", None, POST_MORTEM.confidence
    if _turns_again(steps):
        kind, why = FailureType.LOOP_DETECTED, "the last turns are those before them once more"
        at = len(steps) // 2
    elif last.tool_called is not None and not failed:
        why, confidence = "the run ended with a call and no answer", ENDED
    elif len(steps) >= _LONG_RUN and _speakers(steps) > 2:
        why = "the run was long and came to no result"
    elif last.tool_called is not None or not answered:
        kind, why = FailureType.HALLUCINATED_STATE, "what was said rests on no result of a tool"
    elif len(last.llm_output or "") < _CLOSING and _speakers(steps) > 1:
        why = "the run was closed without an answer"
    else:
        rule = POST_MORTEM._replace(failure_type=FailureType.HALLUCINATED_STATE, confidence=ENDED)
        return Finding(rule, "the run ended with an answer; nothing else was found", None)
    rule = POST_MORTEM._replace(failure_type=kind, confidence=confidence)
    at = _first_doubt(steps, text_in(task)) if at is None else at
    return Finding(rule, f"{why}; nothing else was found", at)


def _speakers(steps: Sequence[Step]) -> int:
    """How many agents speak, by the names of their steps."""
    return len({step.action for step in steps if step.llm_output and step.tool_called is None})


def _turns_again(steps: Sequence[Step]) -> bool:
    """Whether several agents took the same turns twice in a row at the end, and called tools in them."""
    turns = [(step.action, step.tool_called) for step in steps]
    for length in range(2, min(_MOST_TURNS, len(turns) // 2) + 1):
        rounds = turns[-length:], turns[-2 * length : -length]
        who = {action for action, _ in rounds[0]}
        if rounds[0] == rounds[1] and len(who) > 1 and any(tool for _, tool in rounds[0]):
            return True
    return False


def _first_doubt(steps: Sequence[Step], given: str) -> int | None:
    """The first step that failed or states facts from nowhere, else the first call."""
    known = set(_FACT.findall(given))
    for at, step in enumerate(steps):
        said = (step.llm_output or "")[:_MAX_TEXT]
        facts = _FACT.findall(said)
        if at == 0 and given and given[:_CLOSING] in said:  # the task, as it was handed on
            known.update(facts)
            continue
        if step.error is not None:
            return at
        if step.tool_called is None and not known.issuperset(facts):
            return at
        known.update(_FACT.findall(text_in(step.tool_output)))
    return next((at for at, step in enumerate(steps) if step.tool_called is not None), None)
