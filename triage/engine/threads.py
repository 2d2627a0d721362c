"""Make work that an attempt gives to threads part of the attempt.

A Python thread does not inherit the context variables of the code that starts it. While an attempt is
current, the package's own variables are copied into the new thread or pool task; other variables are left
alone.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from threading import Thread
from typing import Any

from triage.core.observers import logger

from .run import Carried, current

__all__ = ["carry"]

_OURS = "triage_"
"""Prefix of the names of the package's context variables."""
_lock = threading.Lock()


def carry() -> None:
    """Carry attempts into threads and pools from now on. Does nothing a second time."""
    with _lock:
        if hasattr(Thread.start, "triage_original"):
            return
        for owner, name, made in (
            (ThreadPoolExecutor, "submit", _submit),
            (Thread, "start", _start),
        ):
            original = getattr(owner, name)
            method: Any = functools.wraps(original)(made(original))
            method.triage_original = original
            setattr(owner, name, method)


def _submit(original: Any) -> Any:
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        carried = _carried()
        if carried is None or _is_apart(self):
            return original(self, fn, *args, **kwargs)
        # The pool may start a thread now, which serves other runs later.
        token = current.set(None)
        try:
            return original(self, functools.partial(_within, carried, fn), *args, **kwargs)
        finally:
            current.reset(token)

    return submit


def _start(original: Any) -> Any:
    def start(self: Any) -> Any:
        carried = _carried()
        if carried is None:
            return original(self)
        own = vars(self)
        before = own.get("run")
        work = self.run

        def restore() -> None:
            own.pop("run", None)
            if before is not None:
                own["run"] = before

        def run() -> Any:
            restore()
            return _within(carried, work)

        own["run"] = run
        try:
            return original(self)
        except BaseException:
            restore()
            raise

    return start


_Values = list[tuple[ContextVar[Any], Any]]


def _carried() -> _Values | None:
    """Return the variables to carry into another thread; None outside of an attempt."""
    run = current.get()
    if run is None or run.session.config.seam == "off":
        return None
    try:
        ours = [(var, value) for var, value in copy_context().items() if var.name.startswith(_OURS)]
        return [(var, Carried.of(value)) for var, value in ours]
    except Exception:
        logger.exception("run %s: a thread is not made part of it", run.run_id)
        return None


def _within(values: _Values, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run work with these variables set."""
    tokens = [var.set(value) for var, value in values]
    try:
        return work(*args, **kwargs)
    finally:
        for token in reversed(tokens):
            token.var.reset(token)


def _is_apart(pool: ThreadPoolExecutor) -> bool:
    """Whether a pool runs its work in other interpreters, which do not share our objects."""
    return any(kind.__module__ == "concurrent.futures.interpreter" for kind in type(pool).__mro__)
