"""How long the other side has been down, judging by a run's attempts: `outage_of`."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from triage.core import DELAYED, Diagnosis, FailureContext, FailureType, Retry, Severity

_EXTERNAL_FAULT, _RETRIABLE = FailureType.EXTERNAL_FAULT, Severity.RETRIABLE


class Outage(NamedTuple):
    """The outage that a failure belongs to.

    retries: how often the function was called again because of it. seconds: from its first failure to
    now, as the sum of the attempts and the delays between them; time without a process does not count.
    """

    retries: int = 0
    seconds: float = 0.0


def may_pass(diagnosis: Diagnosis) -> bool:
    """Whether the other side failed in a way that passes by itself."""
    return diagnosis.failure_type is _EXTERNAL_FAULT and diagnosis.severity is _RETRIABLE


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
