"""Waiting until what a recorded call wrote down is durable, where the run's mode asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._session import Session


async def durable(session: Session) -> None:
    """Wait until all that is recorded is durable. Raises what the store raises, unless the run goes on
    without it.
    """
    try:
        await session.barrier()
    except Exception as error:
        if not session.does_without_store(error):
            raise


def durable_sync(session: Session) -> None:
    """`durable` for code that cannot await: blocks the calling thread."""
    try:
        session.barrier_sync()
    except Exception as error:
        if not session.does_without_store(error):
            raise
