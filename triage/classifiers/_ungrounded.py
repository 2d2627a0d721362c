"""Facts of the last answer that neither the task nor any result holds, as findings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triage.redact import redact
from triage.steps import Step

from ._grounding import Grounding
from .detectors import Finding
from .detectors._finding import UNGROUNDED

if TYPE_CHECKING:
    from triage.grounds import Grounds

_MAX_NAMED = 5


def ungrounded(
    steps: Sequence[Step], task: Any, tools: Mapping[str, Any], grounds: Grounds
) -> list[Finding]:
    """The facts without a source, at most five, each with the step that was the first to state it.

    The answer is what was said last without calling a tool. What the model said before it is no
    source. Empty where there is no answer, or where there are fewer facts than `grounds.at_least`.
    """
    last = next(
        (at for at in range(len(steps) - 1, -1, -1) if _answer(steps[at]) is not None), None
    )
    if last is None:
        return []
    grounding = Grounding(grounds.kinds)
    grounding.deeds.tools(tools)
    grounding.source(task)
    grounding.source(grounds.sources)
    for step in steps:
        grounding.step(step)
    facts = grounding.unsupported(_answer(steps[last]))
    if len(facts) < grounds.at_least:
        return []
    found: list[Finding] = []
    for fact in facts[:_MAX_NAMED]:
        shown = json.dumps(redact(fact.text), ensure_ascii=False)
        said = f"the answer's {fact.kind} {shown} {fact.fault}"
        found.append(Finding(UNGROUNDED, said, _first(steps, fact.text, last)))
    return found


def _answer(step: Step) -> str | None:
    return step.llm_output if step.tool_called is None and step.llm_output else None


def _first(steps: Sequence[Step], text: str, last: int) -> int:
    """The earliest answer that has this fact in the same words; the last where none has."""
    return next((at for at in range(last) if text in (_answer(steps[at]) or "")), last)
