"""How many files of the package a reader passes on three trips through a run.

    python -m bench.trips

Runs a small agent under a profiler, prints the files that each trip really enters beside the bound,
and exits with 1 while one is over.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple

from triage import Agent, Step
from triage.stores import SQLiteStore

PACKAGE = Path(__file__).resolve().parents[1] / "triage"


class Trip(NamedTuple):
    """A way through the package. files: those it enters, in order. most: how many it may be."""

    name: str
    files: tuple[str, ...]
    most: int

    @property
    def over(self) -> bool:
        """Whether it enters more."""
        return len(self.files) > self.most


class Trace:
    """Notes the files of the package that are entered between `start` and `stop`, in any thread."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self._on = False

    def start(self) -> None:
        """Note files from now on."""
        self._on = True

    def stop(self) -> None:
        """Note no more files."""
        self._on = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note the file of a call: what `sys.setprofile` calls."""
        if self._on and event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE):
                self.files.setdefault(str(path.relative_to(PACKAGE)))


@contextmanager
def tracing() -> Generator[Trace]:
    """Profile this thread and those that begin inside."""
    trace, before = Trace(), sys.getprofile()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # as the standard library documents it


async def _to_the_function() -> Trace:
    with tracing() as trace:

        async def book(task: str) -> str:
            trace.stop()
            return task

        agent = Agent(book)
        await agent.run("the first run completes the agent's options")
        trace.start()
        await agent.run("Rome")
        return trace


async def from_failure_to_hint() -> Trace:
    """From an exception to the first line of the next attempt."""
    with tracing() as trace:

        async def book(task: str, *, record_step: Callable[..., Any], _triage_hint: Any) -> str:
            trace.stop()
            if _triage_hint is not None:
                return task
            record_step(Step(action="search", tool_called="search", tool_output=[]))
            trace.start()
            raise KeyError("price")

        agent = Agent(book)
        await agent.run("the first run completes the agent's options")
        trace.files.clear()
        await agent.run("Rome")
        return trace


async def _from_step_to_store() -> Trace:
    with TemporaryDirectory() as folder, tracing() as trace:

        async def book(task: str, *, record_step: Callable[..., Any], run: Any) -> str:
            await run.flush()
            trace.start()
            record_step(Step(action="search", tool_called="search", tool_output=[]))
            await run.flush()
            trace.stop()
            return task

        store = SQLiteStore(f"{folder}/runs.db")
        agent = Agent(book, store=store)
        await agent.run("the first run completes the agent's options")
        trace.files.clear()
        await agent.run("Rome")
        await store.close()
        return trace


TRIPS: tuple[tuple[str, Callable[[], Any], int], ...] = (
    ("Agent.run to the user's function", _to_the_function, 6),
    ("an exception to the next call's hint", from_failure_to_hint, 12),
    ("record_step to SQLite", _from_step_to_store, 8),
)


def trips() -> list[Trip]:
    """The three trips, each travelled now."""
    return [Trip(name, tuple(asyncio.run(travel()).files), most) for name, travel, most in TRIPS]


def main() -> int:
    """Print each trip; 1 while one is over its bound."""
    found = trips()
    for trip in found:
        print(
            f"{'OVER' if trip.over else 'ok':4}  {len(trip.files):3} of {trip.most:3}  {trip.name}"
        )
        for file in trip.files:
            print(f"                {file}")
    return int(any(trip.over for trip in found))


if __name__ == "__main__":
    sys.exit(main())
