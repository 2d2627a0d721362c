"""Playing a script on a bench, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Self

from triage._agent import Agent
from triage.errors import TriageError
from triage.events import Event, RunFinished, StepRecorded
from triage.failures import Attempt
from triage.state import fold
from triage.steps import Step, Usage

from ._bench import Bench
from ._loopback import provider
from ._script import Script, World
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
        return [step for step in steps if not (step.metadata or {}).get("replayed")]

    @property
    def models(self) -> list[Step]:
        """The steps of model calls."""
        return [step for step in self.steps if step.tool_called is None]

    @property
    def tools(self) -> list[Step]:
        """The steps of tool calls."""
        return [step for step in self.steps if step.tool_called is not None]

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
        made = self.bench.agent(self.world, self._url, observers=[self.events.append], **options)
        return await self._stack.enter_async_context(made)

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
        return await stage.of(lambda: agent.run(TASK))
