"""Methods of frameworks that have no hook around a call, replaced while an attempt runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from types import ModuleType
from typing import Any, Generic, TypeVar

from triage.engine.calls import Run
from triage.engine.run import current

S = TypeVar("S")

_replacing = Lock()
_replaced: set[tuple[type | ModuleType, str]] = set()


def replace_method(owner: type | ModuleType, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a framework's method, or a module's function, with `make(method)`, once per process."""
    with _replacing:
        if (owner, name) in _replaced:
            return
        _replaced.add((owner, name))
        method: Any = inspect.getattr_static(owner, name)
        function = method.__func__ if isinstance(method, classmethod) else method
        new = functools.wraps(function)(make(function))
        setattr(owner, name, classmethod(new) if isinstance(method, classmethod) else new)


class Scopes(Generic[S]):
    """The current attempt of a framework's code, in whatever task or thread it runs.

    A method put in place by `replace_method` asks `active()`, and calls the original where that is None.
    run_of: gives the run of a scope.
    """

    def __init__(self, name: str, run_of: Callable[[S], Run]) -> None:
        self._scope: ContextVar[S | None] = ContextVar(f"triage_{name}", default=None)
        self._run_of = run_of

    @contextmanager
    def entered(self, scope: S | None) -> Generator[None]:
        """Make this code, and tasks and threads it starts, part of an attempt; None: of no attempt."""
        token = self._scope.set(scope)
        try:
            yield
        finally:
            self._scope.reset(token)

    def active(self) -> S | None:
        """The attempt that this code is part of; None outside an attempt."""
        scope = self._scope.get()
        run = current.get()
        # A nested run of another function keeps its own journal.
        if scope is None or (run is not None and run.session is not self._run_of(scope).session):
            return None
        return scope
