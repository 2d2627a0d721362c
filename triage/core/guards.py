"""The net under code that reads values from outside: such a guard answers, whatever it is given."""

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
    """Make a function answer `instead(…)` of the same arguments wherever it would raise.

    The failure is logged once for each function and line, without the value. instead: must not raise,
    and must not show what could not be read.
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
    # Neither the error's text nor its traceback, which may show the value.
    logging.getLogger("triage").error(
        "%s could not read a value, which is left out: %s at %s:%d; not logged again",
        name,
        type(error).__name__,
        *failure[1:],
    )
