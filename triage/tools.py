"""`@triage.tool`: tools that record themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ._drivers import call_async, call_sync
from ._tool import TOOL_ATTRIBUTE, Compensator, Tool, current_call
from .errors import UsageError
from .taxonomy import Effect

if TYPE_CHECKING:
    from .strategies.backoff import Preset

__all__ = ["Compensator", "current_call", "tool"]

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
    match: Literal["arguments", "position"] = ...,
    timeout: float | None = ...,
    retries: int | Preset | None = ...,
    name: str | None = ...,
) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Make a function or method, sync or async, record its calls by itself.

    effect: `read`, `idempotent`, `once` or `unknown` (the default, as unsafe to repeat as `once`).
    compensate: undoes a call; given the result, and those of the call's arguments it names; a
    `Compensator` may be tried more than once. key: says what a call is known by, given the arguments
    it names. ignore: parameters that are no part of the call (clients, sessions). match: `position`
    knows the n-th call of the attempt by its place, whatever its arguments, as long as the attempt
    takes the course of the one before; for model calls, and only for `read` and `idempotent`. timeout:
    seconds, above 0, for each try. retries: tries after the first, a number or a `Preset`, where the
    error says that nothing happened or the tool may be repeated; None tries once. name: None takes the
    function's.

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
