"""What a task is: what the agent is asked, what goes wrong, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Slip:
    """The model errs at a turn.

    `until` says when it no longer does: "once" and "twice" count how often it was asked at this turn,
    "told" waits until the conversation holds a hint or an error, "named" until that has one of
    `words` in it, "always" is never.
    """

    turn: str
    how: str
    until: str = "once"
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outage:
    """The provider fails at a turn: so many times, or for so many seconds, or, with neither, always."""

    turn: str
    how: str
    times: int = 0
    seconds: float = 0.0
    retry_after: float | None = None


@dataclass(frozen=True)
class Breakage:
    """A tool fails: so many times, or for so many seconds, or, with neither, always."""

    tool: str
    how: str
    times: int = 0
    seconds: float = 0.0
    retry_after: float | None = None
    after: int = 0
    """How many calls of the tool go well before."""


@dataclass(frozen=True)
class Task:
    """One task of the lab."""

    id: str
    kind: str
    group: str
    domain: str
    seed: int
    shape: str
    finish: str
    slips: tuple[Slip, ...] = ()
    outages: tuple[Outage, ...] = ()
    breakages: tuple[Breakage, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    """What the shape and the agent need to know besides."""
    wasted: int | str = 0
    """Model calls that led to the failure: a number, or the turn from which on they did."""
    may_ask: bool = False
    """Whether it is right to ask a person about a call in doubt."""
