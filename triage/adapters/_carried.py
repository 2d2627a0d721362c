"""The conversation of the attempts before, read from the journal for one that goes on with a new plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from triage._recorder import Recorder
from triage._tally import tally
from triage.actions import Replan, Rollback
from triage.events import CallFinished
from triage.failures import Attempt
from triage.steps import Step
from triage.taxonomy import UNSAFE, Cause, FailureType

from ._recording import MODEL


class Turn(NamedTuple):
    """One turn of a conversation.

    kind: `model`, whose `value` is the answer as `form.dump` gave it, or `tool`, whose `value` is what
    the tool gave. name: the tool, or whose model it is. id: the model's id of a tool's call, None where
    it is not known. error: what the tool failed with, None where it did not.
    """

    kind: Literal["model", "tool"]
    name: str
    value: Any
    id: str | None = None
    error: str | None = None


def carried(run: Recorder) -> tuple[Turn, ...]:
    """What the attempt's conversation begins with. The calls in it count as made by this attempt."""
    history = run.session.state.history
    steps: list[tuple[int, Step]] = []
    for past in history:
        action = past.action
        if isinstance(action, Replan):
            steps = [] if _starts_anew(past) else steps + list(_kept(past))
        elif isinstance(action, Rollback):
            steps = []  # its calls are given again one by one
    if not steps:
        return ()
    _count(run, [step for _, step in steps])
    return tuple(_turns(run, steps))


def _starts_anew(past: Attempt) -> bool:
    diagnosis = past.diagnosis
    if diagnosis.cause == Cause.OUTPUT_CUT:
        return False  # the answer was too long, not what it answers
    return diagnosis.failure_type is FailureType.CONTEXT_OVERFLOW


def _kept(past: Attempt) -> Iterator[tuple[int, Step]]:
    """An attempt's steps; of a loop, those before it: what turned round once need not be seen again."""
    steps = past.trajectory.steps
    diagnosis = past.diagnosis
    if diagnosis.failure_type is FailureType.LOOP_DETECTED and diagnosis.critical_step is not None:
        steps = steps[: diagnosis.critical_step]
    for step in steps:
        yield past.number, step


def _count(run: Recorder, steps: list[Step]) -> None:
    """What was done stays done: the calls that are carried are met, and the next of a kind is another."""
    counted = tally(run)
    for step in steps:
        key = (step.metadata or {}).get("call")
        if key is None or step.tool_called is None or step.effect not in UNSAFE:
            continue
        counted.carry(run, step.tool_called, key)


def _turns(run: Recorder, steps: list[tuple[int, Step]]) -> Iterator[Turn]:
    results = _results(run)
    for number, step in steps:
        metadata = step.metadata or {}
        key = metadata.get("call")
        if step.action == MODEL and key is not None:
            value = results.get((number, key))
            if value is not None:
                yield Turn("model", key.rsplit(":", 2)[0], value)
        elif step.tool_called is not None:
            yield Turn("tool", step.tool_called, step.tool_output, metadata.get("id"), step.error)


def _results(run: Recorder) -> dict[tuple[int, str], Any]:
    """What each call gave, by attempt and key; one that was given again has what it had."""
    latest: dict[str, Any] = {}
    found: dict[tuple[int, str], Any] = {}
    for event in run.session.events:
        if isinstance(event, CallFinished) and event.outcome == "done":
            if not event.replayed:
                latest[event.key] = event.result
            found[event.attempt, event.key] = latest.get(event.key)
    return found
