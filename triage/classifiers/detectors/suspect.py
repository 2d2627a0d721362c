"""Which step to look at first where nothing mechanical decides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from triage.classifiers.patterns import Pattern
from triage.core import Step

from .endings import assumes, says_made_up

_MAX_TEXT = 4_000
_SHORT = 80
_RESTATED = 0.85
_LEAST_TASK = 5
_MANY_FACTS = 10

_WEIGHTS = {
    "first_deed": 0.45,
    "call": 0.35,
    "first_call": 0.4,
    "facts": 0.5,
    "first_facts": 0.35,
    "conclusion": 0.5,
    "made_up": 0.5,
    "error": 0.25,
    "first_error": 0.3,
    "plan": -0.3,
    "short": -0.55,
    "relay": -0.25,
}
"""What each thing seen in a step adds, rounded, from annotated runs of agents that talk to each other.

`facts` counts fully with ten new ones."""


class Suspect(NamedTuple):
    """step: position. text: what speaks for it. weight: the sum; a step with nothing has 0."""

    step: int
    text: str
    weight: float


def suspect(steps: Sequence[Step], task: Any = None) -> Suspect | None:
    """The step that weighs most, the earliest of equals; None if none weighs anything.

    Only runs in which somebody speaks are weighed.
    """
    if not any(step.llm_output for step in steps):
        return None
    best: Suspect | None = None
    for at, seen in enumerate(_seen(steps, task)):
        weight = sum(_WEIGHTS[name] * share for name, share in seen.items())
        if weight > 0 and (best is None or weight > best.weight + 1e-9):
            best = Suspect(at, ", ".join(_NAMES[name] for name in seen if name in _NAMES), weight)
    return best


_NAMES = {
    "first_deed": "the first step that does something",
    "first_call": "the first call",
    "first_facts": "the first facts that nothing before it holds",
    "facts": "new facts",
    "conclusion": "a conclusion",
    "made_up": "data made up",
    "first_error": "the first error",
}


def _seen(steps: Sequence[Step], task: Any) -> Iterator[dict[str, float]]:
    """What is to be seen in each step, by the names of `_WEIGHTS`."""
    asked = task if isinstance(task, str) else "" if task is None else str(task)
    known = set(_FACTS.findall(asked[:_MAX_TEXT]))
    topic = _words(asked[:_MAX_TEXT])
    told: set[str] = set()
    for at, step in enumerate(steps):
        said = (step.llm_output or "")[:_MAX_TEXT]
        if at == 0 and step.tool_called is None and _restates(topic, said):
            yield {}
            continue
        seen = _of_step(step, said, known)
        yield {name: share for name, share in seen.items() if name not in told}
        told |= {name for name in seen if name.startswith("first_")}
        known |= set(_FACTS.findall(said))
        if isinstance(step.tool_output, str):
            known |= set(_FACTS.findall(step.tool_output[:_MAX_TEXT]))


def _of_step(step: Step, said: str, known: set[str]) -> dict[str, float]:
    call = step.tool_called is not None
    new = set(_FACTS.findall(said)) - known
    short = len(said) < _SHORT and not call
    seen: dict[str, float] = {}
    if call:
        seen.update(call=1.0, first_call=1.0)
    if call or not short:
        seen["first_deed"] = 1.0
    if new:
        seen["facts"] = min(len(new), _MANY_FACTS) / _MANY_FACTS
        if not call:
            seen["first_facts"] = 1.0
    elif not call and _PLANNING.search(said):
        seen["plan"] = 1.0
    if not call and _CONCLUDING.search(said):
        seen["conclusion"] = 1.0
    if says_made_up(step) is not None or assumes(step):
        seen["made_up"] = 1.0
    if step.error is not None:
        seen.update(error=1.0, first_error=1.0)
    if short:
        seen["relay" if not said else "short"] = 1.0
        if not said:
            seen["short"] = 1.0
    return seen


def _restates(topic: set[str], said: str) -> bool:
    """Whether a first message only hands the task on."""
    return len(topic) > _LEAST_TASK and len(topic & _words(said)) / len(topic) > _RESTATED


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]{3,}", text.lower()))


_FACTS = Pattern(r"\b\d[\d,.]{0,40}\b|\"[^\"\n]{3,60}\"|\*\*[^*\n]{3,60}\*\*")
"""Numbers, names in quotes and what is set in bold."""
_CONCLUDING = Pattern(
    r"\b(?:therefore|thus|the (?:final )?(?:answer|result) is|in conclusion|based on (?:the|this)|"
    r"summary)\b",
    re.IGNORECASE,
)
_PLANNING = Pattern(
    r"\b(?:please|let's|we need to|i will|i'll|you (?:should|can)|next steps?|to (?:solve|proceed))\b",
    re.IGNORECASE,
)
