"""Running a compensator: journalled whether it worked or not."""

from __future__ import annotations

import inspect
from typing import Any

from ._session import Session
from .events import CompensatorRan
from .observers import logger
from .state import Compensation


async def undo(session: Session, attempt: int, entry: Compensation) -> Exception | None:
    """Undo what `entry` is registered for; what the compensator raised, None if it worked."""
    # Taken out before it runs: a parallel call must not undo the same thing at the same time.
    compensator = None if session.undo is None else session.undo.pop(entry.seq, None)
    if session.undo is None or compensator is None:
        return LookupError(f"the compensator {entry.name} is running, or not of this process")
    try:
        answer: Any = compensator()
        if inspect.isawaitable(answer):
            await answer
    except Exception as error:  # noqa: BLE001 - the caller decides; it is journalled and logged
        from ._capture import capture

        session.undo[entry.seq] = compensator  # it may be tried again
        session.add(CompensatorRan, attempt, entry.seq, entry.name, entry.key, capture(error))
        logger.exception("compensator %s failed", entry.name)
        return error
    session.add(CompensatorRan, attempt, entry.seq, entry.name, entry.key, None)
    return None


def available(session: Session, key: str) -> list[Compensation]:
    """The compensators that can still undo a call or a hand-written step, newest first."""
    known = session.undo or {}
    return [
        entry
        for entry in reversed(session.state.compensations)
        if entry.key == key and not entry.ran and entry.seq in known
    ]
