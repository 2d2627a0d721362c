"""stamina: tries again; it knows no steps, no checkpoints and no diagnosis.

Its hooks, which write a warning for every retry, are switched off: the others write nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import retrying
from .retrying import classifying, stepping

if TYPE_CHECKING:
    from .measure import Body, Run

__all__ = ["classifying", "clean", "creation", "package", "recovering", "stepping"]

package = "stamina"


def _wrapped(function: Run) -> Run:
    import_module("stamina.instrumentation").set_on_retry_hooks([])
    stamina: Any = import_module(package)
    run: Run = stamina.retry(
        on=ConnectionError, attempts=10, timeout=None, wait_initial=0, wait_max=0, wait_jitter=0
    )(function)
    return run


def clean() -> Run:
    """As in `Peer`."""
    return _wrapped(retrying.echo)


def recovering(body: Body, steps: int) -> Run:
    """As in `Peer`."""
    return _wrapped(retrying.pausing(body, steps))


def creation() -> str:
    """As in `Peer`."""
    return "import stamina\nstamina.retry(on=ConnectionError)(f)"
