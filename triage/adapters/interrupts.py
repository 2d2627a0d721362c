"""What a graph of LangGraph asks a person, and the answers that it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from triage.core.events import ApprovalAsked, StepRecorded
from triage.core.json_values import digest, plain
from triage.core.steps import Step
from triage.engine.refusals import About, describe
from triage.engine.tools import shown

from .asking import AskedCall, Asking, Said, said_to
from .asking import ask as ask_person
from .base import Seam

__all__ = ["answer_for", "ask", "settled"]


NAME = "interrupt"
"""The subject of a question that stands for a graph's interrupts. In the metadata of a step: the key of the
question whose answer the graph was given."""


def ask(seam: Seam, interrupts: Sequence[Any]) -> NoReturn:
    """End the attempt, and ask a person what the graph waits for."""
    run = seam.run
    values = {one.id: plain(one.value) for one in interrupts}
    number = sum(key is not None for key in map(_key_of, run.session.events)) + 1
    words = "; ".join(
        f"{key} {shown(value)}" if len(values) > 1 else shown(value)
        for key, value in values.items()
    )
    text = f"the graph waits for an answer: {words}"
    calls: list[About] = []
    for one in interrupts:
        asked = _calls_in(one)
        value = values[one.id]
        same = f"{NAME}:{digest(run.salt, json.dumps(value, sort_keys=True))}:1"
        words = f"what the graph asked, {shown(value)}"
        calls += (
            map(seam.about, asked) if asked else [describe(run.session, same, NAME, value, words)]
        )
    parts = tuple(values) if len(values) > 1 else ()
    asking = Asking(NAME, number, text, values, rule="graph:interrupt", calls=calls, parts=parts)
    ask_person(run, asking)


def settled(seam: Seam, interrupts: Sequence[Any]) -> dict[str, Any] | None:
    """The answers to all that the graph asks leave for, where none need be asked; else None."""
    asked = {one.id: _calls_in(one) for one in interrupts}
    if not all(asked.values()):
        return None
    calls = [call for each in asked.values() for call in each]
    known = seam.verdicts(calls, all_or_none=True)
    if not known:
        return None
    return {
        id_: {"decisions": [_decision(known[call.id]) for call in each]}
        for id_, each in asked.items()
    }


def _decision(said: Said) -> dict[str, Any]:
    if said.decision == "rejected":
        return {"type": "reject", "message": said.told}
    return {"type": "approve"}


def _calls_in(interrupt: Any) -> list[AskedCall]:
    """The calls that an interrupt of HumanInTheLoopMiddleware asks leave for; none of any other."""
    asked: Any = interrupt.value.get("action_requests") if _is_mapping(interrupt.value) else None
    if not isinstance(asked, list) or not all(_is_mapping(one) and "name" in one for one in asked):
        return []
    return [
        AskedCall(f"{interrupt.id} {at}", one["name"], one.get("args"))
        for at, one in enumerate(asked)
    ]


def _note_refusals(seam: Seam, interrupt: Any, answer: Any) -> None:
    """Record which calls a person refused in an answer of HumanInTheLoopMiddleware's own form."""
    decisions = answer.get("decisions") if _is_mapping(answer) else None
    if not isinstance(decisions, list):
        return
    for call, decision in zip(_calls_in(interrupt), decisions, strict=False):
        if _is_mapping(decision) and decision.get("type") == "reject":
            seam.refuse(call, str(decision.get("message") or ""))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def answer_for(seam: Seam, waiting: Sequence[Any]) -> dict[str, Any] | None:
    """The answer to the last question, by interrupt; None where there is none yet.

    It is used once, which a step records: a graph that asks again has another question.
    """
    run = seam.run
    events = run.session.events
    asked = [key for key in map(_key_of, events) if key is not None]
    if not asked or not waiting:
        return None
    key = asked[-1]
    steps = (event.step for event in events if isinstance(event, StepRecorded))
    if any((step.metadata or {}).get(NAME) == key for step in steps):
        return None
    said = said_to(run, key)
    if said is None or said.decision == "rejected":
        return None
    if said.decision == "approved":
        answers = {one.id: _approval(one.value) for one in waiting}
    else:
        answers = said.value if len(waiting) > 1 else {waiting[0].id: said.value}
    for one in waiting:
        _note_refusals(seam, one, answers.get(one.id))
    questions = {one.id: plain(one.value) for one in waiting}
    run.record_step(
        Step(
            action="answer", tool_input=questions, tool_output=plain(answers), metadata={NAME: key}
        )
    )
    return answers


def _approval(value: Any) -> Any:
    """An approval in the form that the asker expects, such as HumanInTheLoopMiddleware."""
    asked: Any = value if isinstance(value, Mapping) else {}
    if isinstance(asked.get("action_requests"), list):
        return {"decisions": [{"type": "approve"} for _ in asked["action_requests"]]}
    return {"type": "approve"} if asked.get("type") == "tool_approval" else True


def _key_of(event: Any) -> str | None:
    """The key of the question in an event, if it is about an interrupt."""
    about = isinstance(event, ApprovalAsked) and event.kind == "call"
    return event.subject if about and event.subject.startswith(f"{NAME}:") else None
