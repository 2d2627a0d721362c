"""What is done about loops while an attempt goes on: `Watching`."""

from __future__ import annotations

from dataclasses import dataclass

from ._options import check_count


@dataclass(frozen=True)
class Watching:
    """What is done about a loop while the attempt goes on.

    A loop is noted as soon as it is one (three rounds). hint_after: steps of it, its first round left
    out, after which the agent is told (`run.guidance`), 3 by default. interrupt_after: steps of it
    after which the attempt is interrupted, diagnosed and recovered like any failure, 9 by default,
    never before its fourth round, nor before it has gone round once more since the agent was told.
    None: never. What else the detectors see (a tool that does not exist, arguments that do not fit,
    an output that breaks a constraint) is noted and told.

    Raises UsageError, which names the field, for anything but a count from 1.
    """

    hint_after: int | None = 3
    interrupt_after: int | None = 9

    def __post_init__(self) -> None:
        for name in ("hint_after", "interrupt_after"):
            if getattr(self, name) is not None:
                check_count(f"Watching.{name}", getattr(self, name), 1, "None for never")
