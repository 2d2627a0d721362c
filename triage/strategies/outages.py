"""How long the other side has been down, as the attempts of a run show it: `outage_of`."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from triage.core import DELAYED, Diagnosis, FailureContext, FailureType, Retry, Severity

_EXTERNAL_FAULT, _RETRIABLE = FailureType.EXTERNAL_FAULT, Severity.RETRIABLE


class Outage(NamedTuple):
    """The outage that a failure belongs to.

    retries: how often the function was called again for it. seconds: from its first failure to now,
    by what the attempts took and the delays between them; a process that was away does not count.
    """

    retries: int = 0
    seconds: float = 0.0


def may_pass(diagnosis: Diagnosis) -> bool:
    """Whether the other side failed in a way that ends by itself."""
    return diagnosis.failure_type is _EXTERNAL_FAULT and diagnosis.severity is _RETRIABLE


def outage_of(context: FailureContext) -> Outage:
    """How long this failure has lasted: since the other side first failed and nothing was done since.

    Begins anew with each attempt that made progress: see `_Progress`.
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
    """How many attempts of the run only found the other side still down, or came further than any before.

    The first attempt of an outage is none of them, so that an outage counts as one attempt. Neither is
    one that did other work and no more of it, or a run could fail for ever at ever other work.
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
    """What an attempt did that none before it had. Steps that failed do not count.

    FURTHER: more steps than any before. OTHER: not more, but a tool's call that is new. NONE: neither;
    what a model said is no progress, as asked again it says the same in other words.
    """

    NONE = "none"
    OTHER = "other"
    FURTHER = "further"


def _progress(context: FailureContext) -> list[_Progress]:
    """The progress of each attempt of the run, the failed one last."""
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
