"""The handle of one attempt as the agent has it: `run`, and `current_run()` for code deep inside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from ._recorder import Recorder, current
from .errors import UsageError


class Run(Recorder):
    """One attempt of a run, seen from inside. Safe to use from tasks and threads of the attempt.

    After the attempt every recording raises `AttemptOver`; after an interrupt, `AttemptInterrupted`.
    """

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or `@triage.tool`, recorded; its result, reused if it is known already.

        A sync function runs in a thread. One that is no tool has the effect `unknown`: it is not
        repeated by any recovery. Raises what the function raises.
        """
        return await _driver()(self, function, args, kwargs)


@cache
def _driver() -> Callable[..., Awaitable[Any]]:
    # Once: each time it is said, it takes a tenth as long as the whole call.
    from ._drivers import call_any

    return call_any


def current_run() -> Run:
    """The attempt the calling code runs in. Raises UsageError outside of any."""
    run = current.get()
    if run is None:
        raise UsageError(
            "current_run() was called outside of a run; call it from an agent function"
        )
    assert isinstance(run, Run)
    return run
