"""tenacity: tries again; it knows no steps, no checkpoints and no diagnosis."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import retrying
from .retrying import classifying, stepping

if TYPE_CHECKING:
    from .measure import Body, Run

__all__ = ["classifying", "clean", "creation", "package", "recovering", "stepping"]

package = "tenacity"


def _wrapped(function: Run) -> Run:
    tenacity: Any = import_module(package)
    run: Run = tenacity.retry(
        retry=tenacity.retry_if_exception_type(ConnectionError),
        stop=tenacity.stop_after_attempt(10),
        wait=tenacity.wait_none(),
        reraise=True,
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
    return (
        "from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_none\n"
        "retry(retry=retry_if_exception_type(ConnectionError), stop=stop_after_attempt(10), "
        "wait=wait_none())(f)"
    )
