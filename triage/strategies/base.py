"""The type of a strategy, and what the files of this room share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypeAlias, cast

from msgspec import Struct

from triage.core import (
    ACTIONS,
    DELAYED,
    PROCEEDING,
    Abort,
    Action,
    Diagnosis,
    Escalate,
    FailureContext,
    FailureType,
    Retry,
    Severity,
    Step,
    UsageError,
    check_takes,
    misuse,
)

Answer: TypeAlias = Action | Awaitable[Action]
Strategy: TypeAlias = Callable[[FailureContext], Answer]
"""Decides what to do about a failure: takes its context and returns an action. May be async."""


class always(Struct, frozen=True):
    """Answers every failure with the same action: what an action given as a strategy becomes."""

    action: Action

    def __post_init__(self) -> None:
        if not isinstance(self.action, ACTIONS):
            raise misuse("always.action", self.action, "an action, such as Retry()")

    def __call__(self, context: FailureContext) -> Action:
        """Return the action."""
        return self.action

    def __repr__(self) -> str:
        return repr(self.action)


def same_again(strategy: Strategy) -> bool:
    """Whether a strategy only tries again, without supplying what a person would have to."""
    if isinstance(strategy, always):
        return isinstance(strategy.action, PROCEEDING)
    return getattr(strategy, "same_again", False) is True


def nothing_new(strategies: Iterable[Strategy | Action | None]) -> bool:
    """Whether all of these only try again or end the run, and one of them tries again."""
    given = [cast("Strategy", strategy) for strategy in strategies if strategy is not None]
    trying = [strategy for strategy in given if not _ends(strategy)]
    return bool(trying) and all(map(same_again, trying))


def _ends(strategy: Strategy) -> bool:
    return isinstance(strategy, always) and isinstance(strategy.action, Escalate | Abort)


def as_strategy(field: str, value: object) -> Strategy:
    """Return `value` as a strategy; an action becomes `always(action)`. Raises UsageError otherwise."""
    if isinstance(value, ACTIONS):
        return always(value)
    wanted = "a strategy (a function of the FailureContext) or an action"
    if isinstance(value, type):
        remedy = f"make one: {value.__name__}(…)"
        raise UsageError(f"{field} must be {wanted}, not the class {value.__name__}; {remedy}")
    if not callable(value):
        raise misuse(field, value, wanted)
    check_takes(field, value, wanted, "the context")
    return cast("Strategy", value)


def then(answer: Answer, go_on: Callable[[Action], Answer]) -> Answer:
    """Return `go_on(action)` for the action that `answer` is, or becomes once awaited."""
    if isawaitable(answer):
        return _awaited(answer, go_on)
    return go_on(answer)


async def _awaited(answer: Awaitable[Action], go_on: Callable[[Action], Answer]) -> Action:
    final: Any = go_on(await answer)
    if isawaitable(final):
        final = await final
    return cast("Action", final)


def used_up(context: FailureContext, what: str, times: int, most: int) -> Escalate | None:
    """Escalate once `what` was done `most` times for this failure type; None before that."""
    if times < most:
        return None
    done = "never allowed" if most == 0 else f"already {what} {counted(times)} (the most is {most})"
    return Escalate(f"{named(context)}: {done}")


def needs_a_person(context: FailureContext) -> Escalate | None:
    """Escalate a diagnosis that repeating cannot fix; None for any other."""
    severity = context.diagnosis.severity
    if severity is not Severity.CRITICAL and severity is not Severity.FATAL:
        return None
    return Escalate(f"{named(context)}: {severity}, a person must act; repeating it cures nothing")


def no_retry(context: FailureContext, most: int) -> Escalate | None:
    """Escalate if a retry fixes nothing, or `most` were made for this failure type; None otherwise."""
    return needs_a_person(context) or used_up(context, "retried", context.tried(Retry), most)


def last_failed(context: FailureContext) -> Step | None:
    """Return the last failed step of this attempt, None without one."""
    return next(
        (step for step in reversed(context.trajectory.steps) if step.error is not None), None
    )


def named(context: FailureContext) -> str:
    """Name the failure in two words: `external_fault (timeout)`."""
    diagnosis = context.diagnosis
    cause = f" ({diagnosis.cause})" if diagnosis.cause else ""
    return f"{diagnosis.failure_type}{cause}"


def counted(times: int) -> str:
    """Write a number of times: `once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(times, f"{times} times")


def sentences(*texts: str | None) -> str:
    """Join the texts that are not empty."""
    return " ".join(text.strip() for text in texts if text and text.strip())


# How long the other side has been down, judging by a run's attempts.


class Outage(Struct, frozen=True):
    """The outage that a failure belongs to.

    retries: how often the function was called again because of it. seconds: from its first failure to
    now, as the sum of the attempts and the delays between them; time without a process does not count.
    """

    retries: int = 0
    seconds: float = 0.0


def may_pass(diagnosis: Diagnosis) -> bool:
    """Whether the other side failed in a way that passes by itself."""
    return (
        diagnosis.failure_type is FailureType.EXTERNAL_FAULT
        and diagnosis.severity is Severity.RETRIABLE
    )


def outage_of(context: FailureContext) -> Outage:
    """Measure the outage that this failure belongs to.

    It begins when the other side first fails, and begins anew after an attempt that made progress: see
    `_Progress`.
    """
    past = context.attempt_history
    progress = _progress(context)
    retries, seconds = 0, 0.0
    took = context.attempt_s
    for at in range(len(past) - 1, -1, -1):
        before = past[at]
        if not may_pass(before.diagnosis) or progress[at + 1] is not _Progress.NONE:
            break
        retries += isinstance(before.action, Retry)
        delay = before.action.delay if isinstance(before.action, DELAYED) else 0.0
        seconds += took + delay
        took = max(0.0, before.ended - before.started)
    return Outage(retries, seconds)


def outage_repeats(context: FailureContext) -> int:
    """Count the attempts that only found the other side still down, or came further than any before.

    The first attempt of an outage is left out, so that an outage counts as one attempt. So is one that
    did different work without coming further, or else a run could fail forever at ever different work.
    """
    progress = _progress(context)
    diagnoses = [*(one.diagnosis for one in context.attempt_history), context.diagnosis]
    return sum(
        isinstance(before.action, Retry)
        and before.action.outage
        and may_pass(diagnoses[number])
        and progress[number] is not _Progress.OTHER
        for number, before in enumerate(context.attempt_history, start=1)
    )


class _Progress(Enum):
    """What an attempt achieved that none before it had. Failed steps do not count.

    FURTHER: more steps than any before. OTHER: no more steps, but a new tool call. NONE: neither. A
    model's words are no progress, as it says the same in other words when asked again.
    """

    NONE = "none"
    OTHER = "other"
    FURTHER = "further"


def _progress(context: FailureContext) -> list[_Progress]:
    """Return the progress of each attempt of the run, the failed one last."""
    found: list[_Progress] = []
    most, calls = 0, set[tuple[str, str]]()
    trajectories = [*(one.trajectory for one in context.attempt_history), context.trajectory]
    for trajectory in trajectories:
        done = [step for step in trajectory.steps if step.error is None]
        new = {
            (step.tool_called, repr(step.tool_input))
            for step in done
            if step.tool_called is not None
        } - calls
        if len(done) > most:
            found.append(_Progress.FURTHER)
        else:
            found.append(_Progress.OTHER if new else _Progress.NONE)
        most = max(most, len(done))
        calls |= new
    return found


# TOML: files of users, with errors that name the file, and text of our own.


def read_toml(path: Path, where: str) -> dict[str, Any]:
    """Read a file of TOML.

    Raises UsageError, which begins with `where`, for one that cannot be read or is not TOML.
    """
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{where}: is not TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a text of TOML. Raises ValueError for any other."""
    import tomllib  # an import of triage would take longer by 3 ms for what few programs use

    return tomllib.loads(text)
