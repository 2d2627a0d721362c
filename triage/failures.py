"""What is known of a failure: `ErrorInfo` of the exception, `Attempt` for the past, `FailureContext`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .steps import NO_USAGE, Trajectory, Usage
from .taxonomy import Category, FailureType, Recovery, Severity, severity_of

if TYPE_CHECKING:
    from .actions import Action, RecoveryAction
    from .diagnosis import Diagnosis

NOT_ATTEMPTED_STATUSES = frozenset({401, 403, 404, 422, 429, 503})
"""HTTP answers that say the request was refused before it took effect."""


class ErrorInfo(NamedTuple):
    """What is known of a live exception, taken when it was caught; plain data from then on.

    type_name, module: of its class. mro: `module.QualName` of the class and its bases, most special
    first, without `object`. message: `str(exc)`, or the class name where that is empty; bounded.
    status_code: HTTP or RPC status. code: the provider's own code (`"insufficient_quota"`,
    SQLSTATE, an errno name). retry_after_s: seconds the other side asked to wait. phase: how far
    the request got: `"not_sent"` (nothing left this machine, or the other side was never reached),
    `"sent"`, `"answered"`, None where unknown. body: the decoded answer, where it is small JSON.
    hint: what the exception says of itself (`triage.faults`, `triage.hint`), as plain fields.
    relation: what this is to the exception that holds it: `""` for the outermost, `"cause"`,
    `"context"` or `"group"`. related: the causes, contexts and group members, bounded and without
    cycles.
    """

    type_name: str
    module: str = ""
    mro: tuple[str, ...] = ()
    message: str = ""
    status_code: int | None = None
    code: str | None = None
    retry_after_s: float | None = None
    phase: str | None = None
    body: Any = None
    hint: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    relation: str = ""
    related: tuple[ErrorInfo, ...] = ()

    @property
    def not_attempted(self) -> bool:
        """True when the failing call cannot have taken effect: it was not sent, or was refused.

        What this exception does not say itself is taken from what caused it (`raise … from`).
        """
        if self.phase == "not_sent" or self.status_code in NOT_ATTEMPTED_STATUSES:
            return True
        if self.phase is not None or self.status_code is not None:
            return False
        causes = [info for info in self.related if info.relation == "cause"]
        return bool(causes) and all(info.not_attempted for info in causes)

    @property
    def decisive(self) -> ErrorInfo | None:
        """The error whose hint counts: this one, or a graver one behind it; None if none has a hint.

        An error that was merely being handled when another was raised (`"context"`) counts where the
        other says nothing of itself.
        """
        own, behind = self.hint or None, None
        if not self.related:
            return None if own is None else self
        for info in self.related:
            if own is None or info.relation != "context":
                found = info.decisive
                if found is not None and (behind is None or _weight(found) > _weight(behind)):
                    behind = found
        if own is None:
            return behind
        return behind if behind is not None and _weight(behind) > _weight(self) else self

    @property
    def refused(self) -> bool:
        """True if this error, or any behind it, says that the same must never be tried again."""
        if self.hint and self.hint.get("recovery") == _NEVER:
            return True
        return bool(self.related) and any(info.refused for info in self.related)

    def walk(self) -> Iterator[ErrorInfo]:
        """This error and all related ones, outermost first."""
        yield self
        for info in self.related:
            yield from info.walk()

    def is_a(self, *names: str) -> bool:
        """True if a class of the MRO has one of these names, with or without its module."""
        return any(entry in names or entry.rpartition(".")[2] in names for entry in self.mro)

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


# A member of an enumeration costs a call wherever it is asked for by name.
_NEVER = Recovery.NEVER
_WEIGHTS: dict[str, int] = {kind.value: weight for weight, kind in enumerate(Category, 1)}
_OF_SEVERITY = {
    Severity.RETRIABLE: Category.INFRASTRUCTURE,
    Severity.REPLANNING: Category.DATA,
    Severity.RECLASSIFICATION: Category.DATA,
    Severity.CRITICAL: Category.WORKFLOW,
    Severity.FATAL: Category.SAFETY,
}
"""What a hint without a category weighs as much as."""


def _weight(info: ErrorInfo) -> int:
    """How grave an error calls itself: by its category, else by its severity; 0 where it says neither."""
    said = info.hint or {}
    try:
        if said.get("category") is not None:
            return _WEIGHTS[said["category"]]
        severity, kind = said.get("severity"), said.get("failure_type")
        if severity is None and kind is not None:
            severity = severity_of(FailureType(kind), said.get("cause"))
        return 0 if severity is None else _WEIGHTS[_OF_SEVERITY[Severity(severity)]]
    except (KeyError, TypeError, ValueError):  # words of a newer release, or no words at all
        return 0


class Attempt(NamedTuple):
    """One finished attempt of a run: what it did and how it ended.

    number: from 1. state: as it was at the end. error: None when no exception ended it. action: what
    was decided, None while it is being decided. started, ended: seconds since the epoch.
    """

    number: int
    trajectory: Trajectory
    state: Mapping[str, Any]
    error: ErrorInfo | None
    diagnosis: Diagnosis
    action: Action | None
    usage: Usage
    started: float
    ended: float

    @property
    def failure_type(self) -> FailureType:
        """The diagnosis' failure type."""
        return self.diagnosis.failure_type


