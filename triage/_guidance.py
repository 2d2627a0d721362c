"""What an attempt is told, and which recorded calls it may reuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .actions import Action
    from .diagnosis import Diagnosis


class Guidance(NamedTuple):
    """What an attempt is told, built from the last action alone; all None in the first attempt.

    hint, subgoal, state: as `_triage_hint`, `_triage_subgoal`, `_triage_state`. diagnosis, action: of
    the attempt before. inject: keyword arguments for this attempt.
    """

    hint: str | None = None
    subgoal: str | None = None
    state: Mapping[str, Any] | None = None
    diagnosis: Diagnosis | None = None
    action: Action | None = None
    inject: Mapping[str, Any] | None = None


class Replay(NamedTuple):
    """Which recorded calls an attempt may reuse, by the action before it.

    kind: the action's. critical_step: reads from this step index on run again; None: none has to.
    kept: keys of the calls whose steps a rollback kept. unmatched: by tool, keys of the unsafe calls
    of earlier attempts that this one has not come to yet.
    """

    kind: str
    critical_step: int | None
    kept: frozenset[str]
    unmatched: dict[str, set[str]]

    def meet(self, tool: str, key: str) -> None:
        """The attempt has come to this call."""
        self.unmatched.get(tool, set()).discard(key)


NO_GUIDANCE = Guidance()
