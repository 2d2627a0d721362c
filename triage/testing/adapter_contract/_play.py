"""Playing a script on a bench, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Self

from triage._agent import Agent
from triage.errors import TriageError
from triage.events import AttemptStarted, Event, RunFinished, StepRecorded
from triage.failures import Attempt
from triage.state import fold, is_reused
from triage.steps import Step, Usage

from ._bench import Bench
from ._loopback import provider
from ._script import Heard, Script, World
from ._wire import check_wire, times_told

HINT = "Answer with what you have."
TASK = "Do the work."


class Played(NamedTuple):
    """What a run on a bench did. result: the model's last words, None where it ended in an error."""

    world: World
    events: list[Event]
    result: str | None
    error: TriageError | None

    @property
    def steps(self) -> list[Step]:
        """What was recorded, reused calls left out."""
        steps = [event.step for event in self.events if isinstance(event, StepRecorded)]
        return [step for step in steps if not is_reused(step.metadata)]

    @property
    def models(self) -> list[Step]:
        """The steps of model calls."""
        return [step for step in self.steps if step.action == "model"]

    @property
    def tools(self) -> list[Step]:
        """The steps of tool calls."""
        return [step for step in self.steps if step.tool_called is not None]

    @property
    def heard(self) -> list[list[str]]:
        """What the caller was given of streamed answers, piece by piece, for each attempt."""
        found: list[list[str]] = []
        for entry in self.world.log:
            if isinstance(entry, AttemptStarted):
                found.append([])
            elif isinstance(entry, Heard):
                assert found, "a piece came before the first attempt"
                found[-1].append(entry.text)
        return found

    def owner(self, step: Step) -> str:
        """The helper that made a call, as its step says; empty for the agent itself.

        A model call says it by the tool's call that it is part of, or by the name of its own; a tool's
        call in the same way, or it is the one that asked for it.
        """
        about = step.metadata or {}
        within = str(about.get("within", "")).partition(" ")[0]
        if within or step.action == "model":
            name = re.split(r"[ /#:]", str(about.get("call", "")))
            return within or next((one for one in self.world.script.helpers if one in name), "")
        asked = {"tool": step.tool_called, "arguments": step.tool_input}
        asking = [one for one in self.models if asked in (one.tool_output or ())]
        return self.owner(asking[-1]) if asking else "nobody"

    @property
    def failures(self) -> list[Attempt]:
        """The attempts that failed."""
        return fold(self.events).history

    @property
    def failure(self) -> Attempt:
        """The attempt that failed. Raises AssertionError unless it is one."""
        failures = self.failures
        assert len(failures) == 1, f"{len(failures)} attempts failed, not 1"
        return failures[0]

    @property
    def diagnosis(self) -> str:
        """What the one failed attempt was taken for: its failure type and cause."""
        return diagnosis_of(self.failure)

    @property
    def usage(self) -> Usage:
        """What the run used."""
        return fold(self.events).usage

    @property
    def status(self) -> str:
        """How the run ended, in the journal's word; empty where it has not."""
        ended = [event.status for event in self.events if isinstance(event, RunFinished)]
        return ended[-1] if ended else ""

    def count(self, deed: str) -> int:
        """How often a tool's body began with these arguments."""
        return self.world.deeds.count(deed)

    def told(self, hint: str = HINT) -> list[int]:
        """How often the hint stands in each request."""
        return [times_told(request, hint) for request in self.world.requests]

    def check_done(self, result: str = "done") -> None:
        """Raise AssertionError unless the run gave this, and every request was valid."""
        if self.error is not None:
            raise AssertionError(f"the run ended in an error: {self.error}") from self.error
        assert self.result == result, f"the run gave {self.result!r}, not {result!r}"
        check_wire(self.world.requests)


def words_of(output: Any) -> Any:
    """What a tool gave: the words of a result that has parts, else the output itself."""
    parts = output.get("content") if isinstance(output, dict) else None
    return "".join(part["text"] for part in parts) if isinstance(parts, list) else output


def diagnosis_of(attempt: Attempt) -> str:
    """A failed attempt's failure type and cause, as `external_fault: timeout`."""
    return f"{attempt.failure_type.value}: {attempt.diagnosis.cause}"


class Stage:
    """Where one scenario is played: a world, its provider, and the events of all its agents."""

    def __init__(self, bench: Bench, script: Script) -> None:
        self.bench = bench
        self.world = World(script)
        self.events: list[Event] = []
        self._stack = AsyncExitStack()
        self._url = ""

    async def __aenter__(self) -> Self:
        self._url = await self._stack.enter_async_context(provider(self.world))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def agent(self, **options: Any) -> Agent[Any]:
        """An agent of the bench with these options."""
        made = self.bench.agent(self.world, self._url, observers=[self._see], **options)
        return await self._stack.enter_async_context(made)

    async def run(self, agent: Agent[Any]) -> Any:
        """What the agent makes of the task."""
        return await agent.run(TASK, **self.bench.given(self.world))

    def _see(self, event: Event) -> None:
        self.events.append(event)
        self.world.log.append(event)

    async def of(self, run: Callable[[], Any]) -> Played:
        """What an awaited run came to."""
        try:
            result = self.bench.text(await run())
        except TriageError as error:
            return self.played(None, error)
        return self.played(result)

    def played(self, result: str | None = None, error: TriageError | None = None) -> Played:
        """What has happened up to now."""
        first = self.events[0].run_id if self.events else ""
        own = [event for event in self.events if event.run_id == first]
        return Played(self.world, own, result, error)


async def play(bench: Bench, script: Script, **options: Any) -> Played:
    """Play a script to its end with an agent of these options."""
    async with Stage(bench, script) as stage:
        agent = await stage.agent(**options)
        return await stage.of(lambda: stage.run(agent))
