"""Play a script on a bench, look at the outcome, and check an adapter with one scenario."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Protocol, Self

from triage.core.errors import TriageError
from triage.core.events import AttemptStarted, Event, RunFinished, StepRecorded
from triage.core.failures import Attempt
from triage.core.state import fold, is_reused
from triage.core.steps import Step, Usage
from triage.engine.agents import Agent
from triage.testing.time import VirtualTime

from .bench import Bench, Heard, Script, World, asks, call
from .providers import check_wire, provider

CAPABILITIES: Mapping[str, str] = {
    "endings": "it is known why an answer of the model ended",
    "parallel_tools": "the model may ask for several tools in one turn, which run side by side",
    "tool_errors": "the exception of a tool reaches the run as it was raised, with its status",
    "streams": "answers reach the caller in pieces",
    "sub_agents": "an agent may be a tool of another",
    "handoffs": "an agent may hand the conversation over to another",
    "history": "a conversation may begin in the middle",
    "approvals": "the framework itself has a person asked before a tool is called",
    "client_retries": "the model's client may try again by itself",
    "short_requests": "messages of a request may be made shorter before it is sent",
    "other_models": "another model may be asked, by its name",
}
"""What a framework may offer besides the minimum that every adapter owes: see `Bench.offers`."""

CHARGE, SEARCH = asks(call("charge", cents=300)), asks(call("search", query="x"))
HINT = "Answer with what you have."
TASK = "Do the work."


class Played(NamedTuple):
    """The outcome of a run on a bench. result: the model's last words, or None after an error."""

    world: World
    events: list[Event]
    result: str | None
    error: TriageError | None

    @property
    def steps(self) -> list[Step]:
        """The recorded steps, without reused calls."""
        steps = [event.step for event in self.events if isinstance(event, StepRecorded)]
        return [step for step in steps if not is_reused(step.metadata)]

    @property
    def models(self) -> list[Step]:
        return [step for step in self.steps if step.action == "model"]

    @property
    def tools(self) -> list[Step]:
        return [step for step in self.steps if step.tool_called is not None]

    @property
    def heard(self) -> list[list[str]]:
        """The pieces of streamed answers that the caller received, for each attempt."""
        found: list[list[str]] = []
        for entry in self.world.log:
            if isinstance(entry, AttemptStarted):
                found.append([])
            elif isinstance(entry, Heard):
                assert found, "a piece came before the first attempt"
                found[-1].append(entry.text)
        return found

    def owner(self, step: Step) -> str:
        """The helper that made a call, from its step; empty for the agent itself.

        The step names the tool call that it is part of, or the helper's own model; a tool call may also be
        attributed to the model that asked for it.
        """
        about = step.metadata or {}
        within = str(about.get("within", "")).partition(" ")[0]
        if step.action == "model" and not within and "call" not in about:
            # A failed try names no call; the call's next try, or its end, comes behind it.
            later = iter(self.models)
            after = next(later, None) if any(one is step for one in later) else None
            return "" if after is None else self.owner(after)
        if within or step.action == "model":
            name = re.split(r"[ /#:]", str(about.get("call", "")))
            return within or next((one for one in self.world.script.helpers if one in name), "")
        asked = {"tool": step.tool_called, "arguments": step.tool_input}
        asking = [one for one in self.models if asked in (one.tool_output or ())]
        return self.owner(asking[-1]) if asking else "nobody"

    @property
    def failures(self) -> list[Attempt]:
        return fold(self.events).history

    @property
    def failure(self) -> Attempt:
        """The one attempt that failed. Raises AssertionError for none, and for several."""
        failures = self.failures
        assert len(failures) == 1, f"{len(failures)} attempts failed, not 1"
        return failures[0]

    @property
    def diagnosis(self) -> str:
        """The diagnosis of the one failed attempt: its failure type and cause."""
        return diagnosis_of(self.failure)

    @property
    def usage(self) -> Usage:
        return fold(self.events).usage

    @property
    def status(self) -> str:
        """The run's final status in the journal; empty if it has not ended."""
        ended = [event.status for event in self.events if isinstance(event, RunFinished)]
        return ended[-1] if ended else ""

    def count(self, deed: str) -> int:
        """How often a tool's body began with these arguments."""
        return self.world.deeds.count(deed)

    def told(self, hint: str = HINT) -> list[int]:
        """How often the hint stands in each request."""
        return [request.text.count(hint) for request in self.world.requests]

    def check_done(
        self,
        result: str = "done",
        *,
        deeds: list[str] | None = None,
        requests: int | None = None,
        diagnosis: str | None = None,
        hints: list[int] | None = None,
    ) -> None:
        """Raise AssertionError unless the run returned this, and all requests and charges were right.

        Every request must be one that its provider accepts, and no charge may be made twice.

        deeds: the tool calls whose bodies began. requests: how many there were. diagnosis: of the one
        attempt that failed. hints: how often the hint stands in each request. None: not checked.
        """
        if self.error is not None:
            raise AssertionError(f"the run ended in an error: {self.error}") from self.error
        assert self.result == result, f"the run gave {self.result!r}, not {result!r}"
        check_wire(self.world.requests)
        paid = Counter(deed for deed in self.world.deeds if deed.startswith("charge"))
        assert max(paid.values(), default=1) == 1, f"it paid more than once: {self.world.deeds}"
        sent, told = len(self.world.requests), self.told()
        assert deeds in (None, self.world.deeds), self.world.deeds
        assert requests in (None, sent), f"{sent} requests, not {requests}"
        assert hints in (None, told), f"the hint stands so often in the requests: {told}"
        if diagnosis is not None:
            assert self.diagnosis == diagnosis, f"it is taken for {self.diagnosis}"


