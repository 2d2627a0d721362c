"""Strategies that call the function again as it is: after a while, or with the tools named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast

from triage._options import check_count, misuse
from triage._written import Written
from triage.actions import Action, Escalate, Retry

from ._base import needs_a_person, sentences, used_up
from .backoff import Backoff, Preset

if TYPE_CHECKING:
    from triage.failures import FailureContext

_DEFAULT_BACKOFF = Backoff()
_MOST_TOOLS = 64


@dataclass(frozen=True, eq=False, repr=False)
class backoff_and_retry(Written):  # noqa: N801 - strategies are written like functions
    """Wait, longer every time, and call the function again.

    max_attempts: retries for this failure type in this run, 5 by default; 0 never retries. backoff:
    how long to wait. What the other side asked for (`diagnosis.retry_after_s`) is the least. The
    diagnosis' hint, if it has one, is told to the next attempt.

    Escalates once the retries are used up; at once if the delay would pass the run's deadline, or
    if the diagnosis is CRITICAL or FATAL (a wrong key, a spent quota), which no waiting cures.

    >>> backoff_and_retry(max_attempts=3)  # doctest: +ELLIPSIS
    backoff_and_retry(max_attempts=3, backoff=Backoff(base=1.0, factor=2.0, ...))
    """

    max_attempts: int = 5
    backoff: Backoff = _DEFAULT_BACKOFF

    def __post_init__(self) -> None:
        check_count("backoff_and_retry.max_attempts", self.max_attempts, 0, "it counts retries")
        if not isinstance(cast("object", self.backoff), Backoff):
            remedy = ""
            if isinstance(cast("object", self.backoff), Preset):
                remedy = "write backoff_and_retry.preset(…) for a preset"
            raise misuse("backoff_and_retry.backoff", self.backoff, "a Backoff", remedy)

    @classmethod
    def preset(cls, preset: Preset) -> Self:
        """The strategy for a preset: `backoff_and_retry.preset(Backoff.LLM)` retries 3 times."""
        return cls(preset.retries, preset.backoff)

    def __call__(self, context: FailureContext) -> Action:
        """What to do about this failure."""
        tried = context.tried(Retry)
        stop = needs_a_person(context) or used_up(context, "retried", tried, self.max_attempts)
        if stop is not None:
            return stop
        diagnosis, left = context.diagnosis, context.seconds_left
        delay = self.backoff.delay(tried + 1, context.draw, diagnosis.retry_after_s)
        if left is not None and delay > left:
            until = f"{max(left, 0.0):.3g} s are left to the deadline"
            return Escalate(f"the next retry would wait {delay:.3g} s, and {until}")
        return Retry(hint=diagnosis.hint, delay=delay)


@dataclass(frozen=True, eq=False, repr=False)
class retry_with_tool_manifest(Written):  # noqa: N801 - strategies are written like functions
    """Call the function again and tell it which tools exist.

    max_attempts: retries for this failure type in this run, 3 by default. The hint names the tools
    of `context.tools`, at most 64 of them, and ends with the diagnosis' hint; it is never empty. Tools
    that the diagnosis' hint names all itself are not named again.
    Escalates once the retries are used up, and at once if the diagnosis is CRITICAL or FATAL.
    """

    max_attempts: int = 3

    def __post_init__(self) -> None:
        field = "retry_with_tool_manifest.max_attempts"
        check_count(field, self.max_attempts, 0, "it counts retries")

    def __call__(self, context: FailureContext) -> Action:
        """What to do about this failure."""
        tried = context.tried(Retry)
        stop = needs_a_person(context) or used_up(context, "retried", tried, self.max_attempts)
        if stop is not None:
            return stop
        told = context.diagnosis.hint
        return Retry(hint=sentences(_manifest(context.tools, told or ""), told))


def _manifest(tools: tuple[str, ...], told: str) -> str:
    """The tools by name; without the names where the hint that follows has them all."""
    if all(_names(told, tool) for tool in tools[:_MOST_TOOLS]):
        return "Call only tools that exist, by their exact names."
    listed = ", ".join(tools[:_MOST_TOOLS])
    more = len(tools) - _MOST_TOOLS
    rest = f" and {more} more" if more > 0 else ""
    return f"Call only these tools, by their exact names: {listed}{rest}."


def _names(text: str, tool: str) -> bool:
    """Whether a tool's name stands in a text as a word of its own."""
    return re.search(rf"(?<![\w.-]){re.escape(tool)}(?![\w-])", text) is not None
