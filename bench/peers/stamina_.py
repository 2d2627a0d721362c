"""stamina: tries again; it knows no steps, no checkpoints and no diagnosis.

Its hooks, which write a warning for every retry, are switched off: the others write nothing.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from .measure import Body, Run

package = "stamina"


def _wrapped(function: Callable[[str], Coroutine[Any, Any, Any]]) -> Run:
    import_module("stamina.instrumentation").set_on_retry_hooks([])
    stamina: Any = import_module(package)
    run: Run = stamina.retry(
        on=ConnectionError, attempts=10, timeout=None, wait_initial=0, wait_max=0, wait_jitter=0
    )(function)
    return run


def clean() -> Run:
    """As in `Peer`."""

    async def function(task: str) -> str:
        return task

    return _wrapped(function)


def stepping(outputs: list[str]) -> None:
    """There are no steps here."""


def recovering(body: Body, steps: int) -> Run:
    """As in `Peer`."""

    async def function(task: str) -> None:
        body.enter(task)
        for _ in range(steps):
            await asyncio.sleep(0)
        body.leave(task)

    return _wrapped(function)


def classifying(_steps: int) -> None:
    """As in `Peer`."""
    return


def creation() -> str:
    """As in `Peer`."""
    return "import stamina\nstamina.retry(on=ConnectionError)(f)"
