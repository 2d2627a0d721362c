"""Strategies that go on otherwise: another plan, an earlier point, the next subgoal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from triage._options import check_count, misuse
from triage._written import Written
from triage.actions import Action, Escalate, Replan, Resume, Rollback

from ._base import named, sentences, used_up

if TYPE_CHECKING:
    from triage.failures import FailureContext


@dataclass(frozen=True, eq=False, repr=False)
class replan(Written):  # noqa: N801 - strategies are written like functions
    """Call the function again with a new plan.

    hint: told to the next attempt; None gives the diagnosis' own, or a sentence that asks for
    another plan. max_replans: for this failure type in this run, 3 by default. Escalates once they
    are used up.
    """

    hint: str | None = None
    max_replans: int = 3

    def __post_init__(self) -> None:
        _check_text("replan.hint", self.hint)
        check_count("replan.max_replans", self.max_replans, 0)

    def __call__(self, context: FailureContext) -> Action:
        """What to do about this failure."""
        stop = used_up(context, "replanned", context.tried(Replan), self.max_replans)
        return Replan(self.hint) if stop is None else stop


@dataclass(frozen=True, eq=False, repr=False)
class rollback_to_checkpoint(Written):  # noqa: N801 - strategies are written like functions
    """Restore the steps and the state of an earlier point and call the function from there.

    checkpoint_id: None is the last position before the critical step, or the last one if there is
    none; where the first step is the critical one, the start. max_rollbacks: for this failure type
    in this run, 3 by default. hint: None says that the work was taken back, and adds the diagnosis'
    own hint; it is never empty.

    Escalates once the rollbacks are used up, or if nothing was recorded that could be taken back.
    """

    checkpoint_id: int | None = None
    max_rollbacks: int = 3
    hint: str | None = None

    _TAKEN_BACK: ClassVar[str] = (
        "The work was taken back to an earlier point, and goes on from the state it had there. "
        "What was done after that point no longer counts: do it another way."
    )

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.checkpoint_id is not None:
            check_count(f"{name}.checkpoint_id", self.checkpoint_id, 0)
        _check_text(f"{name}.hint", self.hint)
        check_count(f"{name}.max_rollbacks", self.max_rollbacks, 0)

    def __call__(self, context: FailureContext) -> Action:
        """What to do about this failure."""
        stop = used_up(context, "rolled back", context.tried(Rollback), self.max_rollbacks)
        if stop is not None:
            return stop
        anything = context.checkpoint_id is not None or context.trajectory.steps or context.state
        if self.checkpoint_id is None and not anything:
            return Escalate(f"{named(context)}: nothing was recorded that could be rolled back")
        hint = sentences(self.hint) or sentences(self._TAKEN_BACK, context.diagnosis.hint)
        return Rollback(self.checkpoint_id, hint)


@dataclass(frozen=True, eq=False, repr=False)
class compensating_rollback(rollback_to_checkpoint):  # noqa: N801 - written like a function
    """Undo what the attempt did to the world after a point, and call the function from there.

    Rolls back as `rollback_to_checkpoint` does. Every rollback undoes the completed calls after the
    checkpoint by their compensators, newest first; this strategy says so to the next attempt, and
    does it only once by default, as undoing has a price of its own.
    """

    max_rollbacks: int = 1

    _TAKEN_BACK: ClassVar[str] = (
        "The work was taken back to an earlier point, and what had been done to the outside world "
        "after that point was undone. Where it is still needed, it must be done again."
    )


@dataclass(frozen=True, eq=False, repr=False)
class resume_from_subgoal(Written):  # noqa: N801 - strategies are written like functions
    """Keep the state and what is done, and go on with the first subgoal that is open.

    max_resumes: for this failure type in this run, 3 by default. The diagnosis' hint, if it has
    one, is told too. Escalates once the resumes are used up, or if no declared subgoal is open.
    """

    max_resumes: int = 3

    def __post_init__(self) -> None:
        check_count("resume_from_subgoal.max_resumes", self.max_resumes, 0)

    def __call__(self, context: FailureContext) -> Action:
        """What to do about this failure."""
        stop = used_up(context, "resumed", context.tried(Resume), self.max_resumes)
        if stop is not None:
            return stop
        if not context.open_subgoals:
            return Escalate(f"{named(context)}: there is no open subgoal to resume from")
        return Resume(context.open_subgoals[0], context.diagnosis.hint)


def _check_text(field: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise misuse(field, value, "a text or None")
