"""What one attempt has recorded, so that it can be cut at any of its checkpoints."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any

from .steps import Step


class Ledger:
    """What one attempt has recorded, with the position of each entry, so that it can be cut."""

    __slots__ = ("completed", "positions", "state", "steps", "subgoals", "updates")

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.positions: list[int] = []
        self.updates: list[tuple[int, Mapping[str, Any]]] = []
        self.state: dict[str, Any] = {}
        self.subgoals: list[tuple[int, str]] = []
        self.completed: list[tuple[int, str]] = []

    def update(self, seq: int, values: Mapping[str, Any]) -> None:
        """Merge a state update that was recorded at a position."""
        self.updates.append((seq, values))
        self.state.update(values)

    def knows(self, seq: int) -> bool:
        """True if a step or a state update was recorded at this position."""
        at = bisect_left(self.positions, seq)
        if at < len(self.positions) and self.positions[at] == seq:
            return True
        return any(position == seq for position, _ in self.updates)

    def last_position(self) -> int | None:
        """The newest checkpoint, None if nothing was recorded."""
        newest = self.positions[-1:] + [seq for seq, _ in self.updates[-1:]]
        return max(newest, default=None)

    def position_before(self, step: int) -> int | None:
        """The newest checkpoint before the step with this index, None if there is none."""
        if step >= len(self.positions):
            return self.last_position()
        border = self.positions[step]
        earlier = [seq for seq, _ in self.updates if seq < border] + self.positions[:step]
        return max(earlier, default=None)

    def cut(self, seq: int) -> Ledger:
        """What was recorded up to and including a position."""
        part = Ledger()
        kept = bisect_right(self.positions, seq)
        part.steps, part.positions = self.steps[:kept], self.positions[:kept]
        for at, values in self.updates:
            if at <= seq:
                part.update(at, values)
        part.subgoals = [entry for entry in self.subgoals if entry[0] <= seq]
        part.completed = [entry for entry in self.completed if entry[0] <= seq]
        return part

    def carried(self, seq: int) -> Ledger:
        """The state and the subgoals without the steps, for a resumption."""
        part = Ledger()
        if self.state:
            part.update(seq, dict(self.state))
        part.subgoals, part.completed = list(self.subgoals), list(self.completed)
        return part
