"""Strategies that continue with another model or another tool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, cast

from msgspec import Struct
from msgspec.structs import force_setattr

from triage.core import (
    Action,
    Escalate,
    FailureContext,
    FailureType,
    Replan,
    Retry,
    misuse,
)

from .base import last_failed, named, sentences
from .ready_made import failed_call


class switch_model(Struct, frozen=True):
    """Call the function again with the next of these models, which stays in use until the run ends.

    models: names as the provider knows them, tried in this order, each once per failure type and run.
    Recorded calls before the failure are reused, whichever model made them. Recorded clients and
    adapters put the name into each request, and its step says which model was asked; an agent that
    builds its own requests reads `run.guidance.model`, which is None until a model was switched.

    Escalates once all were tried, and where a tool failed rather than a model. Raises UsageError for an
    empty list or a name that is not text.

    >>> switch_model(["gpt-4.1", "gpt-4.1-mini"])
    switch_model(['gpt-4.1', 'gpt-4.1-mini'])
    """

    models: Sequence[str]
    has_another: ClassVar[bool] = True

    def __post_init__(self) -> None:
        force_setattr(self, "models", _names("switch_model.models", self.models))

    def __call__(self, context: FailureContext) -> Action:
        """What to do about this failure."""
        steps = context.trajectory.steps
        if context.failure_type is FailureType.EXTERNAL_FAULT and steps:
            last = steps[-1]
            if last.error is not None and last.tool_called is not None:
                tool = last.tool_called
                return Escalate(f"{named(context)}: the tool {tool} failed, not a model")
        past = [
            (attempt.failure_type, attempt.action.model)
            for attempt in context.attempt_history
            if isinstance(attempt.action, Retry) and attempt.action.model is not None
        ]
        asked = past[-1][1] if past else None
        tried = {model for kind, model in past if kind is context.failure_type}
        for model in self.models:
            if model != asked and model not in tried:
                return Retry(context.diagnosis.hint, model=model)
        return Escalate(
            f"{named(context)}: it stayed with every other model ({', '.join(self.models)})"
        )

    def __repr__(self) -> str:
        return f"switch_model({list(self.models)!r})"


class substitute(Struct, frozen=True):
    """Make a new plan with another tool in place of the one that failed.

    tool: the name of a tool. by: names of tools that do the same, tried in this order, each once per
    run. The hint says which tool failed, quoting its error, and which to use.

    Escalates if the failed call is of none of these tools, and once all were tried. Raises UsageError
    for names that are not text, or that are equal.

    >>> substitute("search", by=["search_archive"])
    substitute('search', by=['search_archive'])
    """

    tool: str
    by: Sequence[str]
    has_another: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.tool, str) or not self.tool:
            raise misuse("substitute.tool", self.tool, "the name of a tool")
        force_setattr(self, "by", _names("substitute.by", self.by))
        if self.tool in self.by:
            raise misuse("substitute.by", list(self.by), f"other tools than {self.tool!r}")

    def __call__(self, context: FailureContext) -> Action:
        """What to do about this failure."""
        step = last_failed(context)
        failed = None if step is None else step.tool_called
        if failed is None or failed not in (self.tool, *self.by):
            return Escalate(f"{named(context)}: the call that failed was none of {self.tool}")
        told = [
            attempt.action.hint or ""
            for attempt in context.attempt_history
            if isinstance(attempt.action, Replan)
        ]
        for name in self.by:
            if name == failed or any(self._use(name) in hint for hint in told):
                continue
            return Replan(sentences(failed_call(context), self._use(name)))
        return Escalate(f"{named(context)}: {self.tool} and what stands for it failed, too")

    def _use(self, name: str) -> str:
        return f"In place of the tool {self.tool} use {name}, which does the same."

    def __repr__(self) -> str:
        return f"substitute({self.tool!r}, by={list(self.by)!r})"


def _names(field: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise misuse(field, value, "a list of names", "write [name]")
    names = tuple(value)
    for name in names:
        if not isinstance(name, str) or not name:
            raise misuse(f"{field} item", name, "a name")
    if not names:
        raise misuse(field, list(names), "at least one name")
    if len(set(names)) < len(names):
        raise misuse(field, list(names), "names that differ")
    return cast("tuple[str, ...]", names)
