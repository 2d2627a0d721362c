"""One place where a plan may put a fault: a call of a tool, of a client or of an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from triage._recorder import Recorder, current
from triage.steps import Step


class Site(NamedTuple):
    """Where a fault happens.

    run: the attempt it is in, None outside of one. client: the package whose errors are raised, None
    for none in particular. timeout: the tool's own, in seconds; None without one. repeat: has the next
    calls, as many as are said, given this answer.
    """

    name: str
    kind: Literal["tool", "client", "agent"]
    run: Recorder | None
    client: str | None
    timeout: float | None
    repeat: Callable[[Any, int], None]

    def record(self, tool: str, **fields: Any) -> None:
        """Record a step that an agent would have recorded."""
        if self.run is not None:
            self.run.record_step(Step(action="call", tool_called=tool, **fields))


def here() -> Recorder | None:
    """The attempt the calling code runs in, None outside of one."""
    return current.get()


def root_of(run: Recorder | None) -> str | None:
    """The id of the outermost run: a run inside another's attempt has a new id each time."""
    if run is None:
        return None
    while run.session.parent is not None:
        run = run.session.parent
    return run.run_id
