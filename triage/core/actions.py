"""The seven actions a strategy may return, and the answers to a suspended run.

`Retry`, `Replan`, `Rollback` and `Resume` call the function again; `Suspend`, `Escalate` and `Abort`
end the current call of `Agent.run`. An action is a value; `triage.engine.recovery` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from msgspec import field

from .constructors import Value
from .errors import refuse


def optional_text(owner: object, *names: str) -> None:
    """Raise TypeError if one of these fields is neither text nor None."""
    for name in names:
        value = getattr(owner, name)
        if value is not None and not isinstance(value, str):
            raise refuse(f"{type(owner).__name__}.{name}", value, "text or None")


class RecoveryAction(Value, frozen=True, tag_field="action"):
    """Base class of the actions, each of which is an attribute: `RecoveryAction.RETRY is Retry`."""

    RETRY: ClassVar[type[Retry]]
    REPLAN: ClassVar[type[Replan]]
    ROLLBACK: ClassVar[type[Rollback]]
    RESUME: ClassVar[type[Resume]]
    SUSPEND: ClassVar[type[Suspend]]
    ESCALATE: ClassVar[type[Escalate]]
    ABORT: ClassVar[type[Abort]]

    kind: ClassVar[str]
    """The action's name in lower case, as in the journal."""


class Retry(RecoveryAction, frozen=True, tag="retry"):
    """Call the function again.

    hint: passed to the next attempt as `_triage_hint`; None passes nothing. delay: seconds to wait
    first, 0 by default; a delay past the run's deadline ends the run instead. inject: keyword
    arguments for the next attempt only.

    These five hold until the run ends; `Guidance` documents who applies them. model: the model to ask;
    None keeps the current one. keep_last: each request omits tool outputs, except outputs in its last
    `keep_last` messages and of calls with an effect; None omits nothing. summary: replaces the messages
    before the last `keep_last`. max_characters: maximum length of the conversation in a request, which
    omits more until it fits; None for no maximum. output_factor: multiplies the token limit that a request
    sets for its answer; None leaves the limit.

    outage: True while the run waits out an outage, which `Limits.attempts` counts once.
    """

    hint: str | None = None
    delay: float = field(default=0.0, name="delay_s")
    inject: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    keep_last: int | None = None
    summary: str | None = None
    outage: bool = False
    max_characters: int | None = None
    output_factor: int | None = None
    kind: ClassVar[str] = "retry"

    def __post_init__(self) -> None:
        optional_text(self, "hint", "model", "summary")
        _check_delay("Retry.delay", self.delay)
        kept = self.keep_last
        if kept is not None and (type(kept) is not int or kept < 0):
            raise refuse("Retry.keep_last", kept, "a whole number from 0 or None")
        for name in ("max_characters", "output_factor"):
            most = getattr(self, name)
            if most is not None and (type(most) is not int or most < 1):
                raise refuse(f"Retry.{name}", most, "a whole number from 1 or None")
        _check_flag("Retry.outage", self.outage)
        if not isinstance(self.inject, Mapping):
            raise refuse("Retry.inject", self.inject, "a mapping of parameter names to values")
        for name in self.inject:
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"Retry.inject has the key {name!r}, which is no parameter name")

    def __repr__(self) -> str:
        """Show rarely used fields only where they are set."""
        few = ("model", "keep_last", "max_characters", "summary", "output_factor", "outage")
        more = "".join(
            f", {name}={getattr(self, name)!r}"
            for name in few
            if getattr(self, name) not in (None, False)
        )
        return f"Retry(hint={self.hint!r}, delay={self.delay!r}, inject={self.inject!r}{more})"


class Replan(RecoveryAction, frozen=True, tag="replan"):
    """Call the function again with a new plan.

    hint: passed as `_triage_hint`; None passes the diagnosis' hint, or else a request for another plan.
    delay: seconds to wait first.
    """

    hint: str | None = None
    delay: float = field(default=0.0, name="delay_s")
    kind: ClassVar[str] = "replan"

    def __post_init__(self) -> None:
        optional_text(self, "hint")
        _check_delay("Replan.delay", self.delay)


class Rollback(RecoveryAction, frozen=True, tag="rollback"):
    """Restore trajectory and state to a checkpoint and call the function again from there.

    checkpoint_id: as returned by `record_step` or `update_state`, or as in
    `FailureContext.checkpoint_id`; None takes the last position before the critical step, or the last
    position if no step is critical. hint: passed as `_triage_hint`; None names the kept work.
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


class Resume(RecoveryAction, frozen=True, tag="resume"):
    """Call the function again to continue from a subgoal, keeping state and completed subgoals.

    subgoal: passed as `_triage_subgoal`; None takes the first open one. hint: passed as
    `_triage_hint`.
    """

    subgoal: str | None = None
    hint: str | None = None
    kind: ClassVar[str] = "resume"

    def __post_init__(self) -> None:
        optional_text(self, "subgoal", "hint")


class Suspend(RecoveryAction, frozen=True, tag="suspend"):
    """Stop and wait for a person: raises `TriageSuspendedError`, whose token resumes the run once.

    question: for the person; None shows the diagnosis. metadata: JSON values stored with the question.
    expires_s: seconds until the question expires, after which the token is refused and the run stays
    suspended; None never expires.
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


