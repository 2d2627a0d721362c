"""An attempt that records nothing any more: noticed beside it, and interrupted."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anyio

from ._run import Run

LOOKS = 4
"""Looks within the time allowed: a stall is seen at most a quarter of it late."""


async def guarded(run: Run, seconds: float, work: Awaitable[Any]) -> Any:
    """What `work` gives or raises; interrupted once nothing was recorded for so many seconds."""
    failed: BaseException | None = None
    result = None
    async with anyio.create_task_group() as group:
        group.start_soon(_look, run, seconds)
        try:
            result = await work
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised below: a task group would wrap it
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        try:
            raise failed
        finally:
            del failed  # its traceback holds this frame
    return result


async def _look(run: Run, seconds: float) -> None:
    env = run.session.config.env
    seen, since = run.recorded, env.monotonic()
    while run.interrupt is None:
        await env.sleep(seconds / LOOKS)
        if run.recorded != seen:
            seen, since = run.recorded, env.monotonic()
        elif env.monotonic() - since >= seconds:
            run.stop(run.session.limits.time_is_up("stall_seconds"))
