"""A conversation on its way to steps: what every message format is read into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triage.failures import ErrorInfo
from triage.steps import Step, Trajectory, Usage

from ._faults import error_of, info, named_in
from ._values import as_text

LONGEST_USER = 200
"""Characters of what a user said that stand in a step's action."""
_CUT = ("length", "max_tokens", "max_output_tokens", "model_context_window_exceeded")
_REFUSED = ("content_filter", "refusal", "safety")


class Talk:
    """Steps in the making. task: the first words of the user, unless it is known."""

    def __init__(self, task: Any = None) -> None:
        self.task = task
        self.tools: dict[str, Any] = {}
        self.error: ErrorInfo | None = None
        self._steps: list[dict[str, Any]] = []
        self._calls: dict[str, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def last(self) -> dict[str, Any]:
        """The newest step."""
        return self._steps[-1]

    def user(self, text: str) -> None:
        """Words of the user: the task when they are the first, a step of their own after that."""
        if self.task is None and not self._steps:
            self.task = text or None
        elif text:
            said = " ".join(text[: 4 * LONGEST_USER].split())[:LONGEST_USER]
            self._steps.append({"action": f"user: {said}"})

    def awaits(self, call: str) -> bool:
        """True for the id of a call that has no result yet."""
        return call in self._calls

    def add(self, **fields: Any) -> dict[str, Any]:
        """A step with these fields, which may still be changed."""
        self._steps.append(fields)
        return fields

    def turn(
        self,
        text: str,
        calls: list[dict[str, Any]],
        *,
        usage: Usage | None = None,
        ended: Any = None,
    ) -> None:
        """A turn of the model. calls: each with `id`, `name` and `input`. ended: why it stopped."""
        said: str | None = text or None
        ending = ending_of(ended)
        first = len(self._steps)
        for call in calls:
            step = self.add(
                action="call",
                tool_called=as_text(call["name"]) or "?",
                tool_input=call["input"],
                llm_output=said,
            )
            said = None
            if isinstance(call["id"], str) and call["id"]:
                self._calls[call["id"]] = step
        if said is not None or (ending is not None and not calls):
            self.add(action="model", llm_output=said)
        if len(self._steps) > first:
            self._steps[first]["usage"] = usage
            if ending is not None:
                self._steps[-1] |= {"error": ending.message, "exception_type": ending.type_name}

    def result(
        self, call: object, output: Any, *, name: object = None, failed: bool = False
    ) -> bool:
        """What a tool answered, put to its call; False if there is no such call."""
        step = self._calls.pop(call, None) if isinstance(call, str) else None
        known = step is not None
        if step is None:
            step = self.add(action="call", tool_called=as_text(name) or None)
        if failed:
            kind, _ = named_in(as_text(output).strip())
            step["error"] = as_text(output) or "the tool failed"
            step["exception_type"] = None if kind is None else kind.rpartition(".")[2]
        else:
            step["tool_output"] = output
        return known

    def trajectory(self, *, tools: Mapping[str, Any] | None = None) -> Trajectory:
        """What came of it."""
        steps = [Step(index=at, **fields) for at, fields in enumerate(self._steps)]
        return ended_with(steps, self.error, task=self.task, tools=tools or self.tools)


def ended_with(
    steps: list[Step], error: ErrorInfo | None, *, task: Any, tools: Mapping[str, Any]
) -> Trajectory:
    """A trajectory; where no error is known, one the last step ended with is the attempt's."""
    if error is None and steps and steps[-1].error:
        error = error_of(steps[-1].error, steps[-1].exception_type)
    return Trajectory(steps, error=error, task=task, tools=tools)


def ending_of(reason: object) -> ErrorInfo | None:
    """The error that a model's reason to stop stands for, None where it had finished."""
    if reason in _CUT:
        return info("LengthFinishReasonError", f"the output was cut: finish reason {reason}")
    if reason in _REFUSED:
        return info("ContentFilterFinishReasonError", f"the model refused: finish reason {reason}")
    return None
