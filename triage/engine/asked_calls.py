"""Calls that a model asks for, and the steps that are their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from triage.core.messages.neutral import Asked
from triage.core.steps import Step

from .models import IDS


def asked_in(step: Step) -> Iterator[Asked]:
    """The calls that a model asked for, with their ids where those are known."""
    found = step.tool_output if isinstance(step.tool_output, list) else []
    ids = (step.metadata or {}).get(IDS) or ()
    for at, call in enumerate(found):
        if isinstance(call, Mapping) and isinstance(call.get("tool"), str):
            id_ = ids[at] if at < len(ids) else ""
            yield Asked(id_, call["tool"], call.get("arguments"))


def answers(step_id: str | None, step_name: str | None, step_input: Any, asked: Asked) -> bool:
    """Whether a recorded call is the one that a model asked for; compared by id where both have one.

    A framework makes an id up where its model gives none.
    """
    if step_id is not None and asked.id:
        return step_id == asked.id
    given = asked.arguments if isinstance(asked.arguments, Mapping) else {}
    taken = step_input if isinstance(step_input, Mapping) else {}
    return step_name == asked.name and all(taken.get(key) == given[key] for key in given)


def answered_by(step: Step, asked: Asked) -> bool:
    """Whether this step is the result of a call that a model asked for."""
    if step.tool_called is None:
        return False
    id_ = (step.metadata or {}).get("id")
    return answers(id_, step.tool_called, step.tool_input, asked)
