"""What to do about a failure: the seven actions a strategy may return.

`Retry`, `Replan`, `Rollback` and `Resume` call the function again; `Suspend`, `Escalate` and `Abort`
end this call of `Agent.run`. An action only declares; `triage._recover` carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ._refuse import refuse
from ._written import Written

if TYPE_CHECKING:
    from collections.abc import Iterable


def optional_text(owner: object, *names: str) -> None:
    """Raise TypeError for a field of these that is neither text nor None."""
    for name in names:
        value = getattr(owner, name)
        if value is not None and not isinstance(value, str):
            raise refuse(f"{type(owner).__name__}.{name}", value, "text or None")


_NOTHING: Mapping[str, Any] = {}
"""Stands for a mapping that was not given: each action has one of its own."""


class RecoveryAction(Written):
    """Base of the actions; its attributes name them: `RecoveryAction.RETRY is Retry`."""

    RETRY: ClassVar[type[Retry]]
    REPLAN: ClassVar[type[Replan]]
    ROLLBACK: ClassVar[type[Rollback]]
    RESUME: ClassVar[type[Resume]]
    SUSPEND: ClassVar[type[Suspend]]
    ESCALATE: ClassVar[type[Escalate]]
    ABORT: ClassVar[type[Abort]]

    kind: ClassVar[str]
    """The action's name in lower case, as it stands in the journal."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Retry(RecoveryAction):
    """Call the function again.

    hint: told to the next attempt as `_triage_hint`; None tells nothing. delay: seconds to wait
    first, 0 by default; a delay that passes the run's deadline ends the run instead. inject: keyword
    arguments given to the function for the next attempt alone.
    """

    hint: str | None = None
    delay: float = 0.0
    inject: Mapping[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "retry"

    def __init__(
        self,
        hint: str | None = None,
        delay: float = 0.0,
        inject: Mapping[str, Any] = _NOTHING,
    ) -> None:
        # What a frozen dataclass does by itself costs twice as much, and most failures end in one.
        fields = self.__dict__
        fields["hint"] = hint
        fields["delay"] = delay
        fields["inject"] = {} if inject is _NOTHING else inject
        self.__post_init__()

    def __post_init__(self) -> None:
        if self.hint is not None:
            optional_text(self, "hint")
        if self.delay.__class__ is not float or self.delay:
            _check_delay("Retry.delay", self.delay)
        inject = self.inject
        if inject.__class__ is dict and not inject:
            return
        if not isinstance(inject, Mapping):
            raise refuse("Retry.inject", self.inject, "a mapping of parameter names to values")
        for name in self.inject:
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"Retry.inject has the key {name!r}, which is no parameter name")


@dataclass(frozen=True, eq=False, repr=False)
class Replan(RecoveryAction):
    """Call the function again with a new plan.

    hint: told as `_triage_hint`; None gives the diagnosis' own hint, or a sentence that asks for
    another plan. delay: seconds to wait first.
    """

    hint: str | None = None
    delay: float = 0.0
    kind: ClassVar[str] = "replan"

    def __post_init__(self) -> None:
        optional_text(self, "hint")
        _check_delay("Replan.delay", self.delay)


@dataclass(frozen=True, eq=False, repr=False)
class Rollback(RecoveryAction):
    """Restore trajectory and state to a checkpoint and call the function from there.

    checkpoint_id: as returned by `record_step`, `update_state` or found in
    `FailureContext.checkpoint_id`; None is the last position before the critical step, or the last
    one if there is none. hint: None gives one that says what was kept.
    """

    checkpoint_id: int | None = None
    hint: str | None = None
    kind: ClassVar[str] = "rollback"

    def __post_init__(self) -> None:
        optional_text(self, "hint")
        checkpoint = self.checkpoint_id
        if checkpoint is not None and (type(checkpoint) is not int or checkpoint < 0):
            raise refuse(
                "Rollback.checkpoint_id",
                checkpoint,
                "a position in the journal or None",
                "use what record_step or update_state returned",
            )


@dataclass(frozen=True, eq=False, repr=False)
class Resume(RecoveryAction):
    """Call the function again to go on from a subgoal.

    subgoal: told as `_triage_subgoal`; None is the first declared and not completed one. The state
    and the completed subgoals are kept. hint: told as `_triage_hint`.
    """

    subgoal: str | None = None
    hint: str | None = None
    kind: ClassVar[str] = "resume"

    def __post_init__(self) -> None:
        optional_text(self, "subgoal", "hint")


@dataclass(frozen=True, eq=False, repr=False)
class Suspend(RecoveryAction):
    """Stop and wait for a person: raises `TriageSuspendedError`, whose token resumes the run once.

    question: what the person is asked; None gives the diagnosis. metadata: JSON values kept with it.
    expires_s: seconds until which the answer must come; None: no end. After it the token is refused,
    and the run stays as it is.
    """

    question: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    expires_s: float | None = None
    kind: ClassVar[str] = "suspend"

    def __post_init__(self) -> None:
        optional_text(self, "question")
        if self.expires_s is not None:
            _check_delay("Suspend.expires_s", self.expires_s)
        if not isinstance(self.metadata, Mapping):
            raise refuse("Suspend.metadata", self.metadata, "a mapping")


def _written(action: Escalate | Abort) -> str:
    """An action as it is written: `compensate` only where it is asked for."""
    more = ", compensate=True" if action.compensate else ""
    return f"{type(action).__name__}(reason={action.reason!r}{more})"


@dataclass(frozen=True, eq=False, repr=False)
class Escalate(RecoveryAction):
    """Give up and hand over: raises `TriageEscalationError` from the original error.

    compensate: first undo, newest first, everything the run has done that has a compensator; those
    that fail are noted on the error.
    """

    reason: str | None = None
    compensate: bool = False
    kind: ClassVar[str] = "escalate"

    def __post_init__(self) -> None:
        optional_text(self, "reason")
        _check_flag("Escalate.compensate", self.compensate)

    def __repr__(self) -> str:
        return _written(self)


@dataclass(frozen=True, eq=False, repr=False)
class Abort(RecoveryAction):
    """Stop for good: raises `TriageAbortError` from the original error.

    compensate: first undo, newest first, everything the run has done that has a compensator; those
    that fail are noted on the error.
    """

    reason: str | None = None
    compensate: bool = False
    kind: ClassVar[str] = "abort"

    def __post_init__(self) -> None:
        optional_text(self, "reason")
        _check_flag("Abort.compensate", self.compensate)

    def __repr__(self) -> str:
        return _written(self)


def _check_flag(field_name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise refuse(field_name, value, "True or False")


def _check_delay(field_name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse(field_name, value, "a number of seconds")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{field_name} must be a finite number of seconds from 0, not {value}")


Proceed: TypeAlias = Retry | Replan | Rollback | Resume
"""The actions that call the function again."""
Stop: TypeAlias = Suspend | Escalate | Abort
"""The actions that end the call of `Agent.run`."""
Action: TypeAlias = Proceed | Stop
"""The closed union, for `match` with `assert_never`."""

# Tuples, as a union of classes takes four times as long to be asked, and each failure asks.
PROCEEDING = (Retry, Replan, Rollback, Resume)
"""The classes of `Proceed`."""
DELAYED = (Retry, Replan)
"""Those with a `delay`."""
ACTIONS: tuple[type[Action], ...] = (Retry, Replan, Rollback, Resume, Suspend, Escalate, Abort)
"""All seven, in the order of the documentation."""


def _name_actions(actions: Iterable[type[Action]]) -> None:
    for action in actions:
        setattr(RecoveryAction, action.kind.upper(), action)


_name_actions(ACTIONS)