def diagnosis_of(attempt: Attempt) -> str:
    """A failed attempt's failure type and cause, as `external_fault: timeout`."""
    return f"{attempt.failure_type.value}: {attempt.diagnosis.cause}"


class Stage:
    """The setting of one scenario: a world, its provider, and the events of all agents.

    observers: called with each event, too.
    """

    def __init__(
        self, bench: Bench, script: Script, *, observers: Sequence[Callable[[Event], object]] = ()
    ) -> None:
        self._observers = tuple(observers)
        self.bench = bench
        self.world = World(script)
        self.events: list[Event] = []
        self._clock = VirtualTime()
        self._stack = AsyncExitStack()
        self._url = ""

    async def __aenter__(self) -> Self:
        self._url = await self._stack.enter_async_context(provider(self.world))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def agent(self, **options: Any) -> Agent[Any]:
        """An agent of the bench with these options; its waits take no time."""
        options.setdefault("environment", self._clock)
        made = self.bench.agent(
            self.world, self._url, observers=[self._see, *self._observers], **options
        )
        return await self._stack.enter_async_context(made)

    async def run(self, agent: Agent[Any]) -> Any:
        """The agent's result for the task."""
        return await agent.run(TASK, **self.bench.given(self.world))

    def _see(self, event: Event) -> None:
        self.events.append(event)
        self.world.log.append(event)

    async def outcome(self, run: Callable[[], Any]) -> Played:
        try:
            result = self.bench.text(await run())
        except TriageError as error:
            return self.played(None, error)
        return self.played(result)

    def played(self, result: str | None = None, error: TriageError | None = None) -> Played:
        """The outcome so far."""
        first = self.events[0].run_id if self.events else ""
        own = [event for event in self.events if event.run_id == first]
        return Played(self.world, own, result, error)


async def play(bench: Bench, script: Script, **options: Any) -> Played:
    """Play a script to its end with an agent of these options."""
    async with Stage(bench, script, observers=options.pop("observers", ())) as stage:
        agent = await stage.agent(**options)
        return await stage.outcome(lambda: stage.run(agent))


class Scenario(Protocol):
    """One way in which agents fail, played on a bench. Raises AssertionError for what goes wrong."""

    __name__: str

    def __call__(self, bench: Bench, /) -> Awaitable[None]:
        """Play it."""
        ...


_needs: dict[Scenario, frozenset[str]] = {}


def scenario(*needs: str) -> Callable[[Any], Scenario]:
    """Declare a scenario, and the capabilities without which it cannot be played."""

    def declare(function: Any) -> Scenario:
        _needs[function] = frozenset(needs)
        declared: Scenario = function
        return declared

    return declare


def declared_in(module: str) -> tuple[Scenario, ...]:
    """The scenarios that a module has declared, in order."""
    return tuple(one for one in _needs if one.__module__ == module)


def needs_of(scenario: Scenario) -> frozenset[str]:
    """The capabilities without which a scenario cannot be played; none where every adapter owes it."""
    return _needs.get(scenario, frozenset())


def not_offered(bench: Bench, scenario: Scenario) -> str | None:
    """What a scenario needs and a bench does not offer, as text; None if it can be played."""
    missing = needs_of(scenario) - set(bench.offers)
    return f"not offered: {', '.join(sorted(missing))}" if missing else None


async def check_adapter(bench: Bench, scenario: Scenario) -> str | None:
    """Play a scenario on a bench and return None; or return which capabilities the framework lacks for it.

    Raises AssertionError, with the scenario's name, for what the adapter gets wrong, and for a bench that
    offers an unknown capability.
    """
    unknown = set(bench.offers) - set(CAPABILITIES)
    if unknown:
        raise AssertionError(
            f"{bench.name}.offers names no capability: {', '.join(sorted(unknown))}; there are: "
            f"{', '.join(CAPABILITIES)}"
        )
    missing = not_offered(bench, scenario)
    if missing is not None:
        return missing
    try:
        await scenario(bench)
    except AssertionError as error:
        raise AssertionError(f"{bench.name}, {scenario.__name__}: {error}") from error
    return None
