"""Fork a run: start a new one that continues from a step or a failure of a run that has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from triage.core.actions import Replan, Retry
from triage.core.environment import SYSTEM
from triage.core.errors import RunOver, StaleWriter, UnknownRun, UsageError
from triage.core.events import (
    ApprovalGiven,
    AttemptFailed,
    AttemptStarted,
    CallFinished,
    CallStarted,
    CompensatorRan,
    Event,
    Origin,
    PlanMade,
    RunFinished,
    RunResumed,
    RunStarted,
    StepRecorded,
)
from triage.core.redaction import Redactor
from triage.core.state import Call, RunState, fold
from triage.core.taxonomy import UNSAFE
from triage.core.wire import Keyring, redacted, unsealed
from triage.stores.base import Store

from .config import check_run_id
from .nested import had_effect
from .outside import cancel

FORK = "fork"
"""The kind of the `ApprovalGiven` that records who made a fork; its subject is the id of the origin."""


async def fork(
    store: Store,
    run_id: str,
    *,
    at: int,
    now: float,
    by: str = "",
    action: Retry | Replan | None = None,
    end: bool = False,
    new_id: str | None = None,
    keys: Keyring | None = None,
) -> str:
    """Start a new run from a step or a failure of another, for any worker to recover; return its id.

    at: position of a step, after which the attempt continues, or of an `AttemptFailed`, followed by
    `action`. now: the time of the new events, in seconds since the epoch. by: who forks the run, for the
    journal. action: the answer to a failure; None (default) means `Retry()`, and a step takes None only.
    end: whether to cancel the run first if it has not ended; False by default. new_id: the id of the new
    run, as `run_id` of `Agent.run`; None makes one. keys: decrypt and encrypt the journal's events.

    The new run has the same agent and starts with a copy of the journal up to `at`; it reuses those
    results instead of repeating the calls. Effects that the run had after `at` and that were not undone
    are not repeated either: the new run gets the recorded result for an identical call, and asks a person
    before it makes a different call of the same tool. It cannot undo effects that it shares with other
    forks, and asks a person instead.

    Raises UnknownRun; StoreKeyMissing; UsageError for an id that is taken, a position that is neither a
    step nor a failure, a run that has not ended, a run that follows a plan approved by a person, and a
    run with effects that a fork could repeat unnoticed.
    """
    if new_id is None:
        new_id = SYSTEM.new_id()
    check_run_id(new_id)
    if await store.info(run_id) is None:
        raise UnknownRun(f"the store knows no run {run_id}")
    events = await store.read(run_id)
    if not isinstance(events[-1], RunFinished):
        if not end:
            raise UsageError(
                f"run {run_id} has not ended, and a fork would share effects with a run that continues; "
                "cancel it first, or let the fork cancel it"
            )
        _check_point(events, at, action)
        with suppress(RunOver):  # it ended in the meantime
            await cancel(store, run_id, now=now, by=by)
        events = await store.read(run_id)
    _check_point(events, at, action)
    await _check_effects(store, events, at)
    # Decrypted here and encrypted again below: sealed events open under their own run id only.
    copies = [
        *unsealed(events[: at + 1], keys),
        *_behind(unsealed(events[at + 1 :], keys), at, events),
    ]
    started = copies[0]
    assert isinstance(started, RunStarted)
    salt = started.run_id if started.origin is None else started.origin.salt
    origin = Origin(run_id, at, len(copies), salt)
    copies[0] = replace(started, time=now, parent=None, origin=origin)
    made: list[Event] = [
        replace(event, run_id=new_id, seq=seq, sealed="") for seq, event in enumerate(copies)
    ]
    place = partial(_placed, made, new_id, now)
    place(partial(ApprovalGiven, kind=FORK, subject=run_id, decision="approved", by=by))
    failed = events[at]
    if isinstance(failed, AttemptFailed):
        answer = Retry() if action is None else action
        place(partial(RunResumed, attempt=failed.attempt, action=answer, by=by))
    if any(event.sealed for event in events):
        made = [redacted(event, Redactor(), keys) for event in made]
    try:
        await store.append(new_id, made, at=0, epoch=0)
    except StaleWriter as error:
        raise UsageError(f"run_id {new_id} is taken; choose another") from error
    return new_id


def _placed(made: list[Event], run_id: str, now: float, make: Callable[..., Event]) -> None:
    made.append(make(run_id=run_id, seq=len(made), time=now))


def _check_point(events: Sequence[Event], at: int, action: Retry | Replan | None) -> None:
    """Raise UsageError if a run cannot be forked at this position with this action."""
    run_id = events[0].run_id
    here = events[at] if 0 <= at < len(events) else None
    if not isinstance(here, StepRecorded | AttemptFailed):
        raise UsageError(
            f"position {at} of run {run_id} is neither a step nor a failed attempt; choose one to fork "
            "from"
        )
    if any(isinstance(event, PlanMade) and event.subject for event in events[:at]):
        raise UsageError(
            f"the plan of run {run_id} was approved for that run only, so no fork may follow it; start a "
            "new run with the task"
        )
    if action is not None and not isinstance(here, AttemptFailed):
        raise UsageError("a fork from a step continues its attempt, so it takes no action")
    if not isinstance(action, Retry | Replan | None):
        raise UsageError(f"a fork takes Retry, Replan or None, not {type(action).__name__}")


async def _check_effects(store: Store, events: Sequence[Event], at: int) -> None:
    """Raise UsageError if the new run could repeat an effect unnoticed."""
    state = fold(events)
    run_id, here = state.run_id, events[at]
    starts = [event.seq for event in events[:at] if isinstance(event, AttemptStarted)]
    border = -1 if isinstance(here, AttemptFailed) else max(starts, default=-1)
    for effect in state.effects:
        if effect.seq > border:
            raise UsageError(
                f"the step {effect.action} of run {run_id} had the effect {effect.effect} and was recorded "
                "by hand: a fork would repeat it; make it a @triage.tool"
            )
    for call in state.calls.values():
        if (
            call.run is not None
            and call.outcome is None
            and had_effect(fold(await store.read(call.run)))
        ):
            raise UsageError(
                f"run {call.run} inside run {run_id} was cut off after it had effects, which a fork could "
                "repeat; fork that run, or start a new one"
            )


def _behind(later: Sequence[Event], at: int, events: Sequence[Event]) -> Iterator[Event]:
    """Yield the calls after the fork's point that must not be repeated, moved to the continued attempt.

    Their steps are not copied.
    """
    whole, before = fold(events), fold(events[: at + 1])
    known = {*before.calls, *(effect.key for effect in before.effects)}
    for event in later:
        match event:
            case CallStarted() if _lasts(whole, event.key):
                yield replace(event, attempt=before.attempt)
            case CallFinished(replayed=False) if _lasts(whole, event.key) or _is_open(
                before, event.key
            ):
                yield replace(event, attempt=before.attempt, step=None)
            case CompensatorRan(begins=False, error=None) if event.key in known:
                yield replace(event, attempt=before.attempt)
            case _:
                pass


def _lasts(whole: RunState, key: str) -> bool:
    """Whether a call has, or may have, an effect that was not undone."""
    call = whole.calls[key]
    return call.effect in UNSAFE and not call.undone


def _is_open(before: RunState, key: str) -> bool:
    call: Call | None = before.calls.get(key)
    return call is not None and call.outcome is None and call.effect in UNSAFE
