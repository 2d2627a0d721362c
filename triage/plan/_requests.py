"""What planners and selectors are given, and how they are called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, NamedTuple, TypeAlias

from triage._options import misuse
from triage._tool import Tool
from triage.taxonomy import Effect

from ._plan import ExecutionPlan


class PlanRequest(NamedTuple):
    """What a planner is given.

    task: as given to the run. capabilities: those a plan may use, as `Registry.manifest` tells them.
    results: what is there already, key to type. feedback: what must not be repeated, what is done, and
    what was wrong before; empty the first time. version: of the plan that is to be made, from 1. steps:
    the most it may have. background: what the run was given beside the task. entry: how much the run has
    entered so far; each request has its own, and a process that goes on after another the same.
    """

    task: Any
    capabilities: list[dict[str, Any]]
    results: dict[str, str | None]
    feedback: str = ""
    version: int = 1
    steps: int = 50
    background: Any = None
    entry: int = 0


class SelectionRequest(NamedTuple):
    """What a selector is given.

    task: as given to the run. capabilities: all there are, as `Registry.manifest` tells them. feedback:
    what failed before; empty the first time. selection: which it is, from 1. background: what the run
    was given beside the task.
    """

    task: Any
    capabilities: list[dict[str, Any]]
    feedback: str = ""
    selection: int = 1
    background: Any = None


Planner: TypeAlias = Callable[[PlanRequest], Any | Awaitable[Any]]
"""Makes a plan: an `ExecutionPlan`, its JSON object, or the text of one. Sync ones run in a thread."""
Selector: TypeAlias = Callable[[SelectionRequest], Iterable[str] | Awaitable[Iterable[str]]]
"""Chooses the capabilities a plan may use, by name. Sync ones run in a thread."""


def asked(field: str, function: Any, name: str) -> Tool:
    """A planner or a selector as a recorded call. Raises UsageError for none.

    By position, so that a task without an exact form will do; what is asked makes each call another.
    """
    if isinstance(function, type) or not callable(function):
        raise misuse(field, function, "a function of the request, async or not")
    called = getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async
    if any(map(inspect.iscoroutinefunction, (function, called))):
        return Tool(_async(function), effect=Effect.READ, match="position", name=name)
    return Tool(_sync(function), effect=Effect.READ, match="position", name=name)


def _async(function: Callable[..., Any]) -> Callable[..., Any]:
    async def ask(request: Any) -> Any:
        return as_json(await function(request))

    return ask


def _sync(function: Callable[..., Any]) -> Callable[..., Any]:
    def ask(request: Any) -> Any:
        answer = function(request)
        return Later(answer, as_json) if inspect.isawaitable(answer) else as_json(answer)

    return ask


class Later:
    """What a sync function gave to be awaited, in another form. Trio takes no coroutine from a thread."""

    def __init__(self, answer: Awaitable[Any], form: Callable[[Any], Any]) -> None:
        self._answer = answer
        self._form = form

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._form((yield from self._answer.__await__()))


def as_json(answer: Any) -> Any:
    """An answer in a form that another process can read from the journal, where it has one."""
    if isinstance(answer, ExecutionPlan):
        return answer.to_json()
    dump = getattr(answer, "model_dump", None)
    if dump is not None and not isinstance(answer, type):
        return dump()
    if isinstance(answer, set | frozenset | tuple):
        return sorted(answer, key=str) if isinstance(answer, set | frozenset) else list(answer)
    return answer
