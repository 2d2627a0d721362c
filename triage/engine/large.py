"""Work on large values in threads of its own, so that the event loop goes on meanwhile.

Copying in Python lets other threads in every few milliseconds; the event loop is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import RunVar

from triage.core import large, plain

from .cancellation import unbroken
from .tools import Given, Tool

__all__ = ["apart", "copied", "is_large", "large_given", "off_loop"]

R = TypeVar("R")

THREADS = 4
"""How many large values of an event loop are worked on at once."""
_limiter: RunVar[anyio.CapacityLimiter | None] = RunVar("triage_large", default=None)


def is_large(value: Any) -> bool:
    """Whether to copy a value would hold up the event loop: from about 260,000 characters on.

    Of an object, such as a model or a dataclass, its attributes are looked at.
    """
    return large(getattr(value, "__dict__", value))


async def apart(function: Callable[..., R], *args: Any) -> tuple[R, BaseException | None]:
    """Call a function in a thread: what it returns, and a cancellation that came meanwhile.

    The caller raises that once it has written the result down. Raises what the function raises.
    """
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(THREADS)
        _limiter.set(limiter)
    results: list[R] = []

    async def call() -> None:
        results.append(await anyio.to_thread.run_sync(function, *args, limiter=limiter))

    cancelled = await unbroken(call())
    return results[0], cancelled


async def off_loop(value: Any, function: Callable[..., R], *args: Any) -> R:
    """Call a function that looks through a value: in a thread where the value is large.

    Raises what the function raises, or a cancellation that came meanwhile.
    """
    if not is_large(value):
        return function(*args)
    result, cancelled = await apart(function, *args)
    if cancelled is not None:
        raise cancelled
    return result


async def large_given(
    tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any], salt: str
) -> Given | None:
    """The arguments of a call, read in a thread, where they are large; None for others."""
    values = (*args, *kwargs.values())
    if not is_large(values):
        return None
    return await off_loop(values, partial(tool.given, args, kwargs, salt, show=True))


async def copied(value: Any) -> Any:
    """`plain(value)`; in a thread where the value is large."""
    return await off_loop(value, plain, value)
