"""What the packages have in common that only try again: no steps, no checkpoints and no diagnosis."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .measure import Body, Run


async def echo(task: str) -> str:
    """The function that returns its task."""
    return task


def pausing(body: Body, steps: int) -> Run:
    """The function of `Peer.recovering`, not wrapped; each step is a pause alone."""

    async def function(task: str) -> None:
        body.enter(task)
        for _ in range(steps):
            await asyncio.sleep(0)
        body.leave(task)

    return function


def stepping(_outputs: list[str]) -> None:
    """There are no steps here."""


def classifying(_steps: int) -> None:
    """There is no diagnosis here."""
