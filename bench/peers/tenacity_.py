"""tenacity: tries again; it knows no steps, no checkpoints and no diagnosis."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from .measure import Body, Run

package = "tenacity"


def _wrapped(function: Callable[[str], Coroutine[Any, Any, Any]]) -> Run:
    tenacity: Any = import_module(package)
    run: Run = tenacity.retry(
        retry=tenacity.retry_if_exception_type(ConnectionError),
        stop=tenacity.stop_after_attempt(10),
        wait=tenacity.wait_none(),
        reraise=True,
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
    return (
        "from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_none\n"
        "retry(retry=retry_if_exception_type(ConnectionError), stop=stop_after_attempt(10), "
        "wait=wait_none())(f)"
    )
