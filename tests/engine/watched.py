"""Agents whose steps are given, and what was noticed of them while they ran."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from triage import Agent, Checks, FailurePolicy, Retry, Run, Step
from triage.core import Event, WatchNoticed

ONCE_MORE = FailurePolicy(default=Retry())


def call(tool: str = "search", given: Any = "x", output: Any = "nothing", **more: Any) -> Step:
    """A step of a tool."""
    return Step(action="call", tool_called=tool, tool_input=given, tool_output=output, **more)


class Watched:
    """Records the steps it is given in its first attempt, and gives `done` in the next.

    hints: what the first attempt was told after each of its steps. told: the hint of the next. noticed:
    what was noticed, in order. recorded: how many steps the first attempt has recorded.
    """

    def __init__(self, steps: Iterable[Step], **options: Any) -> None:
        self.steps = list(steps)
        self.hints: list[str | None] = []
        self.diagnoses: list[Any] = []
        self.told: str | None = None
        self.events: list[Event] = []
        options.setdefault("policy", ONCE_MORE)
        options.setdefault("observers", [self.events.append])
        self.agent: Agent[str] = Agent(self._works, **options)

    async def _works(self, task: Any, *, run: Run) -> str:
        if run.attempt > 1:
            self.told = run.guidance.hint
            return "done"
        for step in self.steps:
            run.record_step(step)
            self.hints.append(run.guidance.hint)
            self.diagnoses.append(run.guidance.diagnosis)
        return "at once"

    async def run(self) -> str:
        """The result of a run."""
        return await self.agent.run("find it", run_id="watched")

    @property
    def recorded(self) -> int:
        return len(self.hints)

    @property
    def noticed(self) -> list[WatchNoticed]:
        return [event for event in self.events if isinstance(event, WatchNoticed)]

    @property
    def responses(self) -> list[tuple[str, str]]:
        """What was done, and about which finding."""
        return [(one.response, one.rule) for one in self.noticed]

    @property
    def first_hint(self) -> int | None:
        """How many steps were recorded when the agent was first told anything."""
        told = [at for at, hint in enumerate(self.hints, 1) if hint]
        return told[0] if told else None


async def watched(steps: Iterable[Step], watch: Any = None, **options: Any) -> Watched:
    """A run over these steps, watched so; None: as agents are where nothing is said."""
    if watch is not None:
        options["checks"] = Checks(watch=watch)
    one = Watched(steps, **options)
    await one.run()
    return one


def count_calls(work: Callable[[], object], inside: str) -> int:
    """How many functions of a package are called while this runs."""
    count = 0

    def note(frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        if event == "call" and inside in frame.f_code.co_filename:
            count += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
