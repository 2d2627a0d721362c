"""What an adapter costs, and what it saves: each framework bare, with its own retries, and wrapped.

    python -m bench.adapters [--only langgraph] [--rounds 20] [--strict]

Cost: the time that a processor works for one turn, a model call and a tool call, of the same agent bare and
wrapped, taken in turn in one process; the provider answers from another. Recovery: the same scripts of
failures for each way to recover. Done: the answer was the right one. Requests: what was asked of the
provider. Repeated: charges that were made more than once. `--strict` exits with 1 where a wrapped agent
costs more than promised.

A framework is one module of bench.frameworks with a FRAMEWORK, named in NAMES here.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from triage import FailurePolicy, Replan, Retry
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

NAMES = ("langgraph", "pydantic_ai", "openai_agents")
TURNS = 20
PROMISED = 0.05
HINT = "Answer with what you have."


class Task(NamedTuple):
    """What an agent is made of. tools: plain async functions. effects: as `triage.wrap` takes them."""

    tools: list[Callable[..., Any]]
    effects: Mapping[str, str]


Make = Callable[[Task, str], Callable[[], Awaitable[str]]]
"""Makes an agent of a task, whose model is the provider at that address; what it is called with."""


class Framework(NamedTuple):
    """bare, wrapped: the same agent without and with an adapter. ways: to recover, by name."""

    name: str
    bare: Make
    wrapped: Make
    ways: Mapping[str, Make]


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


async def look(what: str) -> str:
    """Look something up."""
    return f"saw {what}"


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


async def cost(framework: Framework, rounds: int) -> tuple[float, float, float]:
    """The middle ratio of the costs; milliseconds of a turn, bare and wrapped."""
    task = Task([look], {"look": "read"})
    with provider() as url:
        bare, wrapped = framework.bare(task, url), framework.wrapped(task, url)
        for warm in (bare, wrapped, bare, wrapped):
            assert await warm() == "done"
        gc.collect()
        gc.freeze()
        pairs = [(await _worked(bare), await _worked(wrapped)) for _ in range(rounds)]
    ratio = statistics.median(after / before for before, after in pairs)
    turn = [1000 * statistics.median(times) / TURNS for times in zip(*pairs, strict=True)]
    return ratio, turn[0], turn[1]


async def _worked(run: Callable[[], Awaitable[str]]) -> float:
    began = time.process_time()
    await run()
    return time.process_time() - began


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
        except Exception as error:  # noqa: BLE001 - whatever it is, it is how the task ended
            done = type(error).__name__
        else:
            done = "done" if text == "done" else f"{text[:24]!r}"
    charges = world.deeds.count("charge(300)")
    return Outcome(done, len(world.requests), max(0, charges - 1))


# The program ----------------------------------------------------------------------------------------


async def report(names: list[str], rounds: int) -> float:
    """Print all figures; the highest cost of wrapping."""
    highest = 0.0
    for name in names:
        framework: Framework = import_module(f"bench.frameworks.{name}").FRAMEWORK
        ratio, bare, wrapped = await cost(framework, rounds)
        highest = max(highest, ratio - 1)
        print(f"\n{name}: {bare:.2f} ms a turn bare, {wrapped:.2f} wrapped: {ratio - 1:+.1%}\n")
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
    parser.add_argument("--rounds", type=int, default=20, help="pairs to take the median of")
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
