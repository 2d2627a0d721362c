"""Running compensators: journalled before and after, whether they worked or not."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

from triage.core import (
    UNSAFE,
    Call,
    Compensation,
    CompensatorRan,
    Ledger,
    RunState,
    capture,
    digest,
    is_call,
    logger,
    redact,
)

from .journal import Session
from .tools import CurrentCall, Undoing, calling, pause_before, shown


class NotAtHand(LookupError):
    """The compensator is not available in this process, or a parallel call is running it."""


async def undo(session: Session, attempt: int, entry: Compensation) -> Exception | None:
    """Undo what `entry` is registered for; what the compensator raised last, None if it worked.

    `NotAtHand` where this process does not have it.
    """
    # Taken out before it runs: a parallel call must not undo the same thing at the same time.
    known = session.undo
    compensator = None if known is None else known.pop(entry.seq, None)
    if known is None or compensator is None:
        return NotAtHand(f"the compensator {entry.name} is running, or is not at hand here")
    try:
        return await _tried(session, attempt, entry, compensator)
    finally:
        known[entry.seq] = compensator  # the journal says whether it may be tried again


async def _tried(
    session: Session, attempt: int, entry: Compensation, compensator: Callable[[], Any]
) -> Exception | None:
    facts = {
        "attempt": attempt,
        "registered": entry.seq,
        "name": entry.name,
        "key": entry.key,
    }
    env = session.config.env
    key = digest(session.run_id, f"undo:{entry.key}:{entry.seq}")
    for retry in itertools.count(1):
        session.add(CompensatorRan, **facts, begins=True)
        try:
            await session.barrier()
        except Exception as error:
            return error
        try:
            await _run(compensator, CurrentCall(entry.name, key, session.run_id))
        except Exception as error:
            info = capture(error, session.handled)
            session.add(CompensatorRan, **facts, error=info)
            tries = compensator.tries if isinstance(compensator, Undoing) else None
            pause = pause_before(
                tries, retry, error, info, draw=env.random(), left=session.seconds_left()
            )
            if pause is None:
                logger.exception("compensator %s failed", entry.name)
                return error
        else:
            session.add(CompensatorRan, **facts)
            return None
        await env.sleep(pause)
    return None  # pragma: no cover - the count has no end


async def _run(compensator: Callable[[], Any], call: CurrentCall) -> None:
    token = calling.set(call)
    try:
        answer = compensator()
        if inspect.isawaitable(answer):
            await answer
    finally:
        calling.reset(token)


async def undo_all(session: Session, attempt: int) -> None:
    """Undo everything the run has done that has a compensator, newest first.

    One that fails stops none of the others; `not_undone` tells of it.
    """
    for entry in reversed(session.state.compensations):
        if not entry.ran:
            await undo(session, attempt, entry)


def may_run(session: Session, entry: Compensation) -> bool:
    """Whether this process can run a compensator that has not run.

    One that was cut off is run again, with the same idempotency key, as it may not have done its work.
    """
    return not entry.ran and session.undo is not None and entry.seq in session.undo


def not_undone(state: RunState) -> tuple[str, ...]:
    """The effects that stay although they were to be undone, newest first, each with the reason.

    Empty where nothing was to be undone: no action said so, and no compensator has begun in vain.
    """
    last = state.history[-1].action if state.history else None
    in_vain = any(entry.tries and not entry.ran for entry in state.compensations)
    if not (in_vain or getattr(last, "compensate", False)):
        return ()
    names = {effect.key: (effect.seq, effect.action, "") for effect in state.effects}
    for call in state.calls.values():
        if call.effect in UNSAFE and call.outcome == "done" and not call.undone:
            names[call.key] = (call.seq, _called(call), "")
        elif call.effect in UNSAFE and call.outcome in (None, "in_doubt"):
            names[call.key] = (call.seq, _called(call), "; its outcome is not known")
    waiting = {entry.key: entry for entry in state.compensations if not entry.ran}
    for key, entry in waiting.items():
        done = state.calls.get(key)
        names.setdefault(key, (entry.at, key if done is None else _called(done), ""))
    return tuple(
        redact(f"{name} stays: {_why(waiting.get(key))}{more}")
        for key, (_, name, more) in sorted(names.items(), key=lambda item: -item[1][0])
    )


def _called(call: Call) -> str:
    return f"{call.tool}({shown(call.arguments)})"


def _why(entry: Compensation | None) -> str:
    if entry is None:
        return "it has no compensator"
    if entry.error is not None:
        error = f"{entry.error.type_name}: {entry.error.message}"
        return f"the compensator {entry.name} failed with {error} after {tried(entry)}"
    if entry.tries:
        return f"the compensator {entry.name} was cut off after {tried(entry)}"
    return f"the compensator {entry.name} did not run, or is not at hand in this process"


def tried(entry: Compensation) -> str:
    """How often a compensator was started, in words."""
    return "1 try" if entry.tries == 1 else f"{entry.tries} tries"


def behind(state: RunState, position: int | None) -> list[Compensation]:
    """The compensators, newest first, of what a rollback to a position does not keep. None: of all."""
    ledger = None if position is None else state.ledger_at(position)
    kept = calls_kept(ledger, position)
    found: list[Compensation] = []
    for entry in reversed(state.compensations):
        call = state.calls.get(entry.key)
        at = entry.at if call is None or call.done_at is None else call.done_at
        if not entry.ran and entry.key not in kept and (position is None or at > position):
            found.append(entry)
    return found


def calls_kept(ledger: Ledger | None, position: int | None) -> frozenset[str]:
    """Keys of the recorded calls among the steps up to a position."""
    if ledger is None or position is None:
        return frozenset()
    steps = ledger.cut(position).steps
    return frozenset(step.metadata["call"] for step in steps if step.metadata and is_call(step))


def available(session: Session, key: str) -> list[Compensation]:
    """The compensators that can still undo a call or a hand-written step, newest first."""
    return [
        entry
        for entry in reversed(session.state.compensations)
        if entry.key == key and may_run(session, entry)
    ]
