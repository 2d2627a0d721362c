"""A user's function, read once: what it takes, and how it will be called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import UsageError

if TYPE_CHECKING:
    from ._run import Run

_INJECTED: dict[str, Callable[[Run], Any]] = {
    "record_step": lambda run: run.record_step,
    "update_state": lambda run: run.update_state,
    "record_usage": lambda run: run.record_usage,
    "run": lambda run: run,
    "_triage_hint": lambda run: run.told.hint,
    "_triage_subgoal": lambda run: run.told.subgoal,
    "_triage_state": lambda run: run.told.state,
    "_triage_context": lambda run: run.told if run.number > 1 else None,
}


@dataclass(frozen=True, eq=False, repr=False)
class Function:
    """A user's function as it will be called. kind: `async`, `sync` or `generator`.

    injected: the parameters the run fills. wanted: others without a default. known: all that may be
    given by keyword; None when it takes any. of_instance: its first parameter is the instance or class
    it will be bound to.
    """

    function: Callable[..., Any]
    name: str
    kind: str
    injected: tuple[tuple[str, Callable[[Run], Any]], ...]
    wanted: frozenset[str]
    known: frozenset[str] | None
    of_instance: bool

    def check(self, kwargs: Mapping[str, Any]) -> None:
        """UsageError for arguments the function does not take, or that the run fills itself."""
        for name in kwargs:
            if name in _INJECTED and any(name == injected for injected, _ in self.injected):
                raise UsageError(f"{name} is filled by the run; do not give it to run() as well")
            if self.known is not None and name not in self.known:
                known = ", ".join(sorted(self.known)) or "none but the task"
                raise UsageError(f"{self.name} takes no parameter {name}; it takes: {known}")
        missing = self.wanted - kwargs.keys()
        if missing:
            names = ", ".join(sorted(missing))
            raise UsageError(f"{self.name} needs {names}; give it as run(task, {names}=…)")


def read_function(function: Any, *, bound: bool) -> Function:
    """What is to be known of a function before it is called. bound: it is a method of an object.

    Raises UsageError for what cannot be called with a task.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    if not callable(function):
        raise UsageError(f"an agent must be a function, not {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise UsageError(f"{name} has no signature to read; wrap it in a function") from None
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    leading = 2 if not bound and positional and positional[0].name in ("self", "cls") else 1
    if len(positional) < leading and not takes_any:
        raise UsageError(f"{name} takes no task; its first parameter must be the task")
    if positional and positional[leading - 1].name in _INJECTED:
        raise UsageError(
            f"the first parameter of {name} must be the task, not {positional[leading - 1].name}"
        )
    rest = [p for p in parameters if p not in positional[:leading]]
    for p in rest:
        if p.kind is p.POSITIONAL_ONLY and p.default is p.empty:
            raise UsageError(f"{name} takes {p.name} by position only; only the task is given so")
    keywords = [p for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return Function(
        function=function,
        name=name,
        kind=_kind(function, name),
        injected=tuple((p.name, _INJECTED[p.name]) for p in keywords if p.name in _INJECTED),
        wanted=frozenset(
            p.name for p in keywords if p.default is p.empty and p.name not in _INJECTED
        ),
        known=None
        if open_ended
        else frozenset(p.name for p in keywords if p.name not in _INJECTED),
        of_instance=leading > 1,
    )


def whole(function: Any) -> Any:
    """What a `functools.partial` calls; anything else as it is."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _kind(function: Any, name: str) -> str:
    function = whole(function)
    candidates = (function, getattr(function, "__call__", None))  # noqa: B004 - also objects that are called
    if any(inspect.isasyncgenfunction(candidate) for candidate in candidates):
        return "generator"
    if any(inspect.iscoroutinefunction(candidate) for candidate in candidates):
        return "async"
    if any(inspect.isgeneratorfunction(candidate) for candidate in candidates):
        raise UsageError(
            f"{name} is a sync generator; make it an async generator to stream from it"
        )
    return "sync"


def fingerprint(function: Function) -> str:
    """A digest of the function's code, nested functions included: another one means other code.

    Where the code cannot be read (a callable of a compiled module), only the name counts.
    """
    import hashlib
    from types import CodeType

    target = whole(inspect.unwrap(function.function))
    target = getattr(target, "__func__", target)
    if not hasattr(target, "__code__"):  # an object that is called
        target = type(target).__call__
    code = getattr(target, "__code__", None)
    found = hashlib.sha256(function.name.encode())
    waiting = [code] if isinstance(code, CodeType) else []
    while waiting:
        block = waiting.pop()
        found.update(block.co_code)
        found.update(repr(block.co_names).encode())
        for constant in block.co_consts:
            if isinstance(constant, CodeType):
                waiting.append(constant)
            else:
                # The order of a set differs from process to process.
                items = constant if isinstance(constant, frozenset) else (constant,)
                found.update(repr(sorted(map(repr, items))).encode())
    return found.hexdigest()[:16]
