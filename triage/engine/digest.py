"""Digest a run's journal: its figures, its latest failure, and the status that people are shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from triage.core import events
from triage.core.failures import ErrorInfo
from triage.core.quoting import json_text, one_line
from triage.core.state import ActiveTime, is_reused
from triage.core.steps import NO_USAGE, Usage
from triage.core.wire import to_json
from triage.stores.base import RunInfo

from .outside import WAITING, asks_of

ANSWERED, LEFT = "answered, waiting for a worker", "waiting for a worker"
TO_APPROVE = "suspended (approval)"
_MOST_ERRORS = 5
_MOST_TOOLS = 20
TAIL = 8
"""How many of a run's newest events `status_of` has to be given."""


def status_of(info: RunInfo, newest: Sequence[events.Event], time: float) -> str:
    """Return the status of a run as people are shown it.

    newest: at least the last `TAIL` of its events. time: by the store's clock. A run that no process has is
    not called running: it waits for a worker.
    """
    if info.status == "suspended" and asks_of(newest) == "approval":
        return TO_APPROVE
    if info.status == "running" and (info.lease_until or 0.0) <= time:
        return ANSWERED if newest and isinstance(newest[-1], events.RunResumed) else LEFT
    return one_line(info.status, 20)


class Digest:
    """The figures of a run and the words a search finds it by, updated event by event.

    events: how many events it has applied. task: the task on one line. attempts, steps, reused: counts;
    reused steps are not in `steps`. usage: the run's total usage. failure, cause: failure type and cause
    of the latest failed attempt. error: the latest error on one line. question: the open question, or
    "". errors, tools: the latest errors and the first tools, for the search.
    """

    __slots__ = (
        "_active", "_tail", "attempts", "cause", "error", "errors", "events", "failure",
        "question", "reused", "steps", "task", "tools", "usage",
    )  # fmt: skip

    def __init__(self, journal: Iterable[events.Event] = ()) -> None:
        self.events = 0
        self.task = ""
        self.attempts = self.steps = self.reused = 0
        self.usage: Usage = NO_USAGE
        self._active = ActiveTime()
        self._tail: deque[events.Event] = deque(maxlen=TAIL)
        self.failure = self.cause = self.error = self.question = ""
        self.errors: list[str] = []
        self.tools: list[str] = []
        for event in journal:
            self.apply(event)

    def apply(self, event: events.Event) -> None:
        self.events = event.seq + 1
        self._active.apply(event)
        self._tail.append(event)
        match event:
            case events.RunStarted(task=task):
                self.task = one_line(json_text(to_json(task)), 160)
            case events.AttemptStarted(attempt=number):
                self.attempts = number
            case events.StepRecorded():
                self._step(event)
            case events.UsageRecorded(usage=usage):
                self.usage = self.usage.plus(usage)
            case events.CallStarted(tool=tool):
                self._tool(tool)
            case events.AttemptFailed():
                self._failed(event)
            case events.RunSuspended(question=question):
                self.question = one_line(question, 200)
            case events.RunResumed():
                self.question = ""
            case events.RunFinished(error=ErrorInfo() as error):
                self._error(str(error))
            case _:
                pass

    @property
    def busy(self) -> float:
        """Seconds of work, without waits."""
        return self._active.seconds

    @property
    def why(self) -> str:
        """The open question, or else the latest failure, on one line; empty without either."""
        cause = f"({self.cause})" if self.cause else ""
        failure = " ".join(filter(None, (self.failure.replace("_", " "), cause)))
        return self.question or one_line(": ".join(filter(None, (failure, self.error))))

    def status(self, info: RunInfo, time: float) -> str:
        """Return the status of the run, as `status_of`, by the events that were applied."""
        return status_of(info, list(self._tail), time)

    def words(self, info: RunInfo) -> str:
        """Return the text that a search looks at, case-folded."""
        parts = [info.run_id, info.agent, info.status, self.task, self.failure, self.cause]
        return "\n".join([*parts, self.question, *self.errors, *self.tools]).casefold()

    def _step(self, event: events.StepRecorded) -> None:
        step = event.step
        if step.tool_called is not None:
            self._tool(step.tool_called)
        if is_reused(step.metadata):
            self.reused += 1
            return
        self.steps += 1
        if step.usage is not None:
            self.usage = self.usage.plus(step.usage)

    def _tool(self, name: str) -> None:
        name = name[:60]
        if name not in self.tools and len(self.tools) < _MOST_TOOLS:
            self.tools.append(name)

    def _failed(self, event: events.AttemptFailed) -> None:
        found = event.diagnosis
        if found.cause in WAITING:
            return
        self.failure, self.cause = found.failure_type.value, (found.cause or "")[:60]
        self._error(found.user_message if event.error is None else str(event.error))

    def _error(self, text: str) -> None:
        self.error = one_line(text, 200)
        if self.error not in self.errors:
            self.errors = [*self.errors, self.error][-_MOST_ERRORS:]
