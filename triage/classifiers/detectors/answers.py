"""What the last answer of a model explains of the failure behind it.

An answer that was cut, refused or broken, and a call in it that could not be made, are why the agent's own
code raised something: the error alone names the consequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from triage.core.capture import captured_text
from triage.core.failures import ErrorInfo, words_of
from triage.core.messages.neutral import ENDINGS
from triage.core.steps import Step

__all__ = ["NEVER_BEGUN", "Explanation", "explained", "last_answer"]

NEVER_BEGUN = frozenset({"UnknownTool", "InvalidArguments"})
"""The errors of calls that a model asked for and that could not be made."""


class Explanation(NamedTuple):
    """Why the code behind an answer failed. step: its position. error: what it says."""

    step: int
    error: ErrorInfo


def last_answer(steps: Sequence[Step]) -> int | None:
    """The position of a model's last answer; None where there is none.

    An agent's own code may record the words again that a recorded call has given. Then it is the step of
    the call, which says how the answer ended.
    """
    found = next((at for at in range(len(steps) - 1, -1, -1) if _is_answer(steps[at])), None)
    at = found
    while at is not None and at > 0 and _is_answer(steps[at - 1]):
        if _words(steps[at - 1]) != _words(steps[at]):
            break
        at -= 1
        if steps[at].exception_type in ENDINGS:
            return at
    return found


def explained(steps: Sequence[Step], error: ErrorInfo | None) -> Explanation | None:
    """What the last answer, or a call in it that could not be made, says of an error; None for nothing.

    error: what the attempt ended with. That of another call that was made explains itself.
    """
    at = last_answer(steps)
    if at is None:
        return None
    if steps[at].exception_type in ENDINGS:
        return _explanation(steps, at)
    behind = range(at + 1, len(steps))
    refused = [place for place in behind if steps[place].exception_type in NEVER_BEGUN]
    if not refused:
        return None
    tools = {steps[place].tool_called for place in refused}
    if any(_ended_with(steps[at], error) and steps[at].tool_called not in tools for at in behind):
        return None
    return _explanation(steps, refused[0])


def _is_answer(step: Step) -> bool:
    return step.tool_called is None and step.action == "model"


def _words(step: Step) -> str:
    return (step.llm_output or "").strip()


def _explanation(steps: Sequence[Step], at: int) -> Explanation:
    step = steps[at]
    kind = step.exception_type or ""
    return Explanation(at, captured_text(step.error or kind, kind, (kind, "builtins.Exception")))


def _ended_with(step: Step, error: ErrorInfo | None) -> bool:
    if error is None or step.tool_called is None:
        return False
    return (step.exception_type, step.error) == (error.type_name, words_of(error))
