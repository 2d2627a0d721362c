"""Keep code that reads values from outside from raising."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_MOST_LOGGED = 256
_logged: set[tuple[str, str, int]] = set()


def guarded(instead: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function return `instead(…)`, called with the same arguments, where it would raise.

    The failure is logged once for each function and line, without the value. instead: must not raise or
    show the unreadable value.
    """

    def decorate(guard: Callable[P, R]) -> Callable[P, R]:
        @wraps(guard)
        def caught(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return guard(*args, **kwargs)
            except Exception as error:
                _log(guard.__qualname__, error)
            answer: R = instead(*args, **kwargs)
            return answer

        return caught

    return decorate


def _log(name: str, error: Exception) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else trace.tb_frame.f_code.co_filename
    failure = (name, place, 0 if trace is None else trace.tb_lineno)
    if failure in _logged or len(_logged) >= _MOST_LOGGED:
        return
    _logged.add(failure)
    # Without the error's text and traceback, which may show the value.
    logging.getLogger("triage").error(
        "%s could not read a value, which is left out: %s at %s:%d; not logged again",
        name,
        type(error).__name__,
        *failure[1:],
    )
