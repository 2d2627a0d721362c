"""What an adapter costs, and what it saves: each framework bare, with its own retries, and wrapped.

    python -m bench.adapters [--only langgraph] [--rounds 20] [--strict]

Cost: the time that a processor works for one turn, a model call and a tool call, of the same agent bare and
wrapped, each twice, in one process; the provider answers from another. They go on turn by turn, each while
the others wait, so that whatever else the machine does meets all four alike, and the processor's caches
know the one's code as well as the other's. The figure is the middle of what turns that stood side by side
differ by, with its standard error, and the same of the two that are bare, which says how far a figure can
be trusted. Recovery: the same scripts of failures for each way to recover. Done: the answer was the right
one. Requests: what was asked of the provider. Repeated: charges that were made more than once. `--strict`
exits with 1 where a wrapped turn surely costs a millisecond more: by more than two standard errors.

A framework is one module of bench.frameworks with a FRAMEWORK, named in NAMES here.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import triage
from triage import Agent, FailurePolicy, Replan, Retry
from triage.testing.adapter_contract import (
    Fails,
    Request,
    Rule,
    Script,
    World,
    asks,
    call,
    loopback,
    says,
)

NAMES = (
    "langgraph", "langchain", "pydantic_ai", "openai_agents", "openai_client", "anthropic_client",
)  # fmt: skip
TURNS = 20
TRIES = 3
"""How often the own ways of a framework try again."""
PROMISED = 1.0
"""Milliseconds that wrapping may add to a turn."""
HINT = "Answer with what you have."


class Task(NamedTuple):
    """What an agent is made of. tools: plain async functions. effects: as `triage.wrap` takes them."""

    tools: list[Callable[..., Any]]
    effects: Mapping[str, str]


Ask = Callable[[], Awaitable[str]]
"""Asks an agent for its last words."""
Make = Callable[[Task, str], Ask]
"""Makes an agent of a task, whose model is the provider at that address."""


@dataclass(frozen=True)
class Framework:
    """How a framework's agent is made and asked, bare and wrapped.

    make: an agent of a task, whose model is the provider at an address. ask: an agent that is bare, for its
    last words. text: these from the result of a wrapped one. own: agents with the framework's own ways to
    try again, by name. also: more that are wrapped, by name. options: of their runs. wrap: makes a wrapped
    agent of a task and an address; by default `triage.wrap` does.
    """

    name: str
    make: Callable[[Task, str], Any]
    ask: Callable[[Any, str], Awaitable[str]]
    text: Callable[[Any], str]
    own: Mapping[str, Callable[[Task, str], Any]]
    also: Mapping[str, Callable[[Task, str], Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    wrap: Callable[[Task, str], Agent[Any]] | None = None

    def bare(self, task: Task, url: str, make: Callable[[Task, str], Any] | None = None) -> Ask:
        """Ask an agent without an adapter."""
        agent = (make or self.make)(task, url)
        return lambda: self.ask(agent, "go")

    def wrapped(self, task: Task, url: str, make: Callable[[Task, str], Any] | None = None) -> Ask:
        """Ask the same agent with one."""
        if self.wrap is not None:
            agent = self.wrap(task, url)
        else:
            made = (make or self.make)(task, url)
            agent = triage.wrap(made, policy(), effects=task.effects)

        async def run() -> str:
            return self.text(await agent.run("go", **self.options))

        return run

    @property
    def ways(self) -> Mapping[str, Make]:
        """All ways to recover, by name."""
        return {
            "bare": self.bare,
            **{name: partial(self.bare, make=make) for name, make in self.own.items()},
            "wrapped": self.wrapped,
            **{name: partial(self.wrapped, make=make) for name, make in self.also.items()},
        }


def client_framework(
    name: str,
    client: Callable[[str], Any],
    retrying: Callable[[str], Any],
    record: Callable[[Any], Any],
    loop: Callable[[Any, Task], Callable[[str], Coroutine[Any, Any, str]]],
) -> Framework:
    """A client in a plain loop: bare, with its own retries, and recorded.

    client, retrying: of an address. loop: asks a client, with the tools of a task, until the answer.
    """

    def wrap(task: Task, url: str) -> Agent[str]:
        tools = [triage.tool(effect=task.effects[tool.__name__])(tool) for tool in task.tools]
        return Agent(loop(record(client(url)), Task(tools, task.effects)), policy())

    return Framework(
        name,
        lambda task, url: loop(client(url), task),
        lambda agent, given: agent(given),
        str,
        own={"with the client's retries": lambda task, url: loop(retrying(url), task)},
        wrap=wrap,
    )


def policy() -> FailurePolicy:
    """Of all wrapped agents: retry at once what comes from outside, plan anew for the rest."""
    return FailurePolicy(EXTERNAL_FAULT=Retry(), default=Replan(HINT))


# Cost -----------------------------------------------------------------------------------------------


class Turns(World):
    """A model that looks something up so many times, and then is done."""

    def __init__(self) -> None:
        super().__init__(Script(()))

    def answer(self, protocol: str, body: dict[str, Any]) -> Any:
        """The next look, by how many there have been."""
        self.requests.append(Request(protocol, {}, ""))  # each has ids of its own
        asked = sum(message.get("role") == "assistant" for message in body["messages"])
        return asks(call("look", what=f"part {asked}")) if asked < TURNS else says("done")


@contextmanager
def provider() -> Generator[str]:
    """A provider in another process."""
    command = [sys.executable, "-m", "bench.adapters", "--provider"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


class Lanes:
    """Agents in one event loop, of which one works at a time: from one call of its tool to the next.

    worked: the processor's seconds for each of these, by agent.
    """

    def __init__(self, count: int) -> None:
        self.worked: list[list[float]] = [[] for _ in range(count)]
        self._may = [asyncio.Event() for _ in range(count)]
        self._runs = [False] * count
        self._began = 0.0

    def tool(self, lane: int) -> Callable[..., Any]:
        """The tool of one of them."""

        async def look(what: str) -> str:
            """Look something up."""
            self.worked[lane].append(time.process_time() - self._began)
            self._give_way(lane)
            await self._come_on(lane)
            return f"saw {what}"

        return look

    async def go(self, agents: Sequence[Callable[[], Awaitable[str]]], first: int) -> None:
        """Let each of them run once."""
        self._runs = [True] * len(agents)
        runs = [asyncio.create_task(self._run(lane, agent)) for lane, agent in enumerate(agents)]
        self._may[first].set()
        await asyncio.gather(*runs)

    async def _run(self, lane: int, agent: Callable[[], Awaitable[str]]) -> None:
        await self._come_on(lane)
        try:
            assert await agent() == "done"
        finally:
            self._runs[lane] = False
            self._give_way(lane)

    async def _come_on(self, lane: int) -> None:
        await self._may[lane].wait()
        self._may[lane].clear()
        self._began = time.process_time()

    def _give_way(self, lane: int) -> None:
        count = len(self._runs)
        for other in ((lane + more) % count for more in range(1, count + 1)):
            if self._runs[other]:
                self._may[other].set()
                return


class Cost(NamedTuple):
    """What a turn costs.

    In milliseconds. bare, wrapped: the middle of all turns. more: what wrapping adds. error: its standard
    error. noise: as `more`, of the bare agent against itself.
    """

    bare: float
    wrapped: float
    more: float
    error: float
    noise: float


async def cost(framework: Framework, rounds: int) -> Cost:
    """What a turn of an agent costs."""
    lanes = Lanes(4)
    with provider() as url:
        made = [
            make(Task([lanes.tool(lane)], {"look": "read"}), url)
            for lane, make in enumerate((framework.bare, framework.wrapped) * 2)
        ]
        for _ in range(2):
            await lanes.go(made, 0)
        gc.collect()
        gc.freeze()
        turns: list[list[float]] = [[] for _ in made]
        for at in range(rounds):
            lanes.worked = [[] for _ in made]
            await lanes.go(made, at % len(made))
            for lane, worked in enumerate(lanes.worked):
                turns[lane] += worked[1:]  # before the first call the run began
    bare, wrapped, bare_2, wrapped_2 = turns
    more, error = _middle([500 * (w + x - a - b) for a, w, b, x in zip(*turns, strict=True)])
    noise, _ = _middle([1000 * (b - a) for a, b in zip(bare, bare_2, strict=True)])
    turn, more_turn = (
        1000 * statistics.median(times) for times in (bare + bare_2, wrapped + wrapped_2)
    )
    return Cost(turn, more_turn, more, error, noise)


def _middle(values: list[float]) -> tuple[float, float]:
    """The median of values, and its standard error, from their order."""
    found = sorted(values)
    half = math.sqrt(len(found)) / 2
    low, high = (int(len(found) / 2 + side) for side in (-half, half))
    spread = found[min(high, len(found) - 1)] - found[max(low, 0)]
    return statistics.median(found), spread / 2


# Recovery -------------------------------------------------------------------------------------------

SEARCH, CHARGE = asks(call("search", query="x")), asks(call("charge", cents=300))
PAID_FIRST = (Rule(says("done"), "found 17"), Rule(SEARCH, "receipt 5"), Rule(CHARGE))
SEARCHED_FIRST = (Rule(says("done"), "receipt 5"), Rule(CHARGE, "found 17"), Rule(SEARCH))
OVERLOADED = Fails(503, "Overloaded")


class Reset(ConnectionError):
    """What a tool raises whose service went away."""


SCRIPTS: Mapping[str, Script] = {
    "the provider is overloaded once": Script(SEARCHED_FIRST, faults={3: OVERLOADED}),
    "the provider limits the rate twice": Script(
        PAID_FIRST, faults={2: Fails(429, "Rate limit", 0.0), 3: Fails(429, "Rate limit", 0.0)}
    ),
    "the provider is down for five requests": Script(
        PAID_FIRST, faults=dict.fromkeys(range(2, 7), OVERLOADED)
    ),
    "a tool fails once, after a charge": Script(
        PAID_FIRST, tools={"search": (Reset("reset by peer"), "found 17")}
    ),
    "a charge is lost on its way back": Script(
        (Rule(says("done"), "receipt 5"), Rule(CHARGE)),
        tools={"charge": (TimeoutError("read timed out"), "receipt 5")},
    ),
    "the answer is cut off": Script(
        (Rule(says("done"), HINT), Rule(says("half of i", ended="length")))
    ),
    "the model goes round in a loop": Script(
        (Rule(says("done"), HINT), Rule(SEARCH)), tools={"search": ("nothing",)}
    ),
}


class Outcome(NamedTuple):
    """What one way made of one script. done: in its word."""

    done: str
    requests: int
    repeated: int


async def recover(make: Make, script: Script) -> Outcome:
    """Play a script in one way."""
    world = World(script)
    with loopback(world) as url:
        try:
            text = await make(Task(world.functions(), world.effects), url)()
        except Exception as error:
            done = type(error).__name__
        else:
            done = "done" if text == "done" else f"{text[:24]!r}"
    charges = world.deeds.count("charge(300)")
    return Outcome(done, len(world.requests), max(0, charges - 1))


# The program ----------------------------------------------------------------------------------------


async def report(names: list[str], rounds: int) -> float:
    """Print all figures; the most that wrapping surely adds to a turn, in milliseconds."""
    highest = 0.0
    for name in names:
        framework: Framework = import_module(f"bench.frameworks.{name}").FRAMEWORK
        turn = await cost(framework, rounds)
        highest = max(highest, turn.more - 2 * turn.error)
        print(
            f"\n{name}: {turn.bare:.2f} ms a turn bare, {turn.wrapped:.2f} wrapped: {turn.more:+.2f} ms "
            f"(±{turn.error:.2f}; bare against bare {turn.noise:+.2f})\n"
        )
        print("| script | way | ended | requests | repeated |\n|---|---|---|---|---|")
        for about, script in SCRIPTS.items():
            for way, make in framework.ways.items():
                found = await recover(make, script)
                print(f"| {about} | {way} | {found.done} | {found.requests} | {found.repeated} |")
    return highest


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.adapters", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument(
        "--rounds", type=int, default=20, help=f"runs of {TURNS} turns to take the middle of"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 where it costs too much")
    parser.add_argument("--provider", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    if options.provider:
        with loopback(Turns()) as url:
            print(url, flush=True)
            sys.stdin.read()
        return 0
    highest = asyncio.run(report(options.only, options.rounds))
    return int(options.strict and highest > PROMISED)


if __name__ == "__main__":
    sys.exit(main())
