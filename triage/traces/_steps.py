"""Plain steps: one record a line with its `steps`, or one step a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triage.steps import Step, Trajectory
from triage.taxonomy import Effect

from ._faults import error_of
from ._nouns import Tell
from ._talk import ended_with
from ._values import as_text, number, tools_of, usage_of

STEP_FIELDS = frozenset(
    {"action", "tool_called", "tool_input", "tool_output", "llm_output", "exception_type"}
)
"""Fields by which an object is known to be a step."""


def read_record(value: dict[str, Any], tell: Tell) -> Trajectory:
    """The trajectory of a record: `steps`, and where it has them `task`, `tools` and `error`."""
    entries = value.get("steps")
    if not isinstance(entries, list):
        tell(f"steps must be a list, not {type(entries).__name__}", "")
        entries = []
    steps = [read_step(entry, at, tell) for at, entry in enumerate(entries)]
    tools = tools_of(value.get("tools") or value.get("tool_schemas"))
    error = error_of(value.get("error") or None, value.get("exception_type"))
    return ended_with(steps, error, task=value.get("task"), tools=tools)


def read_step(value: object, index: int, tell: Tell) -> Step:
    """A step with what can be used of its fields; one that is no object keeps its place, empty."""
    if not isinstance(value, dict):
        tell(f"step {index} must be an object, not {type(value).__name__}", "it is left empty")
        return Step(index=index, action="unreadable")
    problem = _Fields(value, index, tell)
    error = value.get("error") or None
    kind = problem.text("exception_type")
    if isinstance(error, dict):
        known = error_of(error, kind)
        error = None if known is None else known.message
        kind = kind or (None if known is None else known.type_name)
    return Step(
        index=index,
        action=problem.text("action") or "",
        tool_called=problem.text("tool_called") or None,
        tool_input=value.get("tool_input"),
        tool_output=value.get("tool_output"),
        llm_output=problem.text("llm_output"),
        error=as_text(error) or None,
        exception_type=kind,
        effect=problem.effect(),
        usage=usage_of(value.get("usage")),
        metadata=_metadata(value, problem),
        timestamp=number(value.get("timestamp")),
        duration_s=number(value.get("duration_s")),
    )


def _metadata(value: dict[str, Any], problem: _Fields) -> dict[str, Any] | None:
    """The metadata, with what the user said in this step: it is neither the model's nor a tool's."""
    known: dict[str, Any] | None = problem.kept("metadata", lambda found: isinstance(found, dict))
    said = value.get("user_input")
    return {**(known or {}), "user_input": said} if isinstance(said, str) and said else known


class _Fields:
    """The fields of one step; says which cannot be used."""

    def __init__(self, value: dict[str, Any], index: int, tell: Tell) -> None:
        self._value, self._index, self._tell = value, index, tell

    def text(self, name: str) -> str | None:
        found = self._value.get(name)
        if found is None or isinstance(found, str):
            return found
        self._say(name, "text", found)
        return as_text(found)

    def kept(self, name: str, fits: Callable[[Any], bool]) -> Any:
        found = self._value.get(name)
        if found is None or fits(found):
            return found
        self._say(name, "an object", found)
        return None

    def effect(self) -> Effect | None:
        found = self._value.get("effect")
        try:
            return None if found is None else Effect(found)
        except ValueError:
            words = ", ".join(Effect)
            self._say("effect", f"one of {words}", found)
            return None

    def _say(self, name: str, wanted: str, found: object) -> None:
        self._tell(
            f"step {self._index}: {name} must be {wanted}, not {type(found).__name__}",
            "the rest of the step is read",
        )
