"""Objects of frameworks without an adapter: what they ask models is seen on the wire.

Their tools are not recorded. Where calling such an object again would repeat a change that it has made,
its model goes on from its earlier turns instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from triage.core.errors import UsageError
from triage.engine.calls import Run
from triage.engine.undeclared import GOES_ON

__all__ = ["runner_of"]

_ASYNC = (
    "arun", "run_async", "async_run", "ainvoke", "invoke_async", "kickoff_async", "akickoff", "achat",
    "acall", "aforward", "run", "invoke", "__call__",
)  # fmt: skip
_SYNC = ("run", "invoke", "kickoff", "chat", "__call__")


class _Entry(NamedTuple):
    """The method by which an object is run. keyword: the name under which it takes the task, or None."""

    method: Callable[..., Any]
    keyword: str | None


def runner_of(target: object) -> Callable[..., Any] | None:
    """A function that runs an object once with a task; None where no method of it is known to.

    The first method of a usual name that takes one argument, an async one before others: sync ones run in
    a thread. A hint is written into what is asked of models, so the function takes the run, and no hint.
    """
    entry = _entry(target, _ASYNC, inspect.iscoroutinefunction)
    if entry is not None:
        known = entry

        async def attempt(task: Any, *, run: Run, **kwargs: Any) -> Any:  # noqa: ARG001 - in place of a hint
            return await _called(known, task, kwargs)

        return _named(attempt, target)
    entry = _entry(target, _SYNC, _is_sync)
    if entry is None:
        return None
    sync = entry

    def attempt_sync(task: Any, *, run: Run, **kwargs: Any) -> Any:  # noqa: ARG001 - in place of a hint
        result = _called(sync, task, kwargs)
        if inspect.isawaitable(result):
            raise UsageError(
                f"{type(target).__name__}.{sync.method.__name__} gives something to await; wrap a function "
                "that awaits it: triage.Agent(function)"
            )
        return result

    return _named(attempt_sync, target)


def _called(entry: _Entry, task: Any, kwargs: dict[str, Any]) -> Any:
    if entry.keyword is None:
        return entry.method(task, **kwargs)
    return entry.method(**{entry.keyword: task, **kwargs})


def _entry(target: object, names: tuple[str, ...], fits: Callable[[Any], bool]) -> _Entry | None:
    for name in names:
        method = getattr(target, name, None)
        if method is None or not fits(method):
            continue
        try:
            parameters = list(inspect.signature(method).parameters.values())
        except (TypeError, ValueError):
            continue
        needed = [one for one in parameters if _is_needed(one)]
        if len(needed) > 1 or not parameters:
            continue
        taking = needed[0] if needed else parameters[0]
        is_keyword = taking.kind is inspect.Parameter.KEYWORD_ONLY
        return _Entry(method, taking.name if is_keyword else None)
    return None


def _is_needed(parameter: inspect.Parameter) -> bool:
    spread = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in spread


def _is_sync(method: Any) -> bool:
    is_generator = inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method)
    return callable(method) and not is_generator


def _named(function: Callable[..., Any], target: object) -> Callable[..., Any]:
    setattr(function, GOES_ON, True)
    name = getattr(target, "name", None)
    named = name if isinstance(name, str) and name else type(target).__name__
    function.__name__ = function.__qualname__ = named
    return function
