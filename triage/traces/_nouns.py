"""What reading a recording gives: `Trace`, `Problem` and `Reading`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from triage.steps import Trajectory

if TYPE_CHECKING:
    from triage.failures import Attempt


class Problem(NamedTuple):
    """Something of a recording that could not be read, or not in full.

    line: from 1, 0 where the recording as a whole is meant. text: what is wrong. remedy: what to do
    about it, empty where nothing is known. column: from 1, None where it is not known.
    """

    line: int
    text: str
    remedy: str = ""
    column: int | None = None

    def __str__(self) -> str:
        where = "" if self.column is None else f", column {self.column}"
        tail = f"; {self.remedy}" if self.remedy else ""
        return f"line {self.line}{where}: {self.text}{tail}" if self.line else f"{self.text}{tail}"


class Trace(NamedTuple):
    """One attempt, as it was recorded.

    trajectory: its steps, task, tools and the error that ended it. format: the name of the form it
    was recorded in. line: where it begins, from 1. id: of the record, conversation, trace or run; empty
    where it has none. outcome: `"success"`, `"failure"`, or what the record says; None where it says
    nothing. fields: what else the record holds beside its steps, such as labels. attempt: of a
    journal, the attempt as it was diagnosed then; None otherwise. earlier: those before it.
    """

    trajectory: Trajectory
    format: str
    line: int
    id: str = ""
    outcome: str | None = None
    fields: Mapping[str, Any] = {}
    attempt: Attempt | None = None
    earlier: tuple[Attempt, ...] = ()


class Reading(NamedTuple):
    """A whole recording. format: None where it was not recognised. reason: why it was taken for that."""

    format: str | None
    reason: str
    traces: list[Trace]
    problems: list[Problem]


Tell: TypeAlias = Callable[[str, str], None]
"""Notes a problem of the value being read: what is wrong, and the remedy."""