def _repr(action: Escalate | Abort) -> str:
    """Return the repr of an action, with `compensate` only where it is set."""
    more = ", compensate=True" if action.compensate else ""
    return f"{type(action).__name__}(reason={action.reason!r}{more})"


class Escalate(RecoveryAction, frozen=True, tag="escalate"):
    """Give up and hand over: raises `TriageEscalationError` from the original error.

    compensate: first run all compensators of the run, newest first; the error notes those that fail.
    """

    reason: str | None = None
    compensate: bool = False
    kind: ClassVar[str] = "escalate"

    def __post_init__(self) -> None:
        optional_text(self, "reason")
        _check_flag("Escalate.compensate", self.compensate)

    def __repr__(self) -> str:
        return _repr(self)


class Abort(RecoveryAction, frozen=True, tag="abort"):
    """Stop for good: raises `TriageAbortError` from the original error.

    compensate: first run all compensators of the run, newest first; the error notes those that fail.
    """

    reason: str | None = None
    compensate: bool = False
    kind: ClassVar[str] = "abort"

    def __post_init__(self) -> None:
        optional_text(self, "reason")
        _check_flag("Abort.compensate", self.compensate)

    def __repr__(self) -> str:
        return _repr(self)


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
"""All seven as a closed union, for `match` with `assert_never`."""

_LASTING = ("model", "keep_last", "summary", "max_characters", "output_factor")
"""The fields of a Retry that hold until the run ends."""


def lasting(actions: Iterable[Action | None]) -> dict[str, Any]:
    """Return the fields that hold until the run ends, by name, each as last set by these actions."""
    return {
        name: value
        for action in actions
        if isinstance(action, Retry)
        for name in _LASTING
        if (value := getattr(action, name)) is not None
    }


PROCEEDING = (Retry, Replan, Rollback, Resume)
"""The classes of `Proceed`."""
DELAYED = (Retry, Replan)
"""The actions with a `delay`."""
ACTIONS: tuple[type[Action], ...] = (Retry, Replan, Rollback, Resume, Suspend, Escalate, Abort)
"""All seven, in the order of the documentation."""

for _action in ACTIONS:
    setattr(RecoveryAction, _action.kind.upper(), _action)


# A person's answers to a suspended run, apart from an action: `approve`, `reject`, `edit` and others.


class Happened(Value, frozen=True):
    """Answers "did this call happen?" with yes; the call returns `result`."""

    result: Any = None


class Rerun(Value, frozen=True):
    """Answers "may this call run?" with yes, once."""


def happened(result: Any = None) -> Happened:
    """State that the call in doubt happened, with this result. For `Agent.resume`."""
    return Happened(result)


def rerun() -> Rerun:
    """Run the call in doubt, which did not happen or may happen again. For `Agent.resume`."""
    return Rerun()


class Approved(Value, frozen=True):
    """Answers a question: continue."""


class Rejected(Value, frozen=True):
    """Answers a question: no. reason: passed to the agent, None for none.

    ask_again: ask a person again when the agent repeats the call; by default the repeat is refused.
    """

    reason: str | None = None
    ask_again: bool = False

    def __post_init__(self) -> None:
        optional_text(self, "reason")
        _check_flag("Rejected.ask_again", self.ask_again)


class Edited(Value, frozen=True):
    """Answers a question: continue with other input. payload: keyword arguments for the next attempt."""

    payload: Mapping[str, Any]

    def __post_init__(self) -> None:
        Retry(inject=self.payload)  # the same checks apply


def approve() -> Approved:
    """Continue: retry, or make the call in question. For `Agent.resume`."""
    return Approved()


def reject(reason: str | None = None, *, ask_again: bool = False) -> Rejected:
    """Refuse: end the run, or let the agent find a way without the call in question.

    The same call is then refused without a question; after `Limits.refusals` of them the run ends.
    ask_again: ask a person each time instead.
    """
    return Rejected(reason, ask_again)


def edit(payload: Mapping[str, Any]) -> Edited:
    """Continue with other input: keyword arguments for the next attempt. For `Agent.resume`."""
    return Edited(payload)


Reply: TypeAlias = Action | Happened | Rerun | Approved | Rejected | Edited
"""The answers that `Agent.resume` takes."""
