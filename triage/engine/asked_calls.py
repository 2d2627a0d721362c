"""Match the calls that a model asks for with the steps of their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from triage.core.messages.neutral import Asked
from triage.core.steps import Step

from .models import IDS


def asked_in(step: Step) -> Iterator[Asked]:
    """Yield the calls that a model asked for, with their ids if known."""
    found = step.tool_output if isinstance(step.tool_output, list) else []
    ids = (step.metadata or {}).get(IDS) or ()
    for at, call in enumerate(found):
        if isinstance(call, Mapping) and isinstance(call.get("tool"), str):
            id_ = ids[at] if at < len(ids) else ""
            yield Asked(id_, call["tool"], call.get("arguments"))


def answers(step_id: str | None, step_name: str | None, step_input: Any, asked: Asked) -> bool:
    """Whether a recorded call is a model's requested call; compared by id if both have one.

    A framework invents an id if its model gives none.
    """
    if step_id is not None and asked.id:
        return step_id == asked.id
    requested = asked.arguments if isinstance(asked.arguments, Mapping) else {}
    recorded = step_input if isinstance(step_input, Mapping) else {}
    return step_name == asked.name and all(recorded.get(key) == requested[key] for key in requested)


def answered_by(step: Step, asked: Asked) -> bool:
    """Whether this step is the result of a model's requested call."""
    if step.tool_called is None:
        return False
    id_ = (step.metadata or {}).get("id")
    return answers(id_, step.tool_called, step.tool_input, asked)
