"""`@triage.tool` and `@triage.model`: make functions record their calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar, overload

from triage.core.constructors import unknown_name
from triage.core.errors import UsageError, check_word
from triage.core.taxonomy import Effect
from triage.strategies.ready_made import Preset

from .calls import call_async, call_sync
from .models import Model
from .tools import TOOL_ATTRIBUTE, Tool, declare

__all__ = ["model", "tool"]

F = TypeVar("F", bound=Callable[..., Any])


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    effect: Effect | str | None = ...,
    compensate: Callable[..., Any] | None = ...,
    key: Callable[..., Any] | None = ...,
    ignore: tuple[str, ...] = ...,
    match: Literal["arguments", "position"] = ...,
    timeout: float | None = ...,
    retries: int | Preset | None = ...,
    name: str | None = ...,
) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Make a function or method, sync or async, record its calls.

    effect: `read`, `idempotent`, `once` or `unknown` (as unsafe to repeat as `once`); None infers it from
    the name (`triage.core.infer_effect`), unless the agent has `infer_effects=False`. compensate: undoes a
    call; is passed the result, and the call's arguments that its parameters name; give a `Compensator` for
    retries. key: returns the identity of a call; is passed the arguments that its parameters name. ignore:
    parameters that are no part of the call (clients, sessions). match: `position` identifies the n-th call
    of an attempt by its place, whatever its arguments, while the attempt follows the course of the one
    before; for model calls, and only with `read` and `idempotent`. timeout: seconds, above 0, for each try.
    retries: tries after the first, a number or a `Preset`, if nothing has happened or the tool may be
    repeated; None tries once. name: None takes the function's.

    Outside of a run the plain function is called. Raises UsageError for options that do not fit.
    """
    _check_options(tool, Tool, options)
    if options.get("effect") is not None:
        check_word("tool(effect=…)", options["effect"], tuple(Effect))

    def decorate(decorated: Any) -> Any:
        return _recording(decorated, "tool", partial(Tool, **options))

    return decorate if function is None else decorate(function)


@overload
def model(function: F, /) -> F: ...
@overload
def model(
    *,
    judge: bool = ...,
    ignore: tuple[str, ...] = ...,
    timeout: float | None = ...,
    retries: int | Preset | None = ...,
    name: str | None = ...,
) -> Callable[[F], F]: ...
def model(function: Any = None, /, **options: Any) -> Any:
    """Make a function that asks a model, sync or async, record its calls as model calls.

    After a failure, answers before the point of return are reused, even if a hint has changed the prompt;
    later ones are asked again. judge: the model judges another model's answer; a recovery asks that model
    again, not only the judge. ignore, timeout, retries, name: as of `tool`.

    Outside of a run the plain function is called. Raises UsageError for options that do not fit.
    """
    _check_options(model, Model, options)

    def decorate(decorated: Any) -> Any:
        return _recording(decorated, "model", partial(Model, **options))

    return decorate if function is None else decorate(function)


def _check_options(decorator: Any, made: type, options: Mapping[str, Any]) -> None:
    """Raise UsageError for an unknown option of a decorator."""
    _, *taken = inspect.signature(made).parameters
    for name, value in options.items():
        if name not in taken:
            raise unknown_name(decorator, name, value, taken)


def _recording(function: Any, word: str, make: Callable[[Any], Tool]) -> Any:
    if isinstance(function, staticmethod | classmethod):
        kind = type(function)
        return kind(_recording(function.__func__, word, make))
    if not callable(function):
        raise UsageError(f"{word}() decorates a function, not {type(function).__name__}")
    if hasattr(function, TOOL_ATTRIBUTE):
        known = getattr(function, TOOL_ATTRIBUTE)
        what = "model" if isinstance(known, Model) else "tool"
        raise UsageError(f"{function.__name__} is a {what} already; decorate it once")
    known = make(function)
    if known.is_async:

        @functools.wraps(function)
        async def recorded(*args: Any, **kwargs: Any) -> Any:
            return await call_async(known, args, kwargs)

    else:

        @functools.wraps(function)
        def recorded_sync(*args: Any, **kwargs: Any) -> Any:
            return call_sync(known, args, kwargs)

        recorded = recorded_sync

    setattr(recorded, TOOL_ATTRIBUTE, known)
    declare(recorded)
    return recorded
