"""Running compensators: journalled before and after, whether they worked or not."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from ._ledger import Ledger
from ._serde import digest
from ._session import Session
from ._tool import CurrentCall, Undoing, calling
from ._tries import pause_before
from .events import CompensatorRan
from .observers import logger
from .state import Compensation, RunState, is_call

BEGINS, ENDED = True, False
"""What a `CompensatorRan` says."""


class NotUndone(NamedTuple):
    """A compensator that did not do it, and why."""

    entry: Compensation
    error: Exception

    def __str__(self) -> str:
        name, error = self.entry.name, self.error
        return f"the compensator {name} failed with {type(error).__name__}: {error}"


async def undo(session: Session, attempt: int, entry: Compensation) -> Exception | None:
    """Undo what `entry` is registered for; what the compensator raised last, None if it worked."""
    # Taken out before it runs: a parallel call must not undo the same thing at the same time.
    known = session.undo
    compensator = None if known is None else known.pop(entry.seq, None)
    if known is None or compensator is None:
        return LookupError(f"the compensator {entry.name} is running, or not of this process")
    try:
        return await _tried(session, attempt, entry, compensator)
    finally:
        known[entry.seq] = compensator  # the journal says whether it may be tried again


async def _tried(
    session: Session, attempt: int, entry: Compensation, compensator: Callable[[], Any]
) -> Exception | None:
    from ._capture import capture

    facts = (attempt, entry.seq, entry.name, entry.key)
    env = session.config.env
    key = digest(session.run_id, f"undo:{entry.key}:{entry.seq}")
    for retry in itertools.count(1):
        session.add(CompensatorRan, *facts, None, BEGINS)
        try:
            await session.barrier()
        except Exception as error:  # noqa: BLE001 - the caller decides; nothing has run
            return error
        try:
            await _run(compensator, CurrentCall(entry.name, key, session.run_id))
        except Exception as error:  # noqa: BLE001 - the caller decides; it is journalled and logged
            info = capture(error)
            session.add(CompensatorRan, *facts, info, ENDED)
            tries = compensator.tries if isinstance(compensator, Undoing) else None
            pause = pause_before(
                tries, retry, error, info, draw=env.random(), left=session.seconds_left()
            )
            if pause is None:
                logger.exception("compensator %s failed", entry.name)
                return error
        else:
            session.add(CompensatorRan, *facts, None, ENDED)
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


async def undone(session: Session, attempt: int, entry: Compensation) -> Exception | None:
    """As `undo`, where this process can; the reason where it cannot."""
    if may_run(session, entry):
        return await undo(session, attempt, entry)
    return LookupError("it was cut off and may have done its work, or is not of this process")


async def undo_all(session: Session, attempt: int) -> list[NotUndone]:
    """Undo everything the run has done that has a compensator, newest first; what was not undone.

    One that fails stops none of the others.
    """
    failed: list[NotUndone] = []
    for entry in reversed(session.state.compensations):
        if entry.ran:
            continue
        error = await undone(session, attempt, entry)
        if error is not None:
            failed.append(NotUndone(entry, error))
    return failed


def may_run(session: Session, entry: Compensation) -> bool:
    """Whether this process can run a compensator that has not run.

    One that was cut off may have done its work: it is run again only if it may be repeated.
    """
    compensator = None if session.undo is None else session.undo.get(entry.seq)
    if compensator is None or entry.ran:
        return False
    return not entry.begun or (isinstance(compensator, Undoing) and compensator.tries is not None)


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
