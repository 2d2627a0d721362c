"""The likeliest type of a run that is known to have failed, where no detector saw why.

It goes by the form of the run: who spoke, what was called, how it ended. The confidences are about the
shares of right answers on runs that people have labelled (bench/README.md). A step is named only for a
loop and an error; what the others mean, a model has to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from triage.core.steps import Step
from triage.core.taxonomy import FailureType

from .finding import POST_MORTEM, Finding

_MOST_TURNS = 6
_LONG_RUN = 9
_CLOSING = 60
"""Characters of a last turn that only ends the run."""
_SHAPED, _PLAIN = 0.6, 0.5
"""The confidence in a type that a run's form suggests, and in the most frequent one."""


def likeliest(steps: Sequence[Step]) -> list[Finding]:
    """The likeliest type of a failed run that shows nothing; empty if there are no steps."""
    if not steps:
        return []
    speakers = {step.action for step in steps if step.llm_output and step.tool_called is None}
    last, size = steps[-1], len(steps)
    at = next((at for at, step in enumerate(steps) if step.error is not None), None)
    confidence = _SHAPED
    if length := _turns_again(steps):
        kind, why = FailureType.LOOP_DETECTED, "the last turns are those before them once more"
        at = size - 2 * length
    elif size >= _LONG_RUN and len(speakers) > 2:
        kind, why = FailureType.PLAN_INCOMPLETE, "several agents came to no result"
    elif all(step.tool_output is None for step in steps if step.tool_called):
        kind, why = FailureType.HALLUCINATED_STATE, "no tool has given a result"
    elif last.tool_called is None and len(last.llm_output or "") < _CLOSING and len(speakers) > 1:
        kind, why = FailureType.PLAN_INCOMPLETE, "the run was closed without an answer"
    else:
        kind, why, confidence = FailureType.HALLUCINATED_STATE, "nothing else was found", _PLAIN
    rule = POST_MORTEM._replace(failure_type=kind, confidence=confidence)
    return [Finding(rule, f"{why}; for what the run means, ask a model (`LLMClassifier`)", at)]


def _turns_again(steps: Sequence[Step]) -> int:
    """How many turns several agents, calling tools, took twice in a row at the end; 0 for none."""
    turns = [(step.action, step.tool_called) for step in steps]
    for length in range(2, min(_MOST_TURNS, len(turns) // 2) + 1):
        last = turns[-length:]
        several = len({action for action, _ in last}) > 1 and any(tool for _, tool in last)
        if several and last == turns[-2 * length : -length]:
            return length
    return 0
