"""`@triage.tool`: tools that record themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

from ._drivers import call_async, call_sync
from ._tool import TOOL_ATTRIBUTE, Tool, current_call
from .errors import UsageError
from .taxonomy import Effect

__all__ = ["current_call", "tool"]

F = TypeVar("F", bound=Callable[..., Any])


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    effect: Effect | str = ...,
    compensate: Callable[..., Any] | None = ...,
    key: Callable[..., Any] | None = ...,
    ignore: tuple[str, ...] = ...,
    timeout: float | None = ...,
    name: str | None = ...,
) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Make a function or method, sync or async, record its calls by itself.

    effect: `read`, `idempotent`, `once` or `unknown` (the default, as unsafe to repeat as `once`).
    compensate: undoes a call; given the result, and those of the call's arguments it names. key: says
    what a call is known by, given the arguments it names. ignore: parameters that are no part of the
    call (clients, sessions). timeout: seconds, above 0. name: None takes the function's.

    Outside of a run the function is called as it is. Raises UsageError for options that do not fit.
    """
    if function is None:
        return lambda decorated: _decorate(decorated, options)
    return _decorate(function, options)


def _async(known: Tool) -> Callable[..., Any]:
    async def recorded(*args: Any, **kwargs: Any) -> Any:
        return await call_async(known, args, kwargs)

    return recorded


def _sync(known: Tool) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        return call_sync(known, args, kwargs)

    return recorded


def _decorate(function: Any, options: dict[str, Any]) -> Any:
    if isinstance(function, staticmethod | classmethod):
        kind = type(function)
        return kind(_decorate(function.__func__, options))
    if not callable(function):
        raise UsageError(f"tool() decorates a function, not {type(function).__name__}")
    if hasattr(function, TOOL_ATTRIBUTE):
        raise UsageError(f"{function.__name__} is a tool already; decorate it once")
    known = Tool(function, **options)
    recorded = functools.wraps(function)(_async(known) if known.is_async else _sync(known))
    setattr(recorded, TOOL_ATTRIBUTE, known)
    return recorded