class Partial(NamedTuple):
    """What a run that did not finish has to show: its state, last output and usage."""

    state: Mapping[str, Any]
    last_output: Any
    usage: Usage


_NOTHING = Trajectory()


class FailureContext(NamedTuple):
    """Everything a strategy is told about a failure; errors that end a run carry it as `.context`.

    run_id; task: as given to `run`. attempt: the number of the failed attempt, from 1. diagnosis: why
    it failed. error: what is known of the exception, None when a check or a limit failed it.
    exception: the live exception, None after pickling or when there was none. trajectory: the
    attempt's steps. state: as the attempt left it. usage: of the whole run. attempt_history: the
    earlier attempts, oldest first. checkpoint_id: what `Rollback()` would restore, None if nothing
    was recorded. open_subgoals: declared and not completed. tools: names of the tools known to exist.
    elapsed_s: seconds since the run began. seconds_left: until its deadline, None without one.
    draw: a random number from 0 to 1, drawn for this failure from the run's source, for jitter.
    """

    run_id: str
    task: Any
    attempt: int
    diagnosis: Diagnosis
    error: ErrorInfo | None = None
    exception: BaseException | None = None
    trajectory: Trajectory = _NOTHING
    state: Mapping[str, Any] = {}
    usage: Usage = NO_USAGE
    attempt_history: tuple[Attempt, ...] = ()
    checkpoint_id: int | None = None
    open_subgoals: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    seconds_left: float | None = None
    draw: float = 1.0

    @property
    def failure_type(self) -> FailureType:
        """The diagnosis' failure type."""
        return self.diagnosis.failure_type

    @property
    def partial(self) -> Partial:
        """What the attempt has to show all the same."""
        output: Any = None
        for step in reversed(self.trajectory.steps):
            output = step.tool_output if step.tool_output is not None else step.llm_output
            if output is not None:
                break
        return Partial(self.state, output, self.usage)

    def tried(self, action: type[RecoveryAction]) -> int:
        """How often this action was taken for this failure type in this run, this failure not counted."""
        return sum(
            1
            for past in self.attempt_history
            if past.failure_type is self.failure_type and isinstance(past.action, action)
        )

    def failures(self) -> int:
        """How often this failure type has ended an attempt of this run, this failure included."""
        past = self.attempt_history
        return 1 + sum(1 for attempt in past if attempt.failure_type is self.failure_type)

    def __reduce__(self) -> tuple[Any, ...]:
        """The live exception is left out, and a task that cannot be pickled becomes its repr."""
        travelling = self._replace(exception=None)
        task = _picklable(self.task)
        if task is not self.task:
            trajectory = self.trajectory.replace(self.trajectory.steps, task=task)
            history = tuple(
                past._replace(trajectory=past.trajectory.replace(past.trajectory.steps, task=task))
                for past in self.attempt_history
            )
            travelling = travelling._replace(
                task=task, trajectory=trajectory, attempt_history=history
            )
        return (FailureContext, tuple(travelling))


def _picklable(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    import pickle

    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes, made one call before
    except Exception:  # noqa: BLE001 - whatever pickling raises, the error report must travel
        try:
            return repr(value)
        except Exception:  # noqa: BLE001 - a broken __repr__ too
            return f"<{type(value).__name__}>"
    return value
