"""Approvals of the OpenAI Agents SDK as questions of the run: one for each call that waits for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agents import RunState, ToolApprovalItem
from agents.tool import DEFAULT_APPROVAL_REJECTION_MESSAGE

from triage._questions import Question, shown
from triage._questions import ask as ask_person
from triage._run import Run
from triage._serde import digest
from triage.events import ApprovalAsked
from triage.taxonomy import Effect
from triage.traces._values import arguments, as_text


def decide(
    run: Run,
    state: RunState[Any],
    items: Sequence[ToolApprovalItem],
    effects: Mapping[str, Effect],
) -> None:
    """Give the state what a person said to each of these calls, or ask about the first without an answer.

    One that was approved is called. One that happened elsewhere is not: the model is told its result.
    """
    journal = run.session.state
    for item in items:
        key = _key(run, item)
        call = journal.calls.get(key)
        if call is not None and call.outcome == "done":
            state.reject(item, rejection_message=as_text(call.result))
        elif key in journal.approved:
            state.approve(item)
        else:
            given = arguments(item.arguments)
            text = f"may {_name(item)} be called with {shown(given)}?"
            effect = effects.get(_name(item), Effect.UNKNOWN).value
            ask_person(run, Question(key, _name(item), effect, given, text, doubt=False))


def refused(run: Run) -> Callable[[str], str | None]:
    """What the model is told of a call, by its id, that was asked about and not approved."""
    journal = run.session.state
    asked = {
        event.subject.rsplit(":", 2)[1]
        for event in run.session.events
        if isinstance(event, ApprovalAsked)
        and event.kind == "call"
        and event.subject not in journal.approved
        and event.subject not in journal.calls
    }

    def told(call: str) -> str | None:
        return DEFAULT_APPROVAL_REJECTION_MESSAGE if _digest(run, call) in asked else None

    return told


def _digest(run: Run, call: str) -> str:
    return digest(run.run_id, f"approval {call}")


def _name(item: ToolApprovalItem) -> str:
    return item.qualified_name or item.name or "tool"


def _key(run: Run, item: ToolApprovalItem) -> str:
    raw: Any = item.raw_item
    call = item.call_id or (raw.get("id") if isinstance(raw, dict) else raw.id)
    return f"{_name(item)}:{_digest(run, str(call))}:1"
